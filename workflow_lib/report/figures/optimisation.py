"""Like figure 8 of arXiv 2509.10371: overlap and recomputation, each alone and both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

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

_FREE = cell_axes.varied_by("optimisation")
#: measures that would repeat what other panels show
_WITHOUT = ("power_peak_w", "prefill_tokens_per_s_per_gpu")


@dataclass(frozen=True)
class _Variant:
    overlap: bool
    recomputation: str
    legend: str
    colour: str
    hatch: str
    marker: str


_VARIANTS = (
    _Variant(False, "none", "neither", "#dddddd", "", "o"),
    _Variant(True, "none", "overlap", style.SKY, "", "s"),
    _Variant(False, "selective", "selective recomp.", style.YELLOW, "....", "v"),
    _Variant(True, "selective", "selective, overlap", style.GREEN, "....", "<"),
    _Variant(False, "full", "recomputation", style.VERMILLION, "//////", "^"),
    _Variant(True, "full", "both", "#404040", "", "D"),
)


def optimisation_figure(heading: str, labelled: Sequence[tuple[Sequence[Row], str]]) -> Figure:
    """Draw labelled groups of cells that differ only in these options, with a panel for each
    measure."""
    groups, labels = [group for group, _ in labelled], [label for _, label in labelled]
    cells = [cell for group in groups for cell in group]
    panels = panels_with_values(cells, _WITHOUT)
    present = {(cell["overlap"], cell["recomputation"]) for cell in cells}
    variants = [
        variant for variant in _VARIANTS if (variant.overlap, variant.recomputation) in present
    ]
    ticks = [style.wrapped(label, 10) for label in labels]
    lines = max(tick.count("\n") for tick in ticks) + 1
    height = 0.6 + 0.88 * max(len(panels), 1) + style.LINE_IN * lines
    figure = Figure(figsize=(style.COLUMN_IN, height))
    axes = list(figure.subplots(max(len(panels), 1), 1, sharex=True, squeeze=False)[:, 0])
    width = 0.84 / len(variants)
    for panel, of_panel in zip(panels, axes, strict=False):
        of_panel.set_ylabel(panel.panel)
        of_panel.grid(axis="y", linewidth=0.4, color="#dddddd")
        for number, variant in enumerate(variants):
            shift = (number - (len(variants) - 1) / 2) * width
            _draw(of_panel, panel, groups, labels, variant, shift, width)
        if not panel.from_zero:
            of_panel.margins(y=0.15)
    for place, group in enumerate(groups):
        _say_why(axes, panels, place, group, variants, width)
    axes[-1].set_xticks(range(len(groups)), ticks)
    axes[-1].tick_params(axis="x", length=0)
    axes[-1].set_xlim(-0.5, len(groups) - 0.5)
    for place in range(1, len(groups)):
        for of_panel in axes:
            of_panel.axvline(place - 0.5, color="#bbbbbb", linewidth=0.4)
    figure.align_ylabels(axes)
    figure.legend(
        handles=[
            Patch(facecolor=v.colour, hatch=v.hatch, edgecolor="black", linewidth=0.4)
            for v in variants
        ],
        labels=[variant.legend for variant in variants],
        loc="outside lower center",
        ncols=min(len(variants), 4),
    )
    style.title(figure, heading, style.marks(cells))
    return figure


def _of(group: Sequence[Row], variant: _Variant) -> Row | None:
    for cell in group:
        if (cell["overlap"], cell["recomputation"]) == (variant.overlap, variant.recomputation):
            return cell
    return None


def _draw(
    axes: Axes,
    panel: Measure,
    groups: Sequence[Sequence[Row]],
    labels: Sequence[str],
    variant: _Variant,
    shift: float,
    width: float,
) -> None:
    """Draw a variant's bars, or markers if the panel does not begin at 0."""
    have = [
        (place + shift, cell, label)
        for place, (group, label) in enumerate(zip(groups, labels, strict=True))
        if (cell := _of(group, variant)) is not None and has_measure(cell, panel.name)
    ]
    if not have:
        return
    places = [place for place, *_ in have]
    cells = [cell for _, cell, _ in have]
    values = [cell[panel.name] * panel.factor for cell in cells]
    if panel.from_zero:
        axes.bar(
            places,
            values,
            width * 0.92,
            facecolor=variant.colour,
            hatch=variant.hatch,
            edgecolor="black",
            linewidth=0.4,
            label=variant.legend,
        )
    axes.errorbar(
        places,
        values,
        yerr=whiskers(cells, panel.name, panel.factor),
        fmt="none" if panel.from_zero else variant.marker,
        color="black",
        markerfacecolor=variant.colour,
        markeredgewidth=0.5,
        markersize=4,
        elinewidth=0.8,
        capsize=1.5,
        label="_" if panel.from_zero else variant.legend,
    )
    for (place, cell, label), value in zip(have, values, strict=True):
        text = f"{label}, {variant.legend}: {in_words(cell, panel.name)}"
        if panel.from_zero:
            tell(axes, text, place - width * 0.46, 0.0, width * 0.92, value)
        else:
            tell(axes, text, place, value)


def _say_why(
    axes: Sequence[Axes],
    panels: Sequence[Measure],
    place: int,
    group: Sequence[Row],
    variants: Sequence[_Variant],
    width: float,
) -> None:
    """Hatch cells that failed, with the outcome in the first panel, and missing values of other
    cells."""
    for number, variant in enumerate(variants):
        cell = _of(group, variant)
        if cell is None:
            continue
        middle = place + (number - (len(variants) - 1) / 2) * width
        ends = middle - width / 2, middle + width / 2
        for line, of_panel in enumerate(axes):
            if not completed(cell):
                style.blank(of_panel, *ends, "" if line else fate(cell))
            elif line < len(panels) and cell[panels[line].name] is None:
                style.blank(of_panel, *ends, "no data")


KIND = FigureKind(
    stem="optimisation",
    subject="Overlap and recomputation side by side",
    about=(
        "Cells that differ only in overlap and recomputation, measure by measure, with their units."
    ),
    limits=MEDIANS + "Hatched places have no values and give the reason.",
    most=5,
    divide=partial(
        divisions_of_alike,
        free=_FREE,
        without=_WITHOUT,
        caption="Like figure 8 of arXiv 2509.10371: cells that differ only in overlap and "
        "recomputation. Values are medians over completed runs, bars are {interval}. Hatched "
        "places have no values and give the reason.",
        draw=optimisation_figure,
    ),
    why_not=lambda _: "no two cells with a value differ only in overlap or recomputation",
)
