"""What a site's rules, its users and its file systems do to a run."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
import zlib
from pathlib import Path

from tests.chaos import conditions
from tests.chaos.victim import ASK_EVERY_S, Victim

#: nobody's number: without a name, as where users come from a directory that is away
ANOTHER_USER = 61234
#: another user, who may write everything, as in a directory that both share
_AS_ANOTHER = (
    "setpriv",
    f"--reuid={ANOTHER_USER}",
    f"--regid={ANOTHER_USER}",
    "--clear-groups",
    "--inh-caps=+dac_override,+dac_read_search",
    "--ambient-caps=+dac_override,+dac_read_search",
)


def hidden_from_another_user(victim: Victim) -> None:
    """The submitter is gone, and another user waits, to whom Slurm shows no jobs but their own
    (PrivateData=jobs).
    """
    victim.under_way()
    shown = [*_AS_ANOTHER, "squeue", "--noheader", f"--jobs={victim.job()}"]
    environment = dict(victim.site.environment)
    seen = subprocess.run(shown, env=environment, capture_output=True, text=True, check=False)
    if seen.stdout.strip():
        raise AssertionError(f"Slurm shows another user the job: {seen.stdout}")
    victim.leave_alone()
    victim.before = _AS_ANOTHER
    victim.start()
    victim.until_said(f"job {victim.job()} was submitted before")
    # It asks, and is told nothing, several times.
    time.sleep(victim.random.uniform(10, 30))


def submissions_limited(victim: Victim) -> None:
    """An account that may have one job (MaxSubmitJobs), and has one."""
    run = victim.site.cluster.run
    account = f"a{zlib.crc32(bytes(victim.paths.directory))}"
    run("sacctmgr", "--immediate", "add", "account", account)
    run("sacctmgr", "--immediate", "add", "user", "root", f"account={account}", "MaxSubmitJobs=1")
    blocks = ("--parsable", "--hold", f"--account={account}", "--wrap=true", "--output=/dev/null")
    job = run("sbatch", *blocks).stdout.partition(";")[0].strip()
    victim.start(CHAOS_ACCOUNT=account)
    victim.until_said("Slurm takes no jobs now; trying again")
    victim.note(account)
    run("scancel", job)
    victim.train()


def told_to_end(victim: Victim) -> None:
    """SIGTERM while Slurm takes no job; later it does."""
    refusing = conditions.refuse(victim)
    process = victim.start()
    victim.until_said("Slurm takes no jobs now; trying again")
    victim.note()
    process.terminate()
    if (code := process.wait(30)) != 128 + signal.SIGTERM:
        raise AssertionError(f"after SIGTERM it ended with {code}: {victim.said()}")
    refusing.unlink()
    if victim.jobs():
        raise AssertionError("a job was submitted after SIGTERM")
    victim.start()
    victim.train()


def clock_skew(victim: Victim) -> None:
    """A rank's clock is a little ahead, less than a second."""
    ahead_s = victim.random.choice((0.3, 0.5, 0.9))
    (victim.paths.directory / ".skew").write_text(str(ahead_s))
    victim.afterwards.append((victim.paths.directory / ".skew").unlink)
    victim.start()
    victim.train()
    victim.note(f"{ahead_s} s")


def telemetry_deleted(victim: Victim) -> None:
    """Somebody clears away a node's samples while they are written."""
    victim.under_way()
    path = victim.paths.gpu_samples(victim.random.choice(victim.nodes()))
    del victim.measured[str(path.relative_to(victim.paths.directory))]
    victim.details.append(path.name)
    path.unlink()


# ---------------------------------------------------------------------- damaged files


def end_record_damaged(victim: Victim) -> None:
    """While nobody waits, the job ends, and its end record is damaged."""
    victim.under_way()
    victim.leave_alone()
    victim.release()
    victim.until(victim.paths.ended.exists, "the job's end record")
    victim.until(victim.is_over, "the job's end", every_s=ASK_EVERY_S)
    _damage(victim, victim.paths.ended)
    victim.start()


def job_record_damaged(victim: Victim) -> None:
    """While nobody waits, what names the job is damaged."""
    victim.under_way()
    victim.leave_alone()
    _damage(victim, victim.paths.job)
    victim.start()
    victim.until_said("looking for the job by its name")


def _damage(victim: Victim, path: Path) -> None:
    content = path.read_bytes()
    kept = victim.random.choice((0, len(content) // 2, len(content) - 2))
    path.write_bytes(content[:kept])
    victim.damaged.add(path.name)
    victim.details.append(f"{path.name}: {kept} of {len(content)} bytes left")


# ---------------------------------------------------------------------- results that moved


def results_moved(victim: Victim) -> None:
    """The script was rendered where the results lay before."""
    _rendered_elsewhere(victim)
    victim.start()


def results_copied(victim: Victim) -> None:
    """The same of a copy, beside which the original still lies: nothing may be written there."""
    original = _rendered_elsewhere(victim, stays=True)
    before = _listing(original)
    victim.start()

    def check() -> None:
        if _listing(original) != before:
            raise AssertionError(f"the copy wrote into the original, {original}")

    victim.afterwards.append(check)


def _rendered_elsewhere(victim: Victim, stays: bool = False) -> Path:
    elsewhere = victim.site.directory / f"results-before-{victim.name}"
    victim.site.rendered(elsewhere)
    original = elsewhere / victim.paths.directory.relative_to(victim.site.results)
    for name in (victim.paths.script.name, victim.paths.cell.name):
        shutil.copy2(original / name, victim.paths.directory / name)
    victim.note()
    if not stays:
        shutil.rmtree(elsewhere)
    return original


def _listing(directory: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in directory.rglob("*")}
