"""How a run ended, told from what it left."""

from __future__ import annotations

import pytest

from tests.launch import runs
from workflow_lib import records
from workflow_lib.launch import outcome
from workflow_lib.records import JobRecord, JobState, Outcome, OutcomeRecord, RunPaths

ERROR, WAITED, KILLED = Outcome.ERROR, Outcome.COMMUNICATION_TIMEOUT, "SIGKILL"


def said(paths: RunPaths, state: str | None, **more: str | None) -> OutcomeRecord:
    """How the run ended, of whose job Slurm says this."""
    return outcome.classify(paths, None if state is None else JobState(state, **more))


def test_trained_to_the_end_with_full_telemetry_is_completed(paths):
    runs.complete(paths)
    found = said(paths, "COMPLETED")
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
    found = said(paths, "COMPLETED")
    assert found.outcome is Outcome.TELEMETRY_INVALID
    assert not found.outcome.is_result
    assert "sample for 3.0 s" in found.cause


def test_a_profiled_run_is_judged_by_its_traces_and_not_by_its_telemetry(paths):
    profiled = RunPaths(paths.directory.with_name("run0"))
    paths.directory.rename(profiled.directory)
    runs.train(profiled)
    runs.end(profiled)
    profiled.gpu_samples(runs.NODE).unlink()
    profiled.traces.mkdir()
    profiled.trace(0).touch()
    found = said(profiled, "COMPLETED")
    assert found.outcome is Outcome.ERROR
    assert found.cause.startswith("rank 1 ")
    assert str(profiled.trace(1)) in found.cause
    profiled.trace(1).touch()
    assert said(profiled, "COMPLETED").outcome is Outcome.COMPLETED


def test_a_corrupt_telemetry_file_is_named(paths):
    runs.complete(paths)
    samples = paths.gpu_samples(runs.NODE)
    samples.write_bytes(samples.read_bytes().replace(b"100.0", b"\xff\xfe", 1))
    found = said(paths, None)
    assert found.outcome is Outcome.TELEMETRY_INVALID
    assert str(samples) in found.cause


def test_out_of_memory_of_a_rank_is_a_result(paths):
    memory = "CUDA out of memory"
    runs.fail(paths, 1, Outcome.OUT_OF_MEMORY, memory, 5)
    runs.end(paths, "training", training_exit=1)
    found = said(paths, "FAILED")
    assert found.outcome is Outcome.OUT_OF_MEMORY
    assert found.outcome.is_result
    assert found.cause == f"rank 1 on {runs.NODE}, in forward_backward: {memory}"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (Outcome.NONFINITE_LOSS, ERROR, Outcome.NONFINITE_LOSS),
        # Who waited in vain comes after the one that it waited for.
        (WAITED, Outcome.OUT_OF_MEMORY, Outcome.OUT_OF_MEMORY),
        (WAITED, WAITED, WAITED),
    ],
)
def test_the_first_error_counts_and_not_its_consequences(paths, first, second, expected):
    runs.fail(paths, 1, second, "the second", 6)
    runs.fail(paths, 0, first, "the first", 5)
    runs.end(paths, "training", training_exit=1)
    found = said(paths, "FAILED")
    assert found.outcome is expected
    assert ("rank 1" if expected is Outcome.OUT_OF_MEMORY else "rank 0") in found.cause


def test_a_rank_that_did_not_arrive_is_named_before_those_that_waited(paths):
    runs.train(paths)
    runs.fail(paths, 0, WAITED, "timed out", 5)
    runs.end(paths, "training", training_exit=1)
    found = said(paths, "FAILED")
    assert found.outcome is WAITED
    assert found.cause.startswith(f"rank 1 on {runs.NODE} did not arrive; ")


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
    found = said(paths, "FAILED")
    assert found.outcome is WAITED
    assert found.cause.startswith(f"rank 0 on {runs.NODE} did not arrive; ")
    assert "in ALLREDUCE" in found.cause


