"""The limit of open files: higher for a process whose threads wait for hundreds of runs, and for
their jobs what the user has.

A thread of Snakemake that waits holds four (its event loop's, and the run's lock); a login shell's
usual limit is 1024.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence

#: enough for thousands of threads, where the system allows it; of no use to anybody beyond that
_WANTED = 65536
_found, _highest = resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_limit() -> None:
    """Let this process open as many files as it may."""
    unlimited = _highest == resource.RLIM_INFINITY
    soft = _WANTED if unlimited else min(_WANTED, _highest)
    if _found != resource.RLIM_INFINITY and _found < soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, _highest))


def as_found(command: Sequence[str]) -> list[str]:
    """The command under the limit that this process was started with: Slurm gives jobs the limits
    of who submits them.
    """
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] == _found:
        return list(command)
    return ["sh", "-c", f'ulimit -S -n {_found}; exec "$@"', "sh", *command]
