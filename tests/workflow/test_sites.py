"""What machines and file systems may be like: nothing is lost, and a sentence says why."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest

from tests.workflow.conftest import SNAKEMAKE, Checkout
from tests.workflow.test_bad_input import message_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root can mount"
    ),
]
TARGET = "results/sweeps/tiny/report.html"
MATRIX = [{"models": "gpt3-tiny", "gpus": 2, "dp": 2}]


def snakemake(
    checkout: Checkout, before: str = ":", *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """The workflow in mounts of its own, after a shell command has changed them."""
    command = [str(SNAKEMAKE), "--profile", "profiles/local", *(arguments or (TARGET,))]
    return subprocess.run(
        ["unshare", "--mount", "bash", "-c", f'{before} && exec "$@"', "bash", *command],
        cwd=checkout.directory,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def remounted(directory: str) -> str:
    """A command that makes a directory read-only."""
    return f"mount --bind {directory} {directory} && mount -o remount,ro,bind {directory}"


def test_read_only_results_are_refused_in_a_sentence_and_can_be_looked_at(checkout):
    (checkout.directory / "results").mkdir()
    done = snakemake(checkout, remounted("results"))
    assert f"{checkout.directory}/results cannot be written to, and results go there" in (
        message_of(done)
    )
    assert (
        "python -m workflow_lib.status --results results` only reads" in done.stdout + done.stderr
    )
    assert list((checkout.directory / "results").iterdir()) == []


def test_a_read_only_checkout_is_refused_in_a_sentence(checkout):
    done = snakemake(checkout, f"{remounted('.')} && cd .")
    assert "cannot be written to, and Snakemake keeps its records there" in message_of(done)


def test_the_directory_of_a_user_who_lets_others_only_read_is_refused_in_a_sentence(checkout):
    """Root without the right to override modes is like a user of the owner's group."""
    records = checkout.directory / ".snakemake"
    records.mkdir(mode=0o750)
    os.chown(records, 1, 1)
    command = [str(SNAKEMAKE), "--profile", "profiles/local", TARGET]
    done = subprocess.run(
        ["setpriv", "--bounding-set", "-dac_override", *command],
        cwd=checkout.directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"{records} cannot be written to" in message_of(done)
    assert not (checkout.directory / "results").exists()


def test_a_full_tmpdir_and_no_shared_memory_and_a_read_only_home_hinder_nothing(checkout, tmp_path):
    checkout.write_sweep(matrix=MATRIX)
    full, home, cache = (tmp_path / name for name in ("full", "home", "cache"))
    for directory in (full, home, cache):
        directory.mkdir()
    changes = (
        f"mount -t tmpfs -o size=64k tmpfs {full}",
        f"{{ head -c 64k /dev/zero >{full}/all; mount -t tmpfs -o ro,size=4k tmpfs /dev/shm; }}",
        remounted(str(home)),
    )
    # Snakemake itself needs a cache.
    where = {"TMPDIR": str(full), "HOME": str(home), "XDG_CACHE_HOME": str(cache)}
    done = snakemake(checkout, " && ".join(changes), **where)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = checkout.runs().values()
    assert json.loads(run.outcome.read_text())["outcome"] == "completed"
