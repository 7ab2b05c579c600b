"""Intervals of medians and the systematic error of energies, in the words of page and captions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workflow_lib.report.figures.cell_names import Row
from workflow_lib.report.figures.numbers import significant

_WORDS = {
    frozenset(("range",)): "the range of fewer than five runs",
    frozenset(("order_statistics",)): "an interval that holds the median at 94 % or more",
    frozenset(("range", "order_statistics")): (
        "an interval that holds the median at 94 % or more (with fewer than five runs, their range)"
    ),
}


def interval_in_words(cells: Iterable[Row]) -> str:
    """What the error bars of cells show; "their range" if no cell completed."""
    return _WORDS.get(frozenset(filter(None, (cell["interval"] for cell in cells))), "their range")


def whiskers(
    cells: Sequence[Row], measure: str, factor: float = 1.0
) -> tuple[list[float], list[float]]:
    """Lengths below and above the medians of a measure that all cells have, times ``factor``."""
    middle, low, high = (
        [cell[measure + end] * factor for cell in cells] for end in ("", "_low", "_high")
    )
    return (
        [m - end for m, end in zip(middle, low, strict=True)],
        [end - m for m, end in zip(middle, high, strict=True)],
    )


def systematic_error(runs: Iterable[Row]) -> str:
    """How far the sensors behind the runs' energies may be off, at most: "±12 % (NVIDIA H200)".

    It is "" if no run has a measured energy: simulated readings have no sensor.
    """
    largest: dict[str, float] = {}
    for run in runs:
        if (share := run["energy_systematic_share"]) is not None and not run["simulated"]:
            name = run["gpu_name"] or "unnamed GPU"
            largest[name] = max(share, largest.get(name, 0.0))
    return ", ".join(
        f"±{significant(100 * largest[name], 2)} % ({name})" for name in sorted(largest)
    )
