"""What a program and all that it started cost a machine, also those processes that it let go.

Counts the Slurm commands that a program runs: in front of each real one, on the program's path,
lies an executable of the same name, which notes the time and becomes the real one.

A Snakemake workflow as a process that is watched: what it said when, and what it costs.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


class Workflow:
    """One ``snakemake``, its lines with the times at which they came."""

    def __init__(
        self, command: Sequence[str], directory: Path, environment: Mapping[str, str]
    ) -> None:
        """Start it in a session of its own."""
        self._mark = Mark()
        self.lines: list[tuple[float, str]] = []
        self.process = subprocess.Popen(
            command,
            cwd=directory,
            env=self._mark.environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.time(), line.rstrip("\n")))

    def cost(self) -> Cost:
        """What it and all that it started on this machine cost now."""
        return self._mark.cost()

    def text(self) -> str:
        """All that it has said."""
        return "\n".join(line for _, line in self.lines)

    def runs(self) -> bool:
        """True. Raises RuntimeError, with the last that it said, where it has ended."""
        if self.process.poll() is not None:
            raise RuntimeError(f"snakemake ended by itself:\n{self.text()[-3000:]}")
        return True

    def close(self) -> None:
        """End it and all that it started here; its jobs go on."""
        self._mark.kill()
        self.process.wait()
        self._reader.join(5)


def failures(lines: Sequence[tuple[float, str]]) -> dict[str, float]:
    """Output file → when Snakemake said that the job that makes it failed (Unix s)."""
    found: dict[str, float] = {}
    failed_at: float | None = None
    for at, line in lines:
        if line.startswith("Error in rule "):
            failed_at = at
        elif failed_at is not None and (output := re.match(r"\s+output: (\S+)", line)):
            found.setdefault(output.group(1).rstrip(","), failed_at)
            failed_at = None
    return found


#: every command that asks slurmctld or slurmdbd something, or changes it
COMMANDS = (
    *("sbatch", "squeue", "sacct", "scontrol", "scancel"),
    *("sacctmgr", "sinfo", "sstat", "sprio", "sreport", "sshare"),
)


class CommandLog:
    """The Slurm commands that processes with ``environment()`` ran, and when."""

    def __init__(self, directory: Path, commands: tuple[str, ...] = COMMANDS) -> None:
        """Write the executables into a new directory. Raises FileNotFoundError where a real one is
        not on the path.
        """
        self._directory = directory / "bin"
        self._log = directory / "commands.log"
        self._directory.mkdir(parents=True)
        self._log.touch()
        for command in commands:
            real = shutil.which(command)
            if real is None:
                raise FileNotFoundError(f"{command} is not on the path")
            wrapper = self._directory / command
            # A command that a job runs is none of the client's.
            wrapper.write_text(
                "#!/bin/sh\n"
                '[ -n "$SLURM_JOB_ID" ] || printf \'%s %s\\n\' "$(date +%s.%N)" '
                f"{command} >>{shlex.quote(str(self._log))}\n"
                f'exec {shlex.quote(real)} "$@"\n',
                encoding="utf-8",
            )
            wrapper.chmod(0o755)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """``base`` with the executables first on its path."""
        return {**base, "PATH": f"{self._directory}{os.pathsep}{base['PATH']}"}

    def between(self, start_unix_s: float, end_unix_s: float) -> Counter[str]:
        """Command → how often it was started in a stretch of time."""
        lines = (line.split() for line in self._log.read_text(encoding="utf-8").splitlines())
        return Counter(name for at, name in lines if start_unix_s <= float(at) < end_unix_s)


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
