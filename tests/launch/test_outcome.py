"""How a run ended, told from what it left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch import runs
from workflow_lib import records
from workflow_lib.launch import outcome
from workflow_lib.records import JobRecord, Outcome, RunPaths


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return runs.rendered(tmp_path)


def test_trained_to_the_end_with_full_telemetry_is_completed(paths):
    runs.complete(paths)
    found = outcome.classify(paths, "COMPLETED")
    assert found.outcome is Outcome.COMPLETED
    assert found.outcome.is_result
    assert (found.job_id, found.nodes, found.scheduler_state) == ("7", (runs.NODE,), "COMPLETED")
    assert (found.started_unix_s, found.ended_unix_s) == (runs.START_S, runs.START_S + 20)
    assert not found.script_edited


def test_a_hole_in_the_telemetry_makes_it_invalid(paths):
    runs.complete(paths)
    samples = paths.gpu_samples(runs.NODE)
    lines = samples.read_text().splitlines(keepends=True)
    # Two samples a tick, two ticks a second: ticks 11 to 15 lie within the measured steps.
    samples.write_text("".join(lines[:23] + lines[33:]))
    found = outcome.classify(paths, "COMPLETED")
    assert found.outcome is Outcome.TELEMETRY_INVALID
    assert not found.outcome.is_result
    assert "no power sample for 3.0 s" in found.cause


def test_a_corrupt_telemetry_file_is_named(paths):
    runs.complete(paths)
    samples = paths.gpu_samples(runs.NODE)
    samples.write_bytes(samples.read_bytes().replace(b"100.0", b"\xff\xfe", 1))
    found = outcome.classify(paths, None)
    assert found.outcome is Outcome.TELEMETRY_INVALID
    assert str(samples) in found.cause


def test_out_of_memory_of_a_rank_is_a_result(paths):
    runs.fail(paths, 1, Outcome.OUT_OF_MEMORY, "CUDA out of memory", 5)
    runs.end(paths, "training", training_exit=1)
    found = outcome.classify(paths, "FAILED")
    assert found.outcome is Outcome.OUT_OF_MEMORY
    assert found.outcome.is_result
    assert found.cause == "rank 1 on node1, in forward_backward: CUDA out of memory"


def test_the_first_error_counts_and_not_its_consequences(paths):
    runs.fail(paths, 0, Outcome.ERROR, "connection closed by peer", 6)
    runs.fail(paths, 1, Outcome.NONFINITE_LOSS, "the loss is NaN", 5)
    runs.end(paths, "training", training_exit=1)
    assert outcome.classify(paths, "FAILED").outcome is Outcome.NONFINITE_LOSS


def test_a_rank_that_waited_in_vain_comes_after_the_one_that_it_waited_for(paths):
    runs.fail(paths, 0, Outcome.COMMUNICATION_TIMEOUT, "timed out", 5)
    runs.fail(paths, 1, Outcome.OUT_OF_MEMORY, "CUDA out of memory", 6)
    runs.end(paths, "training", training_exit=1)
    assert outcome.classify(paths, "FAILED").outcome is Outcome.OUT_OF_MEMORY


def test_ranks_that_all_waited_in_vain_are_a_communication_timeout(paths):
    runs.fail(paths, 0, Outcome.COMMUNICATION_TIMEOUT, "timed out", 5)
    runs.fail(paths, 1, Outcome.COMMUNICATION_TIMEOUT, "timed out too", 6)
    runs.end(paths, "training", training_exit=1)
    found = outcome.classify(paths, "FAILED")
    assert found.outcome is Outcome.COMMUNICATION_TIMEOUT
    assert "rank 0" in found.cause


def test_a_rank_that_did_not_arrive_is_named_before_those_that_waited(paths):
    runs.train(paths)
    runs.fail(paths, 0, Outcome.COMMUNICATION_TIMEOUT, "timed out", 5)
    runs.end(paths, "training", training_exit=1)
    found = outcome.classify(paths, "FAILED")
    assert found.outcome is Outcome.COMMUNICATION_TIMEOUT
    assert found.cause.startswith(f"rank 1 on {runs.NODE} did not arrive; rank 0 on ")


def test_what_nccls_watchdog_said_names_the_collective_and_who_did_not_arrive(paths):
    runs.train(paths)
    paths.logs.mkdir(exist_ok=True)
    (paths.logs / "training.log").write_text(
        "step 3/12 (measured)\n"
        "[rank1]:[E1218 20:27:21.4 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=9, NumelOut=9, "
        "Timeout(ms)=120000) ran for 120081 milliseconds before timing out.\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    )
    runs.end(paths, "training", training_exit=134)
    found = outcome.classify(paths, "FAILED")
    assert found.outcome is Outcome.COMMUNICATION_TIMEOUT
    assert found.cause == (
        f"rank 1 on {runs.NODE} waited in vain in ALLREDUCE (NCCL's watchdog); "
        f"rank 0 on {runs.NODE} did not arrive"
    )


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("NODE_FAIL", Outcome.NODE_FAILURE),
        ("PREEMPTED", Outcome.PREEMPTED),
        ("CANCELLED by 0", Outcome.CANCELLED),
        ("TIMEOUT", Outcome.TIMEOUT),
    ],
)
def test_who_took_the_others_away_says_more_than_who_waited_for_them(paths, state, expected):
    runs.fail(paths, 0, Outcome.COMMUNICATION_TIMEOUT, "timed out", 5)
    assert outcome.classify(paths, state).outcome is expected


def test_the_warning_before_the_time_limit_makes_it_a_timeout(paths):
    runs.fail(paths, 0, Outcome.COMMUNICATION_TIMEOUT, "timed out", 5)
    runs.end(paths, "time_limit", training_exit=143)
    found = outcome.classify(paths, "FAILED")
    assert found.outcome is Outcome.TIMEOUT
    assert "time limit" in found.cause


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("TIMEOUT", Outcome.TIMEOUT),
        ("DEADLINE", Outcome.TIMEOUT),
        ("NODE_FAIL", Outcome.NODE_FAILURE),
        ("BOOT_FAIL", Outcome.NODE_FAILURE),
        ("PREEMPTED", Outcome.PREEMPTED),
        ("CANCELLED", Outcome.CANCELLED),
        ("CANCELLED by 0", Outcome.CANCELLED),
        ("CANCELLED+", Outcome.CANCELLED),
        ("OUT_OF_MEMORY", Outcome.OUT_OF_MEMORY),
    ],
)
def test_without_a_last_word_slurm_says_how_it_ended(paths, state, expected):
    found = outcome.classify(paths, state)
    assert found.outcome is expected
    assert f"({state})" in found.cause


def test_host_memory_that_ran_out_is_out_of_memory_though_training_only_saw_a_signal(paths):
    runs.end(paths, "training", training_exit=137)
    assert outcome.classify(paths, "OUT_OF_MEMORY").outcome is Outcome.OUT_OF_MEMORY


@pytest.mark.parametrize("state", ["FAILED", "COMPLETED", "FINISHED", None])
def test_no_last_word_and_no_reason_is_an_error_that_says_where_to_look(paths, state):
    job = JobRecord(scheduler="slurm", job_id="9", submitted_unix_s=1.0, submitted_by="me")
    records.write_json(paths.job, job)
    found = outcome.classify(paths, state)
    assert found.outcome is Outcome.ERROR
    assert "without its last word" in found.cause
    assert str(paths.logs) in found.cause
    assert (found.job_id, found.started_unix_s, found.nodes) == ("9", None, ())


def test_training_that_was_killed_without_a_record_names_the_signal_and_the_last_line(paths):
    (paths.logs / "training.log").write_text("step 1\nstep 2\n\n")
    runs.end(paths, "training", training_exit=137)
    found = outcome.classify(paths, "FAILED")
    assert found.outcome is Outcome.ERROR
    assert "signal 9" in found.cause
    assert found.cause.endswith("step 2")


def test_training_that_failed_without_a_record_names_its_exit_code(paths):
    runs.end(paths, "training", training_exit=3)
    found = outcome.classify(paths, "FAILED")
    assert found.outcome is Outcome.ERROR
    assert "exit code 3" in found.cause
    assert "training.log is missing" in found.cause


def test_telemetry_that_never_started_is_no_result(paths):
    (paths.logs / "telemetry.log").write_text("NVML is not there\n")
    runs.end(paths, "telemetry", training_exit=None, telemetry_exit=1)
    found = outcome.classify(paths, "FAILED")
    assert found.outcome is Outcome.TELEMETRY_INVALID
    assert found.cause == "telemetry did not start: NVML is not there"


def test_a_job_that_was_asked_to_end_was_cancelled(paths):
    runs.fail(paths, 0, Outcome.COMMUNICATION_TIMEOUT, "timed out", 5)
    runs.end(paths, "interrupted", training_exit=143)
    assert outcome.classify(paths, "FINISHED").outcome is Outcome.CANCELLED


def test_any_other_stage_that_failed_is_named(paths):
    runs.end(paths, "environment", training_exit=None, telemetry_exit=None)
    found = outcome.classify(paths, "FAILED")
    assert found.outcome is Outcome.ERROR
    assert "'environment'" in found.cause


def test_a_script_edited_by_hand_is_marked(paths):
    runs.complete(paths)
    paths.script.write_text(paths.script.read_text().replace("stage=baseline", "stage=idle"))
    found = outcome.classify(paths, "COMPLETED")
    assert found.outcome is Outcome.COMPLETED
    assert found.script_edited


def test_an_unreadable_last_word_is_refused_by_name(paths):
    paths.ended.write_text('{"job_id": ')
    with pytest.raises(records.RecordError, match=r"ended\.json"):
        outcome.classify(paths, "COMPLETED")


def test_a_script_that_was_edited_ran_and_was_put_back_is_still_marked(paths):
    runs.complete(paths)
    runs.end(paths, script_sha256="0" * 64)
    ended = outcome.classify(paths, "COMPLETED")
    assert ended.script_edited
    assert ended.cause.endswith("its job.sh was edited by hand after it was rendered")


def test_a_sampler_that_died_is_named_with_its_last_words(paths):
    runs.complete(paths)
    runs.end(paths, telemetry_exit=137)
    sampled = paths.gpu_samples(runs.NODE)
    sampled.write_text(sampled.read_text().splitlines(keepends=True)[0])
    (paths.logs / "telemetry.log").write_text("cannot write: No space left on device\n")
    ended = outcome.classify(paths, "COMPLETED")
    assert ended.outcome == Outcome.TELEMETRY_INVALID
    assert "The sampler ended with signal 9: cannot write: No space left on device" in ended.cause
