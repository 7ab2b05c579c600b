"""The contrasts of a test with their intervals: from the comparison's rows, or within runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from workflow_lib.claims.measured import Measured
from workflow_lib.claims.pairs import fitting, none_found, pairs
from workflow_lib.comparison.matching import Pair
from workflow_lib.comparison.measures import (
    DIFFERENCE,
    RATIO,
    READING_ERROR_C,
    is_temperature,
    reading_error_c,
    values,
)
from workflow_lib.comparison.verdicts import rows as compared
from workflow_lib.config import ClaimTest
from workflow_lib.intervals import differences
from workflow_lib.intervals.hosts import connected
from workflow_lib.records import cell_axes
from workflow_lib.records.measures import MEASURES, PROFILED
from workflow_lib.records.reasons import Reason
from workflow_lib.report.figures.cell_names import Row, completed, in_words
from workflow_lib.report.figures.numbers import significant
from workflow_lib.results import PROFILED_RUN
from workflow_lib.words import counted

VALUE = "value"
#: columns that CLAIMS, or a contrast of two pairs, takes from the comparison's rows
_TAKEN = (
    *(
        "cell_a",
        "cell_b",
        "contrast",
        "estimate",
        "low",
        "high",
        "coverage",
        "wide_low",
        "wide_high",
    ),
    *("assumes", "in_words", "simulated", "model", "platform_a", "platform_b"),
    *("emulated_a", "emulated_b", "date_allowance", "sensors_low", "power_limits", "memory"),
)
#: verdicts of the comparison without values to judge
_WITHOUT_VALUES = ("missing", "refused")
#: what an interval over the runs of one cell assumes
_OVER_RUNS = (
    "assumes normal noise, independent between runs; it says nothing about other GPUs or hosts"
)
#: the axis in which cells differ that repeat one profiled run
_REPEATED_BY = ("seed",)
_OVER_PROFILED = (
    "assumes normal noise, independent between profiled runs, and that seeds change nothing else"
)


def evaluate_test(
    test: ClaimTest, measured: Sequence[Measured], coverage: float = differences.COVERAGE
) -> list[dict[str, Any]]:
    """The contrasts of a test, as columns of CLAIMS without verdicts, with intervals of this
    coverage. If ``wide_low`` is null there is no interval, and ``in_words`` says why. If no
    contrast can be made, the result is one row without cells."""
    if test.gpus:
        made = list(_between_gpus(test, measured, coverage))
    else:
        made = [
            row | _sweeps(row, each)
            for each in measured
            for row in (_of_cells if test.first else _of_each)(test, each, coverage)
        ]
    cells = [cell for each in measured for cell in each.side.cells]
    return made or [{"in_words": none_found(test, cells)}]


def _sweeps(row: Row, measured: Measured) -> dict[str, str]:
    """The columns that name the sweeps with the cells of a contrast."""
    cells = {end: row.get(f"cell_{end}") for end in ("a", "b")}
    return {
        f"sweeps_{end}": ", ".join(measured.sweeps[cell])
        for end, cell in cells.items()
        if cell is not None
    }


def _of_cells(test: ClaimTest, measured: Measured, coverage: float) -> Iterator[dict[str, Any]]:
    side = measured.side
    one, other = (dataclasses.replace(side, name=name) for name in ("the first", "the second"))
    measure = MEASURES[test.measure]
    for pair in pairs(test, side.cells):
        # There is no row if the measure does not apply to the workload.
        for row in compared([dataclasses.replace(pair, measure=measure)], one, other, coverage):
            has_values = row["measure"] is not None and row["verdict"] not in _WITHOUT_VALUES
            yield {
                **{name: row[name] for name in _TAKEN},
                "runs_a": _numbers(measured, row["cell_a"]),
                "runs_b": _numbers(measured, row["cell_b"]),
                "has_values": has_values,
                **(_idle(test, pair) if has_values else {}),
            }


def _idle(test: ClaimTest, pair: Pair) -> dict[str, Any]:
    """The columns that withhold an interval from a contrast of GPUs that are not busy enough for
    the test; empty if they are."""
    if test.busy_above is None:
        return {}
    shares = [cell["gpu_utilisation_share"] for cell in (pair.a, pair.b) if cell]
    if None in shares:
        why = "how much of the time the GPUs ran kernels is not known"
    elif min(shares) <= test.busy_above:
        first, second = (significant(100 * share, 2) for share in shares)
        why = (
            f"the GPUs of the first ran kernels {first} % of the time and those of the second "
            f"{second} %, where more than {100 * test.busy_above:g} % is asked: the hosts set the "
            "speed"
        )
    else:
        return {}
    return {"coverage": None, "wide_low": None, "wide_high": None, "in_words": why}


def _numbers(measured: Measured, cell: str) -> str:
    """The numbers of a cell's completed runs; "" if none completed."""
    return ", ".join(str(run["run"]) for run in measured.completed({"cell": cell}))


