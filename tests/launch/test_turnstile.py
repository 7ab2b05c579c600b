"""Processes submit one after the other, and rarely while Slurm refuses."""

from __future__ import annotations

import threading
import time

import pytest

from workflow_lib.launch import turnstile
from workflow_lib.launch.turnstile import Turnstile


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(turnstile, "_LOOK_EVERY_S", 0.01)


def test_nobody_passes_while_another_is_in_it(tmp_path):
    inside: list[str] = []

    def second() -> None:
        with Turnstile(tmp_path / "shared"):
            inside.append("second")

    with Turnstile(tmp_path / "shared"):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.2)
        inside.append("first")
    thread.join()
    assert inside == ["first", "second"]


def test_where_slurm_refused_the_next_one_waits_whoever_it_is(tmp_path):
    with Turnstile(tmp_path / "shared") as first:
        first.close_for(0.4)
    began = time.monotonic()
    with Turnstile(tmp_path / "shared"):
        assert time.monotonic() - began > 0.3


def test_a_clock_that_ran_ahead_closes_it_for_nobody(tmp_path):
    with Turnstile(tmp_path / "shared") as first:
        first.close_for(10 * turnstile.LONGEST_PERIOD_S)
    with Turnstile(tmp_path / "shared"):
        pass


def test_without_a_directory_everybody_passes_and_that_is_said(tmp_path, capsys):
    (tmp_path / "file").touch()
    with Turnstile(tmp_path / "file" / "shared"):
        assert "submitting without taking turns" in capsys.readouterr().err


def test_a_directory_of_everybody_is_refused(tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(PermissionError), Turnstile(tmp_path / "shared"):
        pass
