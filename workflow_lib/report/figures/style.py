"""The look of figures and how they are saved: legible in a paper's column, and always the same
bytes.

Colours are Okabe and Ito's (jfly.uni-koeln.de/color, 2008), which colour-blind people can tell
apart. Neighbours also differ in grey, or in their hatch, marker or line.
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from workflow_lib.records.whole_files import whole_file

BLUE, VERMILLION, GREY = "#0072B2", "#D55E00", "#6b6b6b"
SKY, ORANGE, GREEN, YELLOW, PURPLE = "#56B4E9", "#E69F00", "#009E73", "#F0E442", "#CC79A7"
#: colours of a place without a value
HATCHED, HATCH = "#f4f4f4", "#9a9a9a"
#: width in inches of one column of a two-column paper: every figure fits in it
COLUMN_IN = 3.35
#: height in inches that a page has for a figure and its caption
PAGE_HEIGHT_IN = 8.5
#: the smallest size of text
SMALLEST_PT = 6.0
#: width in inches of a letter of a tick's label and of a title
LABEL_LETTER_IN, _TITLE_LETTER_IN = 0.052, 0.083
#: height in inches of the title, on one line or two
HEAD_IN = 0.36
#: height in inches of a line of tick labels
LINE_IN = 0.115
#: inches left, right, above and below
Margins = tuple[float, float, float, float]
#: letters of a title's line above a panel of half a column
_PANEL_LETTERS = 27
SIMULATED_MARK, EMULATED_MARK = "SIMULATED GPU readings", "EMULATED nodes or links"
#: columns whose values mark a figure
_MARKED = {
    "simulated": SIMULATED_MARK,
    **dict.fromkeys(("emulated", "emulated_a", "emulated_b"), EMULATED_MARK),
}
#: width in inches of a letter of a mark
_MARK_LETTER_IN = 1.6 / len(SIMULATED_MARK)

_FONT = "DejaVu Sans"

_SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": [_FONT],
    "font.size": 7,
    "axes.titlesize": 8,
    "axes.labelsize": 7,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "xtick.major.pad": 2.0,
    "ytick.major.pad": 2.0,
    "axes.titlepad": 3.0,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "legend.handletextpad": 0.4,
    "legend.columnspacing": 1.0,
    "legend.borderpad": 0.0,
    # Only one weight, because each font in a PDF takes a tenth of a second per figure.
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "hatch.linewidth": 0.5,
    "hatch.color": HATCH,
    # Text stays text, so that it can be searched, read aloud and restyled.
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "figure.constrained_layout.use": True,
    # A name may contain a dollar sign.
    "text.parse_math": False,
}


@functools.cache
def _forget_other_fonts() -> None:
    """Use matplotlib's own copy of the font. A system may have another version of it, and which
    copy matplotlib finds first depends on the user's font cache."""
    fonts = font_manager.fontManager
    fonts.ttflist[:] = [font for font in fonts.ttflist if font.name != _FONT]
    for style in ("", "-Bold", "-Oblique", "-BoldOblique"):
        fonts.addfont(Path(mpl.get_data_path(), "fonts", "ttf", f"DejaVuSans{style}.ttf"))


@contextmanager
def styled(salt: str) -> Iterator[None]:
    """Draw and save within this; ``salt`` makes the ids within the SVG unique to the figure."""
    _forget_other_fonts()
    settings: dict[Any, Any] = {**mpl.rcParamsDefault, **_SETTINGS, "svg.hashsalt": salt}
    with mpl.rc_context(settings):
        yield


def marks(rows: Iterable[Mapping[str, Any]]) -> str:
    """What a figure of these rows has to say of itself: that readings were simulated, and that
    nodes or links are emulated; "" if nothing was. Rows are of cells, or of pairs of them."""
    names = {name for row in rows for name in _MARKED if row.get(name)}
    return ", ".join(dict.fromkeys(mark for name, mark in _MARKED.items() if name in names))


def title(figure: Figure, text: str, marked: str = "") -> None:
    """Set a figure's title, and what :func:`marks` found in the figure itself."""
    mark_in = _MARK_LETTER_IN * len(marked)
    if len(text) * _TITLE_LETTER_IN + mark_in > figure.get_figwidth():
        # Below the mark, because there is no room beside it.
        text = f"\n{text}"
    placed = figure.suptitle(text, x=0.01, ha="left", va="top", fontsize=8.5)
    if not isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        placed.set_y(1 - 3 / (72 * figure.get_figheight()))
    if marked:
        figure.text(
            0.99,
            1 - 5 / (72 * figure.get_figheight()),
            marked,
            ha="right",
            va="top",
            fontsize=7,
            color=VERMILLION,
            bbox={"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": VERMILLION},
        )


