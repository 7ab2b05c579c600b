"""Kernel time per step, by class of kernel, for every rank of a cell's profiled run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from workflow_lib.records.outcomes import Outcome
from workflow_lib.report.figures import style
from workflow_lib.report.figures.cell_names import Row, completed, fate
from workflow_lib.report.figures.numbers import significant
from workflow_lib.report.figures.tables import Tables


@dataclass(frozen=True)
class KernelClass:
    """A class of KERNELS, as it is drawn."""

    name: str
    legend: str
    colour: str
    hatch: str = ""

    @property
    def communicates(self) -> bool:
        """Whether it is communication, which is hatched."""
        return bool(self.hatch)


#: all classes in the order in which they are stacked: computation, unknown, memory, communication
CLASSES = (
    KernelClass("gemm", "GEMM", style.BLUE),
    KernelClass("attention", "attention", style.SKY),
    KernelClass("normalisation_elementwise", "norm., element-wise", "#202020"),
    KernelClass("optimiser", "optimiser", style.YELLOW),
    KernelClass("other_computation", "other computation", "#8c8c8c"),
    KernelClass("unknown", "unknown", "#e8e8e8"),
    KernelClass("memory", "copies and sets", "#b8b8b8"),
    KernelClass("all_reduce", "all-reduce", style.VERMILLION, "//////"),
    KernelClass("all_gather", "all-gather", style.ORANGE, "\\\\\\\\\\\\"),
    KernelClass("reduce_scatter", "reduce-scatter", style.GREEN, "xxxxxx"),
    KernelClass("all_to_all", "all-to-all", style.PURPLE, "..."),
    KernelClass("send_receive", "send/receive", "#7a4a1e", "------"),
    KernelClass("broadcast", "broadcast", "#f3cfb3", "||||||"),
    KernelClass("other_communication", "other communication", "#a0529a", "++++++"),
)
#: a class that is less than this share of every bar of a figure is added to "other" of its kind;
#: what is unknown is of no kind
_SMALL = 0.01

#: class → seconds per step
Times = Mapping[str, float]


def kernel_times(tables: Tables, cells: Iterable[str]) -> dict[str, dict[int, dict[str, float]]]:
    """Seconds of kernels per step by cell, rank and class: sums of durations, mean over runs.

    Only ranks whose traces contain steps are included; cells without any such rank are left out.
    """
    if tables.kernels is None or tables.traces is None:
        return {}
    key = ["cell", "run", "rank"]
    chosen = pl.col("cell").is_in(list(cells))
    steps = tables.traces.filter(chosen & (pl.col("steps") > 0)).select(*key, "steps")
    sums = (
        tables.kernels.filter(chosen)
        .join(steps, on=key)
        .group_by(*key, "class")
        .agg((pl.col("kernel_s").sum() / pl.col("steps").first()).alias("seconds"))
    )
    # A class that a run lacks counts as 0 in it, so the sum is divided by the rank's runs, not
    # rows.
    runs = sums.group_by("cell", "rank").agg(pl.col("run").n_unique().alias("runs"))
    averaged = (
        sums.group_by("cell", "rank", "class")
        .agg(pl.col("seconds").sort().sum())
        .join(runs, on=["cell", "rank"])
        .sort("cell", "rank", "class")
    )
    times: dict[str, dict[int, dict[str, float]]] = {}
    for row in averaged.iter_rows(named=True):
        of_rank = times.setdefault(row["cell"], {}).setdefault(row["rank"], {})
        of_rank[row["class"]] = row["seconds"] / row["runs"]
    return times


def mean_times(ranks: Sequence[Times]) -> dict[str, float]:
    """The mean over ranks by class, in the order of :data:`CLASSES`."""
    return {
        klass.name: sum(times.get(klass.name, 0.0) for times in ranks) / len(ranks)
        for klass in CLASSES
        if any(klass.name in times for times in ranks)
    }


def communication_share(times: Times) -> float | None:
    """The share of communication in the kernel time; None if there is no time."""
    total = sum(times.values())
    if not total:
        return None
    return sum(times.get(klass.name, 0.0) for klass in CLASSES if klass.communicates) / total


def folded(bars: Sequence[Times]) -> list[dict[str, float]]:
    """Bars in which the classes that are small in all bars are added to "other" of their kind."""
    small = {
        klass.name: "other_communication" if klass.communicates else "other_computation"
        for klass in CLASSES
        if klass.name not in ("memory", "unknown")
        and all(bar.get(klass.name, 0.0) <= _SMALL * sum(bar.values()) for bar in bars)
    }
    folded_bars = []
    for bar in bars:
        sums: dict[str, float] = {}
        for name, seconds in bar.items():
            name = small.get(name, name)
            sums[name] = sums.get(name, 0.0) + seconds
        folded_bars.append(
            {klass.name: sums[klass.name] for klass in CLASSES if klass.name in sums}
        )
    return folded_bars


def draw_bars(
    axes: Axes, places: Sequence[float], bars: Sequence[Times], thickness: float, upright: bool
) -> None:
    """Stack each bar's classes from 0 on, to the right or ``upright``; sets no limits.

    All bars of a class are one path, because a path for each bar would make the page large.
    """
    begin = [0.0] * len(bars)
    for klass in CLASSES:
        seconds = [bar.get(klass.name, 0.0) for bar in bars]
        corners: list[tuple[float, float]] = []
        for place, start, length in zip(places, begin, seconds, strict=True):
            if length:
                near, far = place - thickness / 2, place + thickness / 2
                end = start + length
                corners += [(start, near), (end, near), (end, far), (start, far), (start, near)]
        if corners:
            path = Path(
                [corner[::-1] for corner in corners] if upright else corners,
                [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
                * (len(corners) // 5),
            )
            axes.add_patch(PathPatch(path, label=klass.legend, **_look(klass)))
        begin = [start + length for start, length in zip(begin, seconds, strict=True)]


def _look(klass: KernelClass) -> dict[str, Any]:
    """The look of a class. White edges separate classes, and are the colour of hatches."""
    return {
        "facecolor": klass.colour,
        "hatch": klass.hatch,
        "edgecolor": "white",
        "linewidth": 0.3,
    }


def stretches(bar: Times) -> list[tuple[float, float, str]]:
    """Where each class of a bar begins, its length, and the text of its mark."""
    pieces, begin = [], 0.0
    for klass in CLASSES:
        if length := bar.get(klass.name, 0.0):
            pieces.append((begin, length, f"{klass.legend} {significant(length)} s"))
            begin += length
    return pieces


#: the legend's three columns are together as wide as a paper's column
LEGEND: dict[str, Any] = {"ncols": 3, "columnspacing": 0.7, "handlelength": 1.2}


def legend_handles(bars: Iterable[Times]) -> list[Patch]:
    """A patch for each class that is in any of the bars."""
    present = {name for bar in bars for name, seconds in bar.items() if seconds}
    return [Patch(label=klass.legend, **_look(klass)) for klass in CLASSES if klass.name in present]


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
