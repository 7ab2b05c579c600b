"""Snakemake's lock is lifted where it is certainly a dead process's, and nowhere else."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workflow_lib import lock_holders
from workflow_lib.lock_holders import Holder, this_process

OWN = dataclasses.replace(this_process(), machine="m1", namespace="pid:[4026531836]")


@pytest.fixture
def snakemake(tmp_path: Path) -> Path:
    """A directory ``.snakemake`` that is locked, by nobody who is known."""
    (tmp_path / "locks").mkdir()
    return tmp_path


def lock(snakemake: Path, age_s: float = 0.0) -> list[Path]:
    """Snakemake's two files, which do not say who wrote them."""
    paths = [snakemake / "locks" / f"0.{kind}.lock" for kind in ("input", "output")]
    for path in paths:
        path.write_text("results/sweeps/demo/report.html\n")
        os.utime(path, (path.stat().st_mtime - age_s,) * 2)
    return paths


def ended() -> Holder:
    """A process that has ended, and was waited for."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return dataclasses.replace(OWN, process=process.pid, started_ticks="1")


def test_this_process_lives_and_is_no_holder_beside_itself(snakemake):
    own = this_process()
    assert not lock_holders.is_dead(own, own)
    lock_holders.announce(snakemake, own)
    lock(snakemake)
    assert lock_holders.examine(snakemake, own).stale == ()


def test_the_lock_of_one_that_ended_here_is_stale_with_its_own_file(snakemake):
    dead = ended()
    announced = lock_holders.announce(snakemake, dead)
    locks = lock(snakemake)
    found = lock_holders.examine(snakemake, OWN)
    assert found.stale == (*locks, announced)
    assert found.message is not None
    assert found.message.startswith(f"Snakemake {dead.process} on {OWN.host} (since ")
    assert ") ended without" in found.message


def test_the_lock_of_one_that_lives_is_not(snakemake):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        living = dataclasses.replace(
            OWN,
            process=process.pid,
            started_ticks=Path(f"/proc/{process.pid}/stat").read_text().split()[21],
        )
        lock_holders.announce(snakemake, living)
        lock_holders.announce(snakemake, ended())
        lock(snakemake)
        found = lock_holders.examine(snakemake, OWN)
        assert found.stale == ()
        assert found.message is not None
        assert f"Snakemake {process.pid} on {OWN.host}" in found.message
        assert "works in" in found.message
        process.communicate(b"\n")
    # Its end was all that was missing.
    assert len(lock_holders.examine(snakemake, OWN).stale) == 4


def test_another_process_with_the_same_number_is_another(snakemake):
    own = this_process()
    reused = dataclasses.replace(own, started_ticks="1")
    assert lock_holders.is_dead(reused, own)


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "login2"},
        {"machine": "m2"},
        # A container of the same name sees other processes.
        {"namespace": "pid:[4026532999]"},
        {"namespace": "pid:[4026532999]", "boot": "earlier"},
    ],
)
def test_what_cannot_be_seen_from_here_is_not_dead(snakemake, changes):
    elsewhere = dataclasses.replace(ended(), **changes)
    assert not lock_holders.is_dead(elsewhere, OWN)
    lock_holders.announce(snakemake, elsewhere)
    lock(snakemake)
    assert lock_holders.examine(snakemake, OWN).stale == ()


def test_of_a_lock_of_another_host_it_is_said_whose_it_is_and_what_to_do(snakemake):
    lock_holders.announce(snakemake, dataclasses.replace(ended(), host="login2"))
    lock(snakemake)
    said = lock_holders.examine(snakemake, OWN).message or ""
    assert "on login2" in said
    assert f"{OWN.host} cannot see" in said
    assert "once with --unlock" in said


def test_no_process_outlives_its_machine(snakemake):
    before = dataclasses.replace(OWN, boot="earlier")
    assert lock_holders.is_dead(before, OWN)
    # Two machines without a number may have the same name.
    nameless = dataclasses.replace(OWN, machine="")
    assert not lock_holders.is_dead(dataclasses.replace(before, machine=""), nameless)


@pytest.mark.parametrize("known", [False, True])
def test_a_lock_of_nobody_who_is_known_is_not_lifted(snakemake, known):
    if known:
        # It said who it is after that lock was made.
        lock_holders.announce(snakemake, ended())
    lock(snakemake, age_s=60)
    found = lock_holders.examine(snakemake, OWN)
    assert found.stale == ()
    assert "somebody" in (found.message or "")


def test_nor_is_one_whose_holder_cannot_be_read(snakemake):
    lock_holders.announce(snakemake, ended()).write_text('{"host": ')
    lock(snakemake)
    assert lock_holders.examine(snakemake, OWN).stale == ()


def test_without_a_lock_what_dead_holders_left_goes_without_a_word(snakemake):
    dead = lock_holders.announce(snakemake, ended())
    elsewhere = lock_holders.announce(snakemake, dataclasses.replace(ended(), host="login2"))
    assert lock_holders.examine(snakemake, OWN) == lock_holders.Finding(None, (dead,))
    # It has not locked for hours: somebody gave --unlock.
    hours_ago = elsewhere.stat().st_mtime - 7200
    os.utime(elsewhere, (hours_ago, hours_ago))
    assert set(lock_holders.examine(snakemake, OWN).stale) == {dead, elsewhere}


def test_what_another_snakemake_removes_meanwhile_is_no_error(snakemake, monkeypatch):
    dead = lock_holders.announce(snakemake, ended())
    monkeypatch.setattr(lock_holders, "is_dead", lambda *_: dead.unlink() is None)
    lock(snakemake)
    assert lock_holders.examine(snakemake, OWN).stale == ()