def test_the_warning_before_the_time_limit_makes_it_a_timeout(paths):
    runs.fail(paths, 0, WAITED, "timed out", 5)
    runs.end(paths, "time_limit", training_exit=143)
    found = said(paths, "FAILED")
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
@pytest.mark.parametrize("others_waited", [False, True])
def test_without_an_end_record_slurm_says_how_it_ended(paths, state, expected, others_waited):
    if others_waited:
        runs.fail(paths, 0, WAITED, "timed out", 5)
    found = said(paths, state)
    assert found.outcome is expected
    assert f"({state})" in found.cause


def test_host_memory_that_ran_out_is_out_of_memory_though_training_only_saw_a_signal(paths):
    runs.end(paths, "training", training_exit=137)
    assert said(paths, "OUT_OF_MEMORY").outcome is Outcome.OUT_OF_MEMORY


@pytest.mark.parametrize("state", ["FAILED", "COMPLETED", "FINISHED", "LOST", None])
def test_no_end_record_and_no_reason_is_an_error_that_says_where_to_look(paths, state):
    job = JobRecord(scheduler="slurm", job_id="9", submitted_unix_s=1.0, submitted_by="me")
    records.write_json(paths.job, job)
    found = said(paths, state)
    assert found.outcome is Outcome.ERROR
    assert "end record" in found.cause
    assert str(paths.logs) in found.cause
    assert (found.job_id, found.started_unix_s, found.nodes) == ("9", None, ())


def test_training_that_was_killed_without_a_record_names_the_signal_and_the_last_line(paths):
    (paths.logs / "training.log").write_text("step 1\nstep 2\n\n")
    runs.end(paths, "training", training_exit=137)
    found = said(paths, "FAILED")
    assert found.outcome is Outcome.ERROR
    assert "SIGKILL" in found.cause
    assert found.cause.endswith("step 2")


def test_training_that_failed_without_a_record_names_its_exit_code(paths):
    runs.end(paths, "training", training_exit=3)
    found = said(paths, "FAILED")
    assert found.outcome is Outcome.ERROR
    assert "exit code 3" in found.cause
    assert "log is missing" in found.cause


def test_telemetry_that_never_started_is_no_result(paths):
    (paths.logs / "telemetry.log").write_text("NVML is missing\n")
    runs.end(paths, "telemetry", training_exit=None, telemetry_exit=1)
    found = said(paths, "FAILED")
    assert found.outcome is Outcome.TELEMETRY_INVALID
    assert found.cause.endswith(": NVML is missing")


def test_a_gpu_that_was_lost_before_the_start_is_its_nodes_failure(paths):
    (paths.logs / "telemetry.log").write_text("GPU 1 does not answer: GPU is lost\n")
    runs.report(paths, "lost")
    paths.telemetry_start(runs.NODE).unlink()  # the sampler did not start
    runs.end(paths, "telemetry", training_exit=None, telemetry_exit=1)
    found = said(paths, "FAILED")
    assert (found.outcome, found.failed_nodes) == (Outcome.NODE_FAILURE, (runs.NODE,))


