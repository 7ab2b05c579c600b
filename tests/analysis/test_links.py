"""Bytes over links of the steps that count, from whole steps that ranks counted."""

from __future__ import annotations

import pytest

from tests.analysis.synthetic_run import START, Run, assert_null
from workflow_lib.records.nodes import LinkCount, LinkReading

SENT, RECEIVED = "gpu_link_sent_bytes", "gpu_link_received_bytes"


def count(
    first: int, steps: int, before: tuple[float, int, int], after: tuple[float, int, int]
) -> LinkCount:
    """A count of steps between two readings: time in s, bytes sent, bytes received."""
    readings = (LinkReading(START + at, *sent) for at, *sent in (before, after))
    return LinkCount(0, first, steps, *readings)


def test_the_counted_steps_have_their_share_of_whole_steps(tmp_path):
    # Three steps were counted, warm-up among them, and two are measured.
    def counted(rank: int) -> LinkCount:
        sent = 10 + 3 * 36_138 * (rank + 1)
        return count(0, 3, (9, 10, 20), (41, sent, 20 + 3 * 500))

    rows = Run(links=counted).reduced(tmp_path)["gpus"]
    assert [row[SENT] for row in rows] == [2 * 36_138, 4 * 36_138]
    assert [row[RECEIVED] for row in rows] == [1000, 1000]


def test_a_rank_counts_for_the_gpu_that_its_uuid_names(tmp_path):
    run = Run(
        links=lambda rank: count(1, 2, (20, 0, 0), (40, 2 * (rank + 1), 0)),
        rank_uuids={0: "GPU-node1-1", 1: "GPU-node1-0"},
    )
    assert [row[SENT] for row in run.reduced(tmp_path)["gpus"]] == [4, 2]


@pytest.mark.parametrize(
    ("counted", "code", "values"),
    [
        (None, "of_earlier_version", ()),
        (LinkCount(0, 1, 0, None, None, "no links"), "links_not_counted", ("no links",)),
        (count(1, 2, (20, 5, 5), (40, 4, 4)), "link_counters_fell", ()),
        (count(1, 4, (20, 5, 5), (40, 9, 9)), "link_steps_differ", ("4", "1", "2")),
        *(
            (count(1, 2, (before_s, 5, 5), (after_s, 9, 9)), "links_read_within_steps", ())
            for before_s, after_s in ((15, 40), (25, 40), (20, 35))
        ),
    ],
)
def test_without_a_count_bytes_are_null_with_the_reason_whatever_the_sampler_read(
    tmp_path, counted, code, values
):
    links = None if counted is None else lambda rank: counted
    for row in Run(links=links).reduced(tmp_path)["gpus"]:
        for column in (SENT, RECEIVED):
            assert_null(row, column, code, *values)
