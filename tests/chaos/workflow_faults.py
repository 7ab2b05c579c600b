"""Faults of Snakemake and of the session that it runs in."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

from tests.chaos import processes
from tests.chaos.site import Site
from tests.chaos.victim import PATIENCE_S, Victim


def snakemake_killed(victims: list[Victim]) -> None:
    """Snakemake alone, with which every wait ends; jobs go on."""
    process = _all_train(victims)
    process.kill()
    process.wait()
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
    first = _start(site, "--nolock", "--until", "run")
    time.sleep(victims[0].random.uniform(0, 3))
    second = _start(site, "--nolock", "--until", "run")
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
        victim.until(victim.is_over, "the end of the cancelled job", 60)
    _release(victims)


def _all_train(victims: list[Victim]) -> subprocess.Popen[bytes]:
    process = _start(victims[0].site)
    for victim in victims:
        victim.train()
    for victim in victims:
        victim.note()
    return process


def _output(site: Site) -> Path:
    return site.directory / "snakemake.log"


def _start(site: Site, *options: str) -> subprocess.Popen[bytes]:
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
    again = _start(site, "--until", "run")
    again.wait(240)


def _release(victims: list[Victim]) -> None:
    for victim in victims:
        victim.release()
