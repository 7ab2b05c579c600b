"""A job on this machine is nobody's child, ends when it is told to, and is found by its name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.launch import runs
from tests.waiting import until
from workflow_lib.launch.schedulers.local import Local
from workflow_lib.launch.schedulers.scheduler import Found, Submission
from workflow_lib.records.cell import Cell
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import JobRecord, JobState, SubmissionRecord
from workflow_lib.records.paths import RunPaths

SUBMISSION = SubmissionRecord("triptych-0a1b2c3d-1-00ff00fe", 1.0, "somebody")


def submit(directory) -> str:
    paths = RunPaths(Path(directory))
    paths.logs.mkdir(exist_ok=True)
    cell = read_record(paths.cell, Cell)
    return Local().submit(Submission(paths, cell, SUBMISSION))


@pytest.fixture
def job(tmp_path):
    """A job that goes on until it is told to end, and then says so; its run and its id."""
    paths = runs.rendered(tmp_path)
    # It says that it began once it hears the signal.
    script = f"trap 'touch {tmp_path}/told; exit 143' TERM; touch {tmp_path}/began\n"
    paths.script.write_text(f"{script}while :; do sleep 0.1 & wait $!; done\n")
    local, job_id = Local(), submit(paths.directory)
    started = JobRecord("local", job_id, 1.0, "somebody", SUBMISSION.job_name)
    until((tmp_path / "began").exists)
    yield local, started
    local.cancel(started)
    until(lambda: local.state(started) == JobState("FINISHED"))


def test_it_is_in_a_session_of_its_own_so_that_no_terminal_ends_it(job):
    local, started = job
    assert local.state(started) == JobState("RUNNING")
    assert os.getsid(int(started.job_id)) != os.getsid(0)


def test_it_starts_from_a_process_without_standard_streams(tmp_path):
    paths = runs.rendered(tmp_path)
    paths.script.write_text(f"touch {tmp_path}/ran\n")
    call = "import sys; from tests.launch.test_local import submit; submit(sys.argv[1])"
    command = [sys.executable, "-c", call, str(paths.directory)]
    subprocess.run(["sh", "-c", 'exec "$@" <&- >&-', "sh", *command], cwd=ROOT, check=True)
    until((tmp_path / "ran").exists)


def test_it_is_found_by_the_name_of_its_submission(job):
    local, started = job
    assert local.find(SUBMISSION, 0.0) == Found(started.job_id, is_absent=False)
    other = SubmissionRecord("triptych-0a1b2c3d-1-ffffffff", 1.0, "somebody")
    assert local.find(other, 0.0) == Found(None, is_absent=True)


def test_its_script_is_told_to_end(job, tmp_path):
    local, started = job
    assert local.cancel_submission(SUBMISSION) is None
    until((tmp_path / "told").exists)
    until(lambda: local.state(started) == JobState("FINISHED"))
    assert local.cancel(started) is None
