"""What a program and all that it started cost a machine, also those processes that it let go."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MARK = "BENCHMARK_MARK"


@dataclass(frozen=True)
class Cost:
    """Of some processes together, at one time."""

    processes: int
    #: proportional set size: a page that n processes share counts as 1/n in each
    pss_bytes: int
    #: CPU time so far, with that of their children that have ended
    cpu_s: float
    #: descriptors of all of them, and of the one that has most
    open_files: int
    most_open_files: int


class Mark:
    """A variable that a program inherits to all that it starts, by which these are found."""

    def __init__(self) -> None:
        self._value = secrets.token_hex(8)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """``base`` with the mark."""
        return {**base, _MARK: self._value}

    def members(self) -> list[int]:
        """Marked processes that live, except those of Slurm jobs."""
        mark = f"{_MARK}={self._value}".encode()
        members = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                variables = path.read_bytes().split(b"\0")
            except OSError:  # it has ended, or is somebody else's
                continue
            of_job = any(variable.startswith(b"SLURM_JOB_ID=") for variable in variables)
            if mark in variables and not of_job:
                members.append(int(path.parent.name))
        return members

    def cost(self) -> Cost:
        """What the members cost now."""
        count, pss_bytes, cpu_s = 0, 0, 0.0
        open_files = []
        for member in self.members():
            try:
                memory = Path(f"/proc/{member}/smaps_rollup").read_text(encoding="ascii")
                files = sum(1 for _ in Path(f"/proc/{member}/fd").iterdir())
                times = Path(f"/proc/{member}/stat").read_text(encoding="utf-8")
            except OSError:  # it has ended meanwhile
                continue
            count += 1
            open_files.append(files)
            pss_bytes += pss_of(memory)
            cpu_s += cpu_of(times)
        return Cost(count, pss_bytes, cpu_s, sum(open_files), max(open_files, default=0))

    def kill(self) -> None:
        """SIGKILL all members, and those that they start meanwhile."""
        deadline = time.monotonic() + 10
        while (members := self.members()) and time.monotonic() < deadline:
            for member in members:
                try:
                    os.kill(member, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.1)


def of_job(job: str) -> dict[int, list[str]]:
    """Processes of a Slurm job on this machine, and their arguments."""
    processes = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            variables = (path / "environ").read_bytes().split(b"\0")
            arguments = (path / "cmdline").read_bytes().decode(errors="replace")
        except OSError:  # it has ended, or is somebody else's
            continue
        if f"SLURM_JOB_ID={job}".encode() in variables:
            processes[int(path.name)] = arguments.split("\0")[:-1]
    return processes


def pss_of(smaps_rollup: str) -> int:
    """The proportional set size in bytes; ``/proc/<pid>/smaps_rollup`` counts in units of 1024."""
    for line in smaps_rollup.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no line of smaps_rollup begins with Pss:")


def cpu_of(stat: str) -> float:
    """CPU seconds of a process and of its children that it waited for: fields 14 to 17 of
    ``/proc/<pid>/stat`` (proc(5)).
    """
    after_name = stat.rpartition(")")[2].split()
    return sum(int(ticks) for ticks in after_name[11:15]) / _TICKS_PER_S
