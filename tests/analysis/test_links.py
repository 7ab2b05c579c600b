"""Bytes over links of the steps that count, from whole steps that ranks counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.analysis.synthetic_run import START, Run
from workflow_lib.analysis.reduce import reduce_run
from workflow_lib.records import LinkCount, LinkReading


def gpus(run: Run, directory: Path):
    paths = run.write(directory / "run1")
    reduce_run(paths.directory)
    return json.loads(paths.summary.read_text(encoding="utf-8"))["gpus"]


def test_the_counted_steps_have_their_share_of_whole_steps(tmp_path):
    # Three steps were counted, warm-up among them, and two are measured.
    def counted(rank: int) -> LinkCount:
        before = LinkReading(START + 9, 10, 20)
        after = LinkReading(START + 41, 10 + 3 * 36_138 * (rank + 1), 20 + 3 * 500)
        return LinkCount(rank, 0, 3, before, after)

    rows = gpus(Run(links=counted), tmp_path)
    assert [row["gpu_link_sent_bytes"] for row in rows] == [2 * 36_138, 4 * 36_138]
    assert [row["gpu_link_received_bytes"] for row in rows] == [1000, 1000]


def test_a_rank_counts_for_the_gpu_that_its_uuid_names(tmp_path):
    def counted(rank: int) -> LinkCount:
        after = LinkReading(START + 40, 2 * (rank + 1), 0)
        return LinkCount(rank, 1, 2, LinkReading(START + 20, 0, 0), after)

    uuids = {0: "GPU-node1-1", 1: "GPU-node1-0"}
    rows = gpus(Run(links=counted, rank_uuids=uuids), tmp_path)
    assert [row["gpu_link_sent_bytes"] for row in rows] == [4, 2]


@pytest.mark.parametrize(
    ("count", "reason"),
    [
        (None, "did not count whole steps"),
        (LinkCount(0, 1, 0, None, None, "no links here"), "no links here"),
        (
            LinkCount(0, 1, 2, LinkReading(START + 20, 5, 5), LinkReading(START + 40, 4, 4)),
            "the link counters ran backwards",
        ),
        (
            LinkCount(0, 1, 4, LinkReading(START + 20, 5, 5), LinkReading(START + 40, 9, 9)),
            "counted 4 steps from step 1 on, and recorded 2",
        ),
        (
            LinkCount(0, 1, 2, LinkReading(START + 15, 5, 5), LinkReading(START + 40, 9, 9)),
            "read within steps",
        ),
        (
            LinkCount(0, 1, 2, LinkReading(START + 25, 5, 5), LinkReading(START + 40, 9, 9)),
            "read within steps",
        ),
        (
            LinkCount(0, 1, 2, LinkReading(START + 20, 5, 5), LinkReading(START + 35, 9, 9)),
            "read within steps",
        ),
    ],
)
def test_without_a_count_bytes_are_null_with_the_reason_whatever_the_sampler_read(
    tmp_path, count, reason
):
    rows = gpus(Run(links=None if count is None else lambda rank: count), tmp_path)
    for row in rows:
        reasons = json.loads(row["missing_reasons"])
        for column in ("gpu_link_sent_bytes", "gpu_link_received_bytes"):
            assert row[column] is None
            assert reason in reasons[column]
