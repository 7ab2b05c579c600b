"""Faults of the analysis of runs that have ended: its processes die, and its files are damaged."""

from __future__ import annotations

import time

from tests.chaos import processes
from tests.chaos.victim import PATIENCE_S, Victim
from tests.chaos.workflow_faults import start_snakemake


def reduce_killed(victims: list[Victim]) -> None:
    _analysis_killed(victims, "reduce")


def collect_killed(victims: list[Victim]) -> None:
    _analysis_killed(victims, "collect")


def _analysis_killed(victims: list[Victim], command: str) -> None:
    """A process of the analysis ends by SIGKILL, a while after it has begun."""
    site = victims[0].site
    for victim in victims:
        victim.release()
    snakemake = start_snakemake(site)
    found: list[processes.Process] = []

    def begun() -> bool:
        found[:] = [
            each
            for each in processes.all_processes()
            if each.runs_module("workflow_lib.analysis")
            and command in each.arguments
            and any(argument.startswith(str(site.directory)) for argument in each.arguments)
        ]
        return bool(found)

    victims[0].until(begun, f"a process that does {command}")
    time.sleep(victims[0].random.uniform(0, 1.5))
    for victim in victims:
        victim.note()
    found[0].kill()
    snakemake.wait(PATIENCE_S)


def summary_damaged(victims: list[Victim]) -> None:
    """The sweep is complete; then a run's summary is damaged."""
    _completed(victims)
    _cut(victims[0], victims[0].random.choice(victims), "summary.json")


def outcome_damaged(victims: list[Victim]) -> None:
    """The sweep is complete; then how a run ended is damaged."""
    _completed(victims)
    _cut(victims[0], victims[0].random.choice(victims), "outcome.json")


def summary_deleted(victims: list[Victim]) -> None:
    """The sweep is complete; then a run's summary and the sweep's runs are cleared away."""
    _completed(victims)
    victim = victims[0].random.choice(victims)
    (victim.paths.directory / "summary.json").unlink()
    (victim.site.view / "runs.parquet").unlink()
    victim.details.append(victim.name)


def _completed(victims: list[Victim]) -> None:
    site = victims[0].site
    for victim in victims:
        victim.release()
    start_snakemake(site).wait(PATIENCE_S)
    if not (site.view / "runs.parquet").exists():
        raise AssertionError("the sweep did not complete before the fault")
    for victim in victims:
        victim.note()


def _cut(one: Victim, victim: Victim, name: str) -> None:
    """Cut a file of a run off, once the verdict on all is read."""
    path = victim.paths.directory / name
    content = path.read_bytes()
    kept = one.random.choice((0, len(content) // 2))

    def cut() -> None:
        path.write_bytes(content[:kept])

    one.afterwards.append(cut)
    one.details.append(f"{victim.name}/{name}: {kept} of {len(content)} bytes left")
