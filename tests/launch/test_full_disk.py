"""A disk that is full leaves out what would say why a run failed, so it is named."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.disks import small_disk
from tests.launch import runs
from workflow_lib.launch import outcome
from workflow_lib.launch.run_to_end import record_outcome
from workflow_lib.records.outcomes import Outcome
from workflow_lib.records.paths import RunPaths


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[RunPaths]:
    """A run whose training failed, on a small disk that is not full yet."""
    (tmp_path / "results").mkdir()
    with small_disk(tmp_path / "results" / "cells"):
        paths = runs.rendered(tmp_path)
        (paths.logs / "training.log").touch()
        runs.end(paths, stage="training", training_exit=1)
        yield paths


def fill(directory: Path) -> None:
    with (directory / "ballast").open("wb", 0) as stream, pytest.raises(OSError, match="No space"):
        _write_for_ever(stream)


def _write_for_ever(stream: io.FileIO) -> None:
    while True:
        stream.write(bytes(4096))


def test_the_cause_of_a_failed_run_names_the_disk_that_is_full(paths):
    assert "full" not in outcome.classify(paths, None).cause
    fill(paths.directory)
    ended = outcome.classify(paths, None)
    assert ended.outcome is Outcome.ERROR
    assert ended.cause.startswith("training ended with")
    assert "exit code 1" in ended.cause
    assert f"file system of {paths.directory} is full" in ended.cause


def test_that_of_its_logs_alone_is_named_as_well(tmp_path):
    paths = runs.rendered(tmp_path)
    runs.end(paths, stage="telemetry", training_exit=None, telemetry_exit=1)
    with small_disk(paths.logs) as logs:
        fill(logs)
        assert f"file system of {logs} is full" in outcome.classify(paths, None).cause


def test_a_cause_that_cannot_be_recorded_is_said(paths, capfd):
    fill(paths.directory)
    run = SimpleNamespace(paths=paths, scheduler=SimpleNamespace(runs_elsewhere=False))
    with pytest.raises(OSError, match=rf"No space left .*'{paths.failure}'"):
        record_outcome(run, None)
    assert "triptych: error: " in capfd.readouterr().err