NOTHING_THERE = "NVML did not start: NVML Shared Library Not Found; is this a node with a driver?"


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        # As srun writes it: what it made of the tasks comes last.
        (
            f"telemetry on h200-1: {NOTHING_THERE}\n"
            f"telemetry on h200-2: {NOTHING_THERE}\n"
            "srun: error: h200-1: task 0: Exited with exit code 1\n"
            "srun: error: h200-2: task 1: Exited with exit code 1\n",
            f"telemetry did not start on h200-1, h200-2: {NOTHING_THERE}",
        ),
        # Two nodes fail, each for a reason of its own.
        (
            "telemetry on h200-2: nvidia shows 7 GPUs, but 8 ranks run on this node\n"
            f"telemetry on h200-1: {NOTHING_THERE}\n"
            "srun: error: h200-[1-2]: tasks 0-1: Exited with exit code 1\n",
            "telemetry did not start on h200-2: nvidia shows 7 GPUs, but 8 ranks run on this node; "
            f"on h200-1: {NOTHING_THERE}",
        ),
        (
            "".join(f"telemetry on n{node}: {NOTHING_THERE}\n" for node in range(9)),
            f"telemetry did not start on n0, n1, n2, n3, 5 more: {NOTHING_THERE}",
        ),
        (
            "slurmstepd: error: execve(): /opt/venv/bin/python: No such file or directory\n"
            "srun: error: h200-[1-2]: tasks 0-1: Exited with exit code 2\n",
            "telemetry did not start on h200-[1-2]: execve(): /opt/venv/bin/python: No such file "
            "or directory",
        ),
        (
            "Traceback (most recent call last):\n"
            '  File "/srv/triptych/workflow_lib/telemetry/__main__.py", line 12, in <module>\n'
            "    import pynvml\n"
            "ModuleNotFoundError: No module named 'pynvml'\n"
            "srun: error: h200-1: task 0: Exited with exit code 1\n"
            "srun: error: h200-2: task 1: Exited with exit code 1\n",
            "telemetry did not start on h200-1, h200-2: ModuleNotFoundError: No module named "
            "'pynvml'",
        ),
        (
            "FATAL:   could not open image /images/torch.sif: no such file or directory\n"
            "srun: error: h200-2: task 1: Exited with exit code 255\n",
            "telemetry did not start on h200-2: could not open image /images/torch.sif: no such "
            "file or directory",
        ),
        # Into files, too, apptainer writes this in colours.
        (
            "WARNING: passwd file doesn't exist in container, not updating\n"
            "\x1b[91mERROR  : Requesting capability set 0x1ff while permitted capability set is "
            "0x1fe\n\x1b[0msrun: error: h200-1: task 0: Exited with exit code 1\n",
            "telemetry did not start on h200-1: Requesting capability set 0x1ff while permitted "
            "capability set is 0x1fe",
        ),
        (
            "slurmstepd: error: pyxis: child 4021 failed with error code: 1\n"
            "slurmstepd: error: pyxis: failed to import docker image\n"
            "slurmstepd: error: pyxis: printing enroot log file:\n"
            "slurmstepd: error: pyxis:     [INFO] Querying registry for permission grant\n"
            "slurmstepd: error: pyxis:     [ERROR] URL https://registry returned error code: 401\n"
            "slurmstepd: error: pyxis: couldn't start container\n"
            "slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed\n"
            "srun: error: h200-1: task 0: Exited with exit code 1\n",
            "telemetry did not start on h200-1: URL https://registry returned error code: 401",
        ),
        (
            "srun: error: Unable to create step for job 9: Requested node configuration is not "
            "available\n",
            "telemetry did not start: Unable to create step for job 9: Requested node "
            "configuration is not available",
        ),
    ],
)
def test_the_cause_is_what_failed_said_and_not_what_its_launcher_made_of_it(paths, log, cause):
    (paths.logs / "telemetry.log").write_text(log)
    runs.end(paths, "telemetry", training_exit=None, telemetry_exit=1)
    assert said(paths, "FAILED").cause == cause


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (
            "[W1122 socket.cpp] warning\nTraceback (most recent call last):\n"
            "Traceback (most recent call last):\n"
            '  File "train.py", line 1, in <module>\n  File "train.py", line 1, in <module>\n'
            "ImportError: libnccl.so.2: cannot open shared object file\n"
            "ImportError: libnccl.so.2: cannot open shared object file\n"
            "srun: error: h200-1: tasks 0-7: Exited with exit code 1\n"
            "srun: Terminating StepId=9.1\n",
            "training.log says on h200-1: ImportError: libnccl.so.2: cannot open shared object "
            "file",
        ),
        # torchrun's own traceback is of what it started.
        (
            "E1122 20:27:21.412 91 torch/distributed/elastic/multiprocessing/api.py:1010] failed\n"
            "Traceback (most recent call last):\n"
            '  File "torch/distributed/run.py", line 896, in run\n'
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
            "=====\nFATAL:   container creation failed: no loop devices\n",
            "training.log says: container creation failed: no loop devices",
        ),
        (
            "step 1\nstep 2\nsrun: error: h200-1: task 3: Exited with exit code 3\n",
            "training.log says on h200-1: step 2",
        ),
    ],
)
def test_so_is_that_of_training(paths, log, words):
    (paths.logs / "training.log").write_text(log)
    runs.end(paths, "training", training_exit=1)
    assert said(paths, "FAILED").cause.endswith(words)


