"""Kinds of figures: what each shows, of which cells, in which panels, how many cells fit into one
figure, and why a kind is not drawn.

A kind is a module with a :class:`FigureKind` in it; :mod:`workflow_lib.report.figures` lists them.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from matplotlib.figure import Figure

from workflow_lib.records import cell_axes, measures
from workflow_lib.records.labels import group_labels
from workflow_lib.records.measures import Measure
from workflow_lib.records.reasons import Reason
from workflow_lib.report.figures.cell_names import Row, completed, natural
from workflow_lib.report.figures.numbers import interval_in_words
from workflow_lib.report.figures.tables import Tables

Item = TypeVar("Item")

#: limits that many kinds have
MEDIANS = "Medians over completed runs; intervals are their range if there are fewer than five. "
KERNELS = (
    "Kernels that run at the same time each count, so their sum may exceed the step time. "
    "Profiled runs are separate from the measured runs. "
)


@dataclass(frozen=True)
class FigureEntry:
    """A figure: the stem of its files, its text on the page, and the function that draws it.

    ``draw`` is called within :func:`workflow_lib.report.figures.style.styled`.
    """

    stem: str
    title: str
    caption: str
    draw: Callable[[], Figure]
    #: whether it shows cells over time: the page then only names it, as a cell's own page says more
    over_time: bool = False


@dataclass(frozen=True)
class Division(Generic[Item]):
    """The items that figures of one kind show together, such as the cells of a model
    on a platform."""

    heading: str
    #: parts of the names of files
    names: tuple[str, ...]
    #: the items that have a bar, a row or a panel each, such as cells; in the order of the figures
    items: Sequence[Item]
    caption: str
    #: draws some of the items under a heading, within :func:`style.styled`
    draw: Callable[[str, Sequence[Item]], Figure]
    #: the text behind the heading, if it is not the kind's title
    title: str = ""


@dataclass(frozen=True)
class FigureKind:
    """One kind of figures."""

    #: the first word of the names of its files
    stem: str
    #: what the page calls it if it cannot be drawn
    subject: str
    #: what it shows, with units, and its limits: for `snakemake --report`
    about: str
    limits: str
    #: the most items in one figure, so that it fits on a page
    most: int
    divide: Callable[[Tables], Iterable[Division[Any]]]
    #: why it cannot be drawn from given tables
    why_not: Callable[[Tables], str]
    #: whether it shows cells over time: the page then only names it, as a cell's own page says more
    over_time: bool = False
    #: the text behind a figure's heading on the page; the subject if empty
    title: str = ""

    def entries(self, tables: Tables) -> list[FigureEntry]:
        """The figures of this kind that can be drawn from a sweep's tables."""
        emulated = cell_axes.emulated_in_words(tables.cells)
        return [
            self._entry(division, part, emulated)
            for division in self.divide(tables)
            for part in parts(division.items, self.most)
        ]

    def _entry(self, division: Division[Any], part: Part[Any], emulated: str) -> FigureEntry:
        heading = f"{division.heading}{part.counted}"
        return FigureEntry(
            stem=f"{self.stem}-{slug(*division.names)}{part.suffix}",
            title=f"{heading}: {division.title or self.title or _small(self.subject)}",
            caption=f"{division.caption} {emulated}".rstrip(),
            draw=partial(division.draw, heading, part.items),
            over_time=self.over_time,
        )


@dataclass(frozen=True)
class Part(Generic[Item]):
    """The items of one figure, where the items of a division take several."""

    #: texts behind the stem and behind the heading; both "" if there is only one part
    suffix: str
    counted: str
    items: list[Item]


def _small(text: str) -> str:
    return text[:1].lower() + text[1:]


def slug(*names: str) -> str:
    """Names as a part of a file's name."""
    return "-".join(re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.") or "unnamed" for name in names)


def by_model(cells: Iterable[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Each model with its cells, in the order in which figures show them."""
    ordered = sorted(cells, key=_place)
    for model in sorted({cell["model"] for cell in ordered}, key=natural):
        yield model, [cell for cell in ordered if cell["model"] == model]


def _place(cell: Row) -> tuple[object, ...]:
    """The sort key of a cell: platform, layout, micro-batch size, recomputation,
    overlap, options."""
    return (
        natural(cell["platform"]),
        natural(cell["parallelism"]),
        cell["micro_batch_size"],
        ("none", "selective", "full").index(cell["recomputation"]),
        cell["overlap"],
        natural(cell["options"]),
        cell["cell"],
    )


def by_platform_and_model(cells: Iterable[Row]) -> Iterator[tuple[str, str, list[Row]]]:
    """Each platform and model with its cells, in the order in which figures show them."""
    for model, of_model in by_model(cells):
        for platform in sorted({cell["platform"] for cell in of_model}, key=natural):
            yield platform, model, [cell for cell in of_model if cell["platform"] == platform]


def parts(items: Sequence[Item], most: int) -> list[Part[Item]]:
    """Items divided in order into the fewest parts of at most ``most``, of about equal size."""
    count = -(-len(items) // most)
    edges = [round(number * len(items) / count) for number in range(count + 1)] if count else []
    divided = [list(items[first:last]) for first, last in itertools.pairwise(edges)]
    return [
        Part("", "", part) if count == 1 else Part(f"-{number}", f" ({number} of {count})", part)
        for number, part in enumerate(divided, start=1)
    ]


def reasons_of_gpus(gpus: Iterable[Row], columns: Sequence[str]) -> str:
    """Why no row of GPUS has any of ``columns``: the three most frequent reasons."""
    given: Counter[str] = Counter()
    rows = 0
    for gpu in gpus:
        rows += 1
        reasons = Reason.of_row(gpu)
        given.update({reasons[column] for column in columns if column in reasons})
    if not rows:
        return "no run left readings of a GPU"
    named = [reason for reason, _ in sorted(given.items(), key=lambda item: (-item[1], item[0]))]
    return "; ".join(named[:3]) or "no GPU has a value of these"


def divisions_of_alike(
    tables: Tables,
    free: Collection[str],
    without: Sequence[str],
    caption: str,
    draw: Callable[[str, Sequence[tuple[Sequence[Row], str]]], Figure],
) -> Iterator[Division[tuple[Sequence[Row], str]]]:
    """The labelled groups of a platform's and model's cells that differ only in the ``free`` axes,
    if any cell has a panel; ``{interval}`` in the caption is what their bars are."""
    for platform, model, cells in by_platform_and_model(tables.cells):
        groups = [group for group in cell_axes.alike(cells, free) if len(group) > 1]
        shown = [cell for group in groups for cell in group]
        if panels_with_values(shown, without):
            yield Division(
                f"{model} on {platform}",
                (platform, model),
                list(zip(groups, group_labels(groups, free), strict=True)),
                caption.format(interval=interval_in_words(shown)),
                draw,
            )


def panels_with_values(cells: Iterable[Row], without: Sequence[str] = ()) -> list[Measure]:
    """The measures that have a panel and a value in any completed cell, except those in
    ``without``.

    A share of throttling that is 0 in all cells is left out as well.
    """
    done = [cell for cell in cells if completed(cell)]
    return [
        panel
        for panel in measures.shown_in("panels")
        if panel.name not in without
        and any(
            cell[panel.name] or (cell[panel.name] is not None and panel.factor == 1.0)
            for cell in done
        )
    ]


def has_measure(cell: Row, measure: str) -> bool:
    """Whether the cell completed and has a value of the measure."""
    return completed(cell) and cell[measure] is not None
