"""Like figure 13 of arXiv 2509.10371: throughput, efficiency, power and temperature by micro-batch
size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from workflow_lib.records import cell_axes
from workflow_lib.records.measures import Measure
from workflow_lib.report.figures import style
from workflow_lib.report.figures.cell_names import Row, completed, fate
from workflow_lib.report.figures.kind import (
    MEDIANS,
    FigureKind,
    divisions_of_alike,
    has_measure,
    panels_with_values,
)
from workflow_lib.report.figures.marks import in_words, tell
from workflow_lib.report.figures.numbers import whiskers

_FREE = cell_axes.varied_by("microbatch")
#: a colour, marker and line style for each layout; no more lines than one can tell apart
_LINES: tuple[tuple[str, str, tuple[float, Sequence[float]]], ...] = (
    (style.BLUE, "o", (0, ())),
    (style.VERMILLION, "s", (0, (5, 1))),
    ("black", "^", (0, (1, 1))),
    (style.GREEN, "D", (0, (5, 1, 1, 1))),
    (style.PURPLE, "v", (0, (3, 2))),
    (style.ORANGE, "P", (0, ())),
)
_WITHOUT = ("throttle_power_share",)


def microbatch_figure(heading: str, labelled: Sequence[tuple[Sequence[Row], str]]) -> Figure:
    """Draw labelled groups of cells that differ in the micro-batch size, with a panel for each
    measure."""
    groups, labels = [group for group, _ in labelled], [label for _, label in labelled]
    cells = [cell for group in groups for cell in group]
    panels = panels_with_values(cells, _WITHOUT)
    sizes = sorted({cell["micro_batch_size"] for cell in cells})
    failed = any(not completed(cell) for cell in cells)
    ratios = [1.0] * len(panels) + ([0.24 * len(groups)] if failed else [])
    columns = 2 if max(map(len, labels)) < 26 else 1
    legend_in = style.LINE_IN * -(-len(groups) // columns)
    figure = Figure(figsize=(style.COLUMN_IN, 0.75 + 0.9 * sum(ratios) + legend_in))
    rows = figure.subplots(len(ratios), 1, sharex=True, squeeze=False, height_ratios=ratios)
    axes = list(rows[:, 0])
    for panel, of_panel in zip(panels, axes, strict=False):
        of_panel.set_ylabel(panel.panel)
        of_panel.grid(axis="y", linewidth=0.4, color="#dddddd")
        for number, (group, label) in enumerate(zip(groups, labels, strict=True)):
            _draw(of_panel, panel, group, label, number, len(groups))
        if panel.from_zero:
            of_panel.set_ylim(0, of_panel.dataLim.y1 * 1.08 or 1.0)
        else:
            of_panel.margins(y=0.12)
    if failed:
        _draw_failed(axes[-1], groups, sizes)
    axes[-1].set_xticks([math.log2(size) for size in sizes], [str(size) for size in sizes])
    edge = 0.5 * min((math.log2(b / a) for a, b in itertools.pairwise(sizes)), default=1)
    axes[-1].set_xlim(math.log2(sizes[0]) - edge, math.log2(sizes[-1]) + edge)
    axes[-1].set_xlabel("Micro-batch size (sequences)")
    figure.align_ylabels(axes[: len(panels)])
    handles = [
        Line2D([], [], color=colour, marker=marker, linestyle=line, linewidth=0.9, markersize=3.4)
        for colour, marker, line in _LINES[: len(groups)]
    ]
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=3.0)
    style.title(figure, heading, style.marks(cells))
    return figure


def _draw(
    axes: Axes, panel: Measure, group: Sequence[Row], label: str, number: int, count: int
) -> None:
    """Draw a layout's line, broken where a size has no value. Lines are shifted so that all bars
    show."""
    colour, marker, line = _LINES[number]
    ordered = sorted(group, key=lambda cell: cell["micro_batch_size"])
    have = [cell for cell in ordered if has_measure(cell, panel.name)]
    if not have:
        return
    shift = 0.04 * (number - (count - 1) / 2)
    nan = float("nan")
    axes.plot(
        [math.log2(cell["micro_batch_size"]) + shift for cell in ordered],
        [cell[panel.name] * panel.factor if cell in have else nan for cell in ordered],
        color=colour,
        linestyle=line,
        linewidth=0.9,
    )
    axes.errorbar(
        [math.log2(cell["micro_batch_size"]) + shift for cell in have],
        [cell[panel.name] * panel.factor for cell in have],
        yerr=whiskers(have, panel.name, panel.factor),
        fmt=marker,
        color=colour,
        markersize=3.4,
        markeredgecolor="white",
        markeredgewidth=0.3,
        elinewidth=0.8,
        capsize=1.3,
        label=label,
    )
    for cell in have:
        size = cell["micro_batch_size"]
        text = f"{label}, micro-batch {size}: {in_words(cell, panel.name)}"
        tell(axes, text, math.log2(size) + shift, cell[panel.name] * panel.factor)


def _draw_failed(axes: Axes, groups: Sequence[Sequence[Row]], sizes: Sequence[int]) -> None:
    """Write a line for each layout with the outcomes of the sizes that have no value."""
    for number, group in enumerate(groups):
        colour, marker, _ = _LINES[number]
        axes.plot(
            -0.03,
            number,
            marker=marker,
            color=colour,
            markersize=3.4,
            transform=axes.get_yaxis_transform(),
            clip_on=False,
        )
        of_size = {cell["micro_batch_size"]: cell for cell in group}
        fates = [
            fate(cell) if (cell := of_size.get(size)) and not completed(cell) else ""
            for size in sizes
        ]
        for outcome, places in itertools.groupby(enumerate(sizes), key=lambda pair: fates[pair[0]]):
            if outcome:
                some = [math.log2(size) for _, size in places]
                _band(axes, number, some[0], some[-1], outcome)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_yticks([])
    axes.set_ylabel("Not com-\npleted", rotation=0, ha="right", va="center", labelpad=9)
    axes.patch.set(facecolor=style.HATCHED)


def _band(axes: Axes, line: int, first: float, last: float, outcome: str) -> None:
    """Write the outcome of neighbouring sizes of a layout."""
    axes.barh(
        line,
        last - first + 0.9,
        0.86,
        first - 0.45,
        facecolor="white",
        edgecolor=style.GREY,
        linewidth=0.4,
    )
    axes.text(
        (first + last) / 2,
        line,
        style.wrapped(outcome, 7) if len(outcome) > 9 and first == last else outcome,
        ha="center",
        va="center",
        fontsize=style.SMALLEST_PT,
        linespacing=0.9,
    )


KIND = FigureKind(
    stem="microbatch",
    subject="Measures by micro-batch size",
    title="by micro-batch size",
    about="Measures against the micro-batch size in samples, one line for each layout.",
    limits=MEDIANS + "A line is broken where a cell did not complete.",
    most=len(_LINES),
    divide=partial(
        divisions_of_alike,
        free=_FREE,
        without=_WITHOUT,
        caption="Like figure 13 of arXiv 2509.10371: one line for each layout. Markers are medians "
        "over completed runs, bars are {interval}. Cells that did not complete are at the bottom, "
        "and the line is broken there.",
        draw=microbatch_figure,
    ),
    why_not=lambda _: "no two cells with a value differ only in the micro-batch size",
)
