"""Puts faults into the runs of a site, waits for what becomes of them, reruns, and checks."""

from __future__ import annotations

import itertools
import math
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.chaos import checks, faults
from tests.chaos.kinds import Kind
from tests.chaos.site import Site, build
from tests.chaos.victim import Verdict, Victim
from tests.slurm.cluster import Cluster, ClusterError

#: the platforms of the throwaway cluster
PLATFORMS = ("h200", "h100", "mi250")
Shape = dict[str, Any]
#: of the faults of nodes on these platforms; elsewhere a run has all nodes of its partition
_ONE_NODE_EACH: dict[str, Shape] = {
    "h100": {"nodes": 1, "gpus_per_node": 2, "airflow": ["front", "rear"]}
}
#: faults of nodes that can be put in at once
NODES = {"h200": 1, "h100": 2, "mi250": 1}
#: how long what has ended may take to be gone, in seconds
_GONE_WITHIN_S = 40.0

#: how long the command may take that completes a sweep, in seconds: the machine may be busy
_RERUN_WITHIN_S = 1800.0


@dataclass
class Injection:
    """One fault, and what came of it."""

    kind: str
    number: int
    real: bool
    platform: str
    runs: list[str]
    details: list[str] = field(default_factory=list)
    outcomes: list[str | None] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    #: from the end of the job, as Slurm has it (whole seconds), to the verdict; null where the
    #: fault ended no job
    detection_s: list[float] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    #: what did not hold; none where it ended right
    wrong: list[str] = field(default_factory=list)
    wall_s: float = 0.0

    @property
    def right(self) -> bool:
        return not self.wrong

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"right": self.right}


@dataclass
class _Case:
    """A fault that is being put into runs of a round."""

    kind: Kind
    injection: Injection
    victims: list[Victim]
    verdicts: list[Verdict] = field(default_factory=list)


