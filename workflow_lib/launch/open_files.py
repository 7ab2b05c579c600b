"""The limit of open files: higher for a process whose threads wait for hundreds of runs, and for
their jobs what the user has.

A login shell's usual limit is 1024.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence

#: enough for thousands of threads, where the system allows it; of no use to anybody beyond that
_WANTED = 65536
#: what a thread that waits for a run holds: its event loop's three, and the run's lock
FOR_A_RUN = 4
#: what Snakemake itself holds, and what is open for moments: logs, records, commands' outputs
FOR_THE_REST = 96
_found, _highest = resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_limit() -> None:
    """Let this process open as many files as it may."""
    unlimited = _highest == resource.RLIM_INFINITY
    soft = _WANTED if unlimited else min(_WANTED, _highest)
    if _found != resource.RLIM_INFINITY and _found < soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, _highest))


def most_runs() -> int:
    """For how many runs this process can wait at once, with the limit that it has now."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        limit = _WANTED
    return max(0, (limit - FOR_THE_REST) // FOR_A_RUN)


def highest_limit() -> int:
    """The limit that no process of this user can raise."""
    return _highest


def as_found(command: Sequence[str]) -> list[str]:
    """The command under the limit that this process was started with: Slurm gives jobs the limits
    of who submits them.
    """
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] == _found:
        return list(command)
    return ["sh", "-c", f'ulimit -S -n {_found}; exec "$@"', "sh", *command]
