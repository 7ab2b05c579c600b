"""Counts other Slurm jobs on the node by their control groups, without asking Slurm."""

from __future__ import annotations

from pathlib import Path

from workflow_lib.telemetry.source import UnreadableError

#: under /sys/fs/cgroup, with cgroup v2 and v1: this job's group; the directory above all jobs'
#: groups, relative to it; and the pattern of all jobs' groups there
_GROUPS = (
    ("system.slice/*slurmstepd.scope/job_{job}", "..", "job_*"),
    ("*/slurm*/uid_*/job_{job}", "../..", "uid_*/job_*"),
)


class OtherJobs:
    """How many jobs the node runs besides this one."""

    def __init__(self, root: Path, job_id: str | None) -> None:
        """Raises UnreadableError if the control groups of jobs are not visible."""
        if not job_id:
            raise UnreadableError("not a job of Slurm's, so that nothing tells of other jobs")
        groups = root / "sys/fs/cgroup"
        for own, up, every in _GROUPS:
            for found in sorted(groups.glob(own.format(job=job_id))):
                self._above, self._every, self._own = (found / up).resolve(), every, found.name
                return
        raise UnreadableError(
            "no control group of this job under /sys/fs/cgroup: Slurm does not use them, or a "
            "container hides them"
        )

    def count(self) -> int:
        """How many other jobs have a control group now. Raises UnreadableError if this job's is
        gone.
        """
        names = {found.name for found in self._above.glob(self._every)}
        if self._own not in names:
            raise UnreadableError("the control group of this job is gone")
        return len(names) - 1
