"""Moves the files of a run's earlier attempts aside, and says how these attempts ended."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from workflow_lib.records.files import read_if_there, read_record
from workflow_lib.records.outcomes import JobRecord, Outcome, OutcomeRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import write_json

#: outcomes for which the cluster, not the run, is at fault
CLUSTER_AT_FAULT = (Outcome.NODE_FAILURE, Outcome.PREEMPTED)


def has_evidence(paths: RunPaths) -> bool:
    """Whether an attempt has left any file, or was only partly set aside."""
    written = (paths.ended, paths.environment, paths.outcome, paths.failure, paths.cool_down)
    measured = (paths.telemetry, paths.steps, paths.errors, paths.exits)
    return (
        is_half_set_aside(paths)
        or any(path.exists() for path in written)
        or any(any(directory.glob("*")) for directory in measured)
    )


def is_half_set_aside(paths: RunPaths) -> bool:
    """Whether a process died while it set an attempt aside."""
    return _moving(paths).exists()


def set_aside(paths: RunPaths, job: str | None = None) -> None:
    """Move everything but the cell, its script and its place in the order of submission into
    ``attempts/<next number>/``.

    ``job`` is the id of the job that calls this, if a job does. That job still owns the run, so
    ``job.json``, ``submission.json`` and its log stay, and the attempt gets copies. If a call
    is interrupted, the next call completes it.
    """
    target = _moving(paths)
    target.mkdir(parents=True, exist_ok=True)
    keep = {paths.cell, paths.script, paths.order, paths.attempts, paths.lock}
    of_job = (paths.job, paths.submission, paths.job_log(job)) if job is not None else ()
    for path in sorted(paths.directory.iterdir()):
        # A hidden file is one that another process is writing.
        if path in keep or path.name.startswith("."):
            continue
        if path == paths.logs:
            # The directory stays: Slurm writes a log there before the job's first command.
            (target / path.name).mkdir(exist_ok=True)
            for log in sorted(path.iterdir()):
                _move(log, target / path.name / log.name, keep=log in of_job)
        else:
            _move(path, target / path.name, keep=path in of_job)
    target.rename(paths.attempts / str(1 + max((number for number, _ in _kept(paths)), default=0)))


def cluster_faults_in_a_row(paths: RunPaths) -> int:
    """How many of the latest attempts in a row failed because of the cluster."""
    count = 0
    for outcome in _outcomes(paths):
        if outcome.outcome not in CLUSTER_AT_FAULT:
            break
        count += 1
    return count


def failed_nodes(paths: RunPaths) -> tuple[str, ...]:
    """Nodes at which earlier attempts failed."""
    return tuple(sorted({node for outcome in _outcomes(paths) for node in outcome.failed_nodes}))


def _outcomes(paths: RunPaths) -> Iterator[OutcomeRecord]:
    """How attempts ended, the latest first. An attempt whose job was requeued has no outcome."""
    kept = [RunPaths(directory) for _, directory in sorted(_kept(paths), reverse=True)]
    for attempt in (paths, *kept):
        outcome = read_if_there(attempt.failure, OutcomeRecord)
        if outcome is not None:
            yield outcome


def _kept(paths: RunPaths) -> list[tuple[int, Path]]:
    directories = paths.attempts.iterdir() if paths.attempts.exists() else ()
    return [(int(path.name), path) for path in directories if path.name.isdecimal()]


def _moving(paths: RunPaths) -> Path:
    return paths.attempts / ".moving"


def _move(path: Path, target: Path, keep: bool) -> None:
    if not keep:
        if path.is_dir() and target.exists():  # an interrupted call moved part of it
            for entry in sorted(path.iterdir()):
                _move(entry, target / entry.name, keep=False)
            path.rmdir()
        else:
            path.rename(_free(target))
        return
    with contextlib.suppress(FileExistsError):
        try:
            os.link(path, target)  # later writes then reach both names
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            target.write_bytes(path.read_bytes())


def _free(target: Path) -> Path:
    """``target``; if that exists, its name with the first free number appended, from 2."""
    number = 2
    free = target
    while free.exists():
        free = target.with_name(f"{target.name}.{number}")
        number += 1
    return free


def claim_run(paths: RunPaths, job: JobRecord) -> JobRecord:
    """Write ``job.json``, unless there is one. Returns the job that then owns the run.

    Raises records.RecordError if the existing file cannot be read.
    """
    draft = paths.directory / f".job.json.{job.job_id}"
    write_json(draft, job)
    try:
        # Two machines may do this at once; only one of them can make the link.
        os.link(draft, paths.job)
    except FileExistsError:
        return read_record(paths.job, JobRecord)
    except OSError:  # a file system without links
        if (owner := read_if_there(paths.job, JobRecord)) is not None:
            return owner
        draft.replace(paths.job)
    finally:
        draft.unlink(missing_ok=True)
    return job
