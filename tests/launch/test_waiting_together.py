"""Runs that share one process which waits for them end, and are interrupted, each on its own."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from workflow_lib import records
from workflow_lib.launch import interruption
from workflow_lib.launch.__main__ import INTERRUPTED
from workflow_lib.records import JobRecord, RunPaths

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 30.0


class Together:
    """Runs of jobs that go on until they are ended, and the processes that wait for them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.jobs: list[subprocess.Popen[bytes]] = []
        self.clients: list[subprocess.Popen[bytes]] = []
        self.readers: list[subprocess.Popen[bytes]] = []
        self.temporary = directory / "tmp"
        self.temporary.mkdir(mode=0o700)

    def start(self, through: str | None = None) -> int:
        """One more job, and who waits for it; returns its number. What that says goes to its log,
        perhaps ``through`` a program.
        """
        number = len(self.jobs)
        paths = self.paths(number)
        paths.directory.mkdir()
        paths.script.write_text("while :; do sleep 0.2; done\n", encoding="utf-8")
        self.jobs.append(subprocess.Popen(["bash", str(paths.script)]))
        records.write_json(paths.job, JobRecord("local", str(self.jobs[-1].pid), 1.0, "a test"))
        with self.log(number).open("wb") as log:
            output: IO[bytes] = log
            if through is not None:
                reader = subprocess.Popen([through], stdin=subprocess.PIPE, stdout=log)
                self.readers.append(reader)
                assert reader.stdin is not None
                output = reader.stdin
            self.clients.append(
                subprocess.Popen(
                    [
                        *(sys.executable, "-m", "workflow_lib.launch", "run"),
                        *(str(paths.directory), "--scheduler", "local", "--shared"),
                    ],
                    cwd=ROOT,
                    env=self.environment,
                    stderr=output,
                )
            )
            if output is not log:
                output.close()
        self.until(lambda: "(RUNNING)" in self.said(number), f"run {number} to be waited for")
        return number

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"TMPDIR": str(self.temporary), "TRIPTYCH_ASK_SCHEDULER_EVERY_S": "0.5"}

    def paths(self, number: int) -> RunPaths:
        return RunPaths(self.directory / f"run{number}")

    def log(self, number: int) -> Path:
        return self.directory / f"run{number}.log"

    def said(self, number: int) -> str:
        return self.log(number).read_text(encoding="utf-8")

    def servers(self) -> list[int]:
        """Processes that wait for these runs."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                arguments = (path / "cmdline").read_bytes().decode(errors="replace")
            except OSError:  # it has ended
                continue
            if "wait_server" in arguments and str(self.temporary) in arguments:
                found.append(int(path.name))
        return found

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain for {what}"
            time.sleep(0.05)

    def is_locked(self, number: int) -> bool:
        with self.paths(number).lock.open("a") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def end(self) -> None:
        for process in [*self.jobs, *self.clients, *self.readers]:
            process.kill()
            process.wait()
        for server in self.servers():
            os.kill(server, signal.SIGKILL)


@pytest.fixture
def together() -> Iterator[Together]:
    # An address of a socket is a hundred characters at most.
    with tempfile.TemporaryDirectory(prefix="waiting") as directory:
        made = Together(Path(directory))
        yield made
        made.end()


def test_runs_share_a_process_and_each_has_its_own_end_and_log(together):
    first, second = together.start(), together.start()
    assert len(together.servers()) == 1

    together.jobs[second].kill()
    together.jobs[second].wait()
    assert together.clients[second].wait(PATIENCE_S) == 1
    assert "the job ended without its last word" in together.said(second)
    assert together.paths(second).failure.exists()

    assert together.clients[first].poll() is None
    assert "last word" not in together.said(first)
    assert together.is_locked(first)
    assert not together.is_locked(second)


def test_a_client_that_dies_abandons_its_own_run_alone(together):
    first, second = together.start(), together.start()
    together.clients[first].kill()
    together.until(lambda: not together.is_locked(first), "the first run to be let go")
    assert together.jobs[first].poll() is None
    assert not together.paths(first).failure.exists()
    assert together.is_locked(second)
    assert together.clients[second].poll() is None


def test_ctrl_c_ends_the_job_of_its_run_alone(together):
    first, second = together.start(), together.start()
    together.clients[first].send_signal(signal.SIGINT)
    together.until(lambda: together.jobs[first].poll() is not None, "the first job to be ended")
    assert together.clients[first].wait(PATIENCE_S) == INTERRUPTED
    assert f"asked that job {together.jobs[first].pid} ends" in together.said(first)
    assert together.said(first).count("waiting for it") == 1  # the same who was asked to wait
    assert together.jobs[second].poll() is None
    assert together.clients[second].poll() is None


def test_a_run_outlives_the_process_that_waits_for_it(together):
    number = together.start()
    (server,) = together.servers()
    os.kill(server, signal.SIGKILL)
    together.until(lambda: together.said(number).count("(RUNNING)") == 2, "another server")
    assert together.servers() != [server]

    together.jobs[number].kill()
    together.jobs[number].wait()
    assert together.clients[number].wait(PATIENCE_S) == 1
    assert together.paths(number).failure.exists()


def test_a_run_whose_messages_nobody_reads_ends_all_the_same(together):
    number = together.start(through="cat")
    (reader,) = together.readers
    reader.kill()
    reader.wait()
    servers = together.servers()

    together.jobs[number].kill()
    together.jobs[number].wait()
    assert together.clients[number].wait(PATIENCE_S) == 1
    assert together.paths(number).failure.exists()
    assert together.servers() == servers


def test_where_no_socket_can_be_a_run_waits_by_itself(together):
    together.temporary = together.directory / ("d" * 100)
    together.temporary.mkdir(mode=0o700)
    number = together.start()
    assert together.servers() == []
    assert Path(f"/proc/{together.clients[number].pid}/exe").resolve().name.startswith("python")


def test_a_thread_heeds_the_wishes_for_its_own_run():
    wishes = interruption.Wishes()
    interruption.heed(wishes)
    try:
        assert not interruption.is_asked()
        wishes.interrupt()
        wishes.interrupt()  # the terminal's and Snakemake's, which are one
        with pytest.raises(interruption.InterruptedRunError):
            interruption.pause(PATIENCE_S)
        interruption.pause(0.01, asked=2)
        wishes.abandon()
        with pytest.raises(interruption.AbandonedRunError):
            interruption.pause(PATIENCE_S, asked=2)
    finally:
        interruption.heed(None)
