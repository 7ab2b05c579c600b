"""The contrasts of a test with their intervals: from the comparison's rows, or within runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from workflow_lib.claims.measured import Measured
from workflow_lib.claims.pairs import fitting, pairs, why_no_pair
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
    *("cell_a", "cell_b", "contrast", "estimate", "low", "high", "coverage"),
    *("wide_low", "wide_high", "assumes", "in_words", "simulated", "model"),
    *("design", "platform_a", "platform_b"),
    *("emulated_a", "emulated_b", "sensors_low", "power_limits", "memory"),
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
    test: ClaimTest, measured: Sequence[Measured], coverage: float
) -> list[dict[str, Any]]:
    """The contrasts of a test, as columns of CLAIMS without verdicts, with intervals of this
    coverage. If ``wide_low`` is null there is no interval, and ``in_words`` says why. If no
    contrast can be made, the result is one row without cells."""
    if test.gpus:
        made = list(_between_gpus(test, measured, coverage))
    else:
        contrasts_of = _of_cells if test.first else _of_each
        made = [
            row | _sweeps(row, group)
            for group in measured
            for row in contrasts_of(test, group, coverage)
        ]
    cells = [cell for group in measured for cell in group.side.cells]
    return made or [{"in_words": why_no_pair(test, cells)}]


def _sweeps(row: Row, measured: Measured) -> dict[str, str]:
    """The columns that name the sweeps with the cells of a contrast."""
    cells = {end: row.get(f"cell_{end}") for end in ("a", "b")}
    return {
        f"sweeps_{end}": ", ".join(measured.sweeps[cell])
        for end, cell in cells.items()
        if cell is not None
    }


_NO_INTERVAL = {"coverage": None, "wide_low": None, "wide_high": None}


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
                # Too few runs give a range, which is no interval.
                **(_NO_INTERVAL if row["coverage"] is None else {}),
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
    return {**_NO_INTERVAL, "in_words": why}


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
        **_identity(cell),
        "runs_a": _numbers(measured, cell["cell"]),
        **_sweeps({"cell_a": cell["cell"]}, measured),
    }


def _identity(cell: Row) -> dict[str, Any]:
    """The columns that name a cell, as one that has no values yet."""
    return {
        "model": cell["model"],
        "cell_a": cell["cell"],
        "platform_a": cell["platform"],
        "emulated_a": cell["emulated"],
        "simulated": bool(cell["simulated"]),
        "has_values": False,
    }


def _not_completed(cell: Row) -> str:
    return f"no run completed: {in_words(cell['outcome'])}"


def _profiled(name: str, group: Sequence[Row], coverage: float) -> dict[str, Any]:
    """The contrast of cells that differ in their seed alone: the value of a measure of profiled
    runs, with its interval over them. A cell has one profiled run."""
    profiled = [cell for cell in group if cell[name] is not None]
    seeds = ", ".join(str(cell["seed"]) for cell in profiled)
    row = {
        **_identity((profiled or group)[0]),
        "simulated": any(cell["simulated"] for cell in group),
        "runs_a": f"{PROFILED_RUN} of seed {seeds}" if profiled else "",
    }
    if not profiled:
        return row | {"in_words": "no profiled run of the cell completed"}
    if row["simulated"]:
        return row | {"in_words": "operators of a CPU stand for kernels"}
    shares = [cell[name] for cell in profiled]
    row |= _interval(VALUE, shares, [0.0] * len(shares), 0.0, _OVER_PROFILED, coverage)
    if len(profiled) < differences.FEWEST_RUNS:
        have = counted(len(profiled), "profiled run")
        gives = "gives" if len(profiled) == 1 else "give"
        row["in_words"] = (
            f"{have} {gives} no interval; {differences.FEWEST_RUNS} would, of cells that differ in "
            "their seed alone"
        )
    return row


def _value(name: str, measured: Measured, cell: Row, coverage: float) -> dict[str, Any]:
    """The value of a measure, with its interval over runs."""
    measure = MEASURES[name]
    of_runs, why = values(measure, measured.completed(cell))
    if not of_runs:
        return {"in_words": f"no value: {why}"}
    error = reading_error_c(measure) if is_temperature(measure) else 0.0
    return _interval(VALUE, of_runs, [0.0] * len(of_runs), error, _OVER_RUNS, coverage)


def _slowdown(rate_hz: float, rows: Sequence[Row], coverage: float) -> dict[str, Any]:
    """The slowdown of a sampling rate, with its interval over runs. With fewer than three runs, the
    interval spans the runs' own intervals."""
    at_rate = [row for row in rows if row["sample_rate_hz"] == rate_hz]
    with_ends = [row for row in at_rate if row["slowdown_low"] is not None]
    if not at_rate:
        return {"in_words": f"no value: no run alternates with {rate_hz:g} Hz"}
    if not with_ends:
        return {"in_words": f"no value: {Reason.of_column(at_rate[0], 'slowdown_low')}"}
    slowdowns = [row["slowdown"] for row in with_ends]
    if len(slowdowns) >= differences.FEWEST_RUNS:
        return _interval(VALUE, slowdowns, [0.0] * len(slowdowns), 0.0, _OVER_RUNS, coverage)
    if coverage != differences.COVERAGE:
        return {"in_words": f"runs' own intervals have a coverage of {differences.COVERAGE:.0%}"}
    low = min(row["slowdown_low"] for row in with_ends)
    high = max(row["slowdown_high"] for row in with_ends)
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
    means: dict[str, dict[_OfNode, None]] = {}
    for group in measured:
        for cell in fitting(group.side.cells, test.cells):
            of_runs = _of_nodes(test, group, cell) if completed(cell) else _not_completed(cell)
            if isinstance(of_runs, str):
                yield _of_cell(group, cell) | {"in_words": of_runs}
            else:
                means.setdefault(cell["cell"], {}).update(dict.fromkeys(of_runs))
                of_models.setdefault(cell["gpu_model"], []).append((group, cell))
    for cells in of_models.values():
        of_cells = [means[name] for name in dict.fromkeys(cell["cell"] for _, cell in cells)]
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
    of_nodes = []
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
            of_nodes.append(_OfNode(run["started_unix_s"], gpus, first, second))
    return of_nodes


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
        return {
            "contrast": kind,
            "estimate": back(fmean(first) - fmean(second)),
            "low": min(apart),
            "high": max(apart),
            "coverage": None,
            "has_values": True,
            "in_words": f"fewer than {differences.FEWEST_RUNS} runs give only a range",
        }
    made = differences.in_blocks(first, second, coverage)
    estimate, low, high = map(back, (made.estimate, made.low, made.high))
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
