"""What is compared: measures of runs, how they are contrasted, and how a difference is said."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from workflow_lib.records import Outcome, inapplicable
from workflow_lib.report.cells import Row

#: half of a whole degree, in which GPUs give their temperature
READING_ERROR_C = 0.5

RATIO, DIFFERENCE = "ratio", "difference"


@dataclass(frozen=True)
class Measure:
    """A measure that is compared."""

    name: str
    heading: str
    unit: str
    #: what A does where it has more, and where it has less: "{}" is by how much
    more: str
    less: str
    contrast: Literal["ratio", "difference"] = "ratio"
    #: by which the stored value is multiplied to be in ``unit``
    factor: float = 1.0
    #: whether it is read from a GPU's sensors, so that simulated and real ones do not compare
    read: bool = False
    #: whether a gain error of power sensors is in it, and whether it raises (1) or lowers it (−1)
    gain: Literal[-1, 0, 1] = 0
    #: the columns of RUNS that it is made of
    columns: tuple[str, ...] = ()
    #: which of several cells is best by it, if that is asked
    best: Literal["", "most", "least"] = ""

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns of RUNS without which a run has no value."""
        return self.columns or (self.name,)

    @property
    def is_temperature(self) -> bool:
        return self.unit == "°C"

    @property
    def difference_unit(self) -> str:
        """The unit of a difference: that of shares is another than of the shares themselves."""
        return "percentage points" if "%" in self.unit else self.unit

    def applies(self, workload: str) -> bool:
        """Whether it means anything for a workload."""
        return not inapplicable(workload) & set(self.needs)

    def of_run(self, run: Row) -> float | None:
        """A run's value, in the unit of its columns; null where one of them is."""
        values = [run[column] for column in self.needs]
        if None in values:
            return None
        if self.name == "energy_per_token_j":
            return 1 / values[0] if values[0] else None
        if self.name == "energy_per_step_j":
            return float(values[0] / values[1]) if values[1] else None
        return float(values[0])

    def values(self, runs: Sequence[Row]) -> tuple[list[float], str]:
        """The values of completed runs; none and why where one lacks it.

        A contrast over some of the runs would hide that the others lack the measure.
        """
        found = [self.of_run(run) for run in runs]
        whole = [value for value in found if value is not None]
        if len(whole) == len(found):
            return whole, ""
        run = next(run for run, value in zip(runs, found, strict=True) if value is None)
        reasons: Mapping[str, str] = json.loads(run["missing_reasons"] or "{}")
        given = [reasons[column] for column in self.needs if column in reasons]
        return [], f"run {run['run']}: {given[0] if given else 'no reason was recorded'}"


def completed_runs(runs: Sequence[Row]) -> list[Row]:
    """Those that completed, by number."""
    done = [run for run in runs if run["outcome"] == Outcome.COMPLETED.value]
    return sorted(done, key=lambda run: run["run"])


def _faster(name: str, heading: str, doing: str) -> Measure:
    words = f"{doing} {{}} faster", f"{doing} {{}} slower"
    return Measure(name, heading, "tokens/s", *words, best="most")


def _used(name: str, heading: str, unit: str, words: str, factor: float = 1.0) -> Measure:
    """Energy or power; the word "more" in ``words`` becomes "less"."""
    both = words, words.replace("more", "less")
    columns = _MADE_OF.get(name, ())
    return Measure(name, heading, unit, *both, factor=factor, read=True, gain=1, columns=columns)


def _of_a_joule(name: str, heading: str, unit: str, more: str, less: str) -> Measure:
    return Measure(name, heading, unit, more, less, read=True, gain=-1, best="most")


def _heat(name: str, heading: str, where: str) -> Measure:
    return Measure(
        name,
        heading,
        "°C",
        f"is {{}} hotter {where}",
        f"is {{}} cooler {where}",
        "difference",
        read=True,
        best="least",
    )


def _share(name: str, heading: str, where: str) -> Measure:
    return Measure(
        name,
        heading,
        "% of time",
        f"spends {{}} more of the time {where}",
        f"spends {{}} less of the time {where}",
        "difference",
        factor=100.0,
        read=True,
    )


_MADE_OF = {
    "energy_per_token_j": ("tokens_per_j",),
    "energy_per_step_j": ("energy_j", "measured_steps"),
}

#: in the order of the page
MEASURES = (
    _faster("tokens_per_s", "Throughput", "is"),
    _faster("tokens_per_s_per_gpu", "Throughput per GPU", "is, per GPU,"),
    _faster("prefill_tokens_per_s_per_gpu", "Prefill per GPU", "prefills, per GPU,"),
    _faster("decode_tokens_per_s_per_gpu", "Decoding per GPU", "decodes, per GPU,"),
    Measure(
        "step_time_s",
        "Step time",
        "s",
        "takes {} longer for a step",
        "takes {} less time for a step",
    ),
    _of_a_joule(
        "tokens_per_j",
        "Efficiency",
        "tokens/J",
        "makes {} more tokens of a joule",
        "makes {} fewer tokens of a joule",
    ),
    _of_a_joule(
        "decode_tokens_per_j",
        "Decoding efficiency",
        "tokens/J",
        "decodes {} more tokens of a joule",
        "decodes {} fewer tokens of a joule",
    ),
    _used("energy_per_token_j", "Energy per token", "mJ", "takes {} more energy for a token", 1e3),
    _used("energy_per_step_j", "Energy per step", "kJ", "takes {} more energy for a step", 1e-3),
    _of_a_joule(
        "samples_per_s_per_mj",
        "Study's efficiency",
        "1/(s·MJ)",
        "is {} higher in the study's efficiency, which counts time twice",
        "is {} lower in the study's efficiency, which counts time twice",
    ),
    _used("power_mean_w", "Power, all GPUs", "kW", "draws {} more power in all", 1e-3),
    _used("power_per_gpu_mean_w", "Power per GPU", "W", "draws {} more power per GPU"),
    _used("power_peak_w", "Peak power of a package", "W", "draws {} more power at the peak"),
    _heat("temperature_mean_c", "Mean temperature", "on average"),
    _heat("temperature_peak_c", "Peak temperature", "at the peak"),
    Measure("mfu_causal", "MFU, causal", "%", "has {} more MFU", "has {} less MFU", factor=100.0),
    _share("throttle_power_share", "At power cap", "at the power cap"),
    _share("throttle_thermal_share", "Thermal slowdown", "in thermal slowdown"),
    _share("throttle_brake_share", "Power brake", "in power-brake slowdown"),
    # Simulated readings go with training on a CPU, and that with the host's memory.
    Measure(
        "memory_peak_bytes",
        "Peak memory",
        "GB",
        "needs {} more memory",
        "needs {} less memory",
        factor=1e-9,
        read=True,
    ),
)
BY_NAME = {measure.name: measure for measure in MEASURES}
