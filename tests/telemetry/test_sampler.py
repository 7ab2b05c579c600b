"""The sampler as the job runs it: a process of its own, here on simulated GPUs."""

import itertools
import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.telemetry.cells import NODE, make_cell, read_rows, refusal, wait_for
from tests.texts import edit
from workflow_lib.records.files import read_record
from workflow_lib.records.nodes import TelemetryEnd, TelemetryStart
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.telemetry_columns import GPU_COUNTERS, GPU_SAMPLES, HOST_SAMPLES
from workflow_lib.records.whole_files import write_json

Start = Callable[..., subprocess.Popen[str]]


def test_a_run_is_sampled_from_ready_to_stop(tmp_path, sampler):
    paths = RunPaths(tmp_path)
    process = sampler(tmp_path, make_cell(ranks=2, rate_hz=20.0))
    wait_for(paths.telemetry_ready(NODE), process)
    first = read_rows(paths.gpu_samples(NODE))
    assert [row["gpu"] for row in first] == ["0", "1"]
    assert all(row["power_w"] and row["lateness_s"] == "" for row in first)
    assert [row["gpu"] for row in read_rows(paths.gpu_counters(NODE))] == ["0", "1"]
    time.sleep(3.0)
    paths.telemetry_stop.touch()
    assert process.wait() == 0

    rows = read_rows(paths.gpu_samples(NODE))
    assert list(rows[0]) == [column.name for column in GPU_SAMPLES]
    times = [float(row["unix_time_s"]) for row in rows if row["gpu"] == "1"]
    assert times[-1] - times[0] >= 3.0
    # Each row but the first and the last says by how much its tick was late. (The last tick comes
    # when the sampler is asked to stop, whenever that is.)
    late_s = [float(row["lateness_s"]) for row in rows if row["gpu"] == "1" and row["lateness_s"]]
    assert len(late_s) == len(times) - 2
    assert min(late_s) >= 0
    # A node's load can delay or drop ticks, but they do not drift: deadlines are n periods apart.
    deadlines_s = [at - late for at, late in zip(times[1:-1], late_s, strict=True)]
    periods = [20 * (at - deadlines_s[0]) for at in deadlines_s]
    assert all(abs(each - round(each)) < 0.2 for each in periods)
    assert len({round(each) for each in periods}) == len(periods)
    assert rows[-1]["lateness_s"] == ""

    # Counters once a second, one GPU half a second after the other, and all of them at the end.
    counters = read_rows(paths.gpu_counters(NODE))
    assert list(counters[0]) == [column.name for column in GPU_COUNTERS]
    assert all(row["energy_j"] for row in counters)
    counted = [float(row["unix_time_s"]) for row in counters if row["gpu"] == "1"]
    assert len(counted) == pytest.approx(times[-1] - times[0] + 2, abs=1.5)
    assert abs(counted[0] - times[0]) < 0.1
    assert abs(counted[-1] - times[-1]) < 0.1

    # All of the driver's samples, each once, whenever they were collected.
    for gpu in ("0", "1"):
        sampled_us = [
            int(row["driver_time_us"])
            for row in read_rows(paths.power_samples(NODE))
            if row["gpu"] == gpu
        ]
        assert sampled_us == list(range(sampled_us[0], sampled_us[-1] + 1, 20_000))
        assert sampled_us[0] / 1e6 - times[0] < 0.05
        assert times[-1] - sampled_us[-1] / 1e6 < 0.05
    assert not paths.gpu_events(NODE).exists()
    assert not paths.sampler_blocks(NODE).exists()

    host = read_rows(paths.host_samples(NODE))
    assert list(host[0]) == [column.name for column in HOST_SAMPLES]
    assert host[0]["cpu_utilisation_percent"] == ""
    assert 0 <= float(host[1]["cpu_utilisation_percent"]) <= 100
    assert int(host[1]["memory_used_bytes"]) > 10e6
    gaps = [float(b["unix_time_s"]) - float(a["unix_time_s"]) for a, b in itertools.pairwise(host)]
    assert 0.7 < sorted(gaps)[len(gaps) // 2] < 1.3

    started = read_record(paths.telemetry_start(NODE), TelemetryStart)
    assert (started.node, started.source, started.simulated) == (NODE, "simulated", True)
    assert started.sample_rate_hz == 20.0
    assert [gpu["name"] for gpu in started.gpus] == ["simulated H200"] * 2
    assert "no driver" in started.missing["event"]
    ended = read_record(paths.telemetry_end(NODE), TelemetryEnd)
    assert ended.samples == len(times)
    # Deadlines that there were: those that were met and those that were missed.
    deadlines = len(times) - 2 + ended.missed_samples
    assert deadlines == pytest.approx(1 + 20 * (times[-1] - times[1]), abs=1.5)
    assert ended.late_samples == sum(late > 0.025 for late in late_s)
    assert 0 < ended.cpu_time_s < 3
    assert 5e6 < ended.peak_memory_bytes < 100e6
    assert ended.power_limits_w == tuple(gpu["power_limit_w"] for gpu in started.gpus)
    assert paths.sampled_nodes() == [NODE]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(tmp_path, sampler, number):
    paths = RunPaths(tmp_path)
    process = sampler(tmp_path, make_cell())
    wait_for(paths.telemetry_ready(NODE), process)
    process.send_signal(number)
    assert process.wait() == 0
    ended = read_record(paths.telemetry_end(NODE), TelemetryEnd)
    assert ended.samples == len(read_rows(paths.gpu_samples(NODE))) / 2


def test_at_low_rates_the_stop_is_still_seen_within_a_second(tmp_path, sampler):
    paths = RunPaths(tmp_path)
    process = sampler(tmp_path, make_cell(rate_hz=0.05))
    wait_for(paths.telemetry_ready(NODE), process)
    paths.telemetry_stop.touch()
    assert process.wait() == 0
    # Of two GPUs: the first reading, the first deadline, and the last reading.
    assert len(read_rows(paths.gpu_samples(NODE))) == 6


def test_peak_memory_is_its_own_and_not_its_parents(tmp_path, sampler):
    # A process inherits the peak of the one that started it; this one holds 200 MB more.
    ballast = bytearray(b"x") * 200_000_000
    paths = RunPaths(tmp_path)
    process = sampler(tmp_path, make_cell())
    wait_for(paths.telemetry_ready(NODE), process)
    process.terminate()
    assert process.wait() == 0
    ended = read_record(paths.telemetry_end(NODE), TelemetryEnd)
    assert 5e6 < ended.peak_memory_bytes < 100e6 < len(ballast)


def test_a_second_sampler_is_refused_and_told_of_the_first(tmp_path, sampler):
    paths = RunPaths(tmp_path)
    first = sampler(tmp_path, make_cell())
    wait_for(paths.telemetry_ready(NODE), first)
    second = sampler(tmp_path, make_cell())
    _, message = second.communicate()
    assert second.returncode == 1
    assert f"process {first.pid} holds" in message
    assert "Traceback" not in message
    assert first.poll() is None
    first.terminate()
    assert first.wait() == 0


def test_an_earlier_attempts_samples_are_not_overwritten(tmp_path):
    paths = RunPaths(tmp_path)
    paths.telemetry.mkdir()
    paths.gpu_samples(NODE).write_text("evidence\n", encoding="utf-8")
    write_json(paths.cell, make_cell())
    assert f"{paths.gpu_samples(NODE)} is there" in refusal(paths)
    assert paths.gpu_samples(NODE).read_text(encoding="utf-8") == "evidence\n"


def test_a_cell_that_is_missing_or_damaged_is_one_clear_message(tmp_path):
    paths = RunPaths(tmp_path)
    assert f"{paths.cell} does not exist" in refusal(paths)
    write_json(paths.cell, make_cell())
    edit(paths.cell, '"sample_rate_hz": 20.0', '"sample_rate_hz": "fast"')
    assert "sample_rate_hz is 'fast'" in refusal(paths)


@pytest.mark.parametrize("rate_hz", [0.0, 1000.0])
def test_a_rate_that_it_cannot_have_is_one_clear_message(tmp_path, rate_hz):
    paths = RunPaths(tmp_path)
    write_json(paths.cell, make_cell(rate_hz=rate_hz))
    assert f"sample_rate_hz is {rate_hz:g}" in refusal(paths)
    assert [*paths.telemetry.iterdir()] == [paths.telemetry_failed(NODE)]


def test_a_place_where_no_directory_can_be_is_one_clear_message(tmp_path):
    paths = RunPaths(tmp_path)
    paths.telemetry.write_text("in the way\n", encoding="utf-8")
    write_json(paths.cell, make_cell())
    assert f"{paths.telemetry}: File exists" in refusal(paths)
