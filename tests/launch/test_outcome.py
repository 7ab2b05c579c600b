"""How a run ended, told from what it left."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.launch import runs
from tests.texts import edit
from workflow_lib.launch import outcome
from workflow_lib.records.files import read_json
from workflow_lib.records.outcomes import JobRecord, JobState, Outcome, OutcomeRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import write_json

ERROR, WAITED, KILLED = Outcome.ERROR, Outcome.COMMUNICATION_TIMEOUT, "SIGKILL"
MEMORY, NODE, CANCELLED = Outcome.OUT_OF_MEMORY, Outcome.NODE_FAILURE, Outcome.CANCELLED
INVALID = Outcome.TELEMETRY_INVALID
#: something that a run left
Left = Callable[[RunPaths], None]


def said(paths: RunPaths, state: str | None = "FAILED", **more: str | None) -> OutcomeRecord:
    """How the run ended, of whose job Slurm says this."""
    return outcome.classify(paths, None if state is None else JobState(state, **more))


def left(make: Callable[..., None]) -> Callable[..., Left]:
    """The maker, with all of its arguments but the run."""

    def with_arguments(*arguments: object, **options: object) -> Left:
        return lambda paths: make(paths, *arguments, **options)

    return with_arguments


fail, leave, report = left(runs.fail), left(runs.leave), left(runs.report)
end = left(partial(runs.end, training_exit=1))
TRAINING = end("training")


@left
def log(paths: RunPaths, name: str, text: str) -> None:
    (paths.logs / name).write_text(text)


@left
def job(paths: RunPaths, scheduler: str = "slurm") -> None:
    write_json(paths.job, JobRecord(scheduler, "9", 1.0, "me"))


# ----------------------------------------------------------------------- trained to its end


def test_trained_to_the_end_with_full_telemetry_is_completed(paths):
    runs.complete(paths)
    found = said(paths, "COMPLETED")
    assert found.outcome is Outcome.COMPLETED
    assert (found.job_id, found.nodes, found.scheduler_state) == ("7", (runs.NODE,), "COMPLETED")
    assert (found.started_unix_s, found.ended_unix_s) == (runs.START_S, runs.START_S + 20)
    assert not found.script_edited
    assert found.code_sha256 is None  # as in records of earlier versions


def test_a_hole_in_the_telemetry_makes_it_invalid(paths):
    runs.complete(paths)
    samples = paths.gpu_samples(runs.NODE)
    lines = samples.read_text().splitlines(keepends=True)
    # Two samples a tick, two ticks a second: ticks 11 to 15 lie within the measured steps.
    samples.write_text("".join(lines[:23] + lines[33:]))
    found = said(paths, "COMPLETED")
    assert found.outcome is INVALID
    assert "for 3.0 s" in found.cause


def test_a_corrupt_telemetry_file_is_named(paths):
    runs.complete(paths)
    samples = paths.gpu_samples(runs.NODE)
    samples.write_bytes(samples.read_bytes().replace(b"100.0", b"\xff\xfe", 1))
    found = said(paths, None)
    assert found.outcome is INVALID
    assert str(samples) in found.cause


def test_a_sampler_that_died_is_named_with_what_it_said(paths):
    runs.complete(paths)
    runs.end(paths, telemetry_exit=137)
    sampled = paths.gpu_samples(runs.NODE)
    sampled.write_text(sampled.read_text().splitlines(keepends=True)[0])
    log("telemetry.log", "No space left\n")(paths)
    ended = said(paths, "COMPLETED")
    assert ended.outcome is INVALID
    assert "SIGKILL: No space left" in ended.cause


def test_a_profiled_run_is_judged_by_its_traces_and_not_by_its_telemetry(paths):
    profiled = RunPaths(paths.directory.with_name("run0"))
    paths.directory.rename(profiled.directory)
    runs.train(profiled)
    runs.end(profiled)
    profiled.gpu_samples(runs.NODE).unlink()
    profiled.traces.mkdir()
    profiled.trace(0).touch()
    found = said(profiled, "COMPLETED")
    assert found.outcome is ERROR
    assert found.cause.startswith("rank 1 ")
    assert str(profiled.trace(1)) in found.cause
    profiled.trace(1).touch()
    assert said(profiled, "COMPLETED").outcome is Outcome.COMPLETED


@pytest.mark.parametrize("was_put_back", [False, True])
def test_a_script_edited_by_hand_is_marked(paths, was_put_back):
    runs.complete(paths)
    if was_put_back:
        runs.end(paths, script_sha256="0" * 64)
    else:
        edit(paths.script, "stage=baseline", "stage=idle")
    found = said(paths, "COMPLETED")
    assert found.outcome is Outcome.COMPLETED
    assert found.script_edited
    assert "edited" in found.cause


def test_the_code_is_that_of_all_parts_or_the_mixture_is_named(paths):
    runs.complete(paths)
    files = [paths.ended, paths.rank(0), paths.rank(1), paths.telemetry_start(runs.NODE)]
    for file in files:
        write_json(file, read_json(file) | {"code_sha256": "a" * 64})
    found = said(paths, "COMPLETED")
    assert found.code_sha256 == "a" * 64
    assert "versions" not in found.cause
    for other in ("b" * 64, None):
        for file in files:
            whole = read_json(file)
            write_json(file, whole | {"code_sha256": other})
            found = said(paths, "COMPLETED")
            assert found.code_sha256 is None
            assert f"aaaaaaaaaaaa, {'b' * 12 if other else 'one not recorded'}" in found.cause
            write_json(file, whole)


# -------------------------------------------------------------------------- ends of ranks

#: what a run left, how it ended, and the beginning of its cause
FIRST: dict[str, tuple[list[Left], Outcome, str]] = {
    "out of memory of a rank is a result": (
        [fail(1, MEMORY, "CUDA", 5), TRAINING],
        MEMORY,
        "rank 1 on node1, in forward_backward: CUDA",
    ),
    "the first error counts and not its consequences": (
        [fail(1, ERROR, "", 6), fail(0, Outcome.NONFINITE_LOSS, "", 5), TRAINING],
        Outcome.NONFINITE_LOSS,
        "rank 0 ",
    ),
    "who waited in vain comes after the one that it waited for": (
        [fail(1, MEMORY, "", 6), fail(0, WAITED, "", 5), TRAINING],
        MEMORY,
        "rank 1 ",
    ),
    "where all waited in vain the first is named": (
        [fail(1, WAITED, "", 6), fail(0, WAITED, "", 5), TRAINING],
        WAITED,
        "rank 0 ",
    ),
    "a rank that did not arrive is named before those that waited": (
        [runs.train, fail(0, WAITED, "timed out", 5), TRAINING],
        WAITED,
        "rank 1 on node1 did not arrive; ",
    ),
    "a killed rank is named and not those that it took with it": (
        [
            leave(1, KILLED, 5.0),
            fail(0, ERROR, "NCCL is confused", 5.5),
            fail(2, WAITED, "connection closed", 5.1),
            leave(2, 1, 5.2),
            leave(3, "SIGTERM", 6.0, told=True),
            TRAINING,
        ],
        ERROR,
        "rank 1 on node1 was ended by SIGKILL",
    ),
    "an error before the kills that it led to is the cause": (
        [leave(1, KILLED, 5.5, kills=None), fail(0, ERROR, "ValueError", 5), TRAINING],
        ERROR,
        "rank 0 on node1, in forward_backward: ValueError",
    ),
    "a rank that the kernel ended for want of memory": (
        [leave(1, KILLED, 5, kills=1), fail(0, WAITED, "reset", 4.9), TRAINING],
        MEMORY,
        "rank 1 on node1 ",
    ),
    "a rank that crashed": (
        [leave(1, "SIGSEGV", 5), fail(0, WAITED, "reset", 4.9), TRAINING],
        ERROR,
        "rank 1 on node1 crashed with SIGSEGV",
    ),
    "a rank that left without a word": (
        [leave(1, 3, 5), fail(0, WAITED, "reset", 4.9), TRAINING],
        ERROR,
        "rank 1 on node1 exited with 3",
    ),
    "an error after the launcher ends ranks is none of the cancellation's": (
        [
            leave(0, "SIGTERM", 5, told=True),
            fail(1, ERROR, "unhandled", 5.1),
            end("interrupted", training_exit=143),
        ],
        CANCELLED,
        "",
    ),
    "it is the cause where nothing else is": (
        [leave(0, "SIGTERM", 5, told=True), fail(1, ERROR, "unhandled", 5.1), TRAINING],
        ERROR,
        "rank 1 on node1, in forward_backward: unhandled",
    ),
}


@pytest.mark.parametrize("case", FIRST)
def test_the_rank_that_failed_first_says_how_the_run_ended(paths, case):
    what, expected, cause = FIRST[case]
    for make in what:
        make(paths)
    found = said(paths)
    assert found.outcome is expected
    assert found.cause.startswith(cause)
    assert found.failed_nodes == ()


def test_of_ranks_that_were_all_killed_the_first_is_named_and_the_others_are_counted(paths):
    for rank, after_s in enumerate((5.2, 5.1, 5.3)):
        runs.leave(paths, rank, KILLED, after_s, kills=None)
    found = said(paths)
    assert found.cause.startswith("rank 1 on ")
    assert found.cause.endswith(" 2 more")


def test_what_the_first_rank_to_fail_said_names_where_its_traceback_is(paths):
    runs.fail(paths, 1, ERROR, "KeyError: 'x'", 5)
    TRAINING(paths)
    assert said(paths).cause.endswith(f" KeyError: 'x' (traceback: {paths.rank_error(1)})")


def test_an_error_of_nccl_says_what_nccl_warned_of(paths):
    # Two nodes whose GRES named one GPU: logged on two emulated nodes, torch 2.11.
    error = "DistBackendError: NCCL error in: NCCLUtils.cpp:93, invalid usage"
    runs.fail(paths, 0, ERROR, error, 5)
    TRAINING(paths)
    warning = "[2026-11-24 18:06:11] vm:20091:20091 [0] NCCL WARN Duplicate GPU: rank {}"
    lines = ("NCCL version 2.28.9+cuda13.0", warning.format(0), warning.format(1), "")
    log("training.log", "\n".join(lines))(paths)
    assert f"{error}; NCCL says: Duplicate GPU: rank 0 (traceback: " in said(paths).cause


def test_what_nccls_watchdog_said_names_the_collective_and_who_did_not_arrive(paths):
    runs.train(paths)
    watchdog = (
        "step 3/12 (measured)\n"
        "[rank1]:[E1218 20:27:21.4 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=9, NumelOut=9, "
        "Timeout(ms)=120000) ran for 120081 milliseconds before timing out.\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    )
    log("training.log", watchdog)(paths)
    runs.end(paths, "training", training_exit=134)
    found = said(paths)
    assert found.outcome is WAITED
    assert found.cause.startswith(f"rank 0 on {runs.NODE} did not arrive")
    assert "in ALLREDUCE" in found.cause


def test_the_collective_that_a_rank_waited_in_is_named(paths):
    frames = (
        '  File "/venv/torch/distributed/c10d_logger.py", line 83, in wrapper\n'
        '  File "/venv/torch/distributed/distributed_c10d.py", line 3006, in all_reduce\n'
        "RuntimeError: Timed out waiting 4000ms for recv operation to complete\n"
    )
    runs.fail(paths, 0, WAITED, "timed out", 5, traceback=frames)
    TRAINING(paths)
    assert said(paths).cause.endswith("in all_reduce)")


# ----------------------------------------------------------------- what the scheduler says


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("TIMEOUT", Outcome.TIMEOUT),
        ("DEADLINE", Outcome.TIMEOUT),
        ("NODE_FAIL", NODE),
        ("BOOT_FAIL", NODE),
        ("LAUNCH_FAILED", NODE),
        ("PREEMPTED", Outcome.PREEMPTED),
        ("CANCELLED", CANCELLED),
        ("CANCELLED by 0", CANCELLED),
        ("CANCELLED+", CANCELLED),
        ("OUT_OF_MEMORY", MEMORY),
    ],
)
@pytest.mark.parametrize("ranks", ["none", "waited", "killed"])
def test_without_an_end_record_slurm_says_how_it_ended(paths, state, expected, ranks):
    if ranks != "none":
        runs.fail(paths, 0, WAITED, "timed out", 4)
    if ranks == "killed":
        runs.leave(paths, 1, KILLED, 5, kills=None)
    found = said(paths, state)
    assert found.outcome is expected
    assert f"({state})" in found.cause


@pytest.mark.parametrize(
    ("state", "more", "expected", "words"),
    [
        ("NODE_FAIL", {"failed_node": "gpu17"}, NODE, ": gpu17"),
        ("LAUNCH_FAILED", {"reason": "Prolog"}, NODE, "reason Prolog"),
        ("CANCELLED by 0", {}, CANCELLED, "by root"),
        ("CANCELLED by 4000111", {}, CANCELLED, "by user 4000111"),
        ("OUT_OF_MEMORY", {}, MEMORY, "; rank 1 on"),
        ("FAILED", {"step_exit_code": "0:125"}, MEMORY, "0:125); rank 1 on"),
    ],
)
def test_kills_by_the_scheduler_are_explained_by_what_it_says(paths, state, more, expected, words):
    runs.leave(paths, 1, KILLED, 5, kills=None)
    found = said(paths, state, **more)
    assert found.outcome is expected
    assert words in found.cause
    assert found.failed_nodes == tuple(filter(None, [more.get("failed_node")]))


@pytest.mark.parametrize(
    ("stage", "training_exit", "state", "expected", "words"),
    [
        ("time_limit", 143, "FAILED", Outcome.TIMEOUT, "time limit"),
        ("interrupted", 143, "FINISHED", CANCELLED, ""),
        # Training only saw a signal of the memory of its host.
        ("training", 137, "OUT_OF_MEMORY", MEMORY, ""),
        ("training", 137, "FAILED", ERROR, KILLED),
        ("training", 3, "FAILED", ERROR, "exit code 3"),
        ("environment", None, "FAILED", ERROR, "'environment'"),
    ],
)
def test_the_stage_says_how_the_run_ended(paths, stage, training_exit, state, expected, words):
    if expected in (Outcome.TIMEOUT, CANCELLED):
        runs.fail(paths, 0, WAITED, "timed out", 5)
    runs.end(paths, stage, training_exit=training_exit)
    found = said(paths, state)
    assert found.outcome is expected
    assert words in found.cause


@pytest.mark.parametrize("state", ["FAILED", "COMPLETED", "FINISHED", "LOST", None])
def test_no_end_record_and_no_reason_is_an_error_that_says_where_to_look(paths, state):
    job()(paths)
    found = said(paths, state)
    assert found.outcome is ERROR
    assert "end record" in found.cause
    assert str(paths.logs) in found.cause
    assert (found.job_id, found.started_unix_s, found.nodes) == ("9", None, ())


def test_a_job_without_an_end_record_ran_where_its_ranks_and_samplers_were(paths):
    runs.train(paths)
    assert said(paths).nodes == (runs.NODE,)


@pytest.mark.parametrize(
    ("exit_code", "reason", "words", "absent"),
    [
        ("0:9", None, KILLED, "not start"),
        ("73:0", None, "73:0", "signal"),
        ("77:0", None, "belongs to another", "signal"),
        # Slurm gives the same reason, and its 22.05 slurmd's error 4021 as an exit code if it
        # cannot write the log.
        ("15:53", "JobLaunchFailure", "not start", "signal"),
        ("0:53", "JobLaunchFailure", "not start", "signal"),
        ("0:9", "JobLaunchFailure", KILLED, "not start"),
    ],
)
def test_a_scripts_exit_code_is_explained(paths, exit_code, reason, words, absent):
    job()(paths)
    log("slurm-9.log", "module: command not found\n")(paths)
    found = said(paths, exit_code=exit_code, reason=reason)
    assert found.outcome is ERROR
    assert words in found.cause
    assert absent not in found.cause
    assert found.cause.endswith("slurm-9.log says: module: command not found")


# ------------------------------------------------------------------------- what logs say

NO_DRIVER = "NVML Shared Library Not Found"
STEPS = "step 1\n" * 40_000
LMOD = "Lmod has detected the following error:  These cannot load: x\n   Try: spider x\n"
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n'
PYXIS = (
    "slurmstepd: error: pyxis: child 4021 failed with error code: 1\n"
    "slurmstepd: error: pyxis: printing enroot log file:\n"
    "slurmstepd: error: pyxis:     [INFO] Querying registry for permission grant\n"
    "slurmstepd: error: pyxis:     [ERROR] URL https://registry returned error code: 401\n"
    "slurmstepd: error: pyxis: couldn't start container\n"
    "slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed\n"
)
TORCHRUN = (
    "E1122 20:27:21.412 91 torch/distributed/elastic/multiprocessing/api.py:1010] failed\n"
    "Traceback (most recent call last):\n"
    '  File "torch/distributed/run.py", line 896, in run\n'
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
)


def srun(*nodes: str) -> str:
    """What srun makes of tasks that failed: it comes last in a log."""
    return "".join(f"srun: error: {node}: task 0: Exited with exit code 1\n" for node in nodes)


#: what is in the log of that name, and what of it ends the cause
LOGS = {
    "telemetry.log": [
        (f"{NO_DRIVER}\n", f": {NO_DRIVER}"),
        (
            f"telemetry on n1: {NO_DRIVER}\ntelemetry on n2: {NO_DRIVER}\n{srun('n1', 'n2')}",
            f" on n1, n2: {NO_DRIVER}",
        ),
        (
            f"telemetry on n2: 7 GPUs for 8 ranks\ntelemetry on n1: {NO_DRIVER}\n{srun('n[1-2]')}",
            f" on n2: 7 GPUs for 8 ranks; on n1: {NO_DRIVER}",
        ),
        (
            "".join(f"telemetry on n{node}: {NO_DRIVER}\n" for node in range(9)),
            f" on n0, n1, n2, n3, 5 more: {NO_DRIVER}",
        ),
        (
            f"slurmstepd: error: execve(): /opt/python: No such file\n{srun('n[1-2]')}",
            " on n[1-2]: execve(): /opt/python: No such file",
        ),
        (
            f"{TRACEBACK}ModuleNotFoundError: 'pynvml'\n{srun('n1', 'n2')}",
            " on n1, n2: ModuleNotFoundError: 'pynvml'",
        ),
        (f"FATAL:   no image /i.sif\n{srun('n2')}", " on n2: no image /i.sif"),
        # Into files, too, apptainer writes this in colours.
        (
            "WARNING: passwd file doesn't exist in container, not updating\n"
            f"\x1b[91mERROR  : Requesting capability set 0x1ff\n\x1b[0m{srun('n1')}",
            " on n1: Requesting capability set 0x1ff",
        ),
        (PYXIS + srun("n1"), " on n1: URL https://registry returned error code: 401"),
        ("srun: error: Unable to create step for job 9\n", ": Unable to create step for job 9"),
    ],
    "training.log": [
        # Of two ranks.
        (
            f"[W1122 socket.cpp] warning\n{TRACEBACK}{TRACEBACK}ImportError: libnccl.so.2\n"
            f"ImportError: libnccl.so.2\n{srun('n1')}srun: Terminating StepId=9.1\n",
            " says on n1: ImportError: libnccl.so.2",
        ),
        # torchrun's own traceback is of what it started.
        (f"{TORCHRUN}=====\nFATAL:   no loop devices\n", " says: no loop devices"),
        (f"step 1\nstep 2\n\n{srun('n1')}", " says on n1: step 2"),
        # Of a long log its beginning counts as well.
        (f"triptych: the first\n{STEPS}srun: error: x\n", ": the first"),
    ],
    "slurm-9.log": [
        (f"{LMOD}Also make sure that all in TCL start with #%Module\n", ": These cannot load: x"),
        ("ERROR: Unable to locate 'cuda/99'\nafter it\n", " says: Unable to locate 'cuda/99'"),
        (
            "/var/spool/slurmd/job00009/slurm_script: line 61: module: command not found\n",
            " says: module: command not found",
        ),
    ],
    # The log of a job of this machine is submitit's.
    "9_0_log.out": [("triptych: this machine has no address\n", " has no address")],
}
#: the stage that failed, of those that end with a record
STAGES = {"telemetry.log": "telemetry", "training.log": "training", "9_0_log.out": "environment"}


@pytest.mark.parametrize(
    ("name", "text", "cause"), [(name, *each) for name, cases in LOGS.items() for each in cases]
)
def test_the_cause_is_what_failed_and_not_its_launchers_words(paths, name, text, cause):
    job("local" if name == "9_0_log.out" else "slurm")(paths)
    log(name, text)(paths)
    if name in STAGES:
        training_exit = 1 if name == "training.log" else None
        runs.end(paths, STAGES[name], training_exit, telemetry_exit=1, job_id="9")
    found = said(paths, exit_code=None if name in STAGES else "74:0")
    assert found.outcome is (INVALID if name == "telemetry.log" else ERROR)
    assert found.cause.endswith(cause)
    assert name == "telemetry.log" or name in found.cause


@pytest.mark.parametrize(
    ("line", "nodes"),
    [
        ("srun: error: Node failure on h200-2", ("h200-2",)),
        (
            "slurmstepd: error: *** STEP 9.1 ON h200-1 CANCELLED AT 2026-11-21T10:00:00 DUE TO "
            "NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
            (),
        ),
    ],
)
@pytest.mark.parametrize("name", ["slurm-9.log", "training.log"])
def test_a_node_that_failed_under_a_step_is_told_by_slurms_logs(paths, name, line, nodes):
    """Where another node runs the script, that goes on, and the job's state is FAILED."""
    job()(paths)
    runs.leave(paths, 1, KILLED, 5, kills=None)
    runs.end(paths, "training", training_exit=1, job_id="9")
    log(name, f"step 3\n{line}\nsrun: Force Terminated StepId=9.1\n")(paths)
    found = said(paths)
    assert (found.outcome, found.failed_nodes) == (NODE, nodes)
    assert ("h200-2" if nodes else "not known") in found.cause