def test_of_a_long_log_its_beginning_counts_as_well(paths):
    steps = "".join(f"step {number}\n" for number in range(40_000))
    (paths.logs / "training.log").write_text(f"triptych: the first words\n{steps}srun: error: x\n")
    runs.end(paths, "training", training_exit=1)
    assert said(paths, "FAILED").cause.endswith(": the first words")


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (
            "Lmod has detected the following error:  These module(s) exist but cannot load: x\n"
            "   Try: module spider x\nAlso make sure that all modulefiles written in TCL start "
            "with the string #%Module\n",
            "it could not load a module; LOG says: These module(s) exist but cannot load: x",
        ),
        (
            "ERROR: Unable to locate a modulefile for 'cuda/99'\nsomething after it\n",
            "it could not load a module; LOG says: Unable to locate a modulefile for 'cuda/99'",
        ),
        (
            "/var/spool/slurmd/job00009/slurm_script: line 61: module: command not found\n",
            "it could not load a module; LOG says: module: command not found",
        ),
    ],
)
def test_so_is_that_of_a_module(paths, log, words):
    records.write_json(paths.job, JobRecord("slurm", "9", 1.0, "me"))
    (paths.logs / "slurm-9.log").write_text(log)
    found = said(paths, "FAILED", exit_code="74:0")
    assert found.cause.endswith(words.replace("LOG", str(paths.logs / "slurm-9.log")))


def test_a_job_that_was_asked_to_end_was_cancelled(paths):
    runs.fail(paths, 0, WAITED, "timed out", 5)
    runs.end(paths, "interrupted", training_exit=143)
    assert said(paths, "FINISHED").outcome is Outcome.CANCELLED


def test_any_other_stage_that_failed_is_named(paths):
    runs.end(paths, "environment", training_exit=None, telemetry_exit=None)
    found = said(paths, "FAILED")
    assert found.outcome is Outcome.ERROR
    assert "'environment'" in found.cause


def test_a_script_edited_by_hand_is_marked(paths):
    runs.complete(paths)
    paths.script.write_text(paths.script.read_text().replace("stage=baseline", "stage=idle"))
    found = said(paths, "COMPLETED")
    assert found.outcome is Outcome.COMPLETED
    assert found.script_edited


def test_the_code_is_that_of_all_parts_or_the_mixture_is_named(paths):
    runs.complete(paths)
    assert said(paths, "COMPLETED").code_sha256 is None  # as in records of earlier versions
    files = [paths.ended, paths.rank(0), paths.rank(1), paths.telemetry_start(runs.NODE)]
    for file in files:
        records.write_json(file, records.read_json(file) | {"code_sha256": "a" * 64})
    found = said(paths, "COMPLETED")
    assert found.code_sha256 == "a" * 64
    assert "versions" not in found.cause
    for other in ("b" * 64, None):
        for file in files:
            whole = records.read_json(file)
            records.write_json(file, whole | {"code_sha256": other})
            found = said(paths, "COMPLETED")
            assert found.code_sha256 is None
            told = found.cause.partition("different versions of the code: ")[2]
            assert told == f"aaaaaaaaaaaa, {'b' * 12 if other else 'one not recorded'}"
            records.write_json(file, whole)