class Laboratory:
    """Runs rounds: a site each, several faults in it, and one Snakemake that completes it."""

    def __init__(self, cluster: Cluster, directory: Path, minutes: float = math.inf) -> None:
        """``directory`` holds the sites, and is made where it does not exist. No round begins after
        so many ``minutes``.
        """
        self._until_s = time.monotonic() + minutes * 60
        self.cluster = cluster
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self._references: dict[tuple[str, bool, str], Site] = {}
        self._rounds = itertools.count(1)
        self._making_reference = threading.Lock()

    def reference(self, platform: str, real: bool, shape: Shape) -> Site:
        """The sweep without faults, each cell once; made when first asked for."""
        key = (platform, real, str(shape))
        with self._making_reference:
            if key not in self._references:
                self._references[key] = self._run_undisturbed(platform, real, shape)
            return self._references[key]

    def _run_undisturbed(self, platform: str, real: bool, shape: Shape) -> Site:
        directory = self.directory / f"reference{len(self._references)}"
        site = build(self.cluster, directory, platform, 1, real, **shape)
        done = site.run(site.snakemake(), _RERUN_WITHIN_S)
        if done.code:
            raise AssertionError(f"the sweep fails without any fault:\n{done.said[-4000:]}")
        return site

    def round(
        self, kinds: Sequence[Kind], platform: str, seed: int, first: int, real: bool = False
    ) -> list[Injection]:
        """Put in one fault of each of ``kinds``, all of one scope, into runs of one site; none
        where the time for it is over.
        """
        began = time.monotonic()
        if began > self._until_s:
            return []
        scope = kinds[0].scope
        alone = scope in ("cluster", "workflow")
        # Two cells: each repeat gives two runs.
        repeats = 2 if alone else (len(kinds) + 1) // 2
        shape = _ONE_NODE_EACH.get(platform, {}) if scope == "node" else {}
        reference = self.reference(platform, real, shape)
        changes = shape | ({"exclusive": True} if scope == "node" else {})
        # Every other one below a name that has to be quoted.
        number = next(self._rounds)
        directory = self.directory / (f"round{number}" if number % 2 else f"ro und '{number}' é")
        site = build(self.cluster, directory, platform, repeats, real, **changes)
        random = Random(f"{seed} {first}")
        victims = [
            Victim(site, paths, Random(f"{seed} {first} {n}"))
            for n, paths in enumerate(site.rendered())
        ]
        random.shuffle(victims)
        cases = []
        for number, kind in enumerate(kinds):
            own = victims if alone else [victims[number]]
            names = [str(victim.paths.directory.relative_to(site.results)) for victim in own]
            injection = Injection(kind.name, first + number, real, platform, names)
            cases.append(_Case(kind, injection, own))
        with ThreadPoolExecutor(len(cases)) as pool:
            list(pool.map(self._put_in, cases))
        try:
            self._complete(site, cases, reference)
        except Exception as error:
            # As where the rerun never ends: what cannot be checked is not right.
            for case in cases:
                case.injection.wrong.append(f"{type(error).__name__}: {error}")
        for case in cases:
            case.injection.wall_s = time.monotonic() - began
        if all(case.injection.right for case in cases):
            faults.remove_mounts(directory)
        return [case.injection for case in cases]

    def _put_in(self, case: _Case) -> None:
        """Put a fault in and wait until what it hit has ended."""
        wrong = case.injection.wrong
        try:
            if not case.victims[0].site.real:
                for victim in case.victims:
                    victim.hold()
            together = case.kind.scope in ("cluster", "workflow")
            argument: Any = case.victims if together else case.victims[0]
            case.kind.inject(argument)
            for victim in case.victims:
                victim.release()
            for victim in case.victims:
                case.verdicts.append(victim.wait())
                self._judge(case, victim, case.verdicts[-1])
        except Exception as error:
            # A fault that cannot be put in, or never ends, is one that ended wrong.
            where = traceback.extract_tb(error.__traceback__)[-1]
            wrong.append(f"{type(error).__name__} in {where.name}: {error}")
        for victim in case.victims:
            victim.release()
            for process in victim.waiting:
                if process.poll() is None:
                    process.kill()
                    process.wait()
            for repair in victim.afterwards:
                try:
                    repair()
                except (OSError, AssertionError, ClusterError) as error:
                    wrong.append(f"{error}")

    def _judge(self, case: _Case, victim: Victim, verdict: Verdict) -> None:
        kind, injection = case.kind, case.injection
        injection.outcomes.append(verdict.outcome)
        injection.causes.append(verdict.cause)
        injection.details.extend(victim.details)
        jobs = victim.jobs()
        injection.jobs.extend(jobs)
        if len(jobs) > kind.jobs:
            injection.wrong.append(f"{len(jobs)} jobs were submitted ({', '.join(jobs)})")
        if kind.keeps_attempt and not victim.paths.attempts.exists():
            injection.wrong.append("the earlier attempt was not kept")
        if verdict.outcome not in (None, "completed") and jobs:
            ended = self._ended(jobs[-1])
            if ended is not None and ended < verdict.unix_time_s + 1:
                injection.detection_s.append(verdict.unix_time_s - ended)

    def _ended(self, job: str) -> float | None:
        """When a job ended, in s since the epoch, as slurmctld has it."""
        said = self.cluster.run("squeue", "-h", "--states=all", "-j", job, "-o", "%e", check=False)
        try:
            return time.mktime(time.strptime(said.stdout.strip(), "%Y-%m-%dT%H:%M:%S"))
        except ValueError:
            return None

    def _complete(self, site: Site, cases: list[_Case], reference: Site) -> None:
        """The same Snakemake command completes the sweep; then everything is checked."""
        # Out of memory is a result, and is only run again where somebody asks for it.
        if any("out_of_memory" in case.injection.outcomes for case in cases):
            status = ["python", "-m", "workflow_lib.status", "--results", str(site.results)]
            site.run([*status, "--outcome", "out_of_memory", "--again"])
        for case in cases:
            for victim in case.victims:
                victim.release()
        done = site.run(site.snakemake("--nolock"), _RERUN_WITHIN_S)
        shared = []
        if done.code:
            shared.append(f"the rerun does not complete the sweep: {done.said[-1500:]}")
        else:
            shared.extend(checks.differences(site, reference))
        own = [job for case in cases for victim in case.victims for job in victim.jobs()]
        deadline = time.monotonic() + _GONE_WITHIN_S
        while (left := list(checks.orphans(site, own))) and time.monotonic() < deadline:
            time.sleep(0.5)
        for case in cases:
            wrong = case.injection.wrong
            for victim in case.victims:
                _check(case, victim, wrong)
                marks = [*(f"job {job} " for job in victim.jobs()), str(victim.paths.directory)]
                wrong.extend(e for e in (*left, *shared) if any(mark in e for mark in marks))
        claimed = {each for case in cases for each in case.injection.wrong}
        # What nobody's name is in is laid to a fault whose run is unfinished, else to the first.
        blamed = next((case for case in cases if not _is_complete(case)), cases[0])
        blamed.injection.wrong.extend(e for e in (*left, *shared) if e not in claimed)


def _is_complete(case: _Case) -> bool:
    """Whether every run of a fault is a completed result now."""
    return all(victim.verdict().outcome == "completed" for victim in case.victims)


def _check(case: _Case, victim: Victim, wrong: list[str]) -> None:
    """What must hold of one run once its sweep is complete."""
    kind = case.kind
    parts: list[Callable[[], Iterator[str]]] = [
        lambda: iter(checks.doubled(victim, kind.trainings)),
        lambda: iter(checks.lost(victim)),
        lambda: iter(checks.unreadable(victim.paths.directory, victim.damaged)),
        lambda: _unexplained(case, victim),
    ]
    for part in parts:
        try:
            wrong.extend(part())
        except (OSError, AssertionError, ClusterError, ValueError) as error:
            wrong.append(f"{type(error).__name__}: {error}")


def _unexplained(case: _Case, victim: Victim) -> Iterator[str]:
    """Whether none of what was said of a run's attempts names the fault."""
    index = case.victims.index(victim)
    said = [*case.verdicts[index : index + 1], *victim.earlier()]
    if not any(case.kind.explains(verdict) for verdict in said):
        told = "; ".join(f"{each.outcome}: {each.cause}" for each in said) or "nothing"
        yield f"no outcome names the cause, but {told}"
