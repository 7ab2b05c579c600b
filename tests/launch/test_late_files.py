"""A run is judged once this machine shows all that the run's job wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch import runs
from workflow_lib.launch import interruption, run_to_end
from workflow_lib.launch.job import node
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import EndedRecord
from workflow_lib.records.paths import RunPaths


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A run whose job has ended and has listed its files."""
    paths = runs.rendered(tmp_path)
    node.begin(paths, "7", "slurm", b"")
    runs.train(paths)
    paths.telemetry_stop.touch()
    node.end(paths, "7", "complete", "0", "0")
    return paths


@pytest.fixture
def pauses(monkeypatch) -> list[float]:
    taken: list[float] = []
    monkeypatch.setattr(interruption, "pause", taken.append)
    return taken


def test_a_job_lists_what_it_wrote(paths):
    left = read_record(paths.ended, EndedRecord).left_bytes
    assert left is not None
    assert left["steps/rank0.csv"] == paths.rank_steps(0).stat().st_size
    assert f"telemetry/{runs.NODE}.csv" in left
    assert not [name for name in left if name.startswith(("logs/", "cell.json"))]
    assert "telemetry/stop" not in left


def test_files_that_are_here_are_not_waited_for(paths, pauses):
    run_to_end.wait_for_files(paths)
    assert pauses == []


@pytest.mark.parametrize("seen_first", [None, 10])
def test_a_late_file_is_waited_for_until_whole(paths, pauses, monkeypatch, capsys, seen_first):
    file = paths.rank_steps(0)
    whole = file.read_bytes()
    file.unlink()
    if seen_first is not None:
        file.write_bytes(whole[:seen_first])

    def shown(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            file.write_bytes(whole)

    monkeypatch.setattr(interruption, "pause", shown)
    run_to_end.wait_for_files(paths)
    assert len(pauses) == 3
    assert capsys.readouterr().err.count("rank0.csv, and 0 ") == 1


def test_a_file_that_never_comes_ends_the_wait(paths, pauses, monkeypatch):
    monkeypatch.setattr(run_to_end, "LONGEST_LAG_S", 0.0)
    paths.rank_steps(0).unlink()
    run_to_end.wait_for_files(paths)
    assert pauses == []


@pytest.mark.parametrize("change", [None, "{", '{"job_id": "7"}'])
def test_an_end_record_that_lists_nothing_is_not_waited_for(paths, pauses, change):
    paths.rank_steps(0).unlink()
    if change is None:
        paths.ended.unlink()
    else:
        paths.ended.write_text(change)
    run_to_end.wait_for_files(paths)
    assert pauses == []