# -------------------------------------------------------------------------- faults of GPUs


def test_a_gpu_that_was_lost_before_the_start_is_its_nodes_failure(paths):
    log("telemetry.log", "GPU 1 does not answer: GPU is lost\n")(paths)
    runs.report(paths, "lost")
    paths.telemetry_start(runs.NODE).unlink()  # the sampler did not start
    runs.end(paths, "telemetry", training_exit=None, telemetry_exit=1)
    found = said(paths)
    assert (found.outcome, found.failed_nodes) == (NODE, (runs.NODE,))


@pytest.mark.parametrize(
    ("event", "code", "words"),
    [
        ("xid", 79, "Xid 79"),
        ("xid", 48, "Xid 48"),
        ("xid", 94, "Xid 94"),
        ("xid", 74, "Xid 74"),
        ("lost", None, "lost"),
        ("ecc_uncorrected", None, "(ECC)"),
    ],
)
@pytest.mark.parametrize("how", ["error", "SIGSEGV", KILLED])
def test_a_rank_that_dies_where_a_gpu_failed_is_the_nodes_failure(paths, how, event, code, words):
    if how == "error":
        runs.fail(paths, 1, ERROR, "CUDA error", 5)
    else:
        runs.leave(paths, 1, how, 5)
    runs.report(paths, event, code)
    TRAINING(paths)
    found = said(paths)
    assert (found.outcome, found.failed_nodes) == (NODE, (runs.NODE,))
    assert words in found.cause
    assert "; rank 1 on" in found.cause


