"""Sets what cells were predicted to gain beside what their runs gained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from workflow_lib.intervals import contrasts, hosts
from workflow_lib.intervals.design import Gpus, design
from workflow_lib.intervals.differences import COVERAGE, FEWEST_RUNS, Interval
from workflow_lib.records import MEASURES
from workflow_lib.report.cells import Row, completed_runs, runs_by_cell
from workflow_lib.report.numbers import MINUS
from workflow_lib.report.tables import Tables

#: what is gained → the measure of which 1 less the ratio is the gain
_GAINS = {
    "time_gain": ("step time", "step_time_s"),
    "energy_gain": ("energy", "energy_per_token_j"),
}


def predictions(
    plan: Sequence[Row], tables: Tables, labels: Mapping[str, str]
) -> list[dict[str, str]]:
    """A line for each cell with a prediction and each gain that was predicted: predicted, measured,
    and whether that holds. ``labels`` are by cell.
    """
    lines = []
    for row in plan:
        if row["predicted_against"] is None:
            continue
        for gain, (what, measure) in _GAINS.items():
            names = (f"predicted_{gain}{end}" for end in ("", "_low", "_high"))
            predicted = Interval(*(row[name] for name in names))
            found = _measured(row["cell"], row["predicted_against"], measure, tables)
            lines.append(
                {
                    "cell": row["cell"],
                    "label": labels[row["cell"]],
                    "against": row["predicted_against"],
                    "label_against": labels[row["predicted_against"]],
                    "what": what,
                    "predicted": _percent(predicted),
                    "measured": "" if isinstance(found, str) else found.in_words,
                    "verdict": (
                        found if isinstance(found, str) else verdict(predicted, found.gain)
                    ),
                }
            )
    return lines


def verdict(predicted: Interval, measured: Interval) -> str:
    """It is wrong where the intervals have nothing in common; it holds where what was measured lies
    within what was predicted.
    """
    if predicted.low > measured.high or predicted.high < measured.low:
        return "wrong: the intervals have nothing in common"
    if predicted.low <= measured.estimate <= predicted.high:
        return "holds"
    return "undecided: the intervals overlap"


class _Measured(NamedTuple):
    """A gain by the runs, with its 95 % interval."""

    gain: Interval
    #: how many runs it leaves out, and why; "" if none
    left_out: str

    @property
    def in_words(self) -> str:
        return "; ".join(filter(None, (_percent(self.gain), self.left_out)))


def _measured(cell: str, against: str, measure: str, tables: Tables) -> _Measured | str:
    """The gain by the runs, with its 95 % interval; or why there is none."""
    of_cells = runs_by_cell(tables.runs)
    after, before = (completed_runs(of_cells.get(each, [])) for each in (cell, against))
    if min(len(after), len(before)) < FEWEST_RUNS:
        return (
            f"no verdict: {len(before)} and {len(after)} runs completed, expected {FEWEST_RUNS} or "
            "more of each cell"
        )
    gpus_after, gpus_before = ([_gpus(run, tables) for run in runs] for runs in (after, before))
    used = {*gpus_after, *gpus_before}
    if frozenset() in used or len(used) > 1:
        return "no verdict: the runs were not all on the same GPUs"
    if MEASURES[measure].sensor and any(run["simulated"] for run in (*after, *before)):
        return "no verdict: readings of GPUs were simulated"
    gained, had = ([run[measure] for run in runs] for runs in (after, before))
    if None in (*gained, *had):
        return "no verdict: not every run has a value"
    lie = design(after, before, gpus_after, gpus_before)
    found = contrasts.ratio(gained, had, lie)
    # Nothing tells a date that acted on one of the cells alone.
    dates = math.exp(hosts.BUSY_SPREAD.of_two(COVERAGE)) if lie.one_sided_because else 1.0
    gain = Interval(1 - found.estimate, 1 - found.high * dates, 1 - found.low / dates)
    return _Measured(gain, lie.sessions.left_out_because if lie.sessions else "")


def _gpus(run: Row, tables: Tables) -> Gpus:
    mine = [row for row in tables.gpus if (row["cell"], row["run"]) == (run["cell"], run["run"])]
    uuids = frozenset(row["gpu_uuid"] for row in mine)
    return frozenset() if None in uuids else uuids


def _percent(gain: Interval) -> str:
    low, high = (_number(end) for end in (gain.low, gain.high))
    return f"{_number(gain.estimate)} % ({low} to {high})"


def _number(share: float) -> str:
    return f"{100 * share:.1f}".replace("-", MINUS)
