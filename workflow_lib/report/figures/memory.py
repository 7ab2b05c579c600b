"""Memory of a GPU, planned and used: a row for each cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from workflow_lib.records.labels import labels
from workflow_lib.records.measures import MEASURES
from workflow_lib.report.figures import style
from workflow_lib.report.figures.cell_names import Row, completed
from workflow_lib.report.figures.kind import (
    MEDIANS,
    Division,
    FigureKind,
    by_platform_and_model,
    has_measure,
)
from workflow_lib.report.figures.marks import in_words, tell
from workflow_lib.report.figures.numbers import interval_in_words
from workflow_lib.report.figures.tables import Tables

#: measure, its word in the legend, colour and marker; each includes the one before it
_HELD = (
    ("memory_peak_bytes", "allocated", style.SKY, "o"),
    ("memory_reserved_peak_bytes", "reserved", style.ORANGE, "s"),
    ("memory_used_peak_bytes", "used (driver)", "black", "D"),
)
_USED, _ERROR = "memory_used_peak_bytes", "memory_estimate_error"


def _divide(tables: Tables) -> Iterator[Division[Row]]:
    """The completed cells of a platform and model whose memory use the driver counted."""
    for platform, model, cells in by_platform_and_model(tables.cells):
        shown = [cell for cell in cells if completed(cell) and has_measure(cell, _USED)]
        yield Division(
            f"{model} on {platform}",
            (platform, model),
            shown,
            "Memory of the fullest rank's GPU: allocated by tensors, held by torch's allocator, "
            "counted by the driver, and planned (for the driver's count). Medians over completed "
            f"runs; the bar of the driver's count is {interval_in_words(shown)}.",
            memory_figure,
        )


def memory_figure(heading: str, cells: Sequence[Row]) -> Figure:
    """Draw cells within :func:`style.styled`, the first on top."""
    figure = Figure(figsize=(style.COLUMN_IN, 1.05 + 0.24 * len(cells)))
    axes = figure.subplots()
    rows = [float(-number) for number in range(len(cells))]
    for row, cell in zip(rows, cells, strict=True):
        held = [kind for kind in _HELD if has_measure(cell, kind[0])]
        values = [cell[name] * MEASURES[name].factor for name, *_ in held]
        axes.plot([min(values), max(values)], [row, row], color="#bbbbbb", linewidth=1.0, zorder=1)
        for (name, _, colour, marker), value in zip(held, values, strict=True):
            axes.plot(value, row, marker, color=colour, markersize=4.0, markeredgecolor="white")
            tell(axes, in_words(cell, name), value, row)
        ends = [cell[_USED + end] * MEASURES[_USED].factor for end in ("_low", "_high")]
        axes.plot(ends, [row, row], color="black", linewidth=0.6)
        if has_measure(cell, _ERROR):
            expected = cell[_USED] * MEASURES[_USED].factor * (1 + cell[_ERROR])
            axes.plot(expected, row, "|", color=style.VERMILLION, markersize=9, markeredgewidth=1.4)
    axes.set_yticks(rows, labels(cells))
    axes.set_ylim(rows[-1] - 0.6, 0.6)
    # Room for the marker of the largest value.
    axes.set_xlim(0, 1.03 * axes.get_xlim()[1])
    axes.grid(axis="x", linewidth=0.4, color="#dddddd")
    axes.set_xlabel(f"Memory ({MEASURES[_USED].people_unit})")
    handles = [
        Line2D([], [], color=colour, marker=marker, linestyle="", markersize=4.0)
        for _, _, colour, marker in _HELD
    ]
    planned = Line2D(
        [], [], color=style.VERMILLION, marker="|", linestyle="", markersize=8, markeredgewidth=1.4
    )
    figure.legend(
        [*handles, planned],
        [*(word for _, word, *_ in _HELD), "planned"],
        loc="outside lower center",
        ncols=4,
    )
    style.title(figure, heading, style.marks(cells))
    return figure


KIND = FigureKind(
    stem="memory",
    subject="Memory planned and used",
    about=(
        "Memory of the fullest rank's GPU in GB: allocated by tensors, reserved by torch's "
        "allocator, used as the driver counts it, and planned."
    ),
    limits=MEDIANS + "Runs on CPUs have none.",
    most=20,
    divide=_divide,
    why_not=lambda _: "the driver's count of memory is not known for any completed cell",
)
