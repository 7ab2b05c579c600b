"""Commands of a site: what they print is read up to a bound, and for so long."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from workflow_lib import commands
from workflow_lib.launch.schedulers import queries, slurm
from workflow_lib.launch.schedulers.refusals import UnclearError
from workflow_lib.records import bounds

LONG_S = 200.0


def sh(text: str, timeout_s: float = LONG_S) -> commands.CommandResult:
    return commands.run(["sh", "-c", text], timeout_s)


def test_an_answer_has_both_streams_and_how_the_command_ended():
    assert sh("echo a; printf 'gr\\374n' >&2; exit 3") == commands.CommandResult(
        3, "a\n", "gr\ufffdn"
    )


def test_what_is_within_the_bound_comes_whole():
    most = bounds.COMMAND_BYTES.most
    assert len(sh(f"head -c {most} /dev/zero").output) == most


@pytest.mark.parametrize("stream", ["", ">&2"])
def test_a_command_that_prints_without_end_is_ended(stream):
    with pytest.raises(commands.TooMuchError, match="printed over 64 MiB"):
        sh(f"yes {stream}")


def test_one_that_hangs_is_ended_with_what_it_started(tmp_path):
    pid = tmp_path / "pid"
    with pytest.raises(subprocess.TimeoutExpired):
        sh(f"sleep {LONG_S} & echo $! >{pid}.new; mv {pid}.new {pid}; wait", 2.0)
    if pid.exists():  # on a busy machine it may not even have begun
        sleeper = Path("/proc", pid.read_text().strip(), "stat")
        gone = threading.Event()
        while not gone.wait(0.05):
            if not sleeper.exists() or sleeper.read_text().rpartition(")")[2].split()[0] == "Z":
                gone.set()


def test_a_command_that_is_not_there_is_an_error():
    with pytest.raises(FileNotFoundError):
        commands.run(["/no such command"], LONG_S)


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sbatch", "squeue", "sacct", "scancel"):
        (tmp_path / name).write_text("#!/bin/sh\nexec yes '### maintenance ###'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("endless")
def test_slurm_that_prints_without_end_gives_no_answer(tmp_path):
    with pytest.raises(queries.NoAnswerError, match=r"squeue: .* 64 MiB"):
        queries.squeue(["1"])
    with pytest.raises(queries.NoAnswerError, match=r"sacct: .* 64 MiB"):
        queries.sacct(["1"])
    # It may have submitted the job: it is looked for by its name.
    with pytest.raises(UnclearError, match=r"sbatch .* 64 MiB"):
        slurm.sbatch(tmp_path / "job.sh", tmp_path, "log", "h200")
