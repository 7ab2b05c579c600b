"""Kernel time by class: the cells of a model across platforms, as figure 3 of arXiv 2509.10371, and
without and with recomputation, as figure 10."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workflow_lib.records import cell_axes
from workflow_lib.records.labels import group_labels, labels
from workflow_lib.report.figures import style
from workflow_lib.report.figures.cell_names import Row, completed
from workflow_lib.report.figures.kernel_times import (
    LEGEND,
    Times,
    communication_share,
    draw_bars,
    folded,
    kernel_times,
    legend_handles,
    mean_times,
    stretches,
    why_no_kernels,
    why_no_times,
)
from workflow_lib.report.figures.kind import (
    KERNELS,
    Division,
    FigureKind,
    by_model,
    by_platform_and_model,
)
from workflow_lib.report.figures.marks import tell
from workflow_lib.report.figures.numbers import significant
from workflow_lib.report.figures.tables import Tables

#: the most bars in one figure, so that it fits on a page
MOST_BARS = 36
CAPTION = (
    "Durations of all kernels of a step by class, mean over ranks. Kernels that run at the same "
    "time each count. Whiskers span ranks. Hatched classes are communication; the number at the "
    "end of a bar is their share. Measured in a profiled run. "
)


@dataclass(frozen=True)
class Bar:
    """A cell's bar in the figure."""

    label: str
    cell: Row
    #: rank → its times, of ranks with a trace; empty if the cell was not profiled or failed
    ranks: Mapping[int, Times]
    #: whether there is a gap above the bar; ``heading`` is the text in a row above it
    apart: bool = False
    heading: str = ""


