"""Like figure 15 of arXiv 2509.10371: kernel time by class of every pipeline rank, at two
micro-batch sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workflow_lib.records import cell_axes
from workflow_lib.records.bounds import PARALLEL
from workflow_lib.records.degrees import Degrees, coordinates
from workflow_lib.records.labels import group_labels
from workflow_lib.report.figures import style
from workflow_lib.report.figures.cell_names import Row
from workflow_lib.report.figures.kernel_times import (
    LEGEND,
    Times,
    draw_bars,
    folded,
    kernel_times,
    legend_handles,
    mean_times,
    stretches,
    why_no_kernels,
    why_no_times,
)
from workflow_lib.report.figures.kind import KERNELS, Division, FigureKind, by_platform_and_model
from workflow_lib.report.figures.marks import tell
from workflow_lib.report.figures.tables import Tables

_FREE = cell_axes.varied_by("pipeline-ranks")
#: micro-batch sizes of that figure
_SIZES = (1, 4)

Ranks = Mapping[int, Times]


def _divide(tables: Tables) -> Iterator[Division[tuple[Sequence[Row], str]]]:
    """The pipelined layouts of a platform and model: groups that differ only in the micro-batch
    size, with labels."""
    for platform, model, cells in by_platform_and_model(tables.cells):
        times = kernel_times(tables, [cell["cell"] for cell in cells])
        pipelined = [cell for cell in cells if cell["pp"] > 1]
        groups = [
            group
            for group in map(_chosen, cell_axes.alike(pipelined, _FREE))
            if any(cell["cell"] in times for cell in group)
        ]
        # If some were profiled at two sizes, only these, so that each has as many panels.
        several = [group for group in groups if len(group) > 1]
        groups = several or groups
        yield Division(
            f"{model} on {platform}",
            (platform, model),
            list(zip(groups, group_labels(groups, _FREE), strict=True)),
            "Like figure 15 of arXiv 2509.10371. Durations of a step's kernels by class, mean over "
            "the ranks of a stage; whiskers span these ranks. Kernels that run at the same time "
            "each count. Waiting for another stage counts as send/receive. Hatched classes are "
            "communication. Measured in profiled runs.",
            partial(pipeline_rank_figure, times=times),
        )


def pipeline_rank_figure(
    heading: str, labelled: Sequence[tuple[Sequence[Row], str]], times: Mapping[str, Ranks]
) -> Figure:
    """Draw a panel for each cell of groups that differ in the micro-batch size, with its label.

    ``times`` are those of :func:`kernel_times`. A cell without any is hatched, with the reason.
    """
    cells = [cell for group, _ in labelled for cell in group]
    labels = [label for group, label in labelled for _ in group]
    stages = {
        cell["cell"]: _stages(cell, times[cell["cell"]]) for cell in cells if cell["cell"] in times
    }
    means = [mean_times(ranks) for of_cell in stages.values() for ranks in of_cell.values()]
    bars = iter(folded(means))
    stacks = {cell: {stage: next(bars) for stage in of_cell} for cell, of_cell in stages.items()}
    handles = legend_handles(stack for of_cell in stacks.values() for stack in of_cell.values())
    across = min(2, len(cells))
    down = -(-len(cells) // across)
    below_in = 0.42 + 0.125 * -(-len(handles) // LEGEND["ncols"])
    titles = [
        f"{label} mb{cell['micro_batch_size']}" for cell, label in zip(cells, labels, strict=True)
    ]
    title_in = style.title_in(titles)
    head_in, gap_in = style.HEAD_IN + title_in, 0.15 + title_in
    height = head_in + (0.75 + gap_in) * down - gap_in + below_in
    figure = Figure(figsize=(style.COLUMN_IN, height))
    rows = style.grid(figure, down, across, (0.5, 0.06, head_in, below_in), (0.12, gap_in))
    axes = [panel for of_row in rows for panel in of_row]
    style.panel_titles(axes, titles)
    for panel, cell in zip(axes, cells, strict=False):
        if cell["cell"] in stacks:
            _draw(panel, cell, stacks[cell["cell"]], stages[cell["cell"]])
        else:
            style.blank_panel(panel, why_no_times(cell))
            panel.set_xticks([])
    totals = [
        sum(times.values()) for of in stages.values() for ranks in of.values() for times in ranks
    ]
    for number, panel in enumerate(axes):
        panel.set_ylim(0, 1.05 * max(totals))
        if number % across:
            panel.tick_params(labelleft=False)
    for empty in axes[len(cells) :]:
        empty.set_axis_off()
    for lowest in axes[len(cells) - across : len(cells)]:
        lowest.set_xlabel("Pipeline rank")
    # In the middle of the panels, because the legend is below them.
    middle = (below_in + (height - head_in - below_in) / 2) / height
    figure.supylabel("Kernel time per\nstep and rank (s)", x=0.01, y=middle, fontsize=7)
    figure.legend(handles=handles, loc="lower center", **LEGEND)
    style.title(figure, heading, style.marks(cells))
    return figure


def _chosen(group: Sequence[Row]) -> list[Row]:
    """The cells of micro-batch sizes 1 and 4 if the group has both, else those of its smallest and
    largest."""
    of_size = {cell["micro_batch_size"]: cell for cell in group}
    sizes = _SIZES if set(_SIZES) <= of_size.keys() else sorted({min(of_size), max(of_size)})
    return [of_size[size] for size in sizes]


def _stages(cell: Row, ranks: Ranks) -> dict[int, list[Times]]:
    """Pipeline rank → the times of its ranks."""
    degrees = Degrees(**{degree: cell[degree] for degree in PARALLEL})
    stages: dict[int, list[Times]] = {}
    for rank, times in sorted(ranks.items()):
        stages.setdefault(coordinates(rank, degrees).pp, []).append(times)
    return stages


def _draw(
    axes: Axes, cell: Row, stacks: Mapping[int, Times], stages: Mapping[int, Sequence[Times]]
) -> None:
    draw_bars(axes, list(stacks), list(stacks.values()), 0.85, upright=True)
    for stage, stack in stacks.items():
        # One mark for each bar, because its classes are too small to point at.
        text = ", ".join(stretch for _, _, stretch in stretches(stack))
        tell(axes, f"pipeline rank {stage}: {text}", stage - 0.425, 0.0, 0.85, sum(stack.values()))
    for stage, ranks in stages.items():
        totals = [sum(times.values()) for times in ranks]
        if len(totals) > 1:
            mean = sum(totals) / len(totals)
            axes.errorbar(
                stage,
                mean,
                yerr=[[mean - min(totals)], [max(totals) - mean]],
                color="black",
                elinewidth=0.6,
                capsize=1.0,
                capthick=0.6,
            )
    for stage in set(range(cell["pp"])) - stages.keys():
        style.blank(axes, stage - 0.425, stage + 0.425, "no trace")
    every = -(-cell["pp"] // 8)
    axes.set_xticks(range(0, cell["pp"], every))
    axes.set_xlim(-0.6, cell["pp"] - 0.4)
    axes.grid(axis="y", linewidth=0.4, color="#dddddd")


KIND = FigureKind(
    stem="pipeline",
    subject="Kernel time of every pipeline rank",
    about="Time of kernels by class in seconds per step, for each pipeline rank.",
    limits=KERNELS + "Waiting for another stage counts as send/receive.",
    most=5,
    divide=_divide,
    why_not=lambda tables: why_no_kernels(tables) or "no cell with a pipeline was profiled",
)
