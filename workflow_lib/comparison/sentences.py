"""A comparison in words, which state no more than its interval supports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from workflow_lib import power_errors
from workflow_lib.comparison.measures import contrast, difference_unit, is_ratio
from workflow_lib.intervals.contrasts import Contrast, Design
from workflow_lib.intervals.within_hosts import Sessions
from workflow_lib.records.measures import Measure
from workflow_lib.report.figures.cell_names import Row, completed, in_words
from workflow_lib.report.figures.numbers import MINUS, significant
from workflow_lib.words import counted

#: what a verdict on energies or powers assumes
SENSORS = f"and that no sensor of power is off by more than {power_errors.IN_WORDS}"
#: design → what a verdict assumes, in a few words; :func:`assumption` says it whole
IN_SHORT = {
    "in_blocks": "runs in blocks",
    "within_hosts": "within sessions",
    "apart": "if drifts were steady",
}
#: what these few words mean
LICENCE = (
    "“Runs in blocks” were submitted in one random order, so that dates and drifts act on both "
    "sides; runs “within sessions” had the same GPUs at one time. Other verdicts hold “if drifts "
    "were steady”. Noise is taken to be normal, and no sensor of power to be off by more than "
    f"{power_errors.IN_WORDS}."
)
#: factors that change nothing
_NOTHING = (1.0, 1.0)
#: why the errors of sensors leave no bound
UNKNOWN_POWER = "the power of a run is unknown, or no more than its sensors' offsets"


class Wide(NamedTuple):
    """An interval that includes the effects of dates and nodes and the errors of both sides'
    sensors."""

    low: float
    high: float
    #: what was added for dates and nodes
    date: float = 0.0
    #: what errors of sensors may do: the least and the greatest factor of a ratio, or °C; null if
    #: nothing was added for them
    sensors: tuple[float, float] | None = None
    #: what was added for the errors of both sides' energies
    energy: tuple[float | None, float | None] = (None, None)


def difference_in_words(
    measure: Measure, name: str, more: bool, observed: Contrast, wide: Wide, lie: Design
) -> str:
    """Says that A, which is called ``name``, has more or less: "A is 12 % faster (95 % interval
    …)"."""
    words = contrast(measure)
    phrase = (words.more if more else words.less).format(amount(measure, observed.estimate))
    shown, by_runs = (interval(measure, ends.low, ends.high) for ends in (wide, observed))
    about = f"{_coverage(observed)} interval {shown}"
    if by_runs != shown:
        about += f"; {by_runs} by the runs alone"
    return f"{name} {phrase} ({about}; {IN_SHORT[lie.name]})"


def no_difference_in_words(measure: Measure, observed: Contrast, wide: Wide, lie: Design) -> str:
    """Says that there may be no difference, by the runs alone or with dates, nodes and sensors."""
    neutral = 1.0 if is_ratio(measure) else 0.0
    shown = interval(measure, wide.low, wide.high)
    end = f"({_coverage(observed)} interval; {IN_SHORT[lie.name]})"
    if not observed.low <= neutral <= observed.high:
        by_runs = interval(measure, observed.low, observed.high)
        added = _added(measure, wide)
        return f"not told apart: {by_runs} by the runs, but {added} leave {shown} {end}"
    return f"not told apart: {shown} {end}"


def assumption(lie: Design) -> str:
    """What a verdict assumes."""
    if lie.in_blocks:
        return "assumes normal noise, and that dates and drifts act equally on both runs of a block"
    if lie.sessions is not None:
        return _within(lie.sessions)
    return (
        f"assumes normal noise and, because {lie.apart_because}, no drift other than a steady one"
    )


def _within(sessions: Sessions) -> str:
    """What a verdict within sessions assumes, and how many runs it leaves out."""
    assumed = (
        f"assumes normal noise, the same difference in each of {sessions.count} sessions on the "
        "same GPUs, and no drift within them other than a steady one"
    )
    if sessions.is_one_side_first:
        assumed += "; one side ran first in every session"
    if sessions.left_out:
        assumed += f"; {sessions.left_out_because}"
    return assumed


def _added(measure: Measure, wide: Wide) -> str:
    """What was added to the runs' interval: "±2.8 % for dates and nodes and −0.21 to +0.22 % for
    sensors"; or ""."""
    parts = []
    if wide.date:
        factor, unit = (100.0, "%") if is_ratio(measure) else (1.0, difference_unit(measure))
        parts.append(f"±{factor * wide.date:g} {unit} for dates and nodes")
    if wide.sensors and (shown := interval(measure, *wide.sensors)) != interval(measure, *_NOTHING):
        parts.append(f"{shown} for sensors")
    if any(wide.energy):
        shares = " and ".join(f"±{100 * (share or 0):.2g} %" for share in wide.energy)
        parts.append(f"{shares} for loads in step with the sensor's looks")
    return " and ".join(parts)