@pytest.mark.parametrize(
    ("event", "code"),
    [("xid", 13), ("xid", 31), ("xid", 43), ("xid", 45), ("xid", 63), ("ecc_corrected", None)],
)
def test_what_applications_cause_or_memory_repairs_is_no_nodes_failure(paths, event, code):
    runs.fail(paths, 1, ERROR, "CUDA error", 5)
    runs.report(paths, event, code)
    TRAINING(paths)
    found = said(paths)
    assert (found.outcome, found.failed_nodes) == (ERROR, ())
    assert "Xid" not in found.cause


def test_ranks_that_waited_in_vain_for_one_whose_gpu_was_lost_name_its_node(paths):
    runs.train(paths)
    runs.fail(paths, 0, WAITED, "timed out", 9)
    runs.report(paths, "xid", 79, "node2")
    TRAINING(paths)
    found = said(paths)
    assert (found.outcome, found.failed_nodes) == (NODE, ("node2",))
    assert found.cause.startswith("GPU 1 of node2: ")
    assert "; rank 1 on node1 " in found.cause


def test_a_fault_elsewhere_is_mentioned_and_explains_no_error_and_no_lack_of_memory(paths):
    runs.fail(paths, 1, MEMORY, "CUDA out of memory", 5)
    runs.report(paths, "xid", 79)
    found = said(paths)
    assert found.outcome is MEMORY
    assert "of node1: Xid 79, " in found.cause
    runs.fail(paths, 1, ERROR, "KeyError: 'x'", 5, node="node2")
    assert said(paths).outcome is ERROR


