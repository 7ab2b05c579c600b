"""Handles runs of another user. A site may hide other users' jobs (PrivateData of slurm.conf). A
hidden job may still run, so its run is left to the user who submitted it. A run whose directory
this user may not write is only read.
"""

from __future__ import annotations

import os
from pathlib import Path

from workflow_lib.launch.schedulers.refusals import SubmissionError
from workflow_lib.records import JobRecord, SubmissionRecord, may, owner_in_the_way


def is_of_another(record: JobRecord | SubmissionRecord) -> bool:
    """Whether another user submitted the job; False if the user is not known."""
    return record.user_id is not None and record.user_id != os.getuid()


def why_only_read(directory: Path) -> str | None:
    """Says why nothing of the run in ``directory`` may be written, and what to do; None if this
    user may write there, or there is no such directory.
    """
    if not may(directory, os.F_OK) or may(directory, os.W_OK | os.X_OK):
        return None
    whose = owner_in_the_way(directory) or f"{directory} cannot be written to"
    return (
        f"{whose}, so the run is read and nothing is written. Have its owner run snakemake, or run "
        "it with results of your own (`--config results_directory=DIRECTORY`)"
    )


def left_alone(job: str, record: JobRecord | SubmissionRecord, file: Path) -> SubmissionError:
    """The error to raise for another user's ``job`` that Slurm hides. ``file`` is the run's record
    that names it.
    """
    who = "another user" if record.submitted_by == "the job itself" else record.submitted_by
    return SubmissionError(
        f"Slurm does not show you {job} of {who}, which may still run, so the run is left "
        f"alone. Have its submitter run snakemake; or, if the job is gone, delete {file.parent}"
    )
