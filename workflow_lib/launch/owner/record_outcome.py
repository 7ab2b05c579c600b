"""Records how a run ended, once its job has ended."""

from __future__ import annotations

from workflow_lib import records
from workflow_lib.launch.end import outcome
from workflow_lib.launch.messages import say
from workflow_lib.launch.owner.job_wait import JobWait
from workflow_lib.launch.owner.late_files import wait_for_files
from workflow_lib.launch.owner.owned_run import OwnedRun
from workflow_lib.records import OutcomeRecord


def judge(run: OwnedRun, wait: JobWait | None) -> OutcomeRecord:
    """Wait for the run's job, if one is known. Returns how the run ended.

    Raises what JobWait.wait and outcome.classify raise.
    """
    state = None
    if wait is not None:
        try:
            state = wait.wait()
        finally:
            run.scheduler.forget(wait.job)
    if run.scheduler.runs_elsewhere:
        wait_for_files(run.paths)
    return outcome.classify(run.paths, state)


def record_outcome(run: OwnedRun, wait: JobWait | None) -> OutcomeRecord:
    """As :func:`judge`, and write it."""
    ended = judge(run, wait)
    path = run.paths.outcome if ended.outcome.is_result else run.paths.failure
    try:
        records.write_json(path, ended)
    except OSError:
        say(f"{ended.outcome}: {ended.cause}")  # what is raised says only why it is not recorded
        raise
    return ended