def _of_each(test: ClaimTest, measured: Measured, coverage: float) -> Iterator[dict[str, Any]]:
    """The contrasts of a test on one cell at a time, or on cells that repeat one profiled run."""
    cells = fitting(measured.side.cells, test.cells)
    if test.measure in PROFILED:
        for group in cell_axes.alike(cells, _REPEATED_BY):
            yield _profiled(test.measure, group, coverage)
        return
    for cell in cells:
        if test.sample_rate_hz is not None and cell["interleaved_rates_hz"] is None:
            continue
        row = _of_cell(measured, cell)
        if not completed(cell):
            yield row | {"in_words": _not_completed(cell)}
        elif test.sample_rate_hz is not None:
            rows = measured.overhead.get(cell["cell"], ())
            yield row | _slowdown(test.sample_rate_hz, rows, coverage)
        else:
            yield row | _value(test.measure, measured, cell, coverage)


def _of_cell(measured: Measured, cell: Row) -> dict[str, Any]:
    """The columns that name a cell and its runs."""
    return {
        "model": cell["model"],
        "cell_a": cell["cell"],
        "platform_a": cell["platform"],
        "emulated_a": cell["emulated"],
        "simulated": bool(cell["simulated"]),
        "runs_a": _numbers(measured, cell["cell"]),
        "has_values": False,
        **_sweeps({"cell_a": cell["cell"]}, measured),
    }


def _not_completed(cell: Row) -> str:
    return f"no run completed: {in_words(cell['outcome'])}"


def _profiled(name: str, group: Sequence[Row], coverage: float) -> dict[str, Any]:
    """The contrast of cells that differ in their seed alone: the value of a measure of profiled
    runs, with its interval over them. A cell has one profiled run."""
    known = [cell for cell in group if cell[name] is not None]
    shown = (known or group)[0]
    seeds = ", ".join(str(cell["seed"]) for cell in known)
    row: dict[str, Any] = {
        "model": shown["model"],
        "cell_a": shown["cell"],
        "platform_a": shown["platform"],
        "emulated_a": shown["emulated"],
        "simulated": any(cell["simulated"] for cell in group),
        "runs_a": f"{PROFILED_RUN} of seed {seeds}" if known else "",
        "has_values": False,
    }
    if not known:
        return row | {"in_words": "no profiled run of the cell completed"}
    if row["simulated"]:
        return row | {"in_words": "operators of a CPU stand for kernels"}
    shares = [cell[name] for cell in known]
    found = row | _interval(VALUE, shares, [0.0] * len(shares), 0.0, _OVER_PROFILED, coverage)
    if len(known) < differences.FEWEST_RUNS:
        have = counted(len(known), "profiled run")
        gives = "gives" if len(known) == 1 else "give"
        found["in_words"] = (
            f"{have} {gives} no interval; {differences.FEWEST_RUNS} would, of cells that differ in "
            "their seed alone"
        )
    return found


