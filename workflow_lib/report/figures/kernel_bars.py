"""Cells as horizontal bars of kernel time per step, stacked by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workflow_lib.records.outcomes import Outcome
from workflow_lib.report.figures import style
from workflow_lib.report.figures.cell_names import Row, completed, fate
from workflow_lib.report.figures.kernel_times import (
    LEGEND,
    Times,
    communication_share,
    draw_bars,
    folded,
    legend_handles,
    mean_times,
    stretches,
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


def why_no_kernels(tables: Tables) -> str:
    """Why there are no kernel times at all; "" if there are."""
    if tables.kernels is None or tables.traces is None:
        return "there is no kernels.parquet and traces.parquet: no run was profiled"
    if len(tables.kernels):
        return ""
    if all(cell["profiled_outcome"] is None for cell in tables.cells):
        return "no run was profiled: the sweep's protocol has no profiled_steps"
    return "no profiled run left traces that could be read"


def why_no_times(cell: Row) -> str:
    """The text in place of the bar of a cell that has no kernel times."""
    if not completed(cell):
        return fate(cell)
    asked = cell["profiled_outcome"]
    if asked is None:
        return "not profiled"
    ended = fate({"outcome": asked})
    return "no trace" if asked == Outcome.COMPLETED.value else f"profiled run: {ended}"


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
        axes.errorbar(
            (min(totals) + end) / 2,
            place + 0.4,
            xerr=(end - min(totals)) / 2,
            fmt="none",
            ecolor="black",
            elinewidth=0.7,
            capsize=1.2,
            capthick=0.7,
        )
    # One GPU has nobody to communicate with.
    share = communication_share(stack) if bar.cell["gpus"] > 1 else None
    if share is not None:
        axes.annotate(
            f"{share:.0%}".replace("%", " %"),
            (end, place),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=style.SMALLEST_PT,
        )
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
