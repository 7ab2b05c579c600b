"""Plans of load: when GPUs work and when they do not."""

from __future__ import annotations

import itertools

import pytest

from research.measuring.load import bursts, square_waves


def test_waves_follow_one_another_with_whole_periods_half_of_them_on():
    spans, begins, end = square_waves([(0.4, 1.0), (1.0, 2.0)])

    # 1.0 s hold two and a half periods of 0.4 s, rounded to the even two.
    assert begins == pytest.approx([0.0, 0.8])
    assert end == pytest.approx(2.8)
    assert spans == [
        pytest.approx(span) for span in [(0.0, 0.2), (0.4, 0.6), (0.8, 1.3), (1.8, 2.3)]
    ]


def test_bursts_are_in_order_with_pauses_and_within_their_time():
    spans = bursts(10.0, 70.0)

    assert spans[0][0] == 10.0
    assert spans[-1][1] <= 70.0
    assert all(0 < off - on <= 3.0 for on, off in spans)
    assert all(0.2 <= after[0] - before[1] <= 1.5 for before, after in itertools.pairwise(spans))
    assert spans == bursts(10.0, 70.0)