def test_an_unreadable_end_record_is_named_and_the_rest_is_used(paths):
    paths.ended.write_text('{"job_id": ')
    runs.fail(paths, 1, Outcome.NONFINITE_LOSS, "the loss is NaN", 5)
    found = said(paths, "FAILED")
    assert found.outcome is Outcome.NONFINITE_LOSS
    assert found.cause.startswith(f"rank 1 on {runs.NODE}, ")
    assert "loss is NaN; " in found.cause
    assert f"not readable: {paths.ended}: " in found.cause


def test_a_script_that_was_edited_ran_and_was_put_back_is_still_marked(paths):
    runs.complete(paths)
    runs.end(paths, script_sha256="0" * 64)
    ended = said(paths, "COMPLETED")
    assert ended.script_edited
    assert "was edited" in ended.cause


def test_a_sampler_that_died_is_named_with_its_end_records(paths):
    runs.complete(paths)
    runs.end(paths, telemetry_exit=137)
    sampled = paths.gpu_samples(runs.NODE)
    sampled.write_text(sampled.read_text().splitlines(keepends=True)[0])
    (paths.logs / "telemetry.log").write_text("cannot write: No space left on device\n")
    ended = said(paths, "COMPLETED")
    assert ended.outcome == Outcome.TELEMETRY_INVALID
    assert "SIGKILL: cannot write: " in ended.cause


def test_what_the_first_rank_to_fail_said_names_where_its_traceback_is(paths):
    runs.fail(paths, 1, ERROR, "KeyError: 'x'", 5)
    runs.end(paths, "training", training_exit=1)
    assert said(paths, "FAILED").cause == (
        f"rank 1 on {runs.NODE}, in forward_backward: KeyError: 'x' "
        f"(traceback: {paths.rank_error(1)})"
    )


def test_an_error_of_nccl_says_what_nccl_warned_of(paths):
    # Two nodes whose GRES named one GPU: logged on two emulated nodes, torch 2.11.
    error = "DistBackendError: NCCL error in: NCCLUtils.cpp:93, invalid usage (run with "
    error += "NCCL_DEBUG=WARN for details), NCCL version 2.28.9"
    runs.fail(paths, 0, ERROR, error, 5)
    runs.end(paths, "training", training_exit=1)
    traceback = f" (traceback: {paths.rank_error(0)})"
    before = f"rank 0 on node1, in forward_backward: {error}"
    assert said(paths, "FAILED").cause == before + traceback
    (paths.logs / "training.log").write_text(
        "NCCL version 2.28.9+cuda13.0\n"
        "[2026-11-24 18:06:11] vm:20091:20091 [0] init.cc:904 NCCL WARN Duplicate GPU detected : "
        "rank 0 and rank 1 both on CUDA device 60\n"
        "[2026-11-24 18:06:11] vm:20092:20092 [0] init.cc:904 NCCL WARN Duplicate GPU detected : "
        "rank 1 and rank 0 both on CUDA device 60\n",
        encoding="utf-8",
    )
    warned = "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60"
    assert said(paths, "FAILED").cause == f"{before}; NCCL says: {warned}{traceback}"


def test_a_killed_rank_is_named_and_not_those_that_it_took_with_it(paths):
    runs.leave(paths, 1, KILLED, 5.0)
    runs.fail(paths, 0, ERROR, "RuntimeError: NCCL is confused", 5.5)
    runs.fail(paths, 2, WAITED, "connection closed by peer", 5.1)
    runs.leave(paths, 2, 1, 5.2)
    runs.leave(paths, 3, "SIGTERM", 6.0, told=True)
    runs.end(paths, "training", training_exit=1)
    found = said(paths, "FAILED")
    assert found.outcome is ERROR
    assert found.cause.startswith(f"rank 1 on {runs.NODE} was ended by {KILLED}")
    assert "memory had not" in found.cause
    assert found.failed_nodes == ()


def test_an_error_before_the_kills_that_it_led_to_is_the_cause(paths):
    runs.leave(paths, 1, KILLED, 5.5, kills=None)
    runs.fail(paths, 0, ERROR, "ValueError: no such thing", 5)
    runs.end(paths, "training", training_exit=1)
    assert "no such thing" in said(paths, "FAILED").cause


