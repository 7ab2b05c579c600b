"""What the page knows of a figure, and how many cells are divided over several of a kind."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from matplotlib.figure import Figure

from workflow_lib.report.cells import Row, natural

Item = TypeVar("Item")


@dataclass(frozen=True)
class FigureEntry:
    """A figure: the stem of its files, what the page says of it, and how it is drawn.

    ``draw`` is called within :func:`workflow_lib.report.style.styled`.
    """

    stem: str
    title: str
    caption: str
    draw: Callable[[], Figure]
    #: whether it has a panel a cell over time: there are many such, and a cell's own page says more
    over_time: bool = False


@dataclass(frozen=True)
class Part(Generic[Item]):
    """What one figure of several shows."""

    #: to be set behind the stem, and behind the heading; both "" where there is one part
    suffix: str
    counted: str
    items: list[Item]


def slug(*names: str) -> str:
    """Names as a part of a file's name."""
    return "-".join(re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.") or "unnamed" for name in names)


def by_model(cells: Iterable[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Cells of each model, in the order in which figures show them."""
    ordered = sorted(cells, key=_place)
    for model in sorted({cell["model"] for cell in ordered}, key=natural):
        yield model, [cell for cell in ordered if cell["model"] == model]


def _place(cell: Row) -> tuple[object, ...]:
    """Platform, layout, micro-batch size; then base, overlap, recomputation, both."""
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
    """Cells of each model on each platform, in order."""
    for model, of_model in by_model(cells):
        for platform in sorted({cell["platform"] for cell in of_model}, key=natural):
            yield platform, model, [cell for cell in of_model if cell["platform"] == platform]


def parts(items: Sequence[Item], most: int) -> list[Part[Item]]:
    """Items divided, in their order, into the fewest parts of at most ``most``, about equal."""
    count = -(-len(items) // most)
    edges = [round(number * len(items) / count) for number in range(count + 1)] if count else []
    divided = [list(items[first:last]) for first, last in itertools.pairwise(edges)]
    return [
        Part("", "", part) if count == 1 else Part(f"-{number}", f" ({number} of {count})", part)
        for number, part in enumerate(divided, start=1)
    ]
