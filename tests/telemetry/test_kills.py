"""What becomes of a sampler, and of its files, that is killed or has its ground taken away."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests.disks import small_disk
from tests.telemetry.cells import NODE, REPOSITORY, make_cell, read_rows, refusal, wait_for
from tests.telemetry.nvml import Node
from tests.waiting import until
from workflow_lib.records.files import read_record
from workflow_lib.records.nodes import TelemetryEnd
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import write_json

Start = Callable[..., subprocess.Popen[str]]
Row = dict[str, str]

#: A second in memory, and what a busy machine may add.
LOST_S = 2.0


def times(rows: list[Row], gpu: str) -> list[float]:
    return [float(row["unix_time_s"]) for row in rows if row["gpu"] == gpu]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_sampler_loses_a_second_at_most(tmp_path, nvml_library, sampler, number):
    node = Node(tmp_path, nvml_library, sampler)
    epoch_s = time.time()
    node.say("1 8 79 0", epoch=repr(epoch_s), energy="integral 5e9", power_1="300000")
    process = node.start(make_cell(source="nvidia", rate_hz=50.0))
    wait_for(node.paths.telemetry_ready(NODE), process)
    time.sleep(3.6)
    killed_unix_s = time.time()
    process.send_signal(number)
    assert process.wait() == (-signal.SIGKILL if number == signal.SIGKILL else 0)
    assert node.paths.telemetry_end(NODE).exists() == (number == signal.SIGTERM)

    lost_s = LOST_S
    if number == signal.SIGTERM:
        # Then it reads everything once more, within the second in which it sees the signal.
        lost_s = 0.1
    for gpu in ("0", "1"):
        sampled = times(node.rows, gpu)
        assert len(sampled) > 2 * 50
        assert killed_unix_s - sampled[-1] <= lost_s
        counted = times(node.counters, gpu)
        assert counted  # none of them need be due again by now
        if number == signal.SIGTERM:
            assert killed_unix_s - counted[-1] <= lost_s
        power = [
            int(row["driver_time_us"]) / 1e6
            for row in read_rows(node.paths.power_samples(NODE))
            if row["gpu"] == gpu
        ]
        assert len(power) > 50
        # Collected every two seconds, unless at the end.
        assert killed_unix_s - power[-1] <= lost_s + 2.1 * (number == signal.SIGKILL)
    host = read_rows(node.paths.host_samples(NODE))
    assert killed_unix_s - float(host[-1]["unix_time_s"]) <= lost_s + 1.0
    (event,) = read_rows(node.paths.gpu_events(NODE))
    assert (event["gpu"], event["event"], event["code"]) == ("1", "xid", "79")
    assert killed_unix_s - float(event["unix_time_s"]) > 3


def test_the_blocks_of_a_killed_sampler_reach_to_the_last_that_ended(tmp_path, sampler):
    paths = RunPaths(tmp_path)
    process = sampler(tmp_path, make_cell(interleaved_rates_hz=(10.0, 20.0), block_s=1.0))
    wait_for(paths.telemetry_ready(NODE), process)
    time.sleep(2.6)
    killed_unix_s = time.time()
    process.kill()
    process.wait()
    ended = [float(row["ended_unix_s"]) for row in read_rows(paths.sampler_blocks(NODE))]
    assert len(ended) >= 2
    assert killed_unix_s - ended[-1] <= LOST_S


def test_a_sampler_ends_when_its_parent_has_died(tmp_path):
    paths = RunPaths(tmp_path)
    write_json(paths.cell, make_cell())
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys; subprocess.Popen(sys.argv[1:]); input()",
            *(sys.executable, "-m", "workflow_lib.telemetry", str(paths.cell)),
        ],
        cwd=REPOSITORY,
        env={**os.environ, "SLURMD_NODENAME": NODE},
        stdin=subprocess.PIPE,
        text=True,
    )
    wait_for(paths.telemetry_ready(NODE), parent)
    parent.kill()
    parent.communicate()
    try:
        until(paths.telemetry_end(NODE).exists, what="the sampler outlived its parent")
    finally:
        paths.telemetry_stop.touch()


def test_a_full_disk_ends_it_with_a_message(tmp_path, sampler):
    with small_disk(tmp_path / "disk") as disk:
        paths = RunPaths(disk)
        process = sampler(disk, make_cell(ranks=8, rate_hz=50.0))
        _, message = process.communicate()
        assert process.returncode == 1
        assert message.startswith(f"telemetry on {NODE}: cannot write {paths.telemetry}")
        assert "No space left" in message
        assert message.count("\n") == 1
        # What was written stays, in whole lines but for the last.
        samples = read_rows(paths.gpu_samples(NODE))
        assert len(samples) > 8 * 25
        assert len(read_rows(paths.gpu_counters(NODE))) >= 8
        assert len(read_rows(paths.host_samples(NODE))) >= 1
        read_rows(paths.power_samples(NODE))


def test_files_that_may_not_grow_end_it_with_a_message(tmp_path):
    # No file may grow beyond 16 KiB: to the sampler as good as a quota, and to the test a certain
    # one. The signal that comes with it is ignored, so that the write fails instead.
    paths = RunPaths(tmp_path)
    write_json(paths.cell, make_cell(rate_hz=50.0))
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))\n"
        "from workflow_lib.telemetry.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    said = refusal(paths, "-c", code)
    assert str(tmp_path) in said
    assert "quota" in said
    assert len(read_rows(paths.gpu_samples(NODE))) > 20


def test_a_directory_that_may_not_be_written_is_one_clear_message(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        paths = RunPaths(disk)
        write_json(paths.cell, make_cell())
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert f"{paths.telemetry}: Read-only" in refusal(paths)


@pytest.mark.parametrize("moved", [False, True])
def test_a_directory_that_is_taken_away_ends_it_with_a_message(tmp_path, sampler, moved):
    paths = RunPaths(tmp_path / "run")
    process = sampler(paths.directory, make_cell())
    wait_for(paths.telemetry_ready(NODE), process)
    aside = tmp_path / "aside"
    paths.directory.rename(aside)
    if not moved:
        shutil.rmtree(aside)
    _, message = process.communicate()
    assert process.returncode == 1
    assert f"{paths.gpu_samples(NODE)} was removed" in message
    assert message.count("\n") == 1
    assert not paths.directory.exists()
    if moved:
        # What was sampled until then is in the files where they are now.
        assert len(read_rows(RunPaths(aside).gpu_samples(NODE))) > 10


@pytest.mark.parametrize("step_s", [-3600, 3600])
def test_a_clock_that_is_set_moves_no_tick_and_loses_no_row(tmp_path, wall_clock, sampler, step_s):
    paths = RunPaths(tmp_path)
    process = sampler(tmp_path, make_cell(), **wall_clock.variables)
    wait_for(paths.telemetry_ready(NODE), process)
    time.sleep(1.2)
    set_unix_s = time.time()
    wall_clock.set_ahead(step_s)
    time.sleep(2.4)
    process.terminate()
    assert process.wait() == 0
    # Rows before the step have the one time and those after it the other; without the step, they
    # follow each other with no hole.
    for path in (paths.gpu_counters(NODE), paths.gpu_samples(NODE)):
        shown = times(read_rows(path), "0")
        stepped = [at for at in shown if abs(at - set_unix_s) > 1800]
        assert len(stepped) >= 2
        assert shown[-len(stepped) :] == stepped
        true_times = [at - (step_s if at in stepped else 0) for at in shown]
        gaps_s = [after - before for before, after in itertools.pairwise(true_times)]
        assert all(0 < gap_s < 2.5 for gap_s in gaps_s)
    host = [float(row["unix_time_s"]) for row in read_rows(paths.host_samples(NODE))]
    assert sum(abs(at - set_unix_s) > 1800 for at in host) >= 2
    # Deadlines are the monotonic clock's, which was not set.
    ended = read_record(paths.telemetry_end(NODE), TelemetryEnd)
    sampled = len(times(read_rows(paths.gpu_samples(NODE)), "0"))
    assert ended.samples == sampled
    lasted_s = true_times[-1] - true_times[0]
    assert sampled - 2 + ended.missed_samples == pytest.approx(1 + 20 * lasted_s, abs=2.5)
