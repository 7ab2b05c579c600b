"""Counted bytes against arithmetic: the script that runs on GPUs, with ranks on the CPU beside
counters of a library that plays NVML.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from research.link_bytes_on_gpus import compared, cpu_share, passed
from research.measuring.link_steps import SHARES, expected_bytes
from tests.telemetry.nvml import Script, build

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("collective", "megabytes"),
    [
        ("all-reduce", 150.0),
        ("all-gather", 75.0),
        ("reduce-scatter", 75.0),
        ("all-to-all", 75.0),
        ("send/recv", 100.0),
    ],
)
def test_what_each_collective_sends_of_100_mb_over_four_gpus(collective, megabytes):
    assert expected_bytes(collective, 100_000_000, 4) == megabytes * 1e6


def counted(factor=1.0):
    """Rows of two ranks; rank 1 receives too much by ``factor``."""
    return [
        {"collective": name, "steps": 5, "rank": rank, "reason": "", "sent": share(2) * 1000}
        | {"received": share(2) * 1000 * (factor if rank else 1.0)}
        for name, share in SHARES.items()
        for rank in (0, 1)
    ]


def test_the_largest_difference_of_any_rank_decides():
    good, bad = compared(counted(), 1000, 2), compared(counted(0.99), 1000, 2)
    assert [each["difference"] for each in good] == [0.0] * 5
    assert [each["difference"] for each in bad] == pytest.approx([-0.01] * 5)
    assert passed(good, 0.004)
    assert not passed(good, 0.006)
    assert not passed(bad, 0.004)


def test_a_count_that_is_missing_is_no_pass():
    rows = [{**row, "sent": None, "reason": "no links"} for row in counted()]
    found = compared(rows, 1000, 2)
    assert {(each["difference"], each["reason"]) for each in found} == {(None, "no links")}
    assert not passed(found, 0.0)


def test_cpu_time_is_taken_over_steady_steps_alone():
    # Half a core until 10 s, then a hundredth; steady steps from 10 to 30 s.
    costs = [(float(at), 0.5 * min(at, 10) + 0.01 * max(at - 10, 0)) for at in range(41)]
    share, took_s = cpu_share(costs, (10.0, 30.0))
    assert share == pytest.approx(0.01)
    assert took_s == 17.0


@pytest.mark.long
def test_the_script_prints_one_table_and_one_line_of_json(tmp_path):
    build(tmp_path)
    script = Script(tmp_path / "nvml.txt")
    script.say()  # counters that never move
    ended = subprocess.run(
        [
            sys.executable, "research/link_bytes_on_gpus.py", "--message", "1", "--steady", "4",
            "--uuids", "GPU-aaaa-0", "GPU-bbbb-1",
        ],
        cwd=ROOT,
        env={**os.environ, "FAKE_NVML": str(script.path), "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr
    lines = ended.stdout.splitlines()
    found = json.loads(lines[-1])
    assert [each["difference"] for each in found["links"]] == [-1.0] * 15
    assert {each["steps"] for each in found["links"]} == {1, 5, 20}
    assert found["sampler_cpu_share"] > 0
    assert not found["passed"]
    assert len(lines) == 1 + 15 + 2
