"""Numbers as people read them: as many digits as mean something, a range where there is one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: what is printed where there is no value
NOTHING = "–"
MINUS = "−"


@dataclass(frozen=True)
class Quantity:
    """A column of the page's table of cells."""

    #: a column of CELLS
    measure: str
    heading: str
    unit: str
    #: by which the stored value is multiplied to be in ``unit``
    factor: float = 1.0

    @property
    def decimals(self) -> int | None:
        """The most decimals that mean something; None where significant digits decide.

        What a share in percent has beyond them is noise of the arithmetic.
        """
        return 2 if "%" in self.unit else None


#: the measures that the page's table shows, in order, where they apply to any of its cells
SHOWN = (
    Quantity("tokens_per_s", "Throughput", "tokens/s"),
    Quantity("tokens_per_s_per_gpu", "per GPU", "tokens/s"),
    Quantity("prefill_tokens_per_s_per_gpu", "Prefill per GPU", "tokens/s"),
    Quantity("decode_tokens_per_s_per_gpu", "Decoding per GPU", "tokens/s"),
    Quantity("time_to_first_token_s", "First token", "s"),
    Quantity("time_per_output_token_s", "Output token", "ms", 1e3),
    Quantity("step_time_s", "Step time", "s"),
    Quantity("power_per_gpu_mean_w", "Power per GPU", "W"),
    Quantity("tokens_per_j", "Efficiency", "tokens/J"),
    Quantity("decode_tokens_per_j", "Decoding efficiency", "tokens/J"),
    Quantity("temperature_mean_c", "Mean temperature", "°C"),
    Quantity("temperature_peak_c", "Peak temperature", "°C"),
    Quantity("throttle_power_share", "At power cap", "% of time", 100.0),
    Quantity("throttle_thermal_share", "Thermal slowdown", "% of time", 100.0),
    Quantity("temperature_spread_c", "Spread in a node", "°C"),
    Quantity("mfu_6n", "MFU, 6N", "%", 100.0),
    Quantity("mfu_causal", "MFU, causal", "%", 100.0),
    Quantity("mfu_full_attention", "MFU, full attention", "%", 100.0),
    Quantity("energy_delay_product_js", "Energy-delay of a step", "kJ·s", 1e-3),
    Quantity("samples_per_s_per_mj", "Study's efficiency", "1/(s·MJ)"),
    Quantity("memory_peak_bytes", "Peak memory", "GB", 1e-9),
)
#: the measures of energy, steadiness and the watching itself, where any completed cell has them
WATCHED = (
    Quantity("energy_j", "Energy of all GPUs, trapezoid", "kJ", 1e-3),
    Quantity("energy_counter_j", "Energy of all GPUs, counter", "kJ", 1e-3),
    Quantity("energy_difference", "Counter over trapezoid, less 1", "%", 100.0),
    Quantity("energy_systematic_share", "Systematic error of both", "± %", 100.0),
    Quantity("node_energy_j", "Energy of whole nodes", "kJ", 1e-3),
    Quantity("power_peak_w", "Peak of one package, at least", "W"),
    Quantity("idle_power_w", "Idle power of all GPUs, before", "W"),
    Quantity("cool_down_s", "Waited for cool GPUs", "s"),
    Quantity("step_time_drift", "Drift of step time", "%", 100.0),
    Quantity("power_drift", "Drift of power", "%", 100.0),
    Quantity("temperature_drift_c", "Drift of temperature", "°C"),
    Quantity("sampler_cpu_share", "Sampler's CPU time", "% of a core", 100.0),
)


def significant(value: float, digits: int = 3, decimals: int | None = None) -> str:
    """A number to ``digits`` significant digits, never in exponents, with thousands set apart.

    Whole digits are never rounded away: 12345.6 is "12,346". At most ``decimals`` digits follow
    the point, where that is given: what is less is "0.00". A negative number has a minus sign,
    not a hyphen.
    """
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    rounded = round(value, places)
    if rounded and math.floor(math.log10(abs(rounded))) > math.floor(math.log10(abs(value))):
        places = max(0, places - 1)
    if decimals is not None and places > decimals:
        places = decimals
        # Adding 0 makes 0 of −0.
        rounded = round(value, places) + 0.0
    return f"{rounded:,.{places}f}".replace("-", MINUS)


def counted(number: int, thing: str) -> str:
    """A number of things: "1 run", "2 runs"."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def shown(cell: Mapping[str, Any], quantity: Quantity) -> tuple[str, str, float | None]:
    """A cell's median as text, its range as text ("" where it is one run's), and the number."""
    value = cell[quantity.measure]
    if value is None:
        return NOTHING, "", None
    middle, low, high = (
        cell[quantity.measure + end] * quantity.factor for end in ("", "_low", "_high")
    )
    text, least, most = (
        significant(number, decimals=quantity.decimals) for number in (middle, low, high)
    )
    if cell["completed"] < 2:
        return text, "", middle
    # A dash beside a minus sign could not be read.
    return text, f"{least} to {most}" if low < 0 else f"{least}–{most}", middle
