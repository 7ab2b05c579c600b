"""The verdicts of contrasts, tests and claims.

A test claims that a contrast lies in a range with one or two ends. The verdict follows from the
contrast's interval, which includes the effects of dates, nodes and sensors::

    range claimed         ├──────────────────▶
    supported                 ├─────┤             all of the interval lies in the range
    contradicted    ├───┤                         none of it does
    undecided          ├─────┤                    some of it does

The ends do not belong to the range: two cells that never throttle do not show that throttling
grows. If the effects of dates or sensors are unknown, so is the interval, and the verdict is
undecided. A contrast is ``not_testable`` if it has no interval: no sweep has its cells, they did
not complete, they have too few runs, or their readings are missing or simulated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from workflow_lib.claims.contrasts import VALUE
from workflow_lib.claims.ratio_of_ratios import of_two_pairs
from workflow_lib.comparison.measures import DIFFERENCE, RATIO, difference_unit
from workflow_lib.config import ClaimTest
from workflow_lib.records.measures import MEASURES, PROFILED, Measure
from workflow_lib.report.figures.numbers import significant

Verdict = Literal["supported", "contradicted", "undecided", "not_testable"]
SUPPORTED: Verdict = "supported"
CONTRADICTED: Verdict = "contradicted"
UNDECIDED: Verdict = "undecided"
NOT_TESTABLE: Verdict = "not_testable"
#: verdicts in the words of pages
IN_WORDS: Mapping[Verdict, str] = {
    SUPPORTED: "supported",
    CONTRADICTED: "contradicted",
    UNDECIDED: "undecided",
    NOT_TESTABLE: "not testable here",
}

#: the slowdown of sampling as a measure; overhead.parquet holds it
_SLOWDOWN = Measure("slowdown", "Slowdown", "what sampling costs", people=("%", 100.0))


def of_contrast(test: ClaimTest, row: Mapping[str, Any]) -> tuple[Verdict, str]:
    """The verdict of a contrast, and the sentence that says why."""
    if not row.get("has_values"):
        return NOT_TESTABLE, row["in_words"]
    if row["simulated"] and measure_of(test).sensor:
        return NOT_TESTABLE, "readings of GPUs were simulated"
    low, high = row.get("wide_low"), row.get("wide_high")
    if row.get("coverage") is None:
        return NOT_TESTABLE, row["in_words"].removeprefix("no verdict: ")
    if low is None or high is None:
        return UNDECIDED, row["in_words"]
    words = row["in_words"] or _interval_in_words(test, row)
    return of_interval(low, high, test.above, test.below), words


def of_interval(low: float, high: float, above: float | None, below: float | None) -> Verdict:
    """The verdict of an interval for the claimed range; an end of the range that is
    None is open."""
    inside = (above is None or low > above) and (below is None or high < below)
    outside = (above is not None and high <= above) or (below is not None and low >= below)
    return SUPPORTED if inside else CONTRADICTED if outside else UNDECIDED


def of_test(test: ClaimTest, verdicts: Collection[tuple[Verdict, Verdict]]) -> Verdict:
    """The verdict of a test by those of its contrasts: of each the one by itself, and the one that
    may decide where others of the claim could by chance.

    A claim about all cells is supported if each contrast supports it: that all of them do so by
    chance is rarer than that one does. It is contradicted if one is, and that is more likely by
    chance the more there are. For a claim about any cell it is the other way round. Contrasts that
    are not testable count only if no other contrast exists.
    """
    tested = [alone for alone, _ in verdicts if alone != NOT_TESTABLE]
    deciding = [among_others for _, among_others in verdicts]
    if not tested:
        return NOT_TESTABLE
    if test.holds_in == "most":
        if 2 * deciding.count(SUPPORTED) > len(tested):
            return SUPPORTED
        return CONTRADICTED if 2 * deciding.count(CONTRADICTED) >= len(tested) else UNDECIDED
    (one,) = decided_by_one(test)
    if one in deciding:
        return one
    return tested[0] if len({*tested}) == 1 else UNDECIDED


def decided_by_one(test: ClaimTest) -> tuple[Verdict, ...]:
    """The verdicts of a test that fewer than all of its contrasts may decide."""
    return {"all": (CONTRADICTED,), "any": (SUPPORTED,), "most": (SUPPORTED, CONTRADICTED)}[
        test.holds_in
    ]


def of_claim(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of a claim by those of its tests: it is supported if all of them are."""
    for verdict in (CONTRADICTED, UNDECIDED, NOT_TESTABLE):
        if verdict in verdicts:
            return verdict
    return SUPPORTED if verdicts else NOT_TESTABLE


def measure_of(test: ClaimTest) -> Measure:
    """The measure that a test names."""
    return MEASURES.get(test.measure) or PROFILED.get(test.measure) or _SLOWDOWN


def kind_of(test: ClaimTest) -> str:
    """The kind of quantity in which a test's range is given, whether or not there is a contrast."""
    measure = measure_of(test)
    if test.gpus:
        return RATIO if measure.sensor == "clock" else DIFFERENCE
    if not test.first or not measure.contrast:
        return VALUE
    return of_two_pairs(measure.contrast.kind) if test.beside else measure.contrast.kind


def range_in_words(test: ClaimTest) -> str:
    """The range that a test claims: "above +200 %"."""
    above, below = (None if end is None else amount(test, end) for end in (test.above, test.below))
    if above is not None and below is not None:
        return f"between {above} and {below}"
    return f"below {below}" if above is None else f"above {above}"


def _interval_in_words(test: ClaimTest, row: Mapping[str, Any]) -> str:
    ends = (amount(test, row[end]) for end in ("wide_low", "wide_high"))
    about = f"coverage {100 * row['coverage']:g} %; {row['assumes']}"
    return f"{_subject(test)}: {' to '.join(ends)} ({about})"


def among(test: ClaimTest, row: Mapping[str, Any], count: int) -> str:
    """What a contrast shows at the coverage at which one of ``count`` may decide, in words."""
    if row.get("wide_low") is None:
        return f"it does not decide alone, as one of {count} contrasts"
    ends = (amount(test, row[end]) for end in ("wide_low", "wide_high"))
    return (
        f"it does not decide alone: {' to '.join(ends)} at a coverage of "
        f"{100 * row['coverage']:.4g} %, for one of {count} contrasts"
    )


def _subject(test: ClaimTest) -> str:
    """The subject of an interval, in words."""
    heading = measure_of(test).heading
    if test.gpus:
        return f"{heading}, {test.gpus[0]} against {test.gpus[1]} GPUs"
    if test.sample_rate_hz is not None:
        return f"{heading} at {test.sample_rate_hz:g} Hz"
    return heading


def amount(test: ClaimTest, value: float) -> str:
    """A contrast of a test as text: ratios as a percentage with a sign."""
    measure, kind = measure_of(test), kind_of(test)
    scaled, unit = 100 * (value - 1), "%"
    if kind not in (RATIO, of_two_pairs(RATIO)):
        scaled, unit = measure.factor * value, measure.people_unit
    if kind in (DIFFERENCE, of_two_pairs(DIFFERENCE)):
        unit = difference_unit(measure)
    text = significant(scaled, 2, decimals=2)
    return f"{'+' if kind != VALUE and scaled > 0 else ''}{text} {unit}".rstrip()