def blank(axes: Axes, left: float, right: float, text: str = "") -> None:
    """Hatch a span of the x axis that has no values, and write the reason in it."""
    axes.axvspan(left, right, facecolor=HATCHED, edgecolor=HATCH, hatch="////", linewidth=0)
    if text:
        place = (left + right) / 2, 0.5
        _say(axes, *place, text, transform=axes.get_xaxis_transform(), rotation=90)


def blank_row(axes: Axes, bottom: float, top: float, text: str = "") -> None:
    """Hatch a span of the y axis that has no values, and write the reason in it."""
    axes.axhspan(bottom, top, facecolor=HATCHED, edgecolor=HATCH, hatch="////", linewidth=0)
    if text:
        _say(axes, 0.5, (bottom + top) / 2, text, transform=axes.get_yaxis_transform())


def blank_panel(axes: Axes, text: str) -> None:
    """Hatch a whole panel that has no values, and write the reason in it."""
    axes.patch.set(facecolor=HATCHED, edgecolor=HATCH, hatch="////", linewidth=0)
    _say(axes, 0.5, 0.5, text, transform=axes.transAxes)


def _say(axes: Axes, x: float, y: float, text: str, **how: Any) -> None:
    """Write the reason on white, so that the hatch does not cross it."""
    box = {"boxstyle": "square,pad=0.12", "facecolor": "white", "edgecolor": "none"}
    axes.text(
        x,
        y,
        text,
        ha="center",
        va="center",
        fontsize=SMALLEST_PT,
        linespacing=0.95,
        bbox=box,
        clip_on=True,
        **how,
    )


def range_along_row(axes: Axes, low: float, high: float, row: float, capsize: float) -> None:
    """Draw the whisker of a range along the x axis."""
    axes.errorbar(
        (low + high) / 2,
        row,
        xerr=(high - low) / 2,
        fmt="none",
        ecolor="black",
        elinewidth=0.7,
        capsize=capsize,
        capthick=0.7,
    )


def beside(axes: Axes, x: float, row: float, text: str) -> None:
    """Write a text behind the end of a bar."""
    axes.annotate(
        text,
        (x, row),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        fontsize=SMALLEST_PT,
    )


def grid(
    figure: Figure, down: int, across: int, margins_in: Margins, gaps_in: tuple[float, float]
) -> list[list[Axes]]:
    """Panels of one size within margins; ``gaps_in`` are the gaps beside and below each.

    Many panels are placed like this because matplotlib's own layout takes a second for them.
    """
    figure.set_layout_engine("none")
    width, height = figure.get_size_inches()
    left, right, top, bottom = margins_in
    panel_in = (
        (width - left - right - gaps_in[0] * (across - 1)) / across,
        (height - top - bottom - gaps_in[1] * (down - 1)) / down,
    )
    return [
        [
            figure.add_axes(
                (
                    (left + column * (panel_in[0] + gaps_in[0])) / width,
                    1 - (top + (row + 1) * panel_in[1] + row * gaps_in[1]) / height,
                    panel_in[0] / width,
                    panel_in[1] / height,
                )
            )
            for column in range(across)
        ]
        for row in range(down)
    ]


def panel_titles(axes: Sequence[Axes], titles: Sequence[str]) -> None:
    """Set the titles of the panels of a :func:`grid`; :func:`title_in` gives the room that they
    take."""
    for panel, text in zip(axes, titles, strict=False):
        panel.set_title(wrapped(text, _PANEL_LETTERS), fontsize=SMALLEST_PT, loc="left", pad=2)


def title_in(titles: Sequence[str]) -> float:
    """The height in inches of the title with the most lines."""
    lines = max(wrapped(text, _PANEL_LETTERS).count("\n") + 1 for text in titles)
    return 0.05 + 0.1 * lines


def wrapped(label: str, letters: int) -> str:
    """A label in lines of at most ``letters`` where possible; it is broken after blanks and
    hyphens."""
    lines = [""]
    for piece in label.replace("-", "-\0").replace(" ", " \0").split("\0"):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip(" ")) > letters:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip(" ") for line in lines)