def _value(name: str, measured: Measured, cell: Row, coverage: float) -> dict[str, Any]:
    """The value of a measure, with its interval over runs."""
    measure = MEASURES[name]
    known, why = values(measure, measured.completed(cell))
    if not known:
        return {"in_words": f"no value: {why}"}
    error = reading_error_c(measure) if is_temperature(measure) else 0.0
    return _interval(VALUE, known, [0.0] * len(known), error, _OVER_RUNS, coverage)


def _slowdown(rate_hz: float, rows: Sequence[Row], coverage: float) -> dict[str, Any]:
    """The slowdown of a sampling rate, with its interval over runs. With fewer than three runs, the
    interval spans the runs' own intervals."""
    own = [row for row in rows if row["sample_rate_hz"] == rate_hz]
    known = [row for row in own if row["slowdown_low"] is not None]
    if not own:
        return {"in_words": f"no value: no run alternates with {rate_hz:g} Hz"}
    if not known:
        return {"in_words": f"no value: {Reason.of_column(own[0], 'slowdown_low')}"}
    slowdowns = [row["slowdown"] for row in known]
    if len(known) >= differences.FEWEST_RUNS:
        return _interval(VALUE, slowdowns, [0.0] * len(known), 0.0, _OVER_RUNS, coverage)
    if coverage != differences.COVERAGE:
        return {"in_words": f"runs' own intervals have a coverage of {differences.COVERAGE:.0%}"}
    low = min(row["slowdown_low"] for row in known)
    high = max(row["slowdown_high"] for row in known)
    return {
        **_ends(VALUE, fmean(slowdowns), low, high, 0.0, coverage),
        "assumes": "assumes normal noise, independent between sampling blocks of one run",
    }


def _between_gpus(
    test: ClaimTest, measured: Sequence[Measured], coverage: float
) -> Iterator[dict[str, Any]]:
    """The contrasts of two groups of GPUs within each node, over sets of GPUs, for each GPU model;
    and a row for each cell that has none.

    What the GPUs of one node show in many runs and layouts is one observation: each GPU has its own
    silicon and its own slot. Sets that share a GPU count as one. Two results directories may hold
    the same runs, which count once.
    """
    of_models: dict[str, list[tuple[Measured, Row]]] = {}
    known: dict[str, dict[_OfNode, None]] = {}
    for each in measured:
        for cell in fitting(each.side.cells, test.cells):
            of_runs = _of_nodes(test, each, cell) if completed(cell) else _not_completed(cell)
            if isinstance(of_runs, str):
                yield _of_cell(each, cell) | {"in_words": of_runs}
            else:
                known.setdefault(cell["cell"], {}).update(dict.fromkeys(of_runs))
                of_models.setdefault(cell["gpu_model"], []).append((each, cell))
    for cells in of_models.values():
        of_cells = [known[name] for name in dict.fromkeys(cell["cell"] for _, cell in cells)]
        row = _of_cell(*cells[0])
        row["simulated"] = any(cell["simulated"] for _, cell in cells)
        yield row | _over_gpus(test, of_cells, coverage)


class _OfNode(NamedTuple):
    """The means of two groups of a node's GPUs in a run; logarithms of clocks."""

    began_unix_s: float | None
    gpus: frozenset[str]
    first: float
    second: float


def _of_nodes(test: ClaimTest, measured: Measured, cell: Row) -> list[_OfNode] | str:
    """Both groups in each node of each run of a cell; or why there are none."""
    as_ratio = MEASURES[test.measure].sensor == "clock"
    found = []
    for run in measured.completed(cell):
        rows = measured.gpus.get((run["cell"], run["run"]), ())
        # Without a row there is no group, which is said.
        for node in dict.fromkeys(row["node"] for row in rows) or (None,):
            here = [row for row in rows if row["node"] == node]
            means = []
            for name in test.gpus:
                group = _GROUPS[name](here)
                readings = [row[test.measure] for row in group]
                if not group:
                    return f"no GPU belongs to the group {name}"
                if None in readings:
                    return f"no value: in run {run['run']} a GPU has none"
                means.append(fmean(readings))
            if as_ratio and min(means) <= 0:
                return "no value: a clock is 0, so there is no ratio"
            if None in (gpus := frozenset(row["gpu_uuid"] for row in here)):
                return f"no value: the GPUs of run {run['run']} are not known"
            first, second = map(math.log, means) if as_ratio else means
            found.append(_OfNode(run["started_unix_s"], gpus, first, second))
    return found


