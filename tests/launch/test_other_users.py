"""Jobs that Slurm does not show: not to see one is no proof that it has ended."""

from __future__ import annotations

import dataclasses
import getpass
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import programs
from tests.analysis.synthetic_run import Run
from tests.launch import runs, scripts
from tests.launch.fake_slurm import Fake
from tests.programs import ROOT, well
from workflow_lib.launch import interruption, job_wait, run_to_end, submit
from workflow_lib.launch.interruption import InterruptedRunError
from workflow_lib.launch.job import node
from workflow_lib.launch.schedulers import choice
from workflow_lib.launch.schedulers.refusals import SubmissionError
from workflow_lib.records.cell import Cell
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import (
    JobRecord,
    JobState,
    Outcome,
    OutcomeRecord,
    SubmissionRecord,
)
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import write_json

OWN = JobRecord("slurm", "41", 1.0, "me (process 7)", "triptych-1", os.getuid())
OTHERS = dataclasses.replace(OWN, submitted_by="alice (process 7)", user_id=os.getuid() + 1)


@pytest.fixture(autouse=True)
def _impatient(impatient, monkeypatch):
    monkeypatch.setattr(job_wait, "QUIET_S", 0.0)
    monkeypatch.setattr(submit, "TRUST_ABSENCE_AFTER_S", 0.1)


class Hiding(Fake):
    """Slurm that shows nothing of job 41, which counts how often it was asked for that."""

    def __init__(self, *courses) -> None:
        super().__init__(*courses)
        self.asked = 0
        #: what happens between two answers
        self.meanwhile: Callable[[], None] = lambda: None

    def state(self, job: JobRecord) -> JobState | None:
        self.asked += 1
        self.meanwhile()
        return JobState("LOST") if job.job_id == "41" else super().state(job)


@pytest.fixture
def scheduler(monkeypatch) -> Hiding:
    made = Hiding()
    monkeypatch.setattr(choice, "choose", lambda name: made)
    return made


def append(paths: RunPaths) -> None:
    """What a job that runs does: one more sample, and one more step."""
    for file in (paths.gpu_samples("node1"), paths.rank_steps(0)):
        file.parent.mkdir(exist_ok=True)
        with file.open("a") as stream:
            stream.write("1,2,3\n")


@pytest.mark.parametrize("job", [OWN, OTHERS])
def test_a_job_that_writes_telemetry_lives_whatever_slurm_shows(job, paths, scheduler, capsys):
    write_json(paths.job, job)
    append(paths)

    def go_on() -> None:
        if scheduler.asked < 50:
            append(paths)
        else:
            runs.complete(paths, "41")

    scheduler.meanwhile = go_on
    assert run_to_end.run_to_end(paths.directory, "slurm").outcome is Outcome.COMPLETED
    assert scheduler.asked == 50
    assert scheduler.submitted == []
    assert "job 41" in capsys.readouterr().err


def test_ones_own_job_that_writes_no_more_is_lost_and_run_again(paths, scheduler):
    write_json(paths.job, OWN)
    append(paths)
    scheduler.courses = [lambda job_id: runs.complete(paths, job_id)]
    assert run_to_end.run_to_end(paths.directory, "slurm").outcome is Outcome.COMPLETED
    assert scheduler.submitted == ["1"]
    # Who submitted is on record.
    assert read_record(paths.submission, SubmissionRecord).user_id == os.getuid()
    assert read_record(paths.job, JobRecord).user_id == os.getuid()


@pytest.mark.parametrize("what", ["not seen", "maybe in the queue again", "an announcement"])
def test_another_users_job_that_is_not_seen_is_left_alone(paths, scheduler, monkeypatch, what):
    if what == "an announcement":
        known = SubmissionRecord("triptych-1", 1.0, "alice (process 7)", user_id=os.getuid() + 1)
        write_json(paths.submission, known)
        scheduler.found = [None]
    else:
        write_json(paths.job, OTHERS)
    if what == "maybe in the queue again":
        runs.end(paths, "interrupted", 143, job_id="41")
        monkeypatch.setattr(Hiding, "state", lambda self, job: None)
    with pytest.raises(SubmissionError, match=r"(job 41|triptych-1) of alice"):
        run_to_end.run_to_end(paths.directory, "slurm")
    assert scheduler.submitted == []
    assert not paths.failure.exists()
    assert paths.ended.exists() == (what == "maybe in the queue again")
    assert paths.submission.exists() == (what == "an announcement")


