"""What runs under way show is read from the ends of their files, and is of now or is missing."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.analysis.synthetic_run import START, Run, cell
from tests.live.running import CELL, NOW, paths_of, write
from workflow_lib import results
from workflow_lib.live import FRESH_S, GpuNow, RunNow, Watcher, newest_rows, node_now
from workflow_lib.records import bounds
from workflow_lib.records.reading import RecordError
from workflow_lib.records.tables import PLAN
from workflow_lib.records.telemetry_columns import GPU_SAMPLES
from workflow_lib.table_files import table, write_table


def look(root: Path, now: float = NOW) -> dict[int, RunNow]:
    return {run.status.run: run for run in Watcher(root).look(now).runs}


def test_a_run_under_way_shows_its_steps_speed_and_readings(tmp_path):
    write(tmp_path)
    running = look(tmp_path)[1]
    assert (running.status.state, running.status.steps_done, running.steps_asked) == (
        "running",
        3,
        3,
    )
    # By hand: 3 steps of 32 tokens in each of 2 replicas, from START + 10 to START + 40.
    assert running.tokens_per_s == pytest.approx(2 * 3 * 32 / 30)
    (node,) = running.nodes
    assert (node.node, node.source, node.sampled_unix_s) == ("node1", "nvidia", NOW)
    assert (node.gpu_power_w, node.hottest_c) == (1000, 60)
    assert node.readings["node_power_w"] == 2000
    first = node.gpus[0]
    assert first.readings["energy_j"] == 400 * 50 + 100_000
    assert first.throttled == {"power_cap": True, "thermal": False, "power_brake": False}


def test_runs_that_are_not_under_way_have_no_readings(tmp_path):
    write(tmp_path)
    found = look(tmp_path)
    assert [found[run].status.state for run in (2, 3)] == ["failed", "queued"]
    assert [(found[run].nodes, found[run].tokens_per_s) for run in (2, 3)] == [((), None)] * 2


@pytest.mark.parametrize(("later_s", "power_w"), [(FRESH_S, 1000), (FRESH_S + 1, None)])
def test_a_reading_that_is_too_old_is_missing(tmp_path, later_s, power_w):
    write(tmp_path)
    (node,) = look(tmp_path, NOW + later_s)[1].nodes
    assert node.gpu_power_w == power_w
    assert node.sampled_unix_s == NOW
    assert bool(node.gpus[0].readings) == bool(node.readings) == (power_w is not None)


def test_a_field_that_is_empty_now_is_missing_though_it_was_read_before(tmp_path):
    def edit(fields):
        last = fields["unix_time_s"] == NOW and fields["gpu"] == 1
        return {**fields, "power_w": None, "energy_j": None} if last else fields

    write(tmp_path, Run(edit=edit))
    (node,) = look(tmp_path)[1].nodes
    # A sum over the other GPU alone would look like a node that saves power.
    assert node.gpu_power_w is None
    assert "power_w" not in node.gpus[1].readings
    # A counter is read on a period of its own: an empty field was not due.
    assert node.gpus[1].readings["energy_j"] == 600 * 49.5 + 100_000


def test_power_of_a_package_is_that_of_the_die_that_reports_it(tmp_path):
    package = replace(cell().hardware, gpus_per_package=2)
    write(tmp_path, Run(cell=replace(cell(), hardware=package)))
    (node,) = look(tmp_path)[1].nodes
    assert node.gpu_power_w == 400
    assert [name for name in ("power_w", "energy_j") if name in node.gpus[1].readings] == []
    assert node.gpus[1].readings["temperature_c"] == 60


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0x0, set()),
        (0x4, {"power_cap"}),
        (0x20, {"thermal"}),
        (0x48, {"thermal"}),  # hardware slowdown for heat
        (0x8, {"power_brake"}),  # hardware slowdown for anything else
        (0x84, {"power_cap", "power_brake"}),
    ],
)
def test_event_bits_are_reasons(bits, reasons):
    throttled = GpuNow(0, {"event_reasons": bits}, True).throttled
    assert {name for name, held in throttled.items() if held} == reasons


def test_no_event_bits_are_no_answer():
    assert GpuNow(0, {}, True).throttled is None


def test_a_sampler_that_has_written_no_row_yet_has_no_readings(tmp_path):
    paths = write(tmp_path)
    for path in (paths.gpu_samples("node1"), paths.gpu_counters("node1")):
        path.write_text("")
    paths.host_samples("node1").unlink()
    node = node_now(paths, "node1", 1, NOW)
    assert (node.sampled_unix_s, node.gpu_power_w, node.readings) == (None, None, {})


def test_a_damaged_run_is_a_problem_and_hides_no_other(tmp_path):
    paths = write(tmp_path)
    with paths.gpu_samples("node1").open("a") as stream:
        stream.write("1,2,3\n")
    seen = Watcher(tmp_path).look(NOW)
    assert [run.status.run for run in seen.runs] == [2, 3]
    (problem,) = seen.problems
    assert "node1.csv: 3 fields" in problem


def test_a_damaged_plan_is_a_problem_and_hides_the_runs_of_no_other(tmp_path):
    row = {column.name: None for column in PLAN}
    planned = {**row, "cell": CELL, "repeats": 2, "profiled_steps": 0, "feasible": True}
    whole, torn = (results.sweep_paths(tmp_path, name).plan for name in ("whole", "torn"))
    write_table(table([planned], PLAN), whole)
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b"PAR1")
    watcher = Watcher(tmp_path)
    for _ in range(2):
        seen = watcher.look(NOW)
        assert [run.status.run for run in seen.runs] == [1, 2]
        (problem,) = seen.problems
        assert str(torn) in problem


def test_what_has_ended_is_read_again_only_when_its_outcome_changes(tmp_path):
    write(tmp_path)
    watcher = Watcher(tmp_path)
    first = {run.status.run: run.status for run in watcher.look(NOW).runs}
    second = {run.status.run: run.status for run in watcher.look(NOW).runs}
    assert second[2] is first[2]
    failed = paths_of(tmp_path, 2)
    failed.failure.unlink()
    third = {run.status.run: run.status for run in watcher.look(NOW).runs}
    assert (first[2].state, third[2].state) == ("failed", "planned")
    assert [each.cell for each in third.values()] == [CELL] * 3


class TestNewestRows:
    HEADER = ",".join(column.name for column in GPU_SAMPLES) + "\n"

    def rows(self, path, text):
        path.write_text(text)
        return list(newest_rows(path, GPU_SAMPLES))

    def line(self, number):
        return f"{START + number},0,{number}.5,,,,,,,\n"

    def test_rows_come_from_the_last_one_backwards_without_the_one_being_written(self, tmp_path):
        text = self.HEADER + self.line(1) + self.line(2) + f"{START + 3},0,3."
        assert [row["power_w"] for row in self.rows(tmp_path / "a", text)] == [2.5, 1.5]

    @pytest.mark.parametrize("text", ["", "unix_time_s,gp", HEADER, HEADER + "17"])
    def test_a_file_without_a_whole_row_has_none(self, tmp_path, text):
        assert self.rows(tmp_path / "a", text) == []

    def test_of_a_long_file_its_end_is_read(self, tmp_path, monkeypatch):
        text = self.HEADER + "".join(map(self.line, range(100_000)))
        assert len(text) > 10 * bounds.WATCHED_BYTES.most
        powers = [row["power_w"] for row in self.rows(tmp_path / "a", text)]
        assert powers == [number + 0.5 for number in range(99_999, 99_999 - len(powers), -1)]
        assert 0.9 < sum(len(self.line(99_999)) for _ in powers) / bounds.WATCHED_BYTES.most <= 1

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("time,gpu\n", "not the expected column names"),
            (HEADER + "1,2\n", "2 fields, expected 10"),
            (HEADER + "1700000000.0,0,hot,,,,,,,\n", "power_w is 'hot', expected a finite number"),
        ],
    )
    def test_damage_is_named(self, tmp_path, text, said):
        with pytest.raises(RecordError, match=said):
            self.rows(tmp_path / "a", text)

    def test_a_pipe_is_refused_and_not_waited_for(self, tmp_path):
        os.mkfifo(tmp_path / "a")
        with pytest.raises(RecordError, match="expected a file"):
            list(newest_rows(tmp_path / "a", GPU_SAMPLES))
