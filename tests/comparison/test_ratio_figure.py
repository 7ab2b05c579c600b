"""Figures of pairs of cells can be read, whatever the two sides are called."""

from __future__ import annotations

import pytest

from tests.report.looks import laid_out, legible, printed
from workflow_lib.comparison.ratio_figure import Line, entries


def pairs(widest: float) -> list[Line]:
    """Three pairs; the widest whisker ends at the ratio ``widest``."""
    measures = ("prefill_tokens_per_s_per_gpu", "decode_tokens_per_s_per_gpu")
    row = {"verdict": "a_more", "simulated": False, "estimate": 1.01}
    row |= {"low": 1.0, "high": 1.02, "wide_low": 0.99, "wide_high": widest}
    told = dict.fromkeys((*measures, "decode_tokens_per_j"), row)
    return [Line("dp1 mb1 gb1", told), Line("dp1 mb8 gb8", told), Line("dp2", fate="not run")]


@pytest.mark.parametrize("names", [("h200", "h100"), ("h200x1", "h100x1"), ("A", "B")])
@pytest.mark.parametrize(
    "widest", [1.021, 1.03, 1.051, 1.08, 1.13, 1.21, 1.28, 1.4, 1.6, 2.3, 4.0, 31.0]
)
def test_texts_of_neighbouring_panels_do_not_meet(names, widest):
    (entry,) = entries("same layout", "llama3-8b", pairs(widest), names)
    figure = laid_out(entry)
    legible(figure, entry.stem)
    written = {text.get_text() for text, _ in printed(figure)}
    if " ÷ ".join(names) not in written:
        assert "A ÷ B" in written
        assert f"A is {names[0]}, B is {names[1]}." in entry.caption