#: format → the metadata to leave out: dates and versions
_FORMATS: dict[str, dict[str, Any]] = {
    "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
    "pdf": {"CreationDate": None},
}
FORMATS = tuple(_FORMATS)


def save(figure: Figure, stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write ``stem``.svg and ``stem``.pdf, without dates, each whole or not at all."""
    if engine := figure.get_layout_engine():
        engine.execute(figure)
        # The layout is done; to repeat it for each format would take as long as all the rest.
        figure.set_layout_engine("none")
    written = []
    for kind in formats:
        content = io.BytesIO()
        figure.savefig(content, format=kind, metadata=_FORMATS[kind])
        path = stem.with_name(f"{stem.name}.{kind}")
        written_as = content.getvalue()
        if kind == "svg":
            written_as = shortened(written_as)
        with whole_file(path) as draft:
            draft.write_bytes(written_as)
        written.append(path)
    return written


_NUMBER = rb"-?\d+(?:\.\d+)?"
_FAMILY = re.compile(rb" ?font-family: ([^;\"]+);?")
_EMPTY = re.compile(rb"<g(?: id=\"[^\"]*\")?/>|<g(?: id=\"[^\"]*\")?></g>")
_BARE = re.compile(rb"<g>((?:(?!</?g[ />]).)*)</g>", re.DOTALL)


def shortened(svg: bytes) -> bytes:
    """Shorten an SVG of matplotlib's. Numbers are rounded to a hundredth of a point. Indentation,
    unused ids, empty groups and the repeated name of the font are removed."""
    svg = re.sub(rb"<!DOCTYPE[^>]*>\s*", b"", svg)
    svg = re.sub(rb">\n *<", b"><", svg)
    svg = re.sub(rb' transform="rotate\(-?0(?:\.0*)? [^"]*"', b"", svg)
    svg = re.sub(
        rb' (?:d|x|y|width|height|points|transform)="[^"]*"', lambda part: _rounded(part[0]), svg
    )
    svg = re.sub(rb'(?<= d=")[^"]*', lambda path: _path(path[0]), svg)
    families = set(_FAMILY.findall(svg))
    if len(families) == 1:
        family = families.pop()
        svg = _FAMILY.sub(b"", svg).replace(b"<svg ", b'<svg font-family="%s" ' % family, 1)
    svg = re.sub(rb' style="([^"]*)"', lambda style: _style(style[1]), svg)
    used = set(re.findall(rb"#([^)\"]+)", svg))
    svg = re.sub(rb' id="([^"]*)"', lambda match: match[0] if match[1] in used else b"", svg)
    return _without_groups(svg)


def _rounded(text: bytes) -> bytes:
    """Round numbers to two decimals, and write them as short as possible."""
    return re.sub(rb"-?\d+\.\d+", lambda number: _short(float(number[0])), text)


def _short(number: float) -> bytes:
    return (b"%.2f" % (round(number, 2) + 0.0)).rstrip(b"0").rstrip(b".")


def _path(path: bytes) -> bytes:
    """Shorten a path: without blanks between commands, and with one number for lines along an axis.
    M 1 2 ⏎ L 3 2 becomes M1 2H3."""
    pieces = []
    at: tuple[bytes, bytes] | None = None
    for command, numbers in re.findall(rb"([A-Za-z])([^A-Za-z]*)", path):
        values = re.findall(_NUMBER, numbers)
        if command == b"L" and at is not None and len(values) == 2 and at[1] == values[1]:
            pieces.append(b"H" + values[0])
        elif command == b"L" and at is not None and len(values) == 2 and at[0] == values[0]:
            pieces.append(b"V" + values[1])
        else:
            pieces.append(command + b" ".join(values))
        at = (values[-2], values[-1]) if len(values) > 1 else None
    return b"".join(pieces)


def _style(declarations: bytes) -> bytes:
    parts = [part.strip().replace(b": ", b":") for part in declarations.split(b";")]
    kept = b";".join(part for part in parts if part)
    return b' style="%s"' % kept if kept else b""


def _without_groups(svg: bytes) -> bytes:
    """Remove groups that are empty or have no attributes, from the inside out."""
    while True:
        fewer = _BARE.sub(rb"\1", _EMPTY.sub(b"", svg))
        if fewer == svg:
            return svg
        svg = fewer
