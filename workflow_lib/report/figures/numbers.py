"""Numbers as text: as many digits as are meaningful, and a range if there is one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workflow_lib.records.measures import MEASURES, Measure
from workflow_lib.report.figures.cell_names import Row

#: text in place of a missing value
NOTHING = "–"
MINUS = "−"


def significant(value: float, digits: int = 3, decimals: int | None = None) -> str:
    """A number with ``digits`` significant digits, never with an exponent, with commas at
    thousands.

    Whole digits are never rounded away: 12345.6 is "12,346". If ``decimals`` is given, at most so
    many digits follow the point, so a smaller number is "0.00". A negative number has a minus sign,
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
        # Adding 0 turns −0 into 0.
        rounded = round(value, places) + 0.0
    return f"{rounded:,.{places}f}".replace("-", MINUS)


def in_words(cell: Mapping[str, Any], measure: Measure) -> str:
    """A cell's median and its range, and the median of the measure beside it: "2.0 tokens/J
    (1.9–2.1) or 0.50 J/token"."""
    text, interval, _ = shown(cell, measure)
    parts = [f"{text} {measure.people_unit}", *([f"({interval})"] if interval else [])]
    return " ".join([*parts, *([f"or {paired_value(cell, measure)}"] if measure.beside else [])])


def paired_value(cell: Mapping[str, Any], measure: Measure) -> str:
    """A cell's median of the measure that is shown beside another; "" if that has none."""
    if not measure.beside:
        return ""
    other = MEASURES[measure.beside]
    return f"{shown(cell, other)[0]} {other.people_unit}"


def shown(cell: Mapping[str, Any], measure: Measure) -> tuple[str, str, float | None]:
    """A cell's median as text, its range as text ("" if it has one run), and the median as a
    number."""
    value = cell[measure.name]
    if value is None:
        return NOTHING, "", None
    middle, low, high = (cell[measure.name + end] * measure.factor for end in ("", "_low", "_high"))
    text, least, most = (
        significant(number, decimals=measure.decimals) for number in (middle, low, high)
    )
    if cell["completed"] < 2:
        return text, "", middle
    # A dash beside a minus sign would be unreadable.
    return text, f"{least} to {most}" if low < 0 else f"{least}–{most}", middle


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
