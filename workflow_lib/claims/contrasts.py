"""The contrasts of a test with their intervals: from the comparison's rows, or within runs."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

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
from workflow_lib.records import MEASURES, cell_axes
from workflow_lib.records.measures import PROFILED
from workflow_lib.report.cells import Row, completed, in_words
from workflow_lib.report.numbers import significant
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
    *("emulated_a", "emulated_b", "date_allowance", "sensors_low", "power_limits"),
)
#: verdicts of the comparison without values to judge
_WITHOUT_VALUES = ("missing", "refused")
#: what an interval over the runs of one cell assumes
_OVER_RUNS = "assumes normal noise, independent between runs"
#: the axis in which cells differ that repeat one profiled run
_REPEATED_BY = ("seed",)
_OVER_PROFILED = (
    "assumes normal noise, independent between profiled runs, and that seeds change nothing else"
)


def found(test: ClaimTest, measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """The contrasts of a test, as columns of CLAIMS without verdicts. If ``wide_low`` is null there
    is no interval, and ``in_words`` says why. If no contrast can be made, the result is one row
    without cells."""
    made = [
        row | _sweeps(row, each)
        for each in measured
        for row in (_of_cells if test.first else _of_each)(test, each)
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


def _of_cells(test: ClaimTest, measured: Measured) -> Iterator[dict[str, Any]]:
    side = measured.side
    one, other = (dataclasses.replace(side, name=name) for name in ("the first", "the second"))
    measure = MEASURES[test.measure]
    for pair in pairs(test, side.cells):
        # There is no row if the measure does not apply to the workload.
        for row in compared([dataclasses.replace(pair, measure=measure)], one, other):
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


def _of_each(test: ClaimTest, measured: Measured) -> Iterator[dict[str, Any]]:
    """The contrasts of a test on one cell at a time, or on cells that repeat one profiled run."""
    cells = fitting(measured.side.cells, test.cells)
    if test.measure in PROFILED:
        yield from map(partial(_profiled, test.measure), cell_axes.alike(cells, _REPEATED_BY))
        return
    for cell in cells:
        if test.sample_rate_hz is not None and cell["interleaved_rates_hz"] is None:
            continue
        row: dict[str, Any] = {
            "model": cell["model"],
            "cell_a": cell["cell"],
            "platform_a": cell["platform"],
            "emulated_a": cell["emulated"],
            "simulated": bool(cell["simulated"]),
            "runs_a": _numbers(measured, cell["cell"]),
            "has_values": False,
        }
        if not completed(cell):
            yield row | {"in_words": f"no run completed: {in_words(cell['outcome'])}"}
        elif test.sample_rate_hz is not None:
            yield row | _slowdown(test.sample_rate_hz, measured.overhead.get(cell["cell"], ()))
        elif test.gpus:
            yield row | _between_gpus(test, measured, cell)
        else:
            yield row | _value(test.measure, measured, cell)


def _profiled(name: str, group: Sequence[Row]) -> dict[str, Any]:
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
    found = row | _interval(VALUE, shares, [0.0] * len(shares), 0.0, _OVER_PROFILED)
    if len(known) < differences.FEWEST_RUNS:
        have = counted(len(known), "profiled run")
        gives = "gives" if len(known) == 1 else "give"
        found["in_words"] = (
            f"{have} {gives} no interval; {differences.FEWEST_RUNS} would, of cells that differ in "
            "their seed alone"
        )
    return found


def _value(name: str, measured: Measured, cell: Row) -> dict[str, Any]:
    """The value of a measure, with its interval over runs."""
    measure = MEASURES[name]
    known, why = values(measure, measured.completed(cell))
    if not known:
        return {"in_words": f"no value: {why}"}
    error = reading_error_c(measure) if is_temperature(measure) else 0.0
    return _interval(VALUE, known, [0.0] * len(known), error, _OVER_RUNS)


def _slowdown(rate_hz: float, rows: Sequence[Row]) -> dict[str, Any]:
    """The slowdown of a sampling rate, with its interval over runs. With fewer than three runs, the
    interval spans the runs' own intervals."""
    own = [row for row in rows if row["sample_rate_hz"] == rate_hz]
    known = [row for row in own if row["slowdown_low"] is not None]
    if not known:
        reasons = [json.loads(row["missing_reasons"] or "{}").get("slowdown", "") for row in own]
        why = next(filter(None, reasons), f"no run alternates with {rate_hz:g} Hz")
        return {"in_words": f"no value: {why}"}
    slowdowns = [row["slowdown"] for row in known]
    if len(known) >= differences.FEWEST_RUNS:
        return _interval(VALUE, slowdowns, [0.0] * len(known), 0.0, _OVER_RUNS)
    low = min(row["slowdown_low"] for row in known)
    high = max(row["slowdown_high"] for row in known)
    return {
        **_ends(VALUE, statistics.fmean(slowdowns), low, high, 0.0),
        "assumes": "assumes normal noise, independent between sampling blocks of one run",
    }


def _between_gpus(test: ClaimTest, measured: Measured, cell: Row) -> dict[str, Any]:
    """The contrast of two groups of GPUs within each run, over runs."""
    measure = MEASURES[test.measure]
    sides: tuple[list[float], list[float]] = ([], [])
    for run in measured.completed(cell):
        rows = measured.gpus.get((run["cell"], run["run"]), ())
        for name, of_side in zip(test.gpus, sides, strict=True):
            group = _GROUPS[name](rows)
            readings = [row[test.measure] for row in group]
            if not group:
                return {"in_words": f"no GPU belongs to the group {name}"}
            if None in readings:
                return {"in_words": f"no value: in run {run['run']} a GPU has none"}
            of_side.append(statistics.fmean(readings))
    as_ratio = measure.sensor == "clock"
    if as_ratio and min(*sides[0], *sides[1]) <= 0:
        return {"in_words": "no value: a clock is 0, so there is no ratio"}
    # Each of two groups may be off by half a degree.
    error = 2 * READING_ERROR_C if is_temperature(measure) else 0.0
    assumed = f"{_OVER_RUNS}; it says nothing about other GPUs"
    if as_ratio:
        first, second = ([math.log(each) for each in side] for side in sides)
        return _interval(RATIO, first, second, 0.0, assumed, math.exp)
    return _interval(DIFFERENCE, *sides, error, assumed)


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
    back: Callable[[float], float] = float,
) -> dict[str, Any]:
    """The interval of paired values, one pair for each run; ``back`` undoes a logarithm."""
    if len(first) < differences.FEWEST_RUNS:
        apart = [back(a - b) for a, b in zip(first, second, strict=True)]
        ends = {"low": min(apart), "high": max(apart)}
        why = f"fewer than {differences.FEWEST_RUNS} runs give only a range"
        middle = back(statistics.fmean(first) - statistics.fmean(second))
        return {"contrast": kind, "estimate": middle, **ends, "has_values": True, "in_words": why}
    made = differences.in_blocks(first, second)
    estimate, low, high = (back(each) for each in (made.estimate, made.low, made.high))
    return {**_ends(kind, estimate, low, high, error), "assumes": assumes}


def _ends(kind: str, estimate: float, low: float, high: float, error: float) -> dict[str, Any]:
    return {
        "contrast": kind,
        "estimate": estimate,
        "low": low,
        "high": high,
        "coverage": differences.COVERAGE,
        "wide_low": low - error,
        "wide_high": high + error,
        "has_values": True,
        "in_words": "",
    }
