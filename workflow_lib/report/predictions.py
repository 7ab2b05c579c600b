"""Sets what cells were predicted to gain beside what their runs gained, as comparisons judge it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from workflow_lib.comparison.matching import NAMED, Pair
from workflow_lib.comparison.sides import Side, of_gpus
from workflow_lib.comparison.verdicts import WITH_INTERVAL
from workflow_lib.comparison.verdicts import rows as judged
from workflow_lib.intervals.differences import Interval
from workflow_lib.records.measures import MEASURES
from workflow_lib.report.figures.cell_names import Row
from workflow_lib.report.figures.numbers import MINUS
from workflow_lib.report.figures.tables import Tables

#: what is gained → the measure of which 1 less the ratio is the gain
_GAINS = {
    "time_gain": ("step time", "step_time_s"),
    "energy_gain": ("energy", "energy_per_token_j"),
}


def predictions(
    plan: Sequence[Row], tables: Tables, labels: Mapping[str, str]
) -> list[dict[str, str]]:
    """A line for each cell with a prediction and each gain that was predicted: predicted, measured,
    and whether that holds. ``labels`` are by cell."""
    lines = []
    for row in plan:
        if row["predicted_against"] is None:
            continue
        for gain, (what, measure) in _GAINS.items():
            names = (f"predicted_{gain}{end}" for end in ("", "_low", "_high"))
            predicted = Interval(*(row[name] for name in names))
            measured = _measured(row["cell"], row["predicted_against"], measure, tables)
            lines.append(
                {
                    "cell": row["cell"],
                    "label": labels[row["cell"]],
                    "against": row["predicted_against"],
                    "label_against": labels[row["predicted_against"]],
                    "what": what,
                    "predicted": _percent(predicted),
                    "measured": "" if isinstance(measured, str) else measured.in_words,
                    "verdict": (
                        measured if isinstance(measured, str) else verdict(predicted, measured.gain)
                    ),
                }
            )
    return lines


def verdict(predicted: Interval, measured: Interval) -> str:
    """It is wrong where the intervals have nothing in common; it holds where what was measured lies
    within what was predicted."""
    if predicted.low > measured.high or predicted.high < measured.low:
        return "wrong: the intervals have nothing in common"
    if predicted.low <= measured.estimate <= predicted.high:
        return "holds"
    return "undecided: the intervals overlap"


class _Measured(NamedTuple):
    """A gain by the runs, with its 95 % interval."""

    gain: Interval
    #: what it assumes of order, and how many runs it leaves out, and why; "" if nothing
    left_out: str

    @property
    def in_words(self) -> str:
        return "; ".join(filter(None, (_percent(self.gain), self.left_out)))


def _measured(cell: str, against: str, measure: str, tables: Tables) -> _Measured | str:
    """The gain by the runs, with its 95 % interval; or why there is none."""
    side = Side("measured", "", tables.cells, tables.runs, **of_gpus(tables.gpus))
    rows = {row["cell"]: row for row in tables.cells}
    (row,) = judged([Pair(NAMED, rows[cell], rows[against], MEASURES[measure])], side, side)
    if row["verdict"] not in WITH_INTERVAL:
        return str(row["in_words"])
    if MEASURES[measure].sensor and row["simulated"]:
        return "no verdict: readings of GPUs were simulated"
    gain = Interval(1 - row["estimate"], 1 - row["wide_high"], 1 - row["wide_low"])
    return _Measured(gain, row["assumes"].partition("; ")[2])


def _percent(gain: Interval) -> str:
    low, high = (_number(end) for end in (gain.low, gain.high))
    return f"{_number(gain.estimate)} % ({low} to {high})"


def _number(share: float) -> str:
    return f"{100 * share:.1f}".replace("-", MINUS)
