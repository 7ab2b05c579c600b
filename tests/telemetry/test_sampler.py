"""The sampler as the job runs it: a process of its own, here on simulated GPUs."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.telemetry.cells import NODE, REPOSITORY, make_cell, read_rows, wait_for
from workflow_lib import records

Start = Callable[..., subprocess.Popen[str]]


def test_a_run_is_sampled_from_ready_to_stop(tmp_path: Path, sampler: Start) -> None:
    paths = records.RunPaths(tmp_path)
    process = sampler(tmp_path, make_cell(ranks=2, rate_hz=20.0))
    wait_for(paths.telemetry_ready(NODE), process)
    first = read_rows(paths.gpu_samples(NODE))
    assert [row["gpu"] for row in first] == ["0", "1"]
    assert all(row["power_w"] and row["energy_j"] for row in first)
    time.sleep(3.0)
    paths.telemetry_stop.touch()
    assert process.wait(5) == 0

    rows = read_rows(paths.gpu_samples(NODE))
    assert list(rows[0]) == [column.name for column in records.GPU_SAMPLES]
    times = [float(row["unix_time_s"]) for row in rows if row["gpu"] == "1"]
    rate_hz = (len(times) - 1) / (times[-1] - times[0])
    assert rate_hz == pytest.approx(20.0, rel=0.1)
    assert 3.0 <= times[-1] - times[0] <= 5.0
    # A node's load can delay single ticks, but they do not drift: deadlines are n periods apart.
    # (The last tick comes when the sampler is asked to stop, whenever that is.)
    phases = [(at - times[0]) * 20 % 1 for at in times[:-1]]
    assert sum(phase < 0.5 for phase in phases) > 0.8 * len(phases)
    assert rows[-1]["energy_j"]

    host = read_rows(paths.host_samples(NODE))
    assert list(host[0]) == [column.name for column in records.HOST_SAMPLES]
    assert host[0]["cpu_utilisation_percent"] == ""
    assert 0 <= float(host[1]["cpu_utilisation_percent"]) <= 100
    assert int(host[1]["memory_used_bytes"]) > 10e6
    gaps = [float(b["unix_time_s"]) - float(a["unix_time_s"]) for a, b in itertools.pairwise(host)]
    assert 0.7 < sorted(gaps)[len(gaps) // 2] < 1.3

    started = records.read_record(paths.telemetry_start(NODE), records.TelemetryStart)
    assert (started.node, started.source, started.simulated) == (NODE, "simulated", True)
    assert started.sample_rate_hz == 20.0
    assert [gpu["name"] for gpu in started.gpus] == ["simulated H200"] * 2
    ended = records.read_record(paths.telemetry_end(NODE), records.TelemetryEnd)
    assert ended.samples == len(times)
    assert ended.errors == {}
    assert 0 < ended.cpu_time_s < 3
    assert 5e6 < ended.peak_memory_bytes < 100e6
    assert paths.sampled_nodes() == [NODE]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(tmp_path: Path, sampler: Start, number: int) -> None:
    paths = records.RunPaths(tmp_path)
    process = sampler(tmp_path, make_cell())
    wait_for(paths.telemetry_ready(NODE), process)
    process.send_signal(number)
    assert process.wait(3) == 0
    ended = records.read_record(paths.telemetry_end(NODE), records.TelemetryEnd)
    assert ended.samples == len(read_rows(paths.gpu_samples(NODE))) / 2


def test_at_low_rates_the_stop_is_still_seen_within_a_second(
    tmp_path: Path, sampler: Start
) -> None:
    paths = records.RunPaths(tmp_path)
    process = sampler(tmp_path, make_cell(rate_hz=0.05))
    wait_for(paths.telemetry_ready(NODE), process)
    paths.telemetry_stop.touch()
    assert process.wait(2.5) == 0
    assert len(read_rows(paths.gpu_samples(NODE))) == 4  # first and last tick of two GPUs


def test_a_killed_sampler_loses_a_second_at_most(tmp_path: Path, sampler: Start) -> None:
    paths = records.RunPaths(tmp_path)
    process = sampler(tmp_path, make_cell(rate_hz=50.0))
    wait_for(paths.telemetry_ready(NODE), process)
    time.sleep(2.6)
    killed_unix_s = time.time()
    process.kill()
    process.wait()
    rows = read_rows(paths.gpu_samples(NODE))
    lost_s = killed_unix_s - float(rows[-1]["unix_time_s"])
    assert lost_s <= 1.1  # a second, and what a busy machine adds
    assert len(rows) > 2 * 50
    assert not paths.telemetry_end(NODE).exists()


def test_a_sampler_ends_when_its_parent_has_died(tmp_path: Path) -> None:
    paths = records.RunPaths(tmp_path)
    records.write_json(paths.cell, make_cell())
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
    )
    wait_for(paths.telemetry_ready(NODE), parent)  # type: ignore[arg-type]
    parent.kill()
    parent.communicate()
    try:
        deadline = time.monotonic() + 5
        while not paths.telemetry_end(NODE).exists():
            assert time.monotonic() < deadline, "the sampler outlived its parent"
            time.sleep(0.05)
    finally:
        paths.telemetry_stop.touch()


def test_peak_memory_is_its_own_and_not_its_parents(tmp_path: Path, sampler: Start) -> None:
    # A process inherits the peak of the one that started it; this one holds 200 MB more.
    ballast = bytearray(b"x") * 200_000_000
    paths = records.RunPaths(tmp_path)
    process = sampler(tmp_path, make_cell())
    wait_for(paths.telemetry_ready(NODE), process)
    process.terminate()
    assert process.wait(5) == 0
    ended = records.read_record(paths.telemetry_end(NODE), records.TelemetryEnd)
    assert 5e6 < ended.peak_memory_bytes < 100e6 < len(ballast)


def test_a_second_sampler_is_refused_and_told_of_the_first(tmp_path: Path, sampler: Start) -> None:
    paths = records.RunPaths(tmp_path)
    first = sampler(tmp_path, make_cell())
    wait_for(paths.telemetry_ready(NODE), first)
    second = sampler(tmp_path, make_cell())
    _, message = second.communicate(timeout=20)
    assert second.returncode == 1
    assert f"another sampler works here already: process {first.pid} holds" in message
    assert "Traceback" not in message
    assert first.poll() is None
    first.terminate()
    assert first.wait(5) == 0


def test_an_earlier_attempts_samples_are_not_overwritten(tmp_path: Path, sampler: Start) -> None:
    paths = records.RunPaths(tmp_path)
    paths.telemetry.mkdir()
    paths.gpu_samples(NODE).write_text("evidence\n", encoding="utf-8")
    process = sampler(tmp_path, make_cell())
    _, message = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "is there already, from an earlier attempt" in message
    assert paths.gpu_samples(NODE).read_text(encoding="utf-8") == "evidence\n"


def test_a_full_disk_ends_it_with_a_message(tmp_path: Path) -> None:
    # No file may grow beyond 16 KiB: to the sampler as good as a full disk, and to the test a
    # certain one. The signal that comes with it is ignored, so that the write fails instead.
    paths = records.RunPaths(tmp_path)
    records.write_json(paths.cell, make_cell(rate_hz=50.0))
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))\n"
        "from workflow_lib.telemetry.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, str(paths.cell)],
        cwd=REPOSITORY,
        env={**os.environ, "SLURMD_NODENAME": NODE},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert process.returncode == 1
    assert process.stderr.startswith(f"telemetry on {NODE}: cannot write {tmp_path}")
    assert "free space or quota there" in process.stderr
    assert process.stderr.count("\n") == 1
    assert len(read_rows(paths.gpu_samples(NODE))) > 20


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_file_system_without_space_ends_it_with_a_message(tmp_path: Path, sampler: Start) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.decode()}")
    try:
        process = sampler(disk, make_cell(ranks=8, rate_hz=50.0))
        _, message = process.communicate(timeout=30)
        assert process.returncode == 1
        assert "No space left on device" in message
        assert "Traceback" not in message
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_missing_cell_is_one_clear_message(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "workflow_lib.telemetry", str(tmp_path / "cell.json")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 1
    assert "cell.json does not exist" in process.stderr
    assert process.stderr.count("\n") == 1
