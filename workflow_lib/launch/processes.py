"""Tells whether processes of this machine run, and names signals."""

from __future__ import annotations

import resource
import signal
from collections.abc import Sequence
from pathlib import Path


def is_running(process: int) -> bool:
    """Whether a process exists and is not a zombie."""
    fields = _stat(process)
    return bool(fields) and fields[0] != "Z"


def started_ticks(process: int) -> str:
    """When a process started, in clock ticks since boot; empty if it is gone."""
    fields = _stat(process)
    return fields[19] if fields else ""  # proc(5): field 22; two are before the state


def _stat(process: int) -> list[str]:
    """The fields of /proc/<process>/stat (proc(5)) from the state on; none if it is gone."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):  # gone before, or while it was read
        return []
    return stat.rpartition(")")[2].split()


def signal_name(number: int) -> str:
    """A signal's name, e.g. "SIGKILL". A real-time signal has only a number, e.g. "signal 40"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


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
