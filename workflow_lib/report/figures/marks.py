"""Marks of a figure: texts that a browser shows at a bar, a point or a field.

Only SVG has marks. A mark is an invisible rectangle with a title: a name, its value and its
interval. Browsers show titles, and screen readers read them.
"""

from __future__ import annotations

from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase

from workflow_lib.records.measures import MEASURES
from workflow_lib.report.figures.cell_names import Row
from workflow_lib.report.figures.numbers import shown

#: the smallest side of a mark in points, so that one can point at it
_SMALLEST_PT = 3.0


class _Marks(Artist):
    """The marks of a panel, drawn above all else, and only in SVG."""

    def __init__(self) -> None:
        super().__init__()
        self.set_zorder(1000)
        self.set_in_layout(False)
        self.marks: list[tuple[tuple[float, float], tuple[float, float], str]] = []

    def draw(self, renderer: RendererBase) -> None:
        """Write a rectangle with a title for each mark."""
        writer: Any = getattr(renderer, "writer", None)
        if writer is None or not self.axes or not self.get_visible():
            return
        panel = self.axes.bbox
        height: float = renderer.get_canvas_width_height()[1]
        # Presentation attributes, because the page's style does not set these.
        writer.start("g", attrib={"fill": "none", "pointer-events": "all"})
        for corner, other, text in self.marks:
            ends = self.axes.transData.transform((corner, other))
            (left, low), (right, top) = ends.min(axis=0).tolist(), ends.max(axis=0).tolist()
            left, right = _least(max(left, panel.x0 - 1), min(right, panel.x1 + 1))
            low, top = _least(max(low, panel.y0 - 1), min(top, panel.y1 + 1))
            box = {"x": left, "y": height - top, "width": right - left, "height": top - low}
            writer.start("rect", attrib={name: f"{pt:.1f}" for name, pt in box.items()})
            writer.element("title", text=text)
            writer.end("rect")
        writer.end("g")


def _least(low: float, high: float) -> tuple[float, float]:
    """Two ends, widened about their middle to the smallest size of a mark."""
    missing = max(_SMALLEST_PT - (high - low), 0.0) / 2
    return low - missing, high + missing


def tell(
    axes: Axes, text: str, x: float, y: float, width: float = 0.0, height: float = 0.0
) -> None:
    """Add a mark with ``text`` at a point, or from (x, y) on with a size, in units of the data.

    The limits of the axes may change afterwards; the mark follows.
    """
    for child in axes.artists:
        if isinstance(child, _Marks):
            break
    else:
        child = _Marks()
        axes.add_artist(child)
    child.marks.append(((x, y), (x + width, y + height), text))


def in_words(cell: Row, measure: str) -> str:
    """A measure of a completed cell: "Throughput 40,002 tokens/s (40,001–40,003)"."""
    known = MEASURES[measure]
    text, interval, _ = shown(cell, known)
    return f"{known.heading} {text} {known.people_unit}" + (f" ({interval})" if interval else "")
