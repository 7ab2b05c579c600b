"""What each mark of a figure says where one points at it: its name, its value, the interval.

Only SVG has that. A mark is a rectangle that is not seen, over a bar, a point or a field, with a
title, which browsers show and screen readers read.
"""

from __future__ import annotations

from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase

from workflow_lib.records import MEASURES
from workflow_lib.report.cells import Row
from workflow_lib.report.numbers import shown

#: nothing is smaller than this, in points, so that one can point at it
_SMALLEST_PT = 3.0


class _Marks(Artist):
    """The marks of a panel; drawn above all else in SVG, and in nothing but SVG."""

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
        # Presentation attributes: the page's style does not know of them.
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
    """Ends at least the smallest size apart, about the same middle."""
    missing = max(_SMALLEST_PT - (high - low), 0.0) / 2
    return low - missing, high + missing


def tell(
    axes: Axes, text: str, x: float, y: float, width: float = 0.0, height: float = 0.0
) -> None:
    """Have a mark say ``text``: a point, or what reaches from (x, y) on; all in data's units.

    Limits of the axes may still change, and tell nothing of it.
    """
    for child in axes.artists:
        if isinstance(child, _Marks):
            break
    else:
        child = _Marks()
        axes.add_artist(child)
    child.marks.append(((x, y), (x + width, y + height), text))


def told(axes: Axes) -> list[str]:
    """What the marks of a panel say, in order."""
    return [text for child in axes.artists if isinstance(child, _Marks) for *_, text in child.marks]


def in_words(cell: Row, measure: str) -> str:
    """A measure of a completed cell: "Throughput 40,002 tokens/s (40,001–40,003)"."""
    known = MEASURES[measure]
    text, interval, _ = shown(cell, known)
    return f"{known.heading} {text} {known.people_unit}" + (f" ({interval})" if interval else "")
