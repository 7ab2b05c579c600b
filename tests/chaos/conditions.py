"""What a site may be like: a run goes through it alone, or with a fault as well.

Each of these changes what the run is waited for with, and what its job inherits.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.chaos.victim import Victim

_COMMANDS = ("sbatch", "squeue", "sacct", "scancel")
#: a wrapper of one of Slurm's commands; ``count`` says how often it was called
_WRAPPER = """#!/usr/bin/env bash
own={command}
count() {{ echo >>"$0.calls"; n=$(wc -l <"$0.calls"); }}
{before}
"$own" "$@"
code=$?
{after}
exit "$code"
"""
#: the first answers are lost, and garbage comes in their place; what was asked for is done
_GARBLE = """count
if [ "$n" -le {calls} ]; then
  "$own" "$@" >/dev/null 2>&1
  head -c 600 /dev/urandom
  echo "${{own##*/}}: error: Unexpected message received" >&2
  exit {code}
fi"""
#: what users have in their shells: with each of the first lines squeue or sacct hides a job
_USER_DEFAULTS = {
    "SQUEUE_PARTITION": "nowhere",
    "SQUEUE_STATES": "COMPLETED",
    "SQUEUE_FORMAT": "%i",
    "SQUEUE_SORT": "-i",
    "SACCT_FORMAT": "JobID",
    "SACCT_FEDERATION": "1",
    "SBATCH_JOB_NAME": "mine",
    "SBATCH_PARTITION": "nowhere",
    "SBATCH_HOLD": "1",
    "SBATCH_DEPENDENCY": "singleton",
    "SCANCEL_STATE": "SUSPENDED",
    "SLURM_CLUSTERS": "elsewhere",
}
_FAIL = 'count; [ $((n % 2)) = {turn} ] || {{ echo "licence server does not answer" >&2; exit 1; }}'


def _wrapped(victim: Victim, before: str = "", after: str = "", only: str = "") -> None:
    directory = victim.site.directory / f"wrappers-{victim.name}"
    directory.mkdir()
    own = victim.site.directory / "bin" / "sbatch"
    for name in _COMMANDS if not only else (only,):
        command = shlex.quote(str(own if name == "sbatch" else shutil.which(name)))
        wrapper = directory / name
        wrapper.write_text(_WRAPPER.format(before=before, command=command, after=after))
        wrapper.chmod(0o755)
    path = victim.variables.get("PATH", victim.site.environment["PATH"])
    victim.variables["PATH"] = f"{directory}{os.pathsep}{path}"


def wrappers_print(victim: Victim) -> None:
    banner = victim.random.choice(
        ("### Maintenance on Friday: 12 nodes | 3 | a | b | c ###", "2026", "Submitted batch job")
    )
    victim.details.append(f"banner {banner!r}")
    _wrapped(victim, f"echo '{banner}'", "echo 7")


def wrappers_slow(victim: Victim) -> None:
    seconds = victim.random.choice((2, 5, 20))
    victim.details.append(f"{seconds} s")
    _wrapped(victim, f"sleep {seconds}")


def wrappers_fail_before(victim: Victim) -> None:
    _wrapped(victim, _FAIL.format(turn=victim.random.randrange(2)))


def wrappers_fail_after(victim: Victim) -> None:
    _wrapped(victim, after=_FAIL.format(turn=victim.random.randrange(2)))


def controller_garbles(victim: Victim) -> None:
    calls, code = victim.random.choice((1, 2)), victim.random.choice((0, 1))
    victim.details.append(f"{calls} answers each, exit code {code}")
    _wrapped(victim, _GARBLE.format(calls=calls, code=code))


def user_defaults(victim: Victim) -> None:
    victim.variables |= _USER_DEFAULTS


def refuse(victim: Victim) -> Path:
    """Have sbatch refuse for now, while the file that is returned exists."""
    refusing = victim.site.directory / f"refusing-{victim.name}"
    refusing.touch()
    said = "sbatch: error: Unable to contact slurm controller (connect failure)"
    block = f"[ ! -e {shlex.quote(str(refusing))} ] || {{ echo '{said}' >&2; exit 1; }}"
    _wrapped(victim, block, only="sbatch")
    return refusing


def wrappers_speak_otherwise(victim: Victim) -> None:
    said = "export LC_ALL=de_DE.ISO-8859-1; printf 'gr\\374n\\n'; printf 'gr\\374n\\n' >&2"
    _wrapped(victim, said)


def accounting_gone(victim: Victim) -> None:
    """sacct fails whenever it is asked."""
    said = "sacct: error: slurm_persist_conn_open: Connection refused"
    _wrapped(victim, f"echo '{said}' >&2; exit 1", only="sacct")


def umask_027(victim: Victim) -> None:
    victim.umask = 0o027


def full_tmpdir(victim: Victim) -> None:
    directory = victim.site.directory / f"tmp-{victim.name}"
    directory.mkdir()
    options = ["-t", "tmpfs", "-o", "size=64k", "none"]
    subprocess.run(["mount", *options, str(directory)], check=True)
    (directory / "all").write_bytes(b"\0" * 65536)
    victim.variables["TMPDIR"] = str(directory)


def read_only_home(victim: Victim) -> None:
    directory = victim.site.directory / f"home-{victim.name}"
    directory.mkdir()
    subprocess.run(["mount", "--bind", str(directory), str(directory)], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", str(directory)], check=True)
    victim.variables["HOME"] = str(directory)


def _alone(condition: Callable[[Victim], None], victim: Victim) -> None:
    """The run goes through it without any fault."""
    condition(victim)
    victim.under_way()


def _with(condition: Callable[[Victim], None], fault: Callable[..., None], victim: Victim) -> None:
    condition(victim)
    fault(victim)


def alone(condition: Callable[[Victim], None]) -> Callable[[Victim], None]:
    """The fault that is this condition alone."""
    return partial(_alone, condition)


def together(
    condition: Callable[[Victim], None], fault: Callable[..., None]
) -> Callable[[Victim], None]:
    """The fault in a run that goes through the condition."""
    return partial(_with, condition, fault)
