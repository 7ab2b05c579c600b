"""The figures as the page holds them: checked, with unique ids, and packed if they are large."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from markupsafe import Markup

from workflow_lib.report.figures import style
from workflow_lib.report.figures.html import embedded
from workflow_lib.report.figures.kind import FigureEntry
from workflow_lib.report.figures.safe_svg import safe_svg

#: if figures together have more bytes, they are packed, and the page's script unpacks them
_MOST_PLAIN_BYTES = 1_500_000
#: how much larger a figure is on the page than in print
_ENLARGED = 1.3


def drawn_for_page(entries: Iterable[FigureEntry], directory: Path) -> list[dict[str, Any]]:
    """Draw figures into a directory; return what a small page shows of each, unpacked."""
    shown = []
    for entry in entries:
        directory.mkdir(parents=True, exist_ok=True)
        with style.styled(entry.stem):
            style.save(entry.draw(), directory / entry.stem)
        figure = figure_in_page(entry, directory)
        shown.append({**figure, "svg": Markup(figure["svg"])})
    return shown


def figures_in_page(entries: Iterable[FigureEntry], directory: Path) -> list[dict[str, Any]]:
    """What the page shows of each figure. Figures over time are not in the page, only named.
    ``same_as`` is the first figure with the same caption, None if it is this one.

    Raises FileNotFoundError if a file is missing, and RecordError if one would load or run
    something.
    """
    shown = [figure_in_page(entry, directory) for entry in entries]
    pack = sum(len(figure["svg"]) for figure in shown) > _MOST_PLAIN_BYTES
    first_of_caption: dict[str, dict[str, Any]] = {}
    for number, figure in enumerate(shown):
        if not figure["over_time"]:
            first = first_of_caption.setdefault(figure["caption"], figure)
            figure["same_as"] = None if first is figure else first
        svg, name = figure.pop("svg"), f"figure-{number}"
        figure["packed"] = name if svg and pack else ""
        figure["svg"] = embedded(name, svg) if figure["packed"] else Markup(svg)
    return shown


def figure_in_page(entry: FigureEntry, directory: Path) -> dict[str, Any]:
    """What a page shows of one figure; ``svg`` is "" for a figure over time. Raises as
    :func:`figures_in_page`."""
    path = directory / f"{entry.stem}.svg"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such figure; draw the figures of these tables first")
    named = {
        "stem": entry.stem,
        "title": entry.title,
        "caption": entry.caption,
        "over_time": entry.over_time,
        "svg": "",
    }
    if entry.over_time:
        return named
    svg, (width, height) = safe_svg(path, entry.stem)
    return {
        **named,
        "svg": svg,
        "width_pt": width * _ENLARGED,
        "ratio": f"{width:g} / {height:g}",
    }
