"""Another Debian's Slurm beside the machine's: its root is whole or absent, and stays as it was."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests import programs
from tests.slurm import debian


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where roots lie, and nothing on the path but what a test puts there."""
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setattr(debian, "ROOTS", tmp_path / "roots")
    monkeypatch.setattr(debian.shutil, "which", lambda name, path: str(tools / name))
    return tmp_path / "roots"


def _tool(roots: Path, name: str, text: str) -> None:
    path = roots.parent / "tools" / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_a_root_that_cannot_be_made_leaves_its_log_and_nothing_else(roots):
    _tool(roots, "debootstrap", 'mkdir "$3/usr"; echo "E: no such suite" >&2; exit 1')
    with pytest.raises(debian.RootError, match=f"see {roots}/trixie.log"):
        debian.install("24.11")
    assert [path.name for path in roots.iterdir()] == ["trixie.log"]
    assert (roots / "trixie.log").read_text() == "E: no such suite\n"


def test_without_debootstrap_the_message_says_what_to_install(roots, monkeypatch):
    monkeypatch.setattr(debian.shutil, "which", lambda name, path: None)
    with pytest.raises(debian.RootError, match="install debootstrap"):
        debian.install("24.11")
    assert not roots.exists()


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or debian.PYTHON_IS_SYSTEMS or not debian.root_of("24.11").exists(),
    reason="needs root, the root of `make test-slurm SLURM=24.11`, and a Python outside of /usr",
)
def test_the_command_sees_the_other_slurm_and_what_it_writes_is_gone():
    script = "/usr/sbin/slurmctld -V; cd /; echo seen >/etc/marker; cat /etc/marker; exit 7"
    command = [sys.executable, "-m", "tests.slurm.debian", "24.11", "--", "bash", "-c", script]
    done = programs.run(command)
    assert done.returncode == 7, done.stderr
    assert done.stdout.splitlines()[1:] == ["seen"]
    assert done.stdout.startswith("slurm-wlm 24.11.")
    assert not (debian.root_of("24.11") / "etc" / "marker").exists()
    assert not Path("/etc/marker").exists()
    assert not list(debian.ROOTS.glob(".run-*/changes/etc/marker"))
