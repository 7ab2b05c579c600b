"""Runs that threads of one process wait for: each ends on its own, Ctrl-C is for all of them."""

from __future__ import annotations

import fcntl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S, until
from workflow_lib.launch import interruption, job_wait, run_to_end
from workflow_lib.records.nodes import LIMITS_LEFT
from workflow_lib.records.outcomes import JobRecord, Outcome, OutcomeRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import write_json


class Together:
    """Runs of jobs that go on until they are ended, and the threads that wait for them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.jobs: list[subprocess.Popen[bytes]] = []
        self.threads: list[threading.Thread] = []
        #: what became of each run: why it has no result, or the error that was raised
        self.problems: dict[int, str | Exception | None] = {}

    def start(self, is_logged: bool = True) -> int:
        """One more job, and a thread that waits for it; returns its number once its log says so."""
        number = len(self.jobs)
        paths = self.paths(number)
        paths.directory.mkdir()
        paths.script.write_text("while :; do sleep 0.2; done\n", encoding="utf-8")
        self.jobs.append(subprocess.Popen(["bash", str(paths.script)]))
        write_json(paths.job, JobRecord("local", str(self.jobs[-1].pid), 1.0, "a test"))
        self.threads.append(threading.Thread(target=self._run, args=(number,), daemon=True))
        self.threads[-1].start()
        if is_logged:
            until(lambda: "(RUNNING)" in self.said(number), what=f"run {number} is not waited for")
        return number

    def _run(self, number: int) -> None:
        directory = self.paths(number).directory
        try:
            self.problems[number] = run_to_end.run_logged(directory, "local", self.log(number))
        except Exception as error:
            self.problems[number] = error

    def paths(self, number: int) -> RunPaths:
        return RunPaths(self.directory / f"run{number}")

    def log(self, number: int) -> Path:
        return self.directory / f"run{number}.log"

    def said(self, number: int) -> str:
        return self.log(number).read_text(encoding="utf-8") if self.log(number).exists() else ""

    def kill(self, number: int) -> None:
        self.jobs[number].kill()
        self.jobs[number].wait()

    def end_of(self, number: int) -> str | Exception | None:
        self.threads[number].join(PATIENCE_S)
        return self.problems[number]

    def is_locked(self, number: int) -> bool:
        with self.paths(number).lock.open("a") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


@pytest.fixture
def together(tmp_path, monkeypatch) -> Iterator[Together]:
    monkeypatch.setattr(interruption, "_came", 0)
    monkeypatch.setattr(job_wait, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(job_wait, "ASK_EVERY_S", 0.2)
    monkeypatch.setattr(job_wait, "LOCAL_LAG_S", 0.1)
    made = Together(tmp_path)
    yield made
    for number, thread in enumerate(made.threads):
        made.kill(number)
        thread.join(PATIENCE_S)


def test_each_run_has_its_own_end_and_log(together, capfd):
    first, second = together.start(), together.start()
    together.kill(second)
    problem = together.end_of(second)
    assert isinstance(problem, str)
    assert "end record" in problem
    assert problem in together.said(second)
    assert problem in capfd.readouterr().err
    assert together.paths(second).failure.exists()

    assert together.threads[first].is_alive()
    assert "end record" not in together.said(first)
    assert together.is_locked(first)
    assert not together.is_locked(second)


def test_ctrl_c_ends_the_jobs_of_all_runs(together):
    numbers = [together.start(), together.start()]
    interruption.note_sigint()
    for number in numbers:
        problem = together.end_of(number)
        assert isinstance(problem, str)
        assert f"cancelled job {together.jobs[number].pid};" in together.said(number)
        assert together.jobs[number].wait(PATIENCE_S) < 0
        assert together.paths(number).failure.exists()


def test_a_second_ctrl_c_leaves_a_job_that_does_not_end(together, monkeypatch):
    monkeypatch.setattr("workflow_lib.launch.schedulers.local.Local.cancel", lambda *job: None)
    number = together.start()
    interruption.note_sigint()
    until(lambda: "cancelled job" in together.said(number))
    interruption.note_sigint()
    problem = together.end_of(number)
    assert isinstance(problem, str)
    assert "has not ended" in problem
    assert together.jobs[number].poll() is None


def test_an_error_of_ours_ends_its_run_alone_and_is_in_its_log(together, monkeypatch):
    first, second = together.start(), together.start()

    def fail(*arguments: object) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(run_to_end.outcome, "classify", fail)
    together.kill(second)
    assert isinstance(together.end_of(second), ZeroDivisionError)
    assert "ZeroDivisionError" in together.said(second)
    assert together.threads[first].is_alive()


def test_a_result_that_left_gpus_limited_is_said(tmp_path, monkeypatch, capfd):
    cause = f"trained to the end; {LIMITS_LEFT} on n1: GPU 0"
    outcome = Outcome.COMPLETED
    ended = OutcomeRecord(outcome, cause, "7", ("n1",), 1.0, 2.0, None, False)
    monkeypatch.setattr(run_to_end, "run_to_end", lambda *_: ended)
    assert run_to_end.run(tmp_path, "local") is None
    assert cause in capfd.readouterr().err


def test_a_log_that_cannot_be_written_ends_no_run(together, capfd):
    together.log(0).mkdir()
    number = together.start(is_logged=False)
    until(lambda: "(RUNNING)" in capfd.readouterr().err)
    together.kill(number)
    problem = together.end_of(number)
    assert isinstance(problem, str)
    assert "end record" in problem
