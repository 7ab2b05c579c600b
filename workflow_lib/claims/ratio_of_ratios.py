"""The contrasts of a test that sets a pair of cells beside another: the ratio of two ratios, or the
difference of two differences.

The contrasts of both pairs come first, each as that of a test of one pair: from runs of one results
directory, by its own design. Then every contrast of the first pair is set beside those of its
counterparts. :func:`~workflow_lib.intervals.differences.of_estimates` makes its interval from the
two, for ratios from their logarithms. That takes the noise of both pairs' runs for independent: it
adds in squares. What hosts, dates and sensors may do is not independent, because both pairs may
have had the same two hosts. It is added whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from workflow_lib.claims import contrasts
from workflow_lib.claims.measured import Measured
from workflow_lib.claims.pairs import free_between, why_no_pair
from workflow_lib.comparison import sentences
from workflow_lib.comparison.measures import contrast, is_ratio
from workflow_lib.config import ClaimTest
from workflow_lib.intervals.differences import Interval, of_estimates
from workflow_lib.records import cell_axes
from workflow_lib.records.measures import MEASURES, Measure
from workflow_lib.report.figures.cell_names import Row

#: what the names of columns of the second pair begin with
PREFIX = "beside_"
#: columns of CLAIMS that each pair has; those of the second have the prefix
OF_A_PAIR = (
    *("model", "shared"),
    *(
        f"{name}_{end}"
        for name in ("cell", "label", "platform", "sweeps", "runs", "emulated")
        for end in ("a", "b")
    ),
)
_NAMES = ("the first pair", "the second pair")


def of_two_pairs(kind: str) -> str:
    """The kind of a contrast of two contrasts of a kind: a ratio of ratios, for instance."""
    return f"{kind}_of_{kind}s"


def second_pair(row: Row) -> dict[str, Any]:
    """The second pair of a row of CLAIMS, in columns without the prefix; null where there is
    none."""
    return {name: row[PREFIX + name] for name in OF_A_PAIR}


def evaluate_test(
    test: ClaimTest, measured: Sequence[Measured], coverage: float
) -> list[dict[str, Any]]:
    """The contrasts of a test of two pairs, as :func:`.contrasts.evaluate_test` has them: one for
    each contrast of the first pair and each counterpart of it."""
    cells = {cell["cell"]: cell for group in measured for cell in group.side.cells}
    alone = [_alone(test, which) for which in (test.pair, test.beside)]
    first, second = (_contrasts(of_pair, measured, coverage) for of_pair in alone)
    missing = [
        f"{name}: {why_no_pair(of_pair, list(cells.values()))}"
        for name, of_pair, rows in zip(_NAMES, alone, (first, second), strict=True)
        if not rows
    ]
    if missing:
        return [{"in_words": "; ".join(missing)}]
    free = free_between(test)

    def key(row: Row) -> tuple[Any, ...]:
        return tuple(
            cell_axes.key(cells[row[cell]], of_cell)
            for cell, of_cell in zip(("cell_a", "cell_b"), free, strict=True)
        )

    counterparts: dict[Any, list[Row]] = {}
    for row in second:
        counterparts.setdefault(key(row), []).append(row)
    made = [
        _together(test, one, other) for one in first for other in counterparts.get(key(one), [])
    ]
    return made or [{"in_words": "no two such pairs are alike in every other axis"}]


def _alone(test: ClaimTest, which: Mapping[str, Any]) -> ClaimTest:
    """The test of one of the pairs alone."""
    cells = {**test.cells, **which}
    return test.model_copy(update={"cells": cells, "pair": {}, "beside": {}})


def _contrasts(
    test: ClaimTest, measured: Sequence[Measured], coverage: float
) -> list[dict[str, Any]]:
    """The contrasts of a test of one pair, each once: two results directories may hold the same
    runs."""
    distinct: dict[Any, dict[str, Any]] = {}
    for group in measured:
        for row in contrasts.evaluate_test(test, [group], coverage):
            if "cell_a" in row:
                distinct.setdefault(tuple(_runs_of(row, group)), row)
    return list(distinct.values())


def _runs_of(row: Row, measured: Measured) -> Iterator[tuple[Any, ...]]:
    """What tells the cells of a contrast and their completed runs from all others."""
    for end in ("a", "b"):
        yield (row[f"cell_{end}"],)
        for run in measured.completed({"cell": row[f"cell_{end}"]}):
            yield run["run"], run["started_unix_s"]


def _together(test: ClaimTest, one: Row, other: Row) -> dict[str, Any]:
    """The contrast of two contrasts."""
    measure, both = MEASURES[test.measure], (one, other)
    row: dict[str, Any] = {
        **{name: one[name] for name in OF_A_PAIR if name in one},
        **{PREFIX + name: other[name] for name in OF_A_PAIR if name in other},
        "simulated": one["simulated"] or other["simulated"],
        "has_values": one["has_values"] and other["has_values"],
        "in_words": "; ".join(_lacking(both)),
    }
    if not row["has_values"]:
        return row
    row |= _interval(measure, one, other)
    if row["coverage"] is None:
        return row
    row["assumes"] = _assumed(measure, both)
    if row["wide_low"] is not None:
        return row | {"in_words": _in_words(measure, row, one, other)}
    shown = sentences.interval(measure, row["low"], row["high"])
    return row | {"in_words": f"{shown} by the runs alone; {row['in_words']}"}


def _lacking(both: Iterable[Row]) -> Iterator[str]:
    """Which of two contrasts have no interval with all effects, and why."""
    for name, row in zip(_NAMES, both, strict=True):
        if not row["has_values"] or row["coverage"] is None or row["wide_low"] is None:
            yield f"{name}: {row['in_words'].removeprefix('no verdict: ')}"


def _interval(measure: Measure, one: Row, other: Row) -> dict[str, float | None]:
    """The columns of the estimate and its intervals; null where one of both has none."""
    to, back = (math.log, math.exp) if is_ratio(measure) else (float, float)
    by_runs = [
        Interval(*(to(row[name]) for name in ("estimate", "low", "high"))) for row in (one, other)
    ]
    names = ("coverage", "low", "high", "wide_low", "wide_high")
    columns: dict[str, float | None] = dict.fromkeys(names)
    together = of_estimates(*by_runs)
    columns["estimate"] = back(together.estimate)
    coverages = one["coverage"], other["coverage"]
    if None in coverages:
        return columns
    columns |= {"coverage": min(coverages), "low": back(together.low), "high": back(together.high)}
    if None in (one["wide_low"], other["wide_low"]):
        return columns
    first, second = (
        Interval(ends.estimate, to(row["wide_low"]), to(row["wide_high"]))
        for ends, row in zip(by_runs, (one, other), strict=True)
    )
    # Of hosts and sensors: what each pair's wide interval adds to that of its runs.
    below = by_runs[0].low - first.low + second.high - by_runs[1].high
    above = first.high - by_runs[0].high + by_runs[1].low - second.low
    columns["wide_low"] = back(together.low - below)
    columns["wide_high"] = back(together.high + above)
    return columns


def _assumed(measure: Measure, both: Sequence[Row]) -> str:
    """What the interval of two contrasts assumes."""
    assumed = [row["assumes"] + _of_sensors(measure, row) for row in both]
    if assumed[0] == assumed[1]:
        of_pairs = f"each pair {assumed[0]}"
    else:
        of_pairs = "; ".join(f"{name} {text}" for name, text in zip(_NAMES, assumed, strict=True))
    return f"assumes that the noise of both pairs is independent; {of_pairs}"


def _of_sensors(measure: Measure, row: Row) -> str:
    """What a contrast assumes of its sensors of power; "" if it has none."""
    return f", {sentences.SENSORS}" if measure.gain and row["sensors_low"] is not None else ""


def _in_words(measure: Measure, row: Row, one: Row, other: Row) -> str:
    """A contrast of two contrasts in words: "the ratio of the first pair, −13 %, is 2.1 % below
    that of the second, −11 % (95 % interval …)"."""
    neutral = 1.0 if is_ratio(measure) else 0.0
    shown, by_runs = (
        sentences.interval(measure, row[f"{which}low"], row[f"{which}high"])
        for which in ("wide_", "")
    )
    about = f"{100 * row['coverage']:g} % interval {shown}"
    if by_runs != shown:
        about += f"; {by_runs} by the runs alone"
    designs = dict.fromkeys(pair["design"] for pair in (one, other))
    about += "".join(f"; {sentences.IN_SHORT[design]}" for design in designs)
    about += "".join(
        f"; {name}: {pair[note]}"
        for name, pair in zip(_NAMES, (one, other), strict=True)
        for note in ("power_limits", "memory")
        if pair[note]
    )
    if row["wide_low"] <= neutral <= row["wide_high"]:
        differs = "is not told apart from that"
    else:
        size = sentences.amount(measure, row["estimate"])
        differs = f"is {size} {'above' if row['estimate'] > neutral else 'below'} that"
    first, second = (sentences.signed(measure, pair["estimate"]) for pair in (one, other))
    kind = contrast(measure).kind
    return f"the {kind} of the first pair, {first}, {differs} of the second, {second} ({about})"
