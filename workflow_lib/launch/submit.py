"""Submits a run's job, or finds the job of a submission that was interrupted.

No run is submitted twice. The process that owns the run holds its lock. ``sbatch``, which may
outlive this process, holds the lock too. The job's name is written to ``submission.json`` before
the job is submitted, so a job is found by its name if the process died before it wrote the job's
id.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from workflow_lib import results
from workflow_lib.launch import attempts, interruption, job_script, run_lock, run_place
from workflow_lib.launch.attempts import claim_run
from workflow_lib.launch.messages import say
from workflow_lib.launch.run_lock import LockedRun
from workflow_lib.launch.schedulers.refusals import NotNowError, SubmissionError, UnclearError
from workflow_lib.launch.schedulers.scheduler import Scheduler, Submission
from workflow_lib.launch.schedulers.slurm import ASK_EVERY_S
from workflow_lib.records.cell import Cell
from workflow_lib.records.contract import RankRecord
from workflow_lib.records.files import read_if_there, read_json, read_record
from workflow_lib.records.outcomes import JobRecord, OrderRecord, SubmissionRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.records.whole_files import user_name, write_json

#: bytes of a token by its type
_TOKEN_BYTES = {"uint16": 2, "uint32": 4}


def check(results_directory: Path, cell: Cell) -> None:
    """Raise SubmissionError if the cell trains on text whose tokens are missing or damaged.

    An archive, and often a copy of the results, has their description alone. If the text was
    tokenized anew, another run of the cell may have trained on other tokens: then raise it, too.
    """
    description = results.tokens(results_directory, cell.data)
    if description is None:
        return
    if unreadable := results.unreadable_tokens(description):
        raise SubmissionError(unreadable)
    tokens = results.token_array(description)
    if not description.exists():
        raise _refusal(f"{description} is not there", cell, "")
    if not tokens.exists():
        raise _refusal(f"{tokens} is not there", cell)
    try:
        stated = read_json(description)
        size = int(stated["tokens"]) * _TOKEN_BYTES[stated["dtype"]]
    except (KeyError, TypeError, ValueError):
        raise _refusal(f"{description} does not describe the tokens", cell) from None
    if (actual := tokens.stat().st_size) != size:
        raise _refusal(
            f"{tokens} has {actual} bytes, not {size} as {description.name} states", cell
        )
    _compare_with_other_runs(results_directory, cell, description, stated.get("sha256"))


def _compare_with_other_runs(
    results_directory: Path, cell: Cell, description: Path, sha256: object
) -> None:
    """Raise SubmissionError if a run of the cell that has its result trained on other tokens."""
    for other in results.runs_of_cell(results_directory, cell.id):
        paths = RunPaths(other)
        if not paths.outcome.exists():
            continue
        try:
            rank = read_if_there(paths.rank(0), RankRecord)
        except RecordError:
            continue  # the tables of that run say so
        if rank is not None and rank.tokens_sha256 not in (None, sha256):
            raise SubmissionError(
                f"{other} trained on other tokens of the text {cell.data.name} than {description} "
                f"states, so this run would not repeat it. Give the text as it was and tokenize "
                "again, name the other text anew in config/data, or delete the cell's runs"
            )


def _refusal(what: str, cell: Cell, again: str = " --forcerun tokenize") -> SubmissionError:
    return SubmissionError(
        f"{what}, on which {cell.id} trains: `snakemake --profile …{again} --until render "
        "tokenize` makes it"
    )


#: How long after an interrupted submission an answer that there is no job of its name is trusted:
#: without file locks, an orphaned sbatch may still submit the job.
TRUST_ABSENCE_AFTER_S = float(os.environ.get("TRIPTYCH_TRUST_ABSENCE_AFTER_S", "60"))
#: how often in all a run is submitted if sbatch fails with no message that is known: ten minutes
_UNCLEAR_TRIES = 8


def submit(run: LockedRun) -> JobRecord:
    """Submit the run, or find its job. Returns the job that owns the run.

    Raises SubmissionError, records.RecordError and InterruptedRunError.
    """
    paths = run.paths
    run_place.check(paths)
    if not job_script.is_intact(paths.script):
        raise SubmissionError(
            f"{paths.script} was edited after it was rendered, so it may not measure the cell that "
            "it is for. Delete it to have it rendered again, or submit it by hand: the workflow "
            "then takes its result and marks it as edited"
        )
    cell = read_record(paths.cell, Cell)
    avoid = attempts.failed_nodes(paths)
    announced = read_if_there(paths.submission, SubmissionRecord)
    if announced is not None:
        run_place.check_known(paths, f"the job {announced.job_name}")
        if run_lock.is_foreign(announced):
            raise run_lock.foreign_job_error(
                f"the job {announced.job_name}", announced, paths.submission
            )
        if (job_id := look_for(run.scheduler, announced)) is not None:
            return _record_job(run, Submission(paths, cell, announced, run.lock, avoid), job_id)
    run_place.render_if_stale(paths, run.render_anew)
    check(results.of_run(paths.directory, cell.id), cell)
    # Copies of results often leave out empty directories, but Slurm writes the job's log there.
    try:
        paths.logs.mkdir(exist_ok=True)
    except OSError as error:
        raise SubmissionError(
            f"the job's log cannot be written to {paths.logs}: {error.strerror}; make it a "
            "directory that you can write"
        ) from None
    unclear = 0
    while True:
        try:
            submission, job_id = _try_to_submit(run, cell, avoid)
        except UnclearError as error:
            unclear += 1
            if unclear == _UNCLEAR_TRIES:
                paths.submission.unlink(missing_ok=True)
                raise SubmissionError(f"{error}; tried {unclear} times") from None
        except SubmissionError as error:
            if not avoid:
                paths.submission.unlink(missing_ok=True)
                raise
            say(f"without {', '.join(avoid)}, where it failed: {error}; now with all nodes")
            avoid = ()
        else:
            if job_id is not None:
                return _record_job(run, submission, job_id)


def _try_to_submit(
    run: LockedRun, cell: Cell, avoid: tuple[str, ...]
) -> tuple[Submission, str | None]:
    """Submit the run once. Returns the submission and the job's id; None for the id if Slurm takes
    no jobs now.

    Raises SubmissionError; UnclearError if sbatch printed no id and no job of that name exists.
    """
    order = read_if_there(run.paths.order, OrderRecord)
    try:
        with run.scheduler.submission_lock(order.place if order else 0):
            interruption.check()
            submission = Submission(run.paths, cell, _announce(run.paths, cell), run.lock, avoid)
            job_id = run.scheduler.submit(submission)
        unclear = UnclearError("sbatch submitted a job, but did not print its id alone on a line")
    except UnclearError as error:
        job_id, unclear = None, error
    except NotNowError as error:
        say(f"Slurm takes no jobs now; trying again: {error}")
        if error.may_have_been_submitted:
            return submission, look_for(run.scheduler, submission.record)
        run.paths.submission.unlink(missing_ok=True)
        return submission, None
    if job_id is None:
        say(str(unclear))
        job_id = look_for(run.scheduler, submission.record)
    if job_id is None:
        raise unclear
    return submission, job_id


def _record_job(run: LockedRun, submission: Submission, job_id: str) -> JobRecord:
    """Make the submitted job the owner of the run, unless another job already is."""
    record = JobRecord(
        scheduler=run.scheduler.name,
        job_id=job_id,
        submitted_unix_s=submission.record.unix_time_s,
        submitted_by=submission.record.submitted_by,
        job_name=submission.record.job_name,
        user_id=submission.record.user_id,
    )
    job = claim_run(run.paths, record)
    if job.job_id != job_id:
        say(f"job {job.job_id} owns the run already; job {job_id} will stop when it begins")
        return job
    # The job may have written job.json first; it does not know who submitted it.
    write_json(run.paths.job, record)
    avoid = ", ".join(submission.avoid)
    elsewhere = f", not on {avoid}, where it failed before" if avoid else ""
    say(f"submitted job {job_id} for {submission.cell.id}{elsewhere}")
    return record


def _announce(paths: RunPaths, cell: Cell) -> SubmissionRecord:
    """Write ``submission.json``, with a unique name for the job that is about to be submitted."""
    digest = cell.id.rsplit("_", 1)[1]
    number = paths.directory.name.removeprefix("run")
    record = SubmissionRecord(
        job_name=f"triptych-{digest}-{number}-{os.urandom(4).hex()}",
        unix_time_s=time.time(),
        submitted_by=f"{user_name(os.getuid())} (process {os.getpid()})",
        user_id=os.getuid(),
    )
    write_json(paths.submission, record)
    return record


def look_for(scheduler: Scheduler, record: SubmissionRecord) -> str | None:
    """The id of the job of that name; None once it is certain that there is none. Waits until then.

    Raises InterruptedRunError.
    """
    say(f"looking for job {record.job_name}, which may have been submitted before")
    trusted_after_s = time.monotonic() + TRUST_ABSENCE_AFTER_S * scheduler.runs_elsewhere
    patience = time.monotonic() + TRUST_ABSENCE_AFTER_S + 4 * ASK_EVERY_S
    while True:
        answer = scheduler.find(record, trusted_after_s)
        if answer.job_id is not None or answer.is_absent:
            scheduler.forget_submission(record)
            result = f"is job {answer.job_id}" if answer.job_id else "was never submitted"
            say(f"{record.job_name} {result}")
            return answer.job_id
        if time.monotonic() > patience:
            say(
                "Slurm has not yet said whether there is such a job; waiting, so that the run is "
                "not submitted twice"
            )
            patience = float("inf")
        interruption.pause(min(1.0, ASK_EVERY_S))
