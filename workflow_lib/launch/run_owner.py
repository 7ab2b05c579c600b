"""Makes a job the owner of a run. ``job.json`` names the one job that may write the run."""

from __future__ import annotations

import os

from workflow_lib import records
from workflow_lib.records import JobRecord, RunPaths


def become_owner(paths: RunPaths, job: JobRecord) -> JobRecord:
    """Write ``job.json``, unless there is one. Returns the job that then owns the run.

    Raises records.RecordError if the existing file cannot be read.
    """
    own = paths.directory / f".job.json.{job.job_id}"
    records.write_json(own, job)
    try:
        # Two machines may do this at once; only one of them can make the link.
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
