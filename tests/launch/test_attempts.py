"""What an earlier attempt left is kept, apart from the next one."""

import pytest

from tests.launch import runs
from workflow_lib.launch import attempts
from workflow_lib.records.paths import RunPaths

FILES = ("ended", "environment", "outcome", "failure", "cool_down")


@pytest.mark.parametrize("name", [*FILES, "telemetry", "steps", "errors", "exits"])
def test_whatever_a_job_wrote_or_measured_is_evidence(paths, name):
    found = getattr(paths, name)
    if name not in FILES:
        found.mkdir(exist_ok=True)
    assert not attempts.has_evidence(paths)
    (found if name in FILES else found / "something.csv").write_text("{}")
    assert attempts.has_evidence(paths)


def test_all_but_the_cell_and_its_script_is_moved_to_the_next_number(paths):
    paths.lock.touch()
    paths.logs.mkdir(exist_ok=True)
    for number in (1, 2, 3):
        runs.complete(paths, str(number))
        attempts.set_aside(paths)
        kept = RunPaths(paths.attempts / str(number))
        assert kept.ended.exists()
        assert kept.rank_steps(1).exists()
        assert kept.gpu_samples(runs.NODE).exists()
    left = {path.name for path in paths.directory.iterdir()}
    assert left == {"cell.json", ".cell.sha256", "job.sh", "attempts", ".lock", "logs"}
    assert list(paths.logs.iterdir()) == []


def test_numbers_go_on_after_the_highest_whatever_else_lies_there(paths):
    (paths.attempts / "9").mkdir(parents=True)
    (paths.attempts / "notes").mkdir()
    runs.end(paths)
    attempts.set_aside(paths)
    assert RunPaths(paths.attempts / "10").ended.exists()


def test_a_file_that_is_being_written_stays(paths):
    half_written = paths.directory / ".job.json.1.tmp"
    half_written.write_text("{")
    runs.end(paths)
    attempts.set_aside(paths)
    assert half_written.exists()


def test_a_job_that_sets_aside_keeps_its_claim_and_the_log_that_slurm_writes(paths):
    paths.logs.mkdir(exist_ok=True)
    (paths.logs / "training.log").write_text("trained\n")
    paths.job.write_text("{}")
    paths.submission.write_text("{}")
    runs.complete(paths)
    with (paths.logs / "slurm-7.log").open("a") as log:
        log.write("first start\n")
        log.flush()
        attempts.set_aside(paths, "7")
        log.write("second start\n")
    kept = RunPaths(paths.attempts / "1")
    assert paths.job.exists()
    assert paths.submission.exists()
    assert not paths.ended.exists()
    assert [path.name for path in paths.logs.iterdir()] == ["slurm-7.log"]
    assert (kept.logs / "training.log").read_text() == "trained\n"
    assert kept.job.exists()
    for each in (paths, kept):
        assert (each.logs / "slurm-7.log").read_text() == "first start\nsecond start\n"


def test_what_was_set_aside_half_way_is_completed_and_loses_nothing(paths, monkeypatch):
    paths.logs.mkdir(exist_ok=True)
    (paths.logs / "training.log").write_text("trained\n")
    runs.complete(paths)
    there = {path.name for path in paths.directory.rglob("*") if path.is_file()}
    moves = iter(range(3))
    rename = type(paths.directory).rename

    def die(path, target):
        if next(moves, None) is None:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(type(paths.directory), "rename", die)
        with pytest.raises(KeyboardInterrupt):
            attempts.set_aside(paths)
    assert attempts.has_evidence(paths)
    attempts.set_aside(paths)
    assert [path.name for path in paths.attempts.iterdir()] == ["1"]
    assert {path.name for path in paths.directory.rglob("*") if path.is_file()} == there
    assert RunPaths(paths.attempts / "1").rank_steps(0).exists()
    assert not attempts.has_evidence(paths)


def test_attempts_that_the_cluster_took_are_counted_back_to_the_last_of_another_kind(paths):
    outcomes = ["node_failure", "error", "preempted", None, "node_failure"]
    for number, outcome in enumerate(outcomes, start=1):
        attempt = RunPaths(paths.attempts / str(number))
        attempt.directory.mkdir(parents=True)
        if outcome is not None:  # a start of a job that was requeued
            runs.failure(attempt, outcome, failed_nodes=(f"node{number}",))
    assert attempts.cluster_faults_in_a_row(paths) == 2
    runs.failure(paths, "node_failure", failed_nodes=("node1",))
    assert attempts.cluster_faults_in_a_row(paths) == 3
    assert attempts.failed_nodes(paths) == ("node1", "node2", "node3", "node5")
    runs.failure(paths, "timeout")
    assert attempts.cluster_faults_in_a_row(paths) == 0