def test_of_ranks_that_were_all_killed_the_first_is_named_and_the_others_are_counted(paths):
    for rank, after_s in enumerate((5.2, 5.1, 5.3)):
        runs.leave(paths, rank, KILLED, after_s, kills=None)
    found = said(paths, "FAILED")
    assert found.cause.startswith("rank 1 on ")
    assert found.cause.endswith("so were 2 more")


@pytest.mark.parametrize(
    ("how", "kills", "expected", "words"),
    [
        (KILLED, 1, Outcome.OUT_OF_MEMORY, "the kernel ended 1 of its control group's processes"),
        ("SIGSEGV", 0, ERROR, "crashed with SIGSEGV and left no error record; /"),
        ("SIGABRT", 0, ERROR, "crashed with SIGABRT"),
        (3, 0, ERROR, "exited with 3 and left no error record; /"),
    ],
)
def test_an_end_without_an_error_record_is_told_by_the_ranks_watcher(
    paths, how, kills, expected, words
):
    runs.leave(paths, 1, how, 5, kills=kills)
    runs.fail(paths, 0, WAITED, "connection reset by peer", 4.9)
    runs.end(paths, "training", training_exit=1)
    found = said(paths, "FAILED")
    assert found.outcome is expected
    assert found.cause.startswith(f"rank 1 on {runs.NODE} ")
    assert words in found.cause


@pytest.mark.parametrize(
    ("state", "more", "expected", "words"),
    [
        ("NODE_FAIL", {"failed_node": "gpu17"}, Outcome.NODE_FAILURE, "failed: gpu17"),
        ("NODE_FAIL", {}, Outcome.NODE_FAILURE, "which one is not known"),
        ("LAUNCH_FAILED", {"reason": "Prolog"}, Outcome.NODE_FAILURE, "FAILED, reason Prolog)"),
        ("PREEMPTED", {}, Outcome.PREEMPTED, "(PREEMPTED)"),
        ("CANCELLED by 0", {}, Outcome.CANCELLED, "cancelled by root (CANCELLED by 0)"),
        ("CANCELLED by 4000111", {}, Outcome.CANCELLED, "cancelled by user 4000111"),
        ("TIMEOUT", {"reason": "TimeLimit"}, Outcome.TIMEOUT, "reason TimeLimit"),
        ("OUT_OF_MEMORY", {}, Outcome.OUT_OF_MEMORY, "(OUT_OF_MEMORY); rank 1 on node1"),
        ("FAILED", {"step_exit_code": "0:125"}, Outcome.OUT_OF_MEMORY, "steps' 0:125); rank 1 on"),
    ],
)
def test_kills_by_the_scheduler_are_explained_by_what_it_says(paths, state, more, expected, words):
    runs.leave(paths, 1, KILLED, 5, kills=None)
    runs.fail(paths, 0, WAITED, "timed out", 4)
    found = said(paths, state, **more)
    assert found.outcome is expected
    assert words in found.cause
    assert found.failed_nodes == tuple(filter(None, [more.get("failed_node")]))


