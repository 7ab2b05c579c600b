"""Names cells that overlap made slower, and says which parts of their steps took longer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from workflow_lib.comparison import sentences
from workflow_lib.comparison.matching import NAMED, Pair
from workflow_lib.comparison.sides import Side, of_gpus
from workflow_lib.comparison.verdicts import rows
from workflow_lib.records import cell_axes
from workflow_lib.records.measures import MEASURES
from workflow_lib.report.figures.cell_names import Row, completed
from workflow_lib.report.figures.kernel_times import CLASSES
from workflow_lib.report.figures.numbers import MINUS, shown, significant
from workflow_lib.report.figures.tables import Tables

_RATE = MEASURES["tokens_per_s_per_gpu"]
#: column of TRACES → the part of a step's time on a rank that it measures; time with only copies,
#: or only kernels of unknown class, is in none of them
_PARTS = {
    "computation_s": "computation",
    "exposed_communication_s": "exposed communication",
    "idle_s": "nothing running",
}
#: changes of a class that are less than this share of the largest change are left out
_SMALL = 0.05


@dataclass
class _Step:
    """A step of a cell's profiled run, in s: means over its ranks."""

    span: float
    #: column of TRACES → s, for those of _PARTS
    parts: dict[str, float]
    #: class of KERNELS → s; for communication only the exposed time
    computation: dict[str, float] = field(default_factory=dict)
    exposed: dict[str, float] = field(default_factory=dict)


def slower_with_overlap(tables: Tables, labels: Mapping[str, str]) -> tuple[str, ...]:
    """A sentence for each cell with overlap that is slower than the same cell without, as
    comparisons judge it: how much slower, and which parts of its step take longer, or why that is
    not known. ``labels`` maps cells to labels."""
    pairs = [
        tuple(sorted(pair, key=lambda cell: bool(cell["overlap"])))
        for pair in cell_axes.alike(list(filter(completed, tables.cells)), ("overlap",))
    ]
    side = Side("measured", "", tables.cells, tables.runs, **of_gpus(tables.gpus))
    slower = [
        (off, on, row)
        for off, on in (pair for pair in pairs if len(pair) == 2)
        if (row := _slower(off, on, side))
    ]
    steps = _steps(tables, [cell["cell"] for off, on, _ in slower for cell in (off, on)])
    return tuple(_sentence(*triple, labels, steps) for triple in slower)


def _slower(off: Row, on: Row, side: Side) -> Row | None:
    """The comparison's row of a pair of which it tells the cell with overlap to be slower."""
    if bool(off["simulated"]) != bool(on["simulated"]):
        return None
    (row,) = rows([Pair(NAMED, on, off, _RATE)], side, side)
    return row if row["verdict"] == "b_more" else None


def _sentence(
    off: Row, on: Row, judged: Row, labels: Mapping[str, str], steps: Mapping[str, _Step]
) -> str:
    lost = sentences.amount(_RATE, judged["estimate"])
    sentence = (
        f"{labels[on['cell']]} is {lost} slower than without: {_rate(on)} against {_rate(off)}"
    )
    if judged["medians"]:
        sentence += f"; {judged['medians']}"
    if missing := [cell for cell in (off, on) if cell["cell"] not in steps]:
        which = "the cell with overlap" if on in missing else "the cell without overlap"
        if len(missing) == 2:
            which = "either cell"
        return f"{sentence}. Where the time went is not known: no trace contains a step of {which}."
    before, after = steps[off["cell"]], steps[on["cell"]]
    parts = "; ".join(_parts(before, after))
    return (
        f"{sentence}. On the mean rank a profiled step took {_change(before.span, after.span)} ms: "
        f"{parts}."
    )


def _rate(cell: Row) -> str:
    text, interval, _ = shown(cell, _RATE)
    return f"{text} {_RATE.people_unit} ({interval})"


def _parts(before: _Step, after: _Step) -> Iterator[str]:
    """The parts of the step, without → with overlap; the part that grew most comes first."""
    by_class = {
        "computation_s": (before.computation, after.computation),
        "exposed_communication_s": (before.exposed, after.exposed),
    }
    for name in sorted(_PARTS, key=lambda name: before.parts[name] - after.parts[name]):
        text = f"{_PARTS[name]} {_change(before.parts[name], after.parts[name])}"
        classes = ", ".join(_classes(*by_class[name])) if name in by_class else ""
        yield f"{text} ({classes})" if classes else text


def _classes(before: Mapping[str, float], after: Mapping[str, float]) -> Iterator[str]:
    """How much each class changed, in ms, with the largest change first."""
    changes = {
        klass.legend: after.get(klass.name, 0.0) - before.get(klass.name, 0.0) for klass in CLASSES
    }
    largest = max(map(abs, changes.values()))
    for name, change in sorted(changes.items(), key=lambda item: -abs(item[1])):
        if change and abs(change) >= _SMALL * largest:
            sign = "+" if change > 0 else MINUS
            yield f"{name} {sign}{significant(1000 * abs(change))}"


def _change(before: float, after: float) -> str:
    return f"{significant(1000 * before)} → {significant(1000 * after)}"


def _steps(tables: Tables, cells: Sequence[str]) -> dict[str, _Step]:
    """The mean profiled step of each cell whose traces contain steps."""
    if tables.kernels is None or tables.traces is None:
        return {}
    known = pl.col("cell").is_in(cells) & (pl.col("steps") > 0)
    columns = ("span_s", *_PARTS)
    ranks = tables.traces.filter(known).drop_nulls(columns)
    means = ranks.group_by("cell").agg(
        pl.len().alias("ranks"), *((pl.col(name) / pl.col("steps")).mean() for name in columns)
    )
    steps = {
        row["cell"]: _Step(row["span_s"], {name: row[name] for name in _PARTS})
        for row in means.iter_rows(named=True)
    }
    key = ["cell", "run", "rank"]
    of_class = (
        tables.kernels.join(ranks.select(*key, "steps"), on=key)
        .group_by("cell", "class")
        .agg((pl.col(name) / pl.col("steps")).sum() for name in ("covered_s", "exposed_s"))
        .join(means.select("cell", "ranks"), on="cell")
        .sort("cell", "class")
    )
    communicating = {klass.name for klass in CLASSES if klass.communicates}
    for row in of_class.iter_rows(named=True):
        # A class that a rank lacks took no time on it, so the mean is over all ranks.
        step, name = steps[row["cell"]], row["class"]
        if name in communicating:
            step.exposed[name] = row["exposed_s"] / row["ranks"]
        else:
            step.computation[name] = row["covered_s"] / row["ranks"]
    return steps
