"""What the comparison of Slurm's clients counts is counted right."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from research.measuring.slurm_processes import CommandLog, Mark, cpu_of, failures, pss_of


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLog:
    """A squeue that prints what it was asked, and is counted."""
    real = tmp_path / "real" / "squeue"
    real.parent.mkdir()
    real.write_text('#!/bin/sh\nprintf "%s," "$@"\nexit 3\n', encoding="utf-8")
    real.chmod(0o755)
    monkeypatch.setenv("PATH", f"{real.parent}{os.pathsep}{os.environ['PATH']}")
    return CommandLog(tmp_path / "log", ("squeue",))


def test_a_command_is_counted_and_does_what_it_did(squeue):
    begin = time.time()
    environment = squeue.environment(dict(os.environ))
    for _ in range(2):
        done = subprocess.run(
            ["squeue", "--jobs", "1 2"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.stdout, done.returncode) == ("--jobs,1 2,", 3)
    assert squeue.between(begin, time.time()) == {"squeue": 2}
    assert squeue.between(begin - 60, begin) == {}


def test_what_a_job_asks_is_not_the_clients(squeue):
    begin = time.time()
    environment = squeue.environment({**os.environ, "SLURM_JOB_ID": "7"})
    subprocess.run(["squeue"], env=environment, stdout=subprocess.DEVNULL, check=False)
    assert squeue.between(begin, time.time()) == {}


def test_a_process_that_its_parent_let_go_still_counts():
    mark = Mark()
    shell = "sleep 60 & SLURM_JOB_ID=7 sleep 60 & echo $!"
    parent = subprocess.Popen(
        ["sh", "-c", shell], env=mark.environment(os.environ), stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    of_job = int(parent.stdout.readline())
    parent.wait()
    try:
        # The one that belongs to a job is not the client's, once it is what it is to be.
        deadline = time.monotonic() + 120
        while len(mark.members()) > 1 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(mark.members()) == 1
        cost = mark.cost()
        assert cost.processes == 1
        assert 0 < cost.pss_bytes < 50e6
    finally:
        mark.kill()
        os.kill(of_job, signal.SIGKILL)
        parent.stdout.close()
    assert mark.members() == []


def test_memory_and_cpu_time_are_read_as_the_kernel_writes_them():
    assert (
        pss_of("7f-7f ---p 00 00:00 0 [rollup]\nRss: 9 kB\nPss:    5 kB\nPss_Anon: 1 kB\n") == 5120
    )
    # utime 100, stime 20, cutime 3 and cstime 4, in ticks; the name may hold anything.
    stat = "12 (a) b) S 1 1 1 0 -1 0 0 0 0 0 100 20 3 4 20 0"
    assert cpu_of(stat) == 127 / os.sysconf("SC_CLK_TCK")


def test_a_failure_is_told_by_the_file_that_was_not_made():
    lines = [
        (1.0, "rule run:"),
        (1.0, "    output: done/1"),
        (5.0, "Error in rule run:"),
        (5.1, "    jobid: 3"),
        (5.1, "    output: done/1 (corrupted)"),
        (9.0, "Error in rule run:"),
        (9.1, "    output: done/2, done/2.log"),
        (9.5, "Error in rule run:"),
        (9.5, "    output: done/1"),
    ]
    assert failures(lines) == {"done/1": 5.0, "done/2": 9.0}