def kernel_bars_figure(heading: str, bars: Sequence[Bar]) -> Figure:
    """Draw bars downwards within :func:`style.styled`.

    A cell without kernel times is a hatched row that says why. If only some ranks have a trace, the
    label counts them.
    """
    have = [bar for bar in bars if bar.ranks]
    stacks = folded([mean_times(list(bar.ranks.values())) for bar in have])
    handles = legend_handles(stacks)
    names = [_counted(bar) for bar in bars]
    places = _places(bars)
    lines = -(-len(handles) // LEGEND["ncols"])
    height = 0.75 + 0.16 * (places[-1] + 1) + style.LINE_IN * lines
    figure = Figure(figsize=(style.COLUMN_IN, height))
    axes = figure.subplots()
    at = {bar.cell["cell"]: place for bar, place in zip(bars, places, strict=True)}
    where = [at[bar.cell["cell"]] for bar in have]
    draw_bars(axes, where, stacks, 0.74, upright=False)
    longest = 0.0
    for bar, stack, place in zip(have, stacks, where, strict=True):
        longest = max(longest, _draw_ranks(axes, bar, stack, place))
        for begin, length, text in stretches(stack):
            tell(axes, f"{bar.label}: {text}", begin, place - 0.37, length, 0.74)
    for bar, place in zip(bars, places, strict=True):
        if not bar.ranks:
            style.blank_row(axes, place - 0.4, place + 0.4, why_no_times(bar.cell))
        if bar.heading:
            _head(axes, place, bar.heading)
    axes.set_yticks(places, names)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(places[-1] + 0.6, -0.6)
    axes.set_xlim(0, longest * 1.14 or 1.0)
    axes.grid(axis="x", linewidth=0.4, color="#dddddd")
    axes.set_xlabel("Kernel time per step and rank (s)", loc="right")
    figure.legend(handles=handles, loc="outside lower center", **LEGEND)
    style.title(figure, heading, style.marks(bar.cell for bar in bars))
    return figure


def _places(bars: Sequence[Bar]) -> list[float]:
    places, place = [], -1.0
    for number, bar in enumerate(bars):
        place += 1.0 + (0.35 if bar.apart and number else 0.0) + (1.0 if bar.heading else 0.0)
        places.append(place)
    return places


def _counted(bar: Bar) -> str:
    ranks = bar.cell["gpus"]
    return bar.label if len(bar.ranks) in (0, ranks) else f"{bar.label} ({len(bar.ranks)}/{ranks})"


def _draw_ranks(axes: Axes, bar: Bar, stack: Times, place: float) -> float:
    """Draw the range over ranks, and the share of communication beside it; return the
    range's end."""
    totals = [sum(times.values()) for times in bar.ranks.values()]
    end = max(totals)
    ranks = f"ranks {significant(min(totals))}–{significant(end)} s"
    tell(axes, f"{bar.label}: {ranks}", min(totals), place + 0.4, end - min(totals), 0.0)
    if len(totals) > 1:
        # At the lower edge, so that it covers no class.
        style.range_along_row(axes, min(totals), end, place + 0.4, 1.2)
    # One GPU has nobody to communicate with.
    share = communication_share(stack) if bar.cell["gpus"] > 1 else None
    if share is not None:
        style.beside(axes, end, place, f"{share:.0%}".replace("%", " %"))
    return end


def _head(axes: Axes, place: float, text: str) -> None:
    """Write a heading above a bar, at the left edge."""
    axes.annotate(
        text,
        (0.0, place - 1.0),
        xycoords=axes.get_yaxis_transform(),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        fontsize=6.5,
    )


def _divide_by_model(tables: Tables) -> Iterator[Division[Row]]:
    """The cells of each model of which any cell was profiled."""
    for model, cells in by_model(tables.cells):
        times = kernel_times(tables, [cell["cell"] for cell in cells])
        # Cells for which no profile was asked are not shown.
        shown = [
            cell
            for cell in cells
            if cell["cell"] in times or not completed(cell) or cell["profiled_outcome"] is not None
        ]
        if times:
            names = dict(zip((cell["cell"] for cell in shown), labels(shown), strict=True))
            yield Division(
                model,
                (model,),
                shown,
                f"Like figure 3 of arXiv 2509.10371. {CAPTION}",
                partial(_draw_classes, times=times, names=names),
            )


def _draw_classes(
    heading: str,
    cells: Sequence[Row],
    times: Mapping[str, Mapping[int, Times]],
    names: Mapping[str, str],
) -> Figure:
    """Draw a bar for each cell, those of a platform below its name."""
    bars = []
    for number, cell in enumerate(cells):
        first = not number or cell["platform"] != cells[number - 1]["platform"]
        platform = f"{cell['platform']}" if first else ""
        ranks = times.get(cell["cell"], {})
        bars.append(Bar(names[cell["cell"]], cell, ranks, heading=platform))
    return kernel_bars_figure(heading, bars)


KERNEL_CLASSES = FigureKind(
    stem="kernels",
    subject="Kernel time by class across platforms",
    title="kernel time by class",
    about="Time of kernels by class in seconds per step, mean over ranks.",
    limits=KERNELS + "Whiskers span ranks.",
    most=MOST_BARS,
    divide=_divide_by_model,
    why_not=lambda tables: why_no_kernels(tables) or "no trace says how many steps it holds",
)


_FREE = cell_axes.varied_by("recomputation")
_ORDER = ("none", "selective", "full")
_WORDS = {"none": "off", "selective": "selective", "full": "on"}


def _divide_by_recomputation(tables: Tables) -> Iterator[Division[Bar]]:
    """Bars of the cells of a platform and model that differ only in recomputation."""
    for platform, model, cells in by_platform_and_model(tables.cells):
        times = kernel_times(tables, [cell["cell"] for cell in cells])
        groups = [
            sorted(group, key=lambda cell: _ORDER.index(cell["recomputation"]))
            for group in cell_axes.alike(cells, _FREE)
            if len(group) > 1 and any(cell["cell"] in times for cell in group)
        ]
        bars = []
        labels = group_labels(groups, _FREE)
        for group, label in zip(groups, labels, strict=True):
            for number, cell in enumerate(group):
                name = f"{label} {_WORDS[cell['recomputation']]}"
                bars.append(Bar(name, cell, times.get(cell["cell"], {}), apart=not number))
        yield Division(
            f"{model} on {platform}",
            (platform, model),
            bars,
            f"Like figure 10 of arXiv 2509.10371. {CAPTION}",
            kernel_bars_figure,
        )


RECOMPUTATION = FigureKind(
    stem="recomputation",
    subject="Kernel time by class, recomputation off and on",
    about=(
        "Time of kernels by class in seconds per step, with recomputation off and on, mean over"
        " ranks."
    ),
    limits=KERNELS + "Whiskers span ranks.",
    most=MOST_BARS,
    divide=_divide_by_recomputation,
    why_not=lambda tables: (
        why_no_kernels(tables) or "no two profiled cells differ only in recomputation"
    ),
)
