"""The run owner: which job may write into a run's directory, as ``job.json`` says."""

from __future__ import annotations

import os

from workflow_lib import records
from workflow_lib.records import JobRecord, RunPaths


def become_owner(paths: RunPaths, job: JobRecord) -> JobRecord:
    """Write ``job.json``, unless there is one; returns the job that then owns the run.

    Raises records.RecordError where the one that is there cannot be read.
    """
    own = paths.directory / f".job.json.{job.job_id}"
    records.write_json(own, job)
    try:
        # Two may come at once, on two machines: a link is made by one of them.
        os.link(own, paths.job)
    except FileExistsError:
        return records.read_record(paths.job, JobRecord)
    except OSError:  # a file system without links
        if (known := records.read_if_there(paths.job, JobRecord)) is not None:
            return known
        own.replace(paths.job)
    finally:
        own.unlink(missing_ok=True)
    return job
