"""The figures as the page holds them: checked, with unique ids, and packed if they are large."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from markupsafe import Markup

from workflow_lib.report.embedding import embedded
from workflow_lib.report.figures import style
from workflow_lib.report.figures.kind import FigureEntry
from workflow_lib.report.safe_svg import safe_svg

#: if figures together have more bytes, they are packed, and the page's script unpacks them
_MOST_PLAIN_BYTES = 1_500_000
#: how much larger a figure is on the page than in print
_ENLARGED = 1.3


def saved(entries: Iterable[FigureEntry], directory: Path) -> list[dict[str, Any]]:
    """Draw figures into a directory; return what a small page shows of each, unpacked."""
    found = []
    for entry in entries:
        directory.mkdir(parents=True, exist_ok=True)
        with style.styled(entry.stem):
            style.save(entry.draw(), directory / entry.stem)
        figure = shown(entry, directory)
        found.append({**figure, "svg": Markup(figure["svg"])})
    return found


def drawn(entries: Iterable[FigureEntry], directory: Path) -> list[dict[str, Any]]:
    """What the page shows of each figure. Figures over time are not in the page, only named.
    ``same_as`` is the first figure with the same caption, None if it is this one.

    Raises FileNotFoundError if a file is missing, and RecordError if one would load or run
    something.
    """
    found = [shown(entry, directory) for entry in entries]
    pack = sum(len(each["svg"]) for each in found) > _MOST_PLAIN_BYTES
    told: dict[str, dict[str, Any]] = {}
    for number, each in enumerate(found):
        if not each["over_time"]:
            first = told.setdefault(each["caption"], each)
            each["same_as"] = None if first is each else first
        svg, name = each.pop("svg"), f"figure-{number}"
        each["packed"] = name if svg and pack else ""
        each["svg"] = embedded(name, svg) if each["packed"] else Markup(svg)
    return found


def shown(entry: FigureEntry, directory: Path) -> dict[str, Any]:
    """What a page shows of one figure; ``svg`` is "" for a figure over time. Raises as
    :func:`drawn`."""
    path = directory / f"{entry.stem}.svg"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such figure; draw the figures of these tables first")
    told = {
        "stem": entry.stem,
        "title": entry.title,
        "caption": entry.caption,
        "over_time": entry.over_time,
        "svg": "",
    }
    if entry.over_time:
        return told
    svg, (width, height) = safe_svg(path, entry.stem)
    return {
        **told,
        "svg": svg,
        "width_pt": width * _ENLARGED,
        "ratio": f"{width:g} / {height:g}",
    }
