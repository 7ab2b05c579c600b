"""Faults of Snakemake and of the session that it runs in."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos import processes
from tests.chaos.site import SWEEP, Site
from tests.chaos.victim import ASK_EVERY_S, PATIENCE_S, Victim


def snakemake_killed(victims: list[Victim], meanwhile: Callable[[], None] = lambda: None) -> None:
    """Snakemake alone, with which every wait ends; jobs go on."""
    process = _all_train(victims)
    process.kill()
    process.wait()
    meanwhile()
    _release(victims)
    _again(victims[0].site)


def session_killed(victims: list[Victim]) -> None:
    """Snakemake and all that it started at once, as when a login node goes down."""
    process = _all_train(victims)
    _signal(process, signal.SIGKILL)
    _release(victims)
    if victims[0].random.random() < 0.5:
        for victim in victims:
            victim.until(victim.paths.ended.exists, "the job's end record")
    _again(victims[0].site)


def hangup(victims: list[Victim]) -> None:
    """The login shell closes: all of its session is told so. Jobs go on."""
    process = _all_train(victims)
    _signal(process, signal.SIGHUP)
    _release(victims)
    _again(victims[0].site)


def two_snakemakes(victims: list[Victim]) -> None:
    """The same command twice, without Snakemake's own lock, as from two checkouts."""
    site = victims[0].site
    _release(victims)
    first = start_snakemake(site, "--nolock", "--until", "run")
    time.sleep(victims[0].random.uniform(0, 3))
    second = start_snakemake(site, "--nolock", "--until", "run")
    for victim in victims:
        victim.until(victim.paths.job.exists, "job.json")
        victim.note()
        victim.measured.clear()
    for process in (first, second):
        process.wait(PATIENCE_S)
    for victim in victims:
        victim.waiting.clear()


def interrupt(victims: list[Victim]) -> None:
    """Ctrl-C: the terminal sends it to Snakemake and to all that it started."""
    site = victims[0].site
    process = _all_train(victims)
    jobs = [victim.job() for victim in victims]
    _signal(process, signal.SIGINT)
    said = _output(site).read_text(errors="replace")
    for job in jobs:
        if not re.search(
            rf"(cancel|asked).*\bjob {job}\b|\bjob {job}\b.*(cancel|asked)", said, re.IGNORECASE
        ):
            raise AssertionError(f"Ctrl-C: nothing says that job {job} is cancelled")
    for victim in victims:
        victim.until(victim.is_over, "the end of the cancelled job", 60, ASK_EVERY_S)
    _release(victims)


def terminated(victims: list[Victim]) -> None:
    """SIGTERM of Snakemake alone: it waits for the jobs that train, and then ends."""
    process = _all_train(victims)
    process.terminate()
    _release(victims)
    process.wait(PATIENCE_S)
    for victim in victims:
        if len(victim.jobs()) != 1 or not victim.paths.outcome.exists():
            raise AssertionError(f"{victim.paths.directory}: it was not waited for")


def arrays_forbidden(victims: list[Victim]) -> None:
    """The site takes no job arrays (MaxArraySize=0): a sentence says so, and a job a run goes."""
    site = victims[0].site
    for victim in victims:
        victim.note()
    _release(victims)
    arguments = ["--config", str(site.directory / "config"), "--results", str(site.results)]
    command = [sys.executable, "-m", "workflow_lib.launch", "array", *arguments]
    done = site.run([*command, "--sweep", f"{SWEEP}-{site.platform}", "--at-once", "2"])
    if done.code == 0 or "This site takes no job array" not in done.said:
        raise AssertionError(f"an array was not refused in a sentence: {done.said[-500:]}")
    if any(victim.jobs() for victim in victims):
        raise AssertionError("an array was submitted")
    start_snakemake(site, "--until", "run").wait(PATIENCE_S)


def _all_train(victims: list[Victim]) -> subprocess.Popen[bytes]:
    process = start_snakemake(victims[0].site)
    for victim in victims:
        victim.train()
    for victim in victims:
        victim.note()
    return process


def _output(site: Site) -> Path:
    return site.directory / "snakemake.log"


def start_snakemake(site: Site, *options: str) -> subprocess.Popen[bytes]:
    """Start the command that completes the sweep, or with ``--until`` a part of it."""
    with _output(site).open("ab") as log:
        return subprocess.Popen(
            site.snakemake(*options),
            cwd=site.directory,
            env=site.environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _signal(process: subprocess.Popen[bytes], what: signal.Signals) -> None:
    """Send a signal to the whole process group, as a terminal does, and wait for the leader."""
    members = [each for each in processes.all_processes() if _group(each.pid) == process.pid]
    for each in members:
        try:
            os.kill(each.pid, what)
        except ProcessLookupError:
            continue
    process.wait(120)


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _again(site: Site) -> None:
    """The same command, as the documentation says: unlock first where Snakemake asks for it."""
    site.run(site.snakemake("--unlock"))
    again = start_snakemake(site, "--until", "run")
    again.wait(240)


def _release(victims: list[Victim]) -> None:
    for victim in victims:
        victim.release()
