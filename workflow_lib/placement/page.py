"""What placement says, as a page; and the figure of GPUs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workflow_lib import __version__
from workflow_lib.intervals.differences import Interval
from workflow_lib.placement.effects import Place
from workflow_lib.placement.readings import place_name
from workflow_lib.placement.slots import Characterisation
from workflow_lib.records.whole_files import whole_file
from workflow_lib.report.figures import style
from workflow_lib.report.figures.embedding import drawn_for_page
from workflow_lib.report.figures.html import page_templates
from workflow_lib.report.figures.kind import FigureEntry

_TEMPLATES = page_templates("workflow_lib.placement", "workflow_lib.report")
#: inches of a GPU's line, and of the title and the axes' labels
_LINE_IN, _REST_IN = 0.16, 0.85


def write(
    output: Path,
    stem: str,
    kind: str,
    title: str,
    sentences: Sequence[str],
    heading: str = "",
    lines: Sequence[dict[str, str]] = (),
    entries: Sequence[FigureEntry] = (),
) -> Path:
    """Write ``<stem>.html`` and its figures into a directory; returns the page's path."""
    text = _TEMPLATES.get_template("placement.html.j2").render(
        version=__version__,
        kind=kind,
        title=title,
        sentences=sentences,
        heading=heading,
        lines=lines,
        figures=drawn_for_page(entries, output / "figures"),
    )
    page = output / f"{stem}.html"
    with whole_file(page) as draft:
        draft.write_text(text, encoding="utf-8")
    return page


def slots_figure(found: Characterisation, sweep: str, marked: str) -> FigureEntry:
    """Each GPU's clock and temperature from the mean, the fastest at the top; ``marked`` is what
    :func:`style.marks` found."""
    return FigureEntry(
        stem="slots",
        title="GPUs side by side",
        caption=(
            f"Of {sweep}: each GPU's clock and core temperature less the mean over all GPUs, "
            "without what goes with the stage. Bars are 90 % intervals. The line marks "
            f"{100 * found.threshold:g} % below the mean."
        ),
        draw=partial(_draw, found, marked),
    )


def _draw(found: Characterisation, marked: str) -> Figure:
    places = sorted(found.clocks, key=lambda place: found.clocks[place].estimate)
    figure = Figure(figsize=(style.COLUMN_IN, _REST_IN + _LINE_IN * max(len(places), 3)))
    left, right = figure.subplots(1, 2, sharey=True)
    _points(left, places, [found.clocks[place] for place in places], 100.0)
    left.axvline(-100 * found.threshold, color=style.GREY, linestyle=":", linewidth=0.8)
    left.set_xlabel("clock, from the mean (%)")
    left.set_yticks(range(len(places)), labels=[place_name(place) for place in places])
    left.set_ylim(-0.6, len(places) - 0.4)
    _points(right, places, [found.temperatures[place] for place in places], 1.0)
    right.set_xlabel("temperature (°C)")
    style.title(figure, "GPUs side by side", marked)
    return figure


def _points(axes: Axes, places: Sequence[Place], effects: Sequence[Interval], scale: float) -> None:
    values = [scale * effect.estimate for effect in effects]
    below = [scale * (effect.estimate - effect.low) for effect in effects]
    above = [scale * (effect.high - effect.estimate) for effect in effects]
    axes.axvline(0, color=style.GREY, linewidth=0.6)
    axes.errorbar(
        values,
        range(len(places)),
        xerr=[below, above],
        fmt="o",
        color=style.BLUE,
        markersize=3,
        capsize=2,
        linewidth=0.9,
    )