def test_ctrl_c_does_not_try_to_cancel_another_users_job(paths, scheduler, monkeypatch):
    write_json(paths.job, OTHERS)
    monkeypatch.setattr(Hiding, "state", lambda self, job: JobState("RUNNING"))
    monkeypatch.setattr(interruption, "_came", 1)
    with pytest.raises(InterruptedRunError, match=r"\(alice .*goes on"):
        run_to_end.run_to_end(paths.directory, "slurm")


# ------------------------------------------------------- a run whose directory may only be read

#: nobody's number, whose processes may read everything and write what anybody may
STRANGER = 61234
AS_STRANGER = (
    *("setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
)
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")


def as_stranger(directory: Path, *call: str) -> subprocess.CompletedProcess[str]:
    """A command of another user, whose Slurm says that job 41 failed."""
    commands = directory / "bin"
    for name in ("squeue", "sacct"):
        scripts.command(commands, name, "echo '41|triptych-1|FAILED|None|256|'")
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "TRIPTYCH_ASK_SCHEDULER_EVERY_S": "0.1"}
    return programs.run([*AS_STRANGER, sys.executable, *call], env=os.environ | own)


def taking(paths: RunPaths) -> tuple[str, ...]:
    return ("-m", "workflow_lib.launch", "run", str(paths.directory), "--scheduler", "slurm")


def taken_on(paths: RunPaths, directory: Path) -> subprocess.CompletedProcess[str]:
    """The run, as another user takes it on; its lock is one that anybody may hold."""
    paths.lock.touch()
    paths.lock.chmod(0o666)
    before = listing(paths.directory)
    done = as_stranger(directory, *taking(paths))
    assert listing(paths.directory) == before
    assert "Traceback" not in done.stderr
    told = f"{paths.directory} belongs to {getpass.getuser()}"
    assert told in done.stderr
    assert "results_directory=DIRECTORY" in done.stderr
    return done


def listing(directory: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in directory.rglob("*")}


@needs_root
@pytest.mark.parametrize("has", ["completed", "failed", "failed and is judged", "no job"])
def test_a_run_of_another_user_is_judged_and_nothing_is_written(paths, tmp_path, has):
    """It is not set aside either, and what comes after a result needs its file."""
    if has == "completed":
        write_json(paths.job, OWN)
        runs.complete(paths, "41")
    elif has != "no job":
        write_json(paths.job, OTHERS)
        runs.end(paths, "training", 3, job_id="41")
    if has == "failed and is judged":
        runs.failure(paths, "error")
    done = taken_on(paths, tmp_path)
    assert done.returncode == 1
    kinds = {"completed": "completed: ", "no job": ""}
    assert kinds.get(has, "error: ") in done.stderr


@needs_root
def test_a_result_that_another_user_has_written_is_taken(paths, tmp_path):
    runs.complete(paths, "41")
    run_to_end.run_to_end(paths.directory, "local")
    assert as_stranger(tmp_path, *taking(paths)).returncode == 0


@needs_root
def test_a_lock_that_only_another_user_may_write_keeps_no_result_back(paths, tmp_path):
    write_json(paths.job, OWN)
    runs.complete(paths, "41")
    paths.lock.touch(mode=0o644)
    paths.directory.chmod(0o777)
    well(as_stranger(tmp_path, *taking(paths)))
    assert read_record(paths.outcome, OutcomeRecord).outcome is Outcome.COMPLETED


@needs_root
@pytest.mark.parametrize("stage", ["reduce", "render"])
def test_what_is_made_beside_another_users_run_names_its_owner(tmp_path, stage):
    if stage == "reduce":
        paths = Run().write(tmp_path / "run1")
        command = ["-m", "workflow_lib.analysis", stage, str(paths.directory)]
    else:
        paths = runs.rendered(tmp_path)
        command = ["-m", "workflow_lib.launch", "render", "--config", str(ROOT / "config")]
        command += ["--results", str(tmp_path / "results"), "--root", str(ROOT)]
        command += ["--cell", read_record(paths.cell, Cell).id, "--run", "1"]
    done = as_stranger(tmp_path, *command)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"{paths.directory} belongs to {getpass.getuser()}" in done.stderr, done.stderr


def test_a_job_by_hand_says_whose_it_is(paths, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_UID", "1234")
    node.begin(paths, "77", "slurm", b"")
    assert read_record(paths.job, JobRecord).user_id == 1234