def test_a_rank_that_says_itself_that_its_gpu_is_broken_names_its_node(paths):
    runs.fail(paths, 1, NODE, "uncorrectable ECC error", 5, "node2")
    found = said(paths)
    assert (found.outcome, found.failed_nodes) == (NODE, ("node2",))


# ------------------------------------------------------------- what cannot be read is named


def test_an_unreadable_end_record_is_named_and_the_rest_is_used(paths):
    paths.ended.write_text('{"job_id": ')
    runs.fail(paths, 1, Outcome.NONFINITE_LOSS, "NaN", 5)
    found = said(paths)
    assert found.outcome is Outcome.NONFINITE_LOSS
    assert found.cause.startswith(f"rank 1 on {runs.NODE}, ")
    assert f"not readable: {paths.ended}: " in found.cause


def test_one_ranks_torn_record_is_named_and_the_others_are_used(paths):
    runs.train(paths)
    runs.fail(paths, 0, WAITED, "timed out", 5)
    paths.rank_error(1).write_text('{"rank": 1, "node')
    paths.rank(0).write_text("")
    TRAINING(paths)
    found = said(paths)
    assert found.outcome is WAITED
    # Of rank 1 nothing is known, so that it is not accused of being late.
    assert "did not arrive" not in found.cause
    assert f"not readable: {paths.rank_error(1)}: " in found.cause


def test_torn_events_are_named_and_what_came_before_counts(paths):
    runs.leave(paths, 1, KILLED, 5)
    runs.report(paths, "xid", 79)
    with paths.gpu_events(runs.NODE).open("a") as stream:
        stream.write("garbage\n")
    found = said(paths)
    assert found.outcome is NODE
    assert "events.csv, line 3: " in found.cause
