"""What pages of docs/results are made of: tables of cells, contrasts in words, what is missing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from research.grouping import grouped
from research.pages.tables import table
from workflow_lib.comparison import sentences
from workflow_lib.comparison.matching import NAMED, Pair
from workflow_lib.comparison.measures import is_ratio
from workflow_lib.comparison.sides import Side
from workflow_lib.comparison.verdicts import TOLD_APART, rows
from workflow_lib.records.labels import labels, left_out
from workflow_lib.records.measures import MEASURES
from workflow_lib.report.figures.cell_names import Row, in_words, marked, profiled_runs
from workflow_lib.report.figures.numbers import (
    NOTHING,
    interval_in_words,
    significant,
    systematic_error,
)
from workflow_lib.words import counted

_FIRST = (
    "tokens_per_s_per_gpu",
    "prefill_tokens_per_s_per_gpu",
    "decode_tokens_per_s_per_gpu",
    "power_per_gpu_mean_w",
    "tokens_per_j",
    "decode_tokens_per_j",
)
_SHOWN = (
    *(name for first in _FIRST for name in (first, MEASURES[first].beside) if name),
    "memory_used_peak_bytes",
    "mfu_causal",
)
_CONTRASTED = (*_FIRST, "temperature_mean_c")


def names_of(cells: Sequence[Row]) -> dict[str, str]:
    """The label of each cell."""
    names = marked(cells, labels(cells))
    return dict(zip((cell["cell"] for cell in cells), names, strict=True))


def environment_of(*tables: Mapping[str, Any] | None) -> dict[str, str]:
    """What runs recorded of their environment: each key, and its values in words."""
    return {
        key: ", ".join(value for value, _ in values)
        for found in tables
        if found
        for key, values, _ in found["rows"]
    }


def runs_in_words(runs: Sequence[Row]) -> str:
    """How many runs there are, completed ones among them, and when these began."""
    done = [run for run in runs if run["outcome"] == "completed"]
    began = sorted(datetime.fromtimestamp(run["started_unix_s"], UTC) for run in done)
    first, last = map(minute, (began[0], began[-1]))
    if began[0].date() == began[-1].date():
        last = f"{began[-1]:%H:%M}"
    span = first if len(began) == 1 else f"{first} to {last}"
    return f"{counted(len(runs), 'measured run')} ({len(done)} completed, begun {span} UTC)"


def minute(moment: datetime) -> str:
    """A moment to the minute."""
    return f"{moment:%Y-%m-%d %H:%M}"


def _error(side: Side) -> str:
    """How far the sensors of power may be off; "" of simulated ones."""
    error = systematic_error(side.runs)
    return f"The GPUs' own sensors of power may be off by up to {error}. " if error else ""


def _steadiness(side: Side) -> str:
    """How many runs were surely steady, surely not, and not told."""
    done = [run for run in side.runs if run["outcome"] == "completed"]
    told = [run for run in done if run["steady"] is not None]
    if not told:
        return "No run has steps enough to tell whether it was steady."
    drifts = [run["step_time_drift"] * 100 for run in told if not run["steady"]]
    told_of = f"{len(told) - len(drifts)} of {counted(len(told), 'completed run')} "
    told_of += "was steady" if len(told) == 1 else "were steady"
    if len(told) < len(done):
        told_of += f"; of {len(done) - len(told)} more noise does not tell"
    if not drifts:
        return f"{told_of}."
    low, high = significant(min(drifts), 2), significant(max(drifts), 2)
    span = f"{low} to {high}" if len(drifts) > 1 else low
    others = "those that were not" if len(drifts) > 1 else "the one that was not"
    return (
        f"{told_of}. In {others} step time drifted within the measured steps, by {span} %. All "
        "measured steps count in every run."
    )


def _waits(side: Side) -> str:
    """How long runs waited for cool GPUs, whether they got there or not; "" if none did."""
    waits = sorted(run["cool_down_s"] for run in side.runs if run["cool_down_s"] is not None)
    if not waits:
        return ""
    told = ", ".join(f"{wait:.0f}" for wait in waits)
    return f" Runs with a cool-down waited {told} s for cool GPUs."


def percent(share: float, digits: int = 1, sign: str = "+") -> str:
    """A share in percent, as pages write it; with its sign unless ``sign`` is empty."""
    return f"{100 * share:{sign}.{digits}f} %".replace("-", "−")


def value_of(cell: Row, name: str, end: str = "") -> str:
    measure = MEASURES[name]
    value = cell[name + end]
    return NOTHING if value is None else significant(value * measure.factor, 4)


#: what every page says of its tables
_HOW = "../how-to/read-a-report.md#pages-of-results"


def table_of(side: Side, cells: Sequence[Row]) -> str:
    named = names_of(side.cells)
    workloads = {cell["workload"] for cell in cells}
    shown = [name for name in _SHOWN if any(map(MEASURES[name].applies, workloads))]
    headings = {name: MEASURES[name].heading for name in shown}
    if "inference" in workloads:
        # A GPU that waits for its host shows the host's speed.
        shown.append("gpu_utilisation_share")
        headings["gpu_utilisation_share"] = MEASURES["gpu_utilisation_share"].heading
    if "mfu_causal" in shown and {cell["precision"] for cell in cells} - {"bf16"}:
        # Two peaks, each named; in bf16 they are the same.
        shown.append("mfu_causal_bf16_peak")
        headings["mfu_causal_bf16_peak"] = MEASURES["mfu_causal_bf16_peak"].heading
        headings["mfu_causal"] += ", of the precision's peak"
    heads = [f"{headings[n]}, {MEASURES[n].people_unit}" for n in shown]
    rows = [
        (
            f"`{named[cell['cell']]}`",
            *(_value(cell, name) for name in shown),
            f"{cell['completed']} of {cell['repeats']}",
        )
        for cell in cells
    ]
    return "\n".join([*table(("cell", *heads, "runs"), rows), "", left_out(side.cells)])


def _value(cell: Row, name: str) -> str:
    text = value_of(cell, name)
    if cell[name] is None:
        return text
    if name == "memory_used_peak_bytes" and cell[name] == cell["memory_reserved_peak_bytes"]:
        text = f"at least {text}"
    ends = [value_of(cell, name, end) for end in ("_low", "_high")]
    if cell["completed"] < 2:
        return text
    return f"{text} ({'–'.join(ends)})" if ends[0] != ends[1] else text


def note(side: Side) -> str:
    return (
        f"Medians, in brackets {interval_in_words(side.cells)}: [how to read these pages]"
        f"({_HOW}). {_error(side)}{_steadiness(side)}{_waits(side)}"
    )


def contrasts(pairs: Sequence[tuple[Row, Row]], side: Side) -> list[Row]:
    """The comparison's own rows of pairs of cells of one sweep."""
    a, b = dataclasses.replace(side, name="the first"), dataclasses.replace(side, name="the second")
    found = rows([Pair(NAMED, one, other) for one, other in pairs], a, b)
    return [row for row in found if row["measure"] in _CONTRASTED]


