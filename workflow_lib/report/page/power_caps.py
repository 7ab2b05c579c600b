"""Explains cells that are nearly always at the power cap, but draw less than the limit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from workflow_lib.records import MEASURES
from workflow_lib.report.cells import Row, completed
from workflow_lib.report.numbers import significant

#: at the cap for at least this share of the time, at no more than this share of the limit
_MOSTLY_CAPPED, _BELOW_LIMIT = 0.9, 0.95


def capped_below_limit(
    cells: Sequence[Row], labels: Sequence[str], runs: Sequence[Row]
) -> tuple[str, ...]:
    """A sentence for each such cell: its power, how often and for how long power reaches the limit,
    and how far the clock is held down; or why that is not known."""
    return tuple(
        f"{label} ({cell['model']} on {cell['platform']}): {'; '.join(_parts(cell, runs))}"
        for cell, label in zip(cells, labels, strict=True)
        if completed(cell) and _is_explained(cell)
    )


def _is_explained(cell: Row) -> bool:
    capped, drawn = cell["throttle_power_share"], cell["power_of_limit_share"]
    if capped is None or drawn is None:
        return False
    return bool(capped >= _MOSTLY_CAPPED and drawn <= _BELOW_LIMIT)


def _parts(cell: Row, runs: Sequence[Row]) -> Iterator[str]:
    yield f"at the cap for {_in_words(cell, 'throttle_power_share')}"
    yield f"draws {_in_words(cell, 'power_of_limit_share')}"
    if cell["at_power_limit_share"] is None:
        yield f"whether it is capped in bursts is not known: {_why(cell, runs)}"
    elif cell["at_power_limit_burst_s"] is None:
        yield (
            "no sample of power is within 5 % of the limit, so bursts are shorter than samples can "
            "show"
        )
    else:
        burst = significant(1000 * cell["at_power_limit_burst_s"], 2)
        share = _in_words(cell, "at_power_limit_share")
        yield f"power is within 5 % of the limit for {share}, {burst} ms at a time"
    if cell["capped_clock_share"] is not None:
        yield f"the SM clock is at {_in_words(cell, 'capped_clock_share')} while capped"


def _in_words(cell: Row, name: str) -> str:
    measure = MEASURES[name]
    return f"{significant(cell[name] * measure.factor, 3, decimals=1)} {measure.people_unit}"


def _why(cell: Row, runs: Sequence[Row]) -> str:
    for run in runs:
        if run["cell"] == cell["cell"] and run["at_power_limit_share"] is None:
            reasons: dict[str, str] = json.loads(run["missing_reasons"] or "{}")
            if reason := reasons.get("at_power_limit_share"):
                return reason
    return "no reason was recorded"
