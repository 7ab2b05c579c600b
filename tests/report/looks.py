"""Whether a figure can be read."""

from __future__ import annotations

import itertools

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from workflow_lib.report.figures import FigureEntry, style


def laid_out(entry: FigureEntry) -> Figure:
    with style.styled(entry.stem):
        figure = entry.draw()
        figure.draw_without_rendering()
    return figure


def printed(figure: Figure) -> list[tuple[Text, Bbox]]:
    """Texts that are to be seen, each with its place in pixels."""
    unseen = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            slack = 1e-6 * (high - low)
            for tick in axis.get_major_ticks():
                if not low - slack <= tick.get_loc() <= high + slack:
                    unseen |= {tick.label1, tick.label2}
    return [
        (text, text.get_window_extent())
        for text in figure.findobj(Text)
        if text.get_visible()
        and text.get_text().strip()
        and text not in unseen
        and (text.axes is None or (text.axes.axison and text.axes.get_visible()))
    ]


def legible(figure: Figure, name: str) -> None:
    assert figure.get_figwidth() == style.COLUMN_IN, name
    assert figure.get_figheight() <= style.PAGE_HEIGHT_IN + 1.0, name
    texts = printed(figure)
    assert texts, name
    page = figure.bbox
    for text, box in texts:
        assert text.get_fontsize() >= style.SMALLEST_PT, (name, text)
        inside = box.x0 > -1 and box.y0 > -1 and box.x1 < page.x1 + 1 and box.y1 < page.y1 + 1
        assert inside, (name, text, box, page)
    for (one, here), (other, there) in itertools.combinations(texts, 2):
        across = min(here.x1, there.x1) - max(here.x0, there.x0)
        down = min(here.y1, there.y1) - max(here.y0, there.y0)
        # A box has room for accents and descenders that few letters have.
        assert not (across > 1.5 and down > 4.0), (name, one, other)