def _over_gpus(
    test: ClaimTest, cells: Sequence[Iterable[_OfNode]], coverage: float
) -> dict[str, Any]:
    """The contrast of two groups over sets of GPUs, each with the mean of its cells."""
    sets = sorted(connected(run.gpus for of_runs in cells for run in of_runs), key=sorted)
    sides: tuple[list[float], list[float]] = ([], [])
    for gpus in sets:
        here = [[run for run in of_runs if run.gpus <= gpus] for of_runs in cells]
        for side, name in zip(sides, ("first", "second"), strict=True):
            side.append(fmean(fmean(getattr(run, name) for run in runs) for runs in here if runs))
    # Each of two groups may be off by half a degree.
    measure = MEASURES[test.measure]
    error = 2 * READING_ERROR_C if is_temperature(measure) else 0.0
    kind, back = (RATIO, math.exp) if measure.sensor == "clock" else (DIFFERENCE, float)
    many = f"{counted(len(sets), 'set')} of GPUs in {counted(len(cells), 'cell')}"
    assumed = f"assumes normal noise, independent between sets of GPUs: {many}"
    row = _interval(kind, *sides, error, assumed, coverage, back)
    if row["coverage"] is None:
        row["in_words"] = f"{many}: {differences.FEWEST_RUNS} or more sets give an interval"
    return {**row, "gpu_sets": len(sets)}


def _at(airflow: str) -> Callable[[Sequence[Row]], Sequence[Row]]:
    return lambda rows: [row for row in rows if row["airflow"] == airflow]


def _extreme(choose: Callable[..., Row]) -> Callable[[Sequence[Row]], Sequence[Row]]:
    """A group of the one GPU with the extreme mean temperature; empty if that is not known, or if
    there is only one GPU."""

    def group(rows: Sequence[Row]) -> Sequence[Row]:
        if len(rows) < 2 or any(row["temperature_mean_c"] is None for row in rows):
            return []
        return [choose(rows, key=lambda row: row["temperature_mean_c"])]

    return group


_GROUPS: Mapping[str, Callable[[Sequence[Row]], Sequence[Row]]] = {
    "front": _at("front"),
    "rear": _at("rear"),
    "hottest": _extreme(max),
    "coolest": _extreme(min),
}


def _interval(
    kind: str,
    first: Sequence[float],
    second: Sequence[float],
    error: float,
    assumes: str,
    coverage: float,
    back: Callable[[float], float] = float,
) -> dict[str, Any]:
    """The interval of paired values, one pair for each run or set of GPUs; ``back`` undoes a
    logarithm."""
    if len(first) < differences.FEWEST_RUNS:
        apart = [back(a - b) for a, b in zip(first, second, strict=True)]
        ends = {"low": min(apart), "high": max(apart)}
        why = f"fewer than {differences.FEWEST_RUNS} runs give only a range"
        middle = back(fmean(first) - fmean(second))
        known = {"contrast": kind, "estimate": middle, **ends, "coverage": None}
        return {**known, "has_values": True, "in_words": why}
    made = differences.in_blocks(first, second, coverage)
    estimate, low, high = (back(each) for each in (made.estimate, made.low, made.high))
    return {**_ends(kind, estimate, low, high, error, coverage), "assumes": assumes}


def _ends(
    kind: str, estimate: float, low: float, high: float, error: float, coverage: float
) -> dict[str, Any]:
    return {
        "contrast": kind,
        "estimate": estimate,
        "low": low,
        "high": high,
        "coverage": coverage,
        "wide_low": low - error,
        "wide_high": high + error,
        "has_values": True,
        "in_words": "",
    }
