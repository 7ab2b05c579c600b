"""How figures look and how they are saved: legible in a paper's column, the same bytes always.

Colours are Okabe and Ito's (jfly.uni-koeln.de/color, 2008), which differ for the colour-blind and
in grey; markers and hatches tell apart what colours do too.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, VERMILLION, GREY = "#0072B2", "#D55E00", "#6b6b6b"
#: widths in inches of one column and of the whole page of a two-column paper
COLUMN_IN, PAGE_IN = 3.4, 7.16
#: widths of a letter of a tick's label and of a title
LABEL_LETTER_IN, _TITLE_LETTER_IN = 0.058, 0.085
SIMULATED_MARK = "SIMULATED GPU readings"

_SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 7,
    "axes.titlesize": 8,
    "axes.labelsize": 7,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "hatch.linewidth": 0.5,
    "hatch.color": "#9a9a9a",
    # Text stays text: it can be searched, read aloud and restyled.
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "figure.constrained_layout.use": True,
    # A name may have a dollar sign in it.
    "text.parse_math": False,
}


@contextmanager
def styled(salt: str) -> Iterator[None]:
    """Draw and save within this; ``salt`` makes the ids within the SVG the figure's own."""
    settings: dict[Any, Any] = {**mpl.rcParamsDefault, **_SETTINGS, "svg.hashsalt": salt}
    with mpl.rc_context(settings):
        yield


def title(figure: Figure, text: str, simulated: bool) -> None:
    """Head a figure; where readings were simulated, say so in the figure itself."""
    mark_in = 1.6 if simulated else 0.0
    if len(text) * _TITLE_LETTER_IN + mark_in > figure.get_figwidth():
        # Below the mark, as there is no room beside it.
        text = f"\n{text}"
    figure.suptitle(text, x=0.01, ha="left", fontsize=8.5, fontweight="bold")
    if simulated:
        figure.text(
            0.99,
            1 - 5 / (72 * figure.get_figheight()),
            SIMULATED_MARK,
            ha="right",
            va="top",
            fontsize=7,
            fontweight="bold",
            color=VERMILLION,
            bbox={"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": VERMILLION},
        )


def blank(axes: Axes, left: float, right: float, text: str = "") -> None:
    """Hatch a span of the x axis that has no values, and say why in it."""
    axes.axvspan(left, right, facecolor="#f4f4f4", edgecolor="#9a9a9a", hatch="////", linewidth=0)
    if text:
        axes.text(
            (left + right) / 2,
            0.5,
            text,
            transform=axes.get_xaxis_transform(),
            rotation=90,
            ha="center",
            va="center",
            fontsize=5.5,
            linespacing=0.95,
            bbox={"boxstyle": "square,pad=0.12", "facecolor": "white", "edgecolor": "none"},
        )


#: the formats of a figure, each with the dates that it would hold
_FORMATS: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
FORMATS = tuple(_FORMATS)


def save(figure: Figure, stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write ``stem``.svg and ``stem``.pdf, without dates, each whole or not at all."""
    figure.draw_without_rendering()
    # It is laid out now; doing that again for each format would take as long as all the rest.
    figure.set_layout_engine("none")
    written = []
    for kind in formats:
        content = io.BytesIO()
        figure.savefig(content, format=kind, metadata=_FORMATS[kind])
        path = stem.with_name(f"{stem.name}.{kind}")
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            temporary.write_bytes(content.getvalue())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        written.append(path)
    return written
