"""The three panels of the README's picture: performance and energy, power, and heat.

Markers and lines differ in grey, too. The label of an axis says that it does not begin at zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from workflow_lib.analysis.samples import read_rows
from workflow_lib.comparison.sides import Side
from workflow_lib.records.contract import STEPS
from workflow_lib.records.labels import short_layout
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.telemetry_columns import POWER_SAMPLES
from workflow_lib.records.training import NATIVE
from workflow_lib.report.figures import style
from workflow_lib.report.figures.cell_names import Row, completed, completed_runs
from workflow_lib.report.figures.energy import Point, front, points
from workflow_lib.report.figures.marks import tell
from workflow_lib.results import run_directory

#: a colour and marker for each trainer, and for each layout
_TRAINERS = {
    NATIVE: (style.BLUE, "o"),
    "torchtitan": (style.ORANGE, "s"),
    "transformers": (style.GREEN, "^"),
    "megatron": (style.PURPLE, "D"),
}
_OTHERS = (style.VERMILLION, "v")
_LAYOUTS = ((style.SKY, "o"), ("black", "+"), (style.VERMILLION, "x"))
#: a colour and width in points of the line of each GPU
_GPUS = (("black", 0.7), (style.ORANGE, 0.9))
_TEXT_PT, _MARK_PT = 6.5, 4.0
_LIMIT: dict[str, Any] = {"color": style.BLUE, "linewidth": 0.9, "linestyle": "--"}
#: of a step's time, what is shown before and after it
_AROUND = 0.04
_ZOOM = "not from 0"
#: inches between strips
_GAP_IN = 0.15
#: where the label of a cell of the frontier may be
_BESIDE: dict[str, dict[str, Any]] = {
    "left": {"xytext": (-5, -1), "ha": "right", "va": "center"},
    "right": {"xytext": (5, 0), "ha": "left", "va": "center"},
    "above": {"xytext": (-2, 6), "ha": "left", "va": "bottom"},
    "below": {"xytext": (14, -5), "ha": "right", "va": "top"},
}
_AT: dict[str, Any] = {"textcoords": "offset points", "fontsize": _TEXT_PT}
#: the precision whose marks are filled, and the line of its frontier
_FILLED = "bf16"
_FRONTIER: dict[str, Any] = {"color": "black", "linewidth": 0.8, "linestyle": (0, (4, 2))}


def performance(axes: Axes, cells: Sequence[Row]) -> None:
    """Each cell with its interval, and a line of those that no other of their precision beats."""
    axes.set_title("Performance and energy", loc="left")
    some = points(cells)
    if not some:
        style.blank_panel(axes, "no cell has both")
        return
    for point in some:
        _mark(axes, point)
    longest = 0
    for precision in sorted({point.cell["precision"] for point in some}):
        # In another precision it is not the same work.
        best = front([each for each in some if each.cell["precision"] == precision])
        longest = max(longest, len(best))
        first = "left" if len(best) > 1 else "right"
        axes.plot(*zip(*map(_place, best), strict=True), **_FRONTIER, zorder=1)
        for number, point in enumerate(best):
            where = "below" if precision != _FILLED else "above" if number else first
            axes.annotate(_named(point.cell), _place(point), **_BESIDE[where], **_AT)
    axes.set(xlabel=f"1000 tokens/s per GPU ({_ZOOM})", ylabel=f"J per token ({_ZOOM})")
    axes.margins(0.08, 0.14)
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}")
    trainers = sorted({point.cell["trainer"] for point in some}, key=lambda n: (n != NATIVE, n))
    handles = [_handle(*_TRAINERS.get(name, _OTHERS), _trainer(name)) for name in trainers]
    for precision in sorted({point.cell["precision"] for point in some} - {_FILLED}):
        handles.append(_handle(style.GREY, "o", f"hollow: {precision}", markerfacecolor="white"))
    if longest > 1:
        handles.append(Line2D([], [], **_FRONTIER, label=f"frontier of {_FILLED}"))
    axes.legend(handles=handles, loc="upper right", fontsize=_TEXT_PT)
    axes.annotate("", (0.15, 0.04), (0.04, 0.18), "axes fraction", arrowprops={"arrowstyle": "->"})
    axes.text(0.13, 0.11, "better", transform=axes.transAxes, fontsize=_TEXT_PT)


def _handle(colour: str, marker: str, label: str, **more: Any) -> Line2D:
    return Line2D([], [], ls="", color=colour, marker=marker, ms=_MARK_PT, label=label, **more)


def _place(point: Point, end: int = 0) -> tuple[float, float]:
    """Tokens per second of a GPU, and joules per token: the median, or an end of their interval."""
    return point.tokens_per_s[end] / point.cell["gpus"], point.j_per_token[end]


def _mark(axes: Axes, point: Point) -> None:
    """The mark of a cell, hollow if its precision is not the usual one, with its interval."""
    (x, y), low, high = (_place(point, end) for end in range(3))
    colour, marker = _TRAINERS.get(point.cell["trainer"], _OTHERS)
    axes.errorbar(
        x,
        y,
        xerr=[[x - low[0]], [high[0] - x]],
        yerr=[[y - low[1]], [high[1] - y]],
        fmt=marker,
        color=colour,
        markersize=_MARK_PT,
        markerfacecolor=colour if point.cell["precision"] == _FILLED else "white",
        elinewidth=0.8,
    )
    tell(axes, _named(point.cell), x, y)


def _trainer(name: str) -> str:
    return "ours" if name == NATIVE else name


def _named(cell: Row) -> str:
    return f"{_trainer(cell['trainer'])} {_short(cell)}"


def _short(cell: Row) -> str:
    """A cell's layout, with its stage of ZeRO if it has replicas, and its precision if not bf16."""
    zero = [f"zero{cell['zero_stage']}"] if cell["dp"] > 1 else []
    precision = [] if cell["precision"] == _FILLED else [cell["precision"]]
    return " ".join([short_layout(cell), *zero, *precision])


