"""The processes of a job, as the kernel lists them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.site import variables as variables


@dataclass(frozen=True)
class Process:
    """A process that runs now."""

    pid: int
    parent: int
    program: str
    arguments: tuple[str, ...]

    @property
    def directory(self) -> Path | None:
        """Its working directory; null where it has just ended."""
        try:
            return Path(f"/proc/{self.pid}/cwd").readlink()
        except OSError:
            return None

    def kill(self) -> None:
        """End it at once, if it has not ended meanwhile."""
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def runs_module(self, name: str) -> bool:
        """Whether it is a Python that was told to run this module."""
        for index, argument in enumerate(self.arguments[:-1]):
            if argument == "-m":  # what follows the module's name is the module's
                return "python" in self.arguments[0] and self.arguments[index + 1] == name
        return False


def all_processes() -> Iterator[Process]:
    """Every process that has not ended."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
            head, _, rest = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue
        state, parent = rest.split()[:2]
        if state not in "ZX" and arguments:
            program = head.partition("(")[2]
            yield Process(int(entry.name), int(parent), program, tuple(arguments))


def job_of(process: Process, conf: Path) -> str | None:
    """The job, in the cluster with this ``slurm.conf``, that a process is part of; None without."""
    found = variables(process.pid)
    return found.get("SLURM_JOB_ID") if found.get("SLURM_CONF") == str(conf) else None


def of_job(job_id: str, conf: Path) -> list[Process]:
    """What runs in a job: its script and steps, not the daemons that manage them."""
    return [
        each
        for each in all_processes()
        if each.program != "slurmstepd" and job_of(each, conf) == job_id
    ]


def script(job: list[Process]) -> Process:
    """The batch script."""
    here = [each for each in job if any(a.endswith("/slurm_script") for a in each.arguments)]
    pids = {each.pid for each in here}
    return next(each for each in here if each.parent not in pids)  # the others are its subshells


def ranks(job: list[Process]) -> list[Process]:
    """The processes that train, by rank."""
    found: dict[int, Process] = {}
    for each in sorted(job, key=lambda process: process.pid):
        rank = variables(each.pid).get("SLURM_PROCID", "")
        if each.runs_module("workflow_lib.trainers.native") and rank.isdigit():
            found.setdefault(int(rank), each)
    return [found[rank] for rank in sorted(found)]


def samplers(job: list[Process]) -> list[Process]:
    """The samplers, one a node."""
    return [each for each in job if each.runs_module("workflow_lib.telemetry")]


def launcher(job: list[Process]) -> Process:
    """The srun of the ranks."""
    found = [each for each in job if each.program == "srun" and _starts_ranks(each)]
    pids = {each.pid for each in found}
    return next(each for each in found if each.parent not in pids)


def _starts_ranks(process: Process) -> bool:
    return any(argument == "--kill-on-bad-exit=1" for argument in process.arguments)


def managers(job_id: str) -> list[Process]:
    """slurmstepd of the job's script and of its steps."""
    return [
        each
        for each in all_processes()
        if each.program == "slurmstepd" and f"[{job_id}." in " ".join(each.arguments)
    ]


def on_node(node: str, directory: Path) -> list[Process]:
    """All that a node of the cluster in ``directory`` runs: its daemon, the managers of its jobs,
    and their processes.
    """
    conf = str(directory / "slurm.conf")
    there = list(all_processes())
    jobs = []
    for each in there:
        own = variables(each.pid)
        if own.get("SLURMD_NODENAME") == node and own.get("SLURM_CONF") == conf:
            jobs.append(each)
    above = {each.parent for each in jobs}
    managers = [e for e in there if e.program == "slurmstepd" and e.pid in above]
    daemon = [e for e in there if "-N" in e.arguments and node in e.arguments]
    return [*daemon, *managers, *(each for each in jobs if each not in managers)]