@pytest.mark.parametrize(
    ("line", "words", "nodes"),
    [
        (
            "srun: error: Node failure on h200-2",
            "under the job: h200-2 (srun says so)",
            ("h200-2",),
        ),
        (
            "slurmstepd: error: *** STEP 9.1 ON h200-1 CANCELLED AT 2026-11-21T10:00:00 DUE TO "
            "NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
            "under the job: which one is not known",
            (),
        ),
    ],
)
@pytest.mark.parametrize("log", ["slurm-9.log", "training.log"])
def test_a_node_that_failed_under_a_step_is_told_by_slurms_logs(paths, log, line, words, nodes):
    """Where another node runs the script, that goes on, and the job's state is FAILED."""
    records.write_json(paths.job, JobRecord("slurm", "9", 1.0, "me"))
    runs.leave(paths, 1, KILLED, 5, kills=None)
    runs.end(paths, "training", training_exit=1, job_id="9")
    (paths.logs / log).write_text(f"step 3\n{line}\nsrun: Force Terminated StepId=9.1\n")
    found = said(paths, "FAILED")
    assert (found.outcome, found.failed_nodes) == (Outcome.NODE_FAILURE, nodes)
    assert words in found.cause


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        ("0:9", "exit code 0:9): its script was ended by SIGKILL"),
        ("73:0", "exit code 73:0): it could not make the run's directories"),
        ("74:0", "it could not load a module"),
    ],
)
def test_of_a_job_without_a_end_record_its_scripts_exit_code_is_explained(paths, exit_code, words):
    records.write_json(paths.job, JobRecord("slurm", "9", 1.0, "me"))
    (paths.logs / "slurm-9.log").write_text("module: command not found\n")
    found = said(paths, "FAILED", exit_code=exit_code)
    assert found.outcome is ERROR
    assert words in found.cause
    assert found.cause.endswith(": command not found")
    assert "slurm-9.log says" in found.cause


@pytest.mark.parametrize(
    ("exit_code", "words", "absent"),
    [
        # Slurm 22.05 gives slurmd's error 4021 as an exit code if it cannot write the log.
        ("15:53", "could not start", "signal"),
        ("0:53", "could not start", "signal"),
        ("0:9", "ended by SIGKILL", "could not start"),
    ],
)
def test_a_script_that_was_killed_is_told_from_one_that_could_not_start(
    paths, exit_code, words, absent
):
    """Slurm gives the same reason."""
    records.write_json(paths.job, JobRecord("slurm", "9", 1.0, "me"))
    found = said(paths, "FAILED", exit_code=exit_code, reason="JobLaunchFailure")
    assert words in found.cause
    assert absent not in found.cause


def test_the_cause_of_a_job_of_this_machine_stands_in_submitits_log(paths):
    records.write_json(paths.job, JobRecord("local", "9", 1.0, "me"))
    (paths.logs / "9_0_log.out").write_text("triptych: this machine has no address\n")
    runs.end(paths, job_id="9", stage="environment", training_exit=None, telemetry_exit=None)
    found = said(paths, "FINISHED")
    assert found.outcome is ERROR
    assert found.cause.endswith("has no address")
    assert "9_0_log.out" in found.cause


def test_a_job_without_a_end_record_ran_where_its_ranks_and_samplers_were(paths):
    runs.train(paths)
    assert said(paths, "FAILED").nodes == (runs.NODE,)


@pytest.mark.parametrize(
    ("event", "code", "words"),
    [
        ("xid", 79, "GPU 1 of node1: Xid 79, the GPU fell off the bus; rank 1 on node1"),
        ("xid", 48, "Xid 48, an uncorrectable memory error"),
        ("xid", 94, "Xid 94, a contained memory error"),
        ("xid", 74, "Xid 74, an NVLink failed"),
        ("lost", None, "GPU 1 of node1: the driver lost it"),
        ("ecc_uncorrected", None, "an uncorrectable memory error (ECC)"),
    ],
)
@pytest.mark.parametrize("how", ["error", "crash", "kill"])
def test_a_rank_that_dies_where_a_gpu_failed_is_the_nodes_failure(paths, how, event, code, words):
    if how == "error":
        runs.fail(paths, 1, ERROR, "CUDA error: unspecified launch failure", 5)
    else:
        runs.leave(paths, 1, "SIGSEGV" if how == "crash" else KILLED, 5)
    runs.report(paths, event, code)
    runs.end(paths, "training", training_exit=1)
    found = said(paths, "FAILED")
    assert found.outcome is Outcome.NODE_FAILURE
    assert words in found.cause
    assert found.failed_nodes == (runs.NODE,)


