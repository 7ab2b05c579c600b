"""Measures as panels of a figure: which there are, how they are labelled, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workflow_lib.report.cells import Row, completed


@dataclass(frozen=True)
class MeasurePanel:
    """A column of CELLS as a panel."""

    measure: str
    label: str
    #: by which the stored value is multiplied to be in the label's unit
    factor: float = 1.0
    #: whether 0 means something, so that bars begin there
    from_zero: bool = True


#: what the study shows of options, in order; inference has the measures that are its own
PANELS = (
    MeasurePanel("tokens_per_s_per_gpu", "Throughput\n(tokens/s/GPU)"),
    MeasurePanel("prefill_tokens_per_s_per_gpu", "Prefill\n(tokens/s/GPU)"),
    MeasurePanel("decode_tokens_per_s_per_gpu", "Decoding\n(tokens/s/GPU)"),
    MeasurePanel("tokens_per_j", "Efficiency\n(tokens/J)"),
    MeasurePanel("decode_tokens_per_j", "Efficiency of\ndecoding (1/J)"),
    MeasurePanel("power_per_gpu_mean_w", "Mean power\n(W per GPU)"),
    MeasurePanel("power_peak_w", "Peak reading\nof power (W)"),
    MeasurePanel("temperature_peak_c", "Peak temper-\nature (°C)", from_zero=False),
    MeasurePanel("throttle_power_share", "At power cap\n(% of time)", 100.0),
    MeasurePanel("throttle_thermal_share", "Thermal slow-\ndown (% time)", 100.0),
)


def panels_with_values(cells: Iterable[Row], without: Sequence[str] = ()) -> list[MeasurePanel]:
    """The panels of which any completed cell has a value, but for measures ``without``.

    A share of throttling is left out, too, where it is 0 throughout.
    """
    done = [cell for cell in cells if completed(cell)]
    return [
        panel
        for panel in PANELS
        if panel.measure not in without
        and any(
            cell[panel.measure] or (cell[panel.measure] is not None and panel.factor == 1.0)
            for cell in done
        )
    ]


def has_measure(cell: Row, measure: str) -> bool:
    """Whether there is a value to draw."""
    return completed(cell) and cell[measure] is not None