def power(figure: Figure, panel: Axes, directory: Path, side: Side) -> None:
    """A strip for each way to divide the model, of the layout with the highest stage of ZeRO."""
    panel.set_title("Power", loc="left")
    by_zero = sorted(filter(completed, side.cells), key=lambda cell: cell["zero_stage"])
    chosen = {short_layout(cell): cell for cell in by_zero}
    if not chosen:
        style.blank_panel(panel, "no run completed")
        return
    strips = _divided(figure, panel, len(chosen))
    for axes, (_, cell) in zip(strips, sorted(chosen.items()), strict=True):
        (run, *_) = completed_runs(side.runs_of(cell))
        axes.set_title(_short(cell), loc="right", fontsize=_TEXT_PT, pad=1)
        _strip(axes, RunPaths(run_directory(directory.parents[1], cell["cell"], run["run"])))
        for limit_w in sorted(set(side.limits_w.get((cell["cell"], run["run"]), ()))):
            axes.axhline(limit_w, label=f"power limit {limit_w:g} W", **_LIMIT)
    strips[0].set_ylim(0, None)
    strips[len(strips) // 2].set_ylabel("W per GPU")
    strips[-1].set_xlabel("seconds from the start of a step")
    for axes, wanted in ((strips[0], "GPU"), (strips[-1], "power limit")):
        told = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
        some = [handle for label, handle in told.items() if label.startswith(wanted)]
        axes.legend(handles=some, loc="lower center", ncols=2, fontsize=_TEXT_PT)


def _divided(figure: Figure, panel: Axes, count: int) -> list[Axes]:
    """Strips of one scale in place of a panel, whose title stays."""
    panel.set_axis_off()
    box, gap = panel.get_position(), _GAP_IN / figure.get_figheight()
    height = (box.height - gap * (count - 1)) / count
    strips: list[Axes] = []
    for number in range(count):
        bottom = box.y1 - (number + 1) * height - number * gap
        first = strips[0] if strips else None
        place = (box.x0, bottom, box.width, height)
        strips.append(figure.add_axes(place, sharex=first, sharey=first))
        strips[-1].tick_params(labelbottom=number == count - 1)
    return strips


def _strip(axes: Axes, paths: RunPaths) -> None:
    """The watts of each GPU over a run's middle measured step, in seconds from its start."""
    try:
        steps = read_rows(paths.rank_steps(0), STEPS, ()).filter(pl.col("phase") == "measured")
        (node,) = paths.sampled_nodes()
        samples = read_rows(paths.power_samples(node), POWER_SAMPLES, ()).drop_nulls()
    except (OSError, ValueError):
        style.blank_panel(axes, "no samples")
        return
    start, end = steps.select("started_unix_s", "ended_unix_s").row(len(steps) // 2)
    elapsed = pl.col("driver_time_us") / 1e6 - start
    shown = samples.select("gpu", elapsed_s=elapsed, power_w=pl.col("power_mw") / 1e3).filter(
        pl.col("elapsed_s").is_between(-_AROUND * (end - start), (1 + _AROUND) * (end - start))
    )
    for (gpu,), of_gpu in sorted(shown.group_by("gpu", maintain_order=True)):
        colour, width = _GPUS[int(gpu) % len(_GPUS)]
        of_gpu = of_gpu.sort("elapsed_s")
        axes.plot(
            of_gpu["elapsed_s"], of_gpu["power_w"], color=colour, lw=width, label=f"GPU {gpu}"
        )
    for edge in (0.0, end - start):
        axes.axvline(edge, color=style.GREY, lw=0.6, ls=":")


def thermal(axes: Axes, cells: Sequence[Row], gpus: Sequence[Row]) -> None:
    """A mark for each GPU and run: its mean temperature and clock over the measured steps."""
    axes.set_title("Thermal", loc="left")
    known = [row for row in gpus if None not in _heat(row)]
    if not known:
        style.blank_panel(axes, "no readings")
        return
    layouts = {cell["cell"]: short_layout(cell) for cell in cells}
    for number, layout in enumerate(sorted({layouts[row["cell"]] for row in known})):
        colour, marker = _LAYOUTS[number % len(_LAYOUTS)]
        some = [_heat(row) for row in known if layouts[row["cell"]] == layout]
        axes.plot(*zip(*some, strict=True), marker, color=colour, ms=_MARK_PT, label=layout)
    axes.set(xlabel=f"GPU temperature (°C, {_ZOOM})", ylabel=f"SM clock (MHz, {_ZOOM})")
    axes.legend(loc="best", fontsize=_TEXT_PT)


def _heat(row: Row) -> tuple[float, float]:
    return row["temperature_mean_c"], row["sm_clock_mean_mhz"]