@pytest.mark.parametrize(
    ("event", "code"),
    [("xid", 13), ("xid", 31), ("xid", 43), ("xid", 45), ("xid", 63), ("ecc_corrected", None)],
)
def test_what_applications_cause_or_memory_repairs_is_no_nodes_failure(paths, event, code):
    runs.fail(paths, 1, ERROR, "CUDA error: an illegal memory access was encountered", 5)
    runs.report(paths, event, code)
    runs.end(paths, "training", training_exit=1)
    found = said(paths, "FAILED")
    assert (found.outcome, found.failed_nodes) == (ERROR, ())
    assert "Xid" not in found.cause


def test_ranks_that_waited_in_vain_for_one_whose_gpu_was_lost_name_its_node(paths):
    runs.train(paths)
    runs.fail(paths, 0, WAITED, "timed out", 9)
    runs.report(paths, "xid", 79, "node2")
    runs.end(paths, "training", training_exit=1)
    found = said(paths, "FAILED")
    assert (found.outcome, found.failed_nodes) == (Outcome.NODE_FAILURE, ("node2",))
    assert found.cause.startswith("GPU 1 of node2: ")
    assert "; rank 1 on node1 " in found.cause


def test_a_fault_elsewhere_is_mentioned_and_explains_no_error_and_no_lack_of_memory(paths):
    runs.fail(paths, 1, Outcome.OUT_OF_MEMORY, "CUDA out of memory", 5)
    runs.report(paths, "xid", 79)
    found = said(paths, "FAILED")
    assert found.outcome is Outcome.OUT_OF_MEMORY
    assert "of node1: Xid 79, " in found.cause
    runs.fail(paths, 1, ERROR, "KeyError: 'x'", 5, node="node2")
    assert said(paths, "FAILED").outcome is ERROR


def test_a_rank_that_says_itself_that_its_gpu_is_broken_names_its_node(paths):
    runs.fail(paths, 1, Outcome.NODE_FAILURE, "uncorrectable ECC error encountered", 5, "node2")
    found = said(paths, "FAILED")
    assert (found.outcome, found.failed_nodes) == (Outcome.NODE_FAILURE, ("node2",))


def test_the_collective_that_a_rank_waited_in_is_named(paths):
    frames = (
        '  File "/venv/torch/distributed/c10d_logger.py", line 83, in wrapper\n'
        '  File "/venv/torch/distributed/distributed_c10d.py", line 3006, in all_reduce\n'
        "RuntimeError: Timed out waiting 4000ms for recv operation to complete\n"
    )
    runs.fail(paths, 0, WAITED, "timed out", 5, traceback=frames)
    runs.end(paths, "training", training_exit=1)
    assert said(paths, "FAILED").cause.endswith("in all_reduce)")


def test_errors_after_the_launcher_began_to_end_ranks_are_not_the_cause_of_a_cancellation(paths):
    runs.leave(paths, 0, "SIGTERM", 5, told=True)
    runs.fail(paths, 1, ERROR, "RuntimeError: unhandled system error", 5.1)
    runs.end(paths, "interrupted", training_exit=143)
    assert said(paths, "FAILED").outcome is Outcome.CANCELLED
    runs.end(paths, "training", training_exit=1)
    assert "unhandled system error" in said(paths, "FAILED").cause


def test_one_ranks_torn_record_is_named_and_the_others_are_used(paths):
    runs.train(paths)
    runs.fail(paths, 0, WAITED, "timed out", 5)
    paths.rank_error(1).write_text('{"rank": 1, "node')
    paths.rank(0).write_text("")
    runs.end(paths, "training", training_exit=1)
    found = said(paths, "FAILED")
    assert found.outcome is WAITED
    # Of rank 1 nothing is known, so that it is not accused of being late.
    assert "did not arrive" not in found.cause
    assert f"not readable: {paths.rank_error(1)}: " in found.cause


def test_torn_events_are_named_and_what_came_before_counts(paths):
    runs.leave(paths, 1, KILLED, 5)
    runs.report(paths, "xid", 79)
    with paths.gpu_events(runs.NODE).open("a") as stream:
        stream.write("garbage\n")
    found = said(paths, "FAILED")
    assert found.outcome is Outcome.NODE_FAILURE
    assert "events.csv, line 3: " in found.cause
