"""Cancellation: after Ctrl-C, cancels a run's job, and waits up to 45 s for its end."""

from __future__ import annotations

from workflow_lib import records
from workflow_lib.launch import interruption
from workflow_lib.launch.interruption import InterruptedRunError
from workflow_lib.launch.messages import say
from workflow_lib.launch.owner.job_wait import JobWait, NotYetError
from workflow_lib.launch.owner.other_users import is_of_another
from workflow_lib.launch.owner.owned_run import OwnedRun
from workflow_lib.launch.owner.record_outcome import record_outcome
from workflow_lib.records import JobRecord, OutcomeRecord, SubmissionRecord

#: how long a cancelled job may take to write its end record: longer than Slurm's KillWait, 30 s
CANCEL_PATIENCE_S = 45.0


def cancel(run: OwnedRun) -> OutcomeRecord:
    """Cancel the run's job, wait for its end, and record how it ended. A second Ctrl-C ends this.

    Raises InterruptedRunError if the job was not cancelled or has not ended; the message says what
    is left.
    """
    with interruption.with_job(times=2):
        return _cancel(run)


def _cancel(run: OwnedRun) -> OutcomeRecord:
    job = records.read_if_there(run.paths.job, JobRecord)
    submission = records.read_if_there(run.paths.submission, SubmissionRecord)
    if job is None and submission is None:
        raise InterruptedRunError("interrupted before anything was submitted")
    record = job or submission
    if record is not None and is_of_another(record):
        raise InterruptedRunError(
            f"the job of this run was submitted by another user ({record.submitted_by}): it goes on"
        )
    if job is None:
        assert submission is not None
        problem = run.scheduler.cancel_submission(submission)
        raise InterruptedRunError(
            f"interrupted while {submission.job_name} was submitted; Slurm was asked to cancel "
            f"the job of that name ({problem or 'it accepted'}). The next invocation looks for it"
        )
    if submission is None and job.submitted_by == "the job itself":
        raise InterruptedRunError(f"job {job.job_id} was submitted by hand: it goes on")
    if (problem := run.scheduler.cancel(job)) is not None:
        raise InterruptedRunError(
            f"job {job.job_id} could not be cancelled, and is left: {problem}. Cancel it, or start "
            "again to wait for it"
        )
    say(
        f"cancelled job {job.job_id}; waiting up to {CANCEL_PATIENCE_S:.0f} s for its end. Press "
        "Ctrl-C again to stop waiting"
    )
    try:
        return record_outcome(run, JobWait(run, job, patience_s=CANCEL_PATIENCE_S))
    except (InterruptedRunError, NotYetError):
        raise InterruptedRunError(
            f"job {job.job_id} was cancelled, but has not ended; start again to wait for it"
        ) from None