def words(side: Side, pairs: Sequence[tuple[Row, Row]]) -> str:
    """A row a pair and a column a measure, with what the intervals assume."""
    named = names_of(side.cells)
    contrasted = contrasts(pairs, side)
    of_pairs = grouped(contrasted, lambda row: (row["cell_a"], row["cell_b"]))
    shown = {(row["cell_a"], row["cell_b"], row["measure"]): _in_short(row) for row in contrasted}
    measures = list(dict.fromkeys(row["measure"] for row in contrasted))
    lines = [
        (
            *(f"`{named[cell]}`" for cell in pair),
            *(shown.get((*pair, name), "–") for name in measures),
            ", ".join(dict.fromkeys(filter(None, map(_design, of_pair)))) or "–",
        )
        for pair, of_pair in of_pairs.items()
    ]
    heads = ("the first", "the second", *(MEASURES[name].heading for name in measures), "design")
    apart = [
        f"- `{named[row['cell_a']]}` and `{named[row['cell_b']]}`, "
        f"{MEASURES[row['measure']].heading}: {row['medians']}."
        for row in contrasted
        if row["medians"]
    ]
    return "\n".join([_OF_CONTRASTS, "", *table(heads, lines), *([""] * bool(apart)), *apart])


#: what the table of differences says
_OF_CONTRASTS = (
    "The first against the second, as an interval of 95 %; **bold** where it tells them apart. "
    f"[How to read it]({_HOW})."
)


def _design(row: Row) -> str | None:
    return sentences.IN_SHORT[row["design"]] if row["wide_low"] is not None else None


def _in_short(row: Row) -> str:
    measure = MEASURES[row["measure"]]
    if row["low"] is None:
        return str(row["in_words"])
    by_runs = sentences.interval(measure, row["low"], row["high"])
    if row["coverage"] is None:
        one_each = row["runs_a"] == row["runs_b"] == 1
        alone = sentences.signed(measure, row["estimate"])
        return f"one run each, {alone}" if one_each else f"*range* {by_runs}"
    if row["wide_low"] is None:
        return f"*unknown* ({by_runs})"
    shown = sentences.interval(measure, row["wide_low"], row["wide_high"])
    if row["verdict"] in TOLD_APART:
        return f"**{shown}**"
    neutral = 1.0 if is_ratio(measure) else 0.0
    hidden = not row["low"] <= neutral <= row["high"]
    return f"{shown} ({by_runs})" if hidden else shown


def failed_runs(side: Side) -> list[str]:
    """A line for each run that did not complete; the profiled ones come last."""
    named = names_of(side.cells)
    numbered = [(f"run {run['run']}", run) for run in side.runs]
    profiled = [("the profiled run", run) for run in profiled_runs(side.cells)]
    return [
        f"- {which} of `{named[run['cell']]}` (`{side.sweep}`): "
        f"{in_words(run['outcome'])}, {run['cause']}."
        for which, run in (*numbered, *profiled)
        if run["outcome"] != "completed"
    ]
