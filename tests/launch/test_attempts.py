"""What an earlier attempt left is kept, apart from the next one."""

from __future__ import annotations

import pytest

from tests.launch import runs
from workflow_lib.launch import attempts
from workflow_lib.records import RunPaths


@pytest.fixture
def paths(tmp_path) -> RunPaths:
    return runs.rendered(tmp_path)


def test_a_rendered_run_holds_no_evidence(paths):
    assert not attempts.has_evidence(paths)


@pytest.mark.parametrize("name", ["ended", "environment", "outcome", "failure"])
def test_whatever_a_job_wrote_is_evidence(paths, name):
    getattr(paths, name).write_text("{}")
    assert attempts.has_evidence(paths)


def test_all_but_the_cell_and_its_script_is_moved_to_the_next_number(paths):
    paths.lock.touch()
    for number in (1, 2, 3):
        runs.complete(paths, str(number))
        attempts.set_aside(paths)
        kept = RunPaths(paths.attempts / str(number))
        assert kept.ended.exists()
        assert kept.rank_steps(1).exists()
        assert kept.gpu_samples(runs.NODE).exists()
    left = {path.name for path in paths.directory.iterdir()}
    assert left == {"cell.json", "job.sh", "attempts", ".lock"}


def test_numbers_go_on_after_the_highest_whatever_else_lies_there(paths):
    (paths.attempts / "9").mkdir(parents=True)
    (paths.attempts / "notes of mine").mkdir()
    runs.end(paths)
    attempts.set_aside(paths)
    assert RunPaths(paths.attempts / "10").ended.exists()


def test_a_file_that_is_being_written_stays(paths):
    half_written = paths.directory / ".job.json.1.tmp"
    half_written.write_text("{")
    runs.end(paths)
    attempts.set_aside(paths)
    assert half_written.exists()
