"""A run that a fault is put into: what a fault does to it, and what it is waited for."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.chaos import processes
from tests.chaos.site import Site
from workflow_lib.records.cell import Cell
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import JobRecord, OutcomeRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError

#: how long anything may take that has to come, in seconds
PATIENCE_S = 240.0
#: how often Slurm is asked by what waits for it here, in seconds
ASK_EVERY_S = 1.0
#: rows in a file of steps (a header among them) that say: ranks are held, or well under way
_UNDER_WAY = {False: 4, True: 8}


class Stuck(AssertionError):
    """What had to come did not come."""


@dataclass(frozen=True)
class Verdict:
    """What the waiting process made of a run, or that it made nothing of it."""

    outcome: str | None
    cause: str
    unix_time_s: float


@dataclass
class Victim:
    """One run of a site, and the processes that wait for it."""

    site: Site
    paths: RunPaths
    random: Random
    waiting: list[subprocess.Popen[bytes]] = field(default_factory=list)
    #: when the fault was put in; null until then
    injected_unix_s: float | None = None
    #: what had been measured by then: path below the run's directory → whole lines
    measured: dict[str, bytes] = field(default_factory=dict)
    #: what was done, beyond the kind's name
    details: list[str] = field(default_factory=list)
    #: what it is waited for with: variables, a umask, and a program that becomes the process
    variables: dict[str, str] = field(default_factory=dict)
    umask: int = -1
    before: tuple[str, ...] = ()
    #: files that were damaged on purpose, wherever they are kept: path below the run's directory
    damaged: set[str] = field(default_factory=set)
    #: to be done once the verdict is there: repairs, and faults that come after it
    afterwards: list[Callable[[], None]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Tells it from the other runs of its site."""
        return f"{self.paths.directory.parent.name[-8:]}-{self.paths.directory.name}"

    @property
    def log(self) -> Path:
        """What the waiting processes said."""
        return self.site.directory / f"waiting-{self.name}.log"

    def start(self, **variables: str) -> subprocess.Popen[bytes]:
        """Start a process that sees the run to its end by itself."""
        command = [sys.executable, "-m", "workflow_lib.launch", "run", str(self.paths.directory)]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [*self.before, *command, "--scheduler", "slurm"],
                cwd=self.site.directory,
                env=dict(self.site.environment) | self.variables | variables,
                umask=self.umask,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.waiting.append(process)
        return process

    def hold(self) -> None:
        """Have the stand-in's ranks wait in the middle of their steps."""
        (self.paths.directory / ".hold").touch()

    def release(self) -> None:
        (self.paths.directory / ".hold").unlink(missing_ok=True)

    def note(self, what: str = "") -> None:
        """The fault is put in now: keep what was measured before it."""
        for path in (*self.paths.steps.glob("*.csv"), *self.paths.telemetry.glob("*.csv")):
            text = path.read_bytes()
            whole = text[: text.rfind(b"\n") + 1]
            self.measured[str(path.relative_to(self.paths.directory))] = whole
        self.injected_unix_s = time.time()
        if what:
            self.details.append(what)

    def under_way(self) -> list[processes.Process]:
        """Start it and wait until it trains, for a fault now; returns the processes of its job."""
        self.start()
        job = self.train()
        self.note()
        return job

    def until(
        self,
        condition: Callable[[], bool],
        what: str,
        limit_s: float = PATIENCE_S,
        every_s: float = 0.2,
    ) -> None:
        """Wait. Raises Stuck."""
        deadline = time.monotonic() + limit_s
        for _ in itertools.count():
            if condition():
                return
            if time.monotonic() > deadline:
                raise Stuck(f"{self.paths.directory}: {what} did not come in {limit_s:.0f} s")
            time.sleep(every_s)

    def job(self) -> str:
        """The id of its job, once that is on record."""
        self.until(self.paths.job.exists, "job.json")
        return read_record(self.paths.job, JobRecord).job_id

    def trains(self) -> bool:
        """Whether every rank is in the middle of its steps."""
        cell = read_record(self.paths.cell, Cell)
        files = [self.paths.rank_steps(rank) for rank in range(cell.degrees.world_size)]
        rows = _UNDER_WAY[self.site.real]
        return all(path.exists() and path.read_bytes().count(b"\n") >= rows for path in files)

    def train(self) -> list[processes.Process]:
        """Wait until it trains; returns the processes of its job."""
        found: list[processes.Process] = []

        def has_ranks() -> bool:
            # Right after a requeue the steps of the first start may still lie there.
            found[:] = self.processes() if self.trains() else []
            return bool(processes.ranks(found))

        self.until(has_ranks, "training")
        return found

    def processes(self) -> list[processes.Process]:
        return processes.of_job(self.job(), self.site.cluster.conf)

    def nodes(self) -> list[str]:
        """The nodes of its job, by name."""
        said = self.site.cluster.run("squeue", "-h", "-j", self.job(), "-o", "%N").stdout.strip()
        names = self.site.cluster.run("scontrol", "show", "hostnames", said).stdout
        return names.split()

    def state(self) -> str:
        """What squeue calls the state of its job; empty where it does not know it."""
        answer = self.site.cluster.run(
            "squeue", "-h", "--states=all", "-j", self.job(), "-o", "%T", check=False
        )
        return answer.stdout.strip()

    def is_over(self) -> bool:
        """Whether Slurm has done with its job."""
        return self.state() not in ("RUNNING", "PENDING", "COMPLETING")

    def wait(self) -> Verdict:
        """Wait until nobody waits any more; returns what came of it."""
        for process in self.waiting:
            while process.poll() is None:
                said = self.said()
                # As long as it says something new it is not stuck.
                with suppress(subprocess.TimeoutExpired):
                    process.wait(PATIENCE_S)
                if process.poll() is None and self.said() == said:
                    process.kill()
                    process.wait()
                    raise Stuck(f"{self.paths.directory}: its process waits for ever; {said}")
        return self.verdict()

    def said(self) -> str:
        """The end of what its waiting processes said."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return " / ".join(text.splitlines()[-3:])

    def verdict(self) -> Verdict:
        """What lies in its directory as the way in which it ended."""
        for path in (self.paths.outcome, self.paths.failure):
            if path.exists():
                found = read_record(path, OutcomeRecord)
                return Verdict(found.outcome.value, found.cause, path.stat().st_mtime)
        return Verdict(None, self.said(), time.time())

    def earlier(self) -> list[Verdict]:
        """How its earlier attempts ended, of those that were told."""
        found = []
        for path in sorted(self.paths.attempts.glob("*/failure.json")):
            try:
                record = read_record(path, OutcomeRecord)
            except RecordError as error:
                raise AssertionError(f"an earlier attempt is unreadable: {error}") from None
            found.append(Verdict(record.outcome.value, record.cause, path.stat().st_mtime))
        return found

    def jobs(self) -> list[str]:
        """Every job that was ever submitted for it, as sbatch knows them."""
        if not self.site.submissions.exists():
            return []
        lines = self.site.submissions.read_text().splitlines()
        script = str(self.paths.script)
        return [line.split("\t")[0] for line in lines if script in line.split("\t")]

    def until_said(self, words: str, limit_s: float = PATIENCE_S) -> None:
        """Wait until a waiting process has said that. Raises Stuck."""

        def is_said() -> bool:
            return words in self.log.read_text(errors="replace")

        self.until(is_said, f"the words {words!r} in {self.log}", limit_s)

    def leave_alone(self) -> None:
        """End whoever waits for it, as a crash would."""
        for process in self.waiting:
            process.kill()
            process.wait()
