"""Jobs that Slurm does not show: not to see one is no proof that it has ended."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch import runs
from tests.launch.test_submit import Fake
from workflow_lib import records
from workflow_lib.launch import interruption
from workflow_lib.launch.interruption import InterruptedRunError
from workflow_lib.launch.job import node
from workflow_lib.launch.owner import job_wait, run_to_end, submit
from workflow_lib.launch.schedulers import choice
from workflow_lib.launch.schedulers.refusals import SubmissionError
from workflow_lib.records import JobRecord, JobState, Outcome, RunPaths, SubmissionRecord

OWN = JobRecord("slurm", "41", 1.0, "me (process 7)", "triptych-1", os.getuid())
OTHERS = dataclasses.replace(OWN, submitted_by="alice (process 7)", user_id=os.getuid() + 1)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(job_wait, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(job_wait, "ASK_EVERY_S", 0.02)
    monkeypatch.setattr(job_wait, "FILE_SYSTEM_LAG_S", 0.1)
    monkeypatch.setattr(job_wait, "SETTLE_S", 0.1)
    monkeypatch.setattr(job_wait, "QUIET_S", 0.0)
    monkeypatch.setattr(submit, "ASK_EVERY_S", 0.02)
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


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return runs.rendered(tmp_path)


def append(paths: RunPaths) -> None:
    """What a job that runs does: one more sample, and one more step."""
    for file in (paths.gpu_samples("node1"), paths.rank_steps(0)):
        file.parent.mkdir(exist_ok=True)
        with file.open("a") as stream:
            stream.write("1,2,3\n")


@pytest.mark.parametrize("job", [OWN, OTHERS])
def test_a_job_that_writes_telemetry_lives_whatever_slurm_shows(job, paths, scheduler, capsys):
    records.write_json(paths.job, job)
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
    assert "Slurm does not know job 41, but what it writes grows" in capsys.readouterr().err


def test_ones_own_job_that_writes_no_more_is_lost_and_run_again(paths, scheduler):
    records.write_json(paths.job, OWN)
    append(paths)
    scheduler.courses = [lambda job_id: runs.complete(paths, job_id)]
    assert run_to_end.run_to_end(paths.directory, "slurm").outcome is Outcome.COMPLETED
    assert scheduler.submitted == ["1"]


def test_another_users_job_that_is_not_seen_is_left_alone(paths, scheduler):
    records.write_json(paths.job, OTHERS)
    with pytest.raises(
        SubmissionError, match=r"does not show you job 41 of alice .* run is left alone"
    ):
        run_to_end.run_to_end(paths.directory, "slurm")
    assert scheduler.submitted == []
    assert not paths.failure.exists()


def test_nor_is_it_run_again_when_it_may_be_in_the_queue_again(paths, scheduler, monkeypatch):
    records.write_json(paths.job, OTHERS)
    runs.end(paths, "interrupted", 143, job_id="41")
    monkeypatch.setattr(Hiding, "state", lambda self, job: None)
    with pytest.raises(SubmissionError, match="job 41 of alice"):
        run_to_end.run_to_end(paths.directory, "slurm")
    assert scheduler.submitted == []
    assert paths.ended.exists()


def test_another_users_interrupted_submission_is_left_alone(paths, scheduler):
    known = SubmissionRecord("triptych-1", 1.0, "alice (process 7)", user_id=os.getuid() + 1)
    records.write_json(paths.submission, known)
    scheduler.found = [None]
    with pytest.raises(SubmissionError, match="the job triptych-1 of alice"):
        run_to_end.run_to_end(paths.directory, "slurm")
    assert scheduler.submitted == []
    assert paths.submission.exists()


def test_ctrl_c_does_not_try_to_cancel_another_users_job(paths, scheduler, monkeypatch):
    records.write_json(paths.job, OTHERS)
    monkeypatch.setattr(Hiding, "state", lambda self, job: JobState("RUNNING"))
    monkeypatch.setattr(interruption, "_came", 1)
    with pytest.raises(InterruptedRunError, match=r"another user \(alice .*it goes on"):
        run_to_end.run_to_end(paths.directory, "slurm")


def test_who_submitted_is_on_record(paths, scheduler, monkeypatch):
    scheduler.courses = [lambda job_id: runs.complete(paths, job_id)]
    run_to_end.run_to_end(paths.directory, "slurm")
    assert records.read_record(paths.submission, SubmissionRecord).user_id == os.getuid()
    assert records.read_record(paths.job, JobRecord).user_id == os.getuid()


def test_a_job_by_hand_says_whose_it_is(paths, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_UID", "1234")
    node.begin(paths, "77", "slurm", b"")
    assert records.read_record(paths.job, JobRecord).user_id == 1234