def by_medians(measure: Measure, a: float, b: float, wide: Wide, lie: Design) -> str:
    """Says by what the medians of all runs differ, which tables show, if the interval of the
    verdict excludes that, and why; "" if it does not."""
    apart = a / b if is_ratio(measure) else a - b
    if wide.low <= apart <= wide.high:
        return ""
    of, why = "all runs", "the verdict allows for a steady drift"
    if lie.in_blocks:
        why = "the verdict is about the two runs of each block"
    elif lie.sessions is not None:
        of = f"all runs, of {lie.sessions.count} sessions together,"
        why = "the verdict is about runs within a session"
    return f"medians of {of} differ by {signed(measure, apart)}, but {why}"


def no_verdict(measure: Measure, observed: Contrast, runs_a: int, runs_b: int) -> str:
    """Says that there are too few runs for a verdict, with the range of the runs."""
    if runs_a == runs_b == 1:
        alone = signed(measure, observed.estimate)
        return f"no verdict: one run each, {alone}; three of each give one"
    return (
        f"no verdict: {runs_a} against {runs_b} runs give only a range, "
        f"{interval(measure, observed.low, observed.high)}"
    )


def unknown_power(measure: Measure, observed: Contrast) -> str:
    """Says that the errors of the sensors leave no bound."""
    return (
        f"no verdict: {interval(measure, observed.low, observed.high)} by the runs "
        f"({_coverage(observed)} interval), but {UNKNOWN_POWER}"
    )


def unknown_dates(measure: Measure, observed: Contrast, lie: Design) -> str:
    """Says that the effect of dates and nodes on the measure is not known."""
    return (
        f"no verdict: {interval(measure, observed.low, observed.high)} by the runs "
        f"({_coverage(observed)} interval), but {lie.one_sided_because}, and the effect of a date "
        "or a node is unknown"
    )


def power_limits(name_a: str, limits_a: str, name_b: str, limits_b: str) -> str:
    """The GPUs' power limits if they differ: "power limits: 700 W in A, 400 W in B"; else ""."""
    if limits_a == limits_b:
        return ""
    a, b = (limits or "unknown" for limits in (limits_a, limits_b))
    return f"power limits: {a} in {name_a}, {b} in {name_b}"


def allocators(a: Row, b: Row, name_a: str, name_b: str) -> str:
    """Torch's allocators and their settings if those of two cells differ: "allocator: native in A,
    cudaMallocAsync in B"; else ""."""
    of_a, of_b = (cell["allocator"] or "unknown" for cell in (a, b))
    if of_a == of_b and "; " not in of_a:
        return ""
    return f"allocator: {of_a} in {name_a}, {of_b} in {name_b}"


def memory_pressure(name: str, runs: Sequence[Row]) -> str:
    """A clause if some runs were under memory pressure."""
    pressed = sum(run["memory_pressure"] is True for run in runs)
    return (
        f"memory pressure in {pressed} of {counted(len(runs), 'run')} of {name}" if pressed else ""
    )


def fate(a: Row, b: Row, name_a: str, name_b: str) -> str:
    """Says how a pair ended that did not complete on both sides: "only A ran: B out of memory
    (why)"."""
    if completed(a) != completed(b):
        ran, other, cell = (name_a, name_b, b) if completed(a) else (name_b, name_a, a)
        return f"only {ran} ran: {other} {_ended(cell)}"
    return f"neither ran to the end: {name_a} {_ended(a)}; {name_b} {_ended(b)}"


def _ended(cell: Row) -> str:
    cause = cell["cause"]
    return in_words(cell["outcome"]) + (f" ({cause})" if cause else "")


def amount(measure: Measure, value: float) -> str:
    """The size of a contrast, without its sign: "12 %", or "3.1 °C"."""
    return f"{_size(measure, value)} {_unit(measure)}"


def signed(measure: Measure, value: float) -> str:
    """A contrast with its sign: "+12 %", "−3.1 °C"."""
    return f"{_sign(measure, value)} {_unit(measure)}"


def interval(measure: Measure, low: float, high: float) -> str:
    """An interval with signs and unit: "+10 to +14 %", or "+19.6 to +20.3 %", as two digits of that
    show no width.
    """
    for digits in (2, 3):
        ends = _sign(measure, low, digits), _sign(measure, high, digits)
        if ends[0] != ends[1]:
            break
    return f"{' to '.join(ends)} {_unit(measure)}"


def _unit(measure: Measure) -> str:
    return "%" if is_ratio(measure) else difference_unit(measure)


def _size(measure: Measure, value: float, digits: int = 2) -> str:
    scaled = 100 * (value - 1) if is_ratio(measure) else measure.factor * value
    return significant(abs(scaled), digits, decimals=2)


def _sign(measure: Measure, value: float, digits: int = 2) -> str:
    size = _size(measure, value, digits)
    if not size.strip("0."):
        return "0"
    return f"{MINUS if value < (1.0 if is_ratio(measure) else 0.0) else '+'}{size}"


def _coverage(observed: Contrast) -> str:
    return f"{100 * (observed.coverage or 0):g} %"
