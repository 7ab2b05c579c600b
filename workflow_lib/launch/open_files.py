"""Raises the limit of open files for a process that waits for hundreds of runs, and keeps the
user's own limit for the jobs that it submits.

A login shell's usual limit is 1024.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence

#: enough for thousands of threads, if the system allows it
_WANTED = 65536
#: open files of a thread that waits for a run: three of its event loop, and the run's lock
FOR_A_RUN = 4
#: open files of Snakemake, and short-lived ones: logs, records, outputs of commands
FOR_THE_REST = 96
_found, _highest = resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_limit() -> None:
    """Let this process open as many files as it may."""
    unlimited = _highest == resource.RLIM_INFINITY
    soft = _WANTED if unlimited else min(_WANTED, _highest)
    if _found != resource.RLIM_INFINITY and _found < soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, _highest))


def most_runs() -> int:
    """For how many runs this process can wait at once under its present limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        limit = _WANTED
    return max(0, (limit - FOR_THE_REST) // FOR_A_RUN)


def highest_limit() -> int:
    """The hard limit, above which this user cannot raise the limit."""
    return _highest


def as_found(command: Sequence[str]) -> list[str]:
    """The command, to be run under the limit that this process was started with. Slurm gives a job
    the limits of the process that submits it.
    """
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] == _found:
        return list(command)
    return ["sh", "-c", f'ulimit -S -n {_found}; exec "$@"', "sh", *command]
