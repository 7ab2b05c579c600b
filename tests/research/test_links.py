"""The arithmetic of bytes over links, and what is made of a driver's counts."""

from __future__ import annotations

import pytest

from research.measuring.links import _increase, ring_bytes


@pytest.mark.parametrize(("ranks", "sent"), [(2, 1000.0), (4, 1500.0), (8, 1750.0)])
def test_a_ring_passes_all_but_its_own_part_on_twice(ranks, sent):
    assert ring_bytes(1000, ranks) == sent


def test_a_recording_of_eight_h200_agrees_within_1_percent():
    # 713 all-reduces of 512 MiB; one of a GPU's 18 links sent 36 529 151 KiB.
    counted = 18 * 36_529_151 * 1024

    assert counted / (713 * ring_bytes(512 * 2**20, 8)) == pytest.approx(1.0, abs=0.01)


def test_links_that_are_not_counted_are_not_counted_as_zero():
    before = {"all": "Not Supported", **{str(i): [100, 10] for i in range(18)}, "17": "Not here"}
    after = {"all": [5, 5], **{str(i): [107, 13] for i in range(18)}}

    found = _increase(before, after)

    assert found["all_links"] == {"reason": "Not Supported"}
    assert (found["links_counted"], found["links_sent"], found["links_received"]) == (17, 119, 51)
    assert found["links"][17] == {"reason": "Not here"}


def test_no_counts_at_all_are_null():
    nothing = {"all": "Not Supported", **{str(i): "Not Supported" for i in range(18)}}

    assert _increase(nothing, nothing)["links_sent"] is None
