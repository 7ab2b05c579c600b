"""What goes wrong beside the command leaves the command alone, and keeps what was measured."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.measure.runs import command, environment, measure, measured
from tests.waiting import until
from workflow_lib import audit
from workflow_lib.measure import conclude
from workflow_lib.records.paths import node_name

#: a log line a step of Megatron-LM, 30 in three seconds, then exit code 5; at half of them it fills
#: the disk
STEPS = """
import sys, time
for step in range(1, 31):
    try:
        if step == 15:
            with open(sys.argv[2], "wb", buffering=0) as filler:
                while filler.write(bytes(4096)):
                    pass
    except OSError:
        pass
    with open(sys.argv[1], "a") as log:
        print(f"iteration {step}/ 30 | elapsed time per iteration (ms): 100.0 |", file=log)
    time.sleep(0.1)
sys.exit(5)
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", place], check=False)
    if made.returncode:
        pytest.skip("a file system can be mounted by root alone")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_a_disk_that_is_full_at_once_leaves_the_command_alone(small_disk):
    with contextlib.suppress(OSError):
        (small_disk / "filler").write_bytes(bytes(1_000_000))
    done = measure(small_disk, sys.executable, "-c", "print('out'); raise SystemExit(5)")
    assert (done.returncode, done.stdout) == (5, "out\n")
    assert "Traceback" not in done.stderr
    assert "No space left" in done.stderr


def test_what_was_measured_before_the_disk_was_full_is_summed_up_later(small_disk, tmp_path):
    log, filler = tmp_path / "log.txt", small_disk / "filler"
    options = ("--steps=log", "--pattern=megatron-lm", f"--log={log}")
    words = (sys.executable, "-c", STEPS, str(log), str(filler))
    done = measure(small_disk, *words, options=options)
    assert done.returncode == 5
    assert "Traceback" not in done.stderr
    assert measured(small_disk)["ended_unix_s"] is None
    run = small_disk / "run"
    assert audit.main([str(run)]) == 1
    assert conclude.main([str(run)]) == 1
    filler.unlink()
    assert conclude.main([str(run)]) == 0
    record = measured(small_disk)
    assert record["values"]["counted_steps"] > 5
    assert record["limits"] == ["cut_off"]
    assert audit.main([str(run)]) == 0

    # What was summed up is not lost where a file of it is.
    for damage in (b"\0\0", b"\0\0\n"):
        (run / "steps/log.csv").write_bytes(damage)
        with pytest.raises(SystemExit):
            conclude.main([str(run)])
        assert measured(small_disk) == record


def marked(mark: str) -> list[int]:
    """The processes that have a variable of this value."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue  # it has ended, or is another user's
    return found


@pytest.mark.parametrize("victim", ["sampler", "measure"])
def test_a_kill_keeps_the_readings_and_leaves_no_process(tmp_path, victim):
    mark = f"fault-{os.getpid()}-{victim}"
    words = ("sh", "-c", "echo $$ > pid; read line; exit 6")
    process = subprocess.Popen(
        command(tmp_path, *words),
        env=environment(FAULT=mark),
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    samples = tmp_path / "run/telemetry" / f"{node_name()}.csv"
    until(lambda: (tmp_path / "pid").exists() and samples.read_bytes().count(b"\n") > 20)
    if victim == "sampler":
        lock = (tmp_path / "run/telemetry" / f"{node_name()}.lock").read_text(encoding="ascii")
        own = {int(word) for word in lock.split() if word.isdigit()} & set(marked(mark))
        (sampler,) = own
        os.kill(sampler, signal.SIGKILL)
        _, errors = process.communicate("end\n")
        assert process.returncode == 6
        assert "Traceback" not in errors
        assert measured(tmp_path)["invalid"] != []
        assert "energy_j" in measured(tmp_path)["missing"]
    else:
        process.kill()
        process.communicate()
    until(lambda: marked(mark) == [])
    kept = samples.read_bytes().count(b"\n")
    assert kept > 20
    if victim == "measure":
        assert conclude.main([str(tmp_path / "run")]) == 0
    record = measured(tmp_path)
    assert record["limits"] == ["cut_off"] * (victim == "measure")
    assert record["gpus"][0]["power_mean_w"] > 0
    assert audit.main([str(tmp_path / "run")]) == 0


def test_a_daemon_of_the_command_is_left_alone(tmp_path):
    done = measure(tmp_path, "sh", "-c", "setsid sleep 600 >&- 2>&- & echo $!; exit 3")
    daemon = int(done.stdout)
    os.kill(daemon, signal.SIGKILL)
    assert done.returncode == 3


def test_a_gigabyte_of_output_goes_by(tmp_path):
    words = ("sh", "-c", "head -c 1000000000 /dev/zero; exit 4")
    with subprocess.Popen(
        command(tmp_path, *words), env=environment(), cwd=tmp_path, stdout=subprocess.PIPE
    ) as process:
        size = sum(map(len, iter(lambda: process.stdout.read(1 << 20), b"")))
    assert (process.returncode, size) == (4, 1_000_000_000)


def test_where_nothing_can_be_written_the_command_runs_all_the_same(tmp_path):
    (tmp_path / "run").write_text("a file", encoding="utf-8")
    done = measure(tmp_path, sys.executable, "-c", "print('out'); raise SystemExit(5)")
    assert (done.returncode, done.stdout) == (5, "out\n")
    assert (tmp_path / "run").read_text(encoding="utf-8") == "a file"


def test_a_command_that_ignores_a_signal_is_measured_to_its_end(tmp_path):
    script = "trap '' TERM; touch ready; while [ ! -e go ]; do sleep 0.05; done; exit 3"
    with subprocess.Popen(
        command(tmp_path, "sh", "-c", script), cwd=tmp_path, env=environment()
    ) as process:
        until((tmp_path / "ready").exists)
        process.send_signal(signal.SIGTERM)
        (tmp_path / "go").touch()
        assert process.wait() == 3
    assert (measured(tmp_path)["exit_code"], measured(tmp_path)["invalid"]) == (3, [])
