"""Two nodes whose clocks differ make the same tables as two whose clocks agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.synthetic_run import (
    START,
    Run,
    assert_holds,
    assert_null,
    cell,
    edit_csv,
    summary,
)
from workflow_lib.records.files import read_record
from workflow_lib.records.nodes import ClockReading, LinkCount, NodeClock
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import write_json
from workflow_lib.telemetry.validity.coverage import invalid_reason

AHEAD_S, DRIFT = 0.3, 50e-6
NODES = ("node1", "node2")
#: which the comparison is about
OWN = ("clock_skew_s", "clock_error_s")


def shown(true_s: float) -> float:
    """By node2's clock."""
    return true_s + AHEAD_S + DRIFT * (true_s - START)


def two_nodes(directory: Path) -> RunPaths:
    """A rank and a GPU on each."""
    return Run(cell=cell(nodes=2), nodes=NODES, gpus_per_node=1).write(directory)


def skew(paths: RunPaths) -> None:
    """Have all that node2 wrote stamped by its clock."""

    def stamped(row: dict[str, str]) -> dict[str, str]:
        times = {name for name in row if name.endswith(("unix_time_s", "ed_unix_s")) and row[name]}
        return {name: repr(shown(float(row[name]))) for name in times}

    node = NODES[1]
    files = (paths.gpu_samples(node), paths.gpu_counters(node), paths.host_samples(node))
    for path in (*files, paths.rank_steps(1)):
        edit_csv(path, stamped)
    count = read_record(paths.link_count(1), LinkCount)
    ends = {
        end: replace(reading, unix_time_s=shown(reading.unix_time_s))
        for end, reading in (("before", count.before), ("after", count.after))
        if reading
    }
    write_json(paths.link_count(1), replace(count, **ends))


def compare(paths: RunPaths, error_s: float = 5e-5, set_by_s: float = 0.0) -> None:
    """What the job found of both clocks, at the ends of the steps."""
    same = (ClockReading(START + 9, 0.0, 0.0), ClockReading(START + 41, 0.0, 0.0))
    write_json(paths.clock(NODES[0]), NodeClock(NODES[0], *same))
    before, after = (
        ClockReading(shown(at), shown(at) - at + late, error_s)
        for at, late in ((START + 9, 0.0), (START + 41, set_by_s))
    )
    write_json(paths.clock(NODES[1]), NodeClock(NODES[1], before, after))


def same(left: Any, right: Any) -> bool:
    return bool(
        left == pytest.approx(right, rel=1e-5, abs=1e-5) if type(left) is float else left == right
    )


def test_a_skew_of_0_3_s_and_a_drift_of_50_ppm_change_no_figure(tmp_path):
    agreeing = summary(two_nodes(tmp_path / "agree" / "run1"))
    paths = two_nodes(tmp_path / "skewed" / "run1")
    skew(paths)
    compare(paths)
    found = summary(paths)
    row = found["run"]
    assert row["step_time_s"] == pytest.approx(10.0, abs=1e-4)
    assert row["clock_skew_s"] == pytest.approx(0.3 + 41 * DRIFT)
    assert row["clock_error_s"] == 5e-5
    for name, value in agreeing["run"].items():
        # A reading at the very edge of the window may fall on either side of it.
        if name not in (*OWN, "missing_reasons", "missing_codes", "throttle_share_error"):
            assert same(row[name], value), name
    for table in ("gpus", "nodes"):
        for left, right in zip(found[table], agreeing[table], strict=True):
            differing = {name for name in right if not same(left[name], right[name])}
            # A sample, or a counter reading, at the very edge may fall on either side of it.
            assert differing <= {"samples", "throttle_share_error"}, table
    assert invalid_reason(paths, cell(nodes=2)) is None


def test_without_the_correction_steps_would_seem_longer(tmp_path):
    paths = two_nodes(tmp_path / "run1")
    skew(paths)
    row = summary(paths)["run"]
    # Rank 1 ends the first measured step last, and so 0.3 s later; the second one rank 0 does.
    assert row["step_time_s"] == pytest.approx((10.3 + 10.0) / 2, abs=0.01)
    assert_null(row, "clock_skew_s", "not_told")


NO_WAY = NodeClock("node2", None, None, "no way there")


@pytest.mark.parametrize(
    ("spoil", "values"),
    [
        # A hundredth of a step of 10 s is 100 ms.
        (lambda paths: compare(paths, error_s=0.09), None),
        (lambda paths: compare(paths, error_s=0.11), ("node2", "110 ms", "302 ms")),
        (lambda paths: compare(paths, set_by_s=-0.3), ("node2", "298 ms", "300 ms")),
        (lambda paths: compare(paths, set_by_s=0.01), None),
        (lambda paths: write_json(paths.clock("node2"), NO_WAY), ("node2", "no way there")),
    ],
)
def test_clocks_that_are_not_known_to_a_hundredth_of_a_step_are_refused(tmp_path, spoil, values):
    paths = two_nodes(tmp_path / "run1")
    skew(paths)
    spoil(paths)
    found = invalid_reason(paths, cell(nodes=2))
    assert (found is None) == (values is None)
    assert_holds(found or "", *(values or ()))
