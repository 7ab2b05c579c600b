"""Runs that cannot become a result any more are stopped, and no others."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch import runs
from workflow_lib.launch import outcome
from workflow_lib.launch.job import stop_early
from workflow_lib.launch.job.stop_early import Patience, Watch
from workflow_lib.records.cell import Cell
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import JobState, Outcome, StopRecord, SuspensionRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import write_json

PATIENCE = Patience()
ROOT = Path(__file__).parents[2]
LIVING = os.getpid()


@pytest.fixture
def paths(tmp_path):
    """A run whose samplers run, and whose four steps are under way."""
    run = runs.rendered(tmp_path)
    runs.train(run)
    keep_steps(run, 2)
    return run


def keep_steps(run, count):
    """Leave so many steps of each rank, of four."""
    for rank in range(2):
        steps = run.rank_steps(rank)
        whole = run.directory / f"whole{rank}.csv"
        if not whole.exists():
            steps.rename(whole)
        lines = whole.read_text().splitlines(keepends=True)
        steps.write_text("".join(lines[: 1 + count]))


def sample(run):
    """One more sample of the node."""
    with run.gpu_samples(runs.NODE).open("a") as stream:
        stream.write("1.0,0,80.0,36.0,,,,,,\n")


def looks(watch, run, seconds, samples=True):
    """Look for so long, every 5 s; returns the stop and after how many seconds it came."""
    for now in range(0, seconds, 5):
        if samples:
            sample(run)
        if (stop := watch.look(5.0)) is not None:
            return stop, now
    return None, seconds


def finished_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize(
    ("fault", "seconds"),
    [
        (None, 115),
        # It steps on in spite of a fault, which shortens the patience.
        (94, 30),
    ],
)
def test_a_run_that_steps_and_is_sampled_goes_on(paths, fault, seconds):
    if fault is not None:
        runs.report(paths, "xid", fault)
    watch = Watch(paths, LIVING, PATIENCE)
    for done in (1, 2, 3):
        keep_steps(paths, done)
        assert looks(watch, paths, seconds)[0] is None


@pytest.mark.parametrize("xid", [None, 31])
def test_training_that_hangs_is_stopped_after_two_minutes(paths, xid):
    """What applications cause is no fault of a GPU."""
    if xid is not None:
        runs.report(paths, "xid", xid)
    stop, after_s = looks(Watch(paths, LIVING, PATIENCE), paths, 300)
    assert (stop.outcome, after_s) == (Outcome.ERROR, 120)
    assert "after 2 steps" in stop.cause


@pytest.mark.parametrize(("has_ended", "expected_s"), [(True, 0), (False, 60)])
def test_telemetry_that_ends_or_leaves_no_samples_stops_the_run(paths, has_ended, expected_s):
    samplers = finished_process() if has_ended else LIVING
    stop, after_s = looks(Watch(paths, samplers, PATIENCE), paths, 120, samples=False)
    assert (stop.outcome, after_s) == (Outcome.TELEMETRY_INVALID, expected_s)
    assert has_ended or runs.NODE in stop.cause


def test_where_rates_alternate_a_block_without_samples_is_no_loss(paths):
    cell = read_record(paths.cell, Cell)
    telemetry = dataclasses.replace(cell.telemetry, interleaved_rates_hz=(0.0, 10.0), block_s=30.0)
    write_json(paths.cell, dataclasses.replace(cell, telemetry=telemetry))
    assert looks(Watch(paths, LIVING, PATIENCE), paths, 120, samples=False)[1] == 90


def test_after_the_last_step_telemetry_may_end(paths):
    keep_steps(paths, 4)
    assert looks(Watch(paths, finished_process(), PATIENCE), paths, 600)[0] is None


def test_a_profiled_run_needs_no_telemetry(paths):
    profiled = RunPaths(paths.directory.with_name("run0"))
    paths.directory.rename(profiled.directory)
    assert looks(Watch(profiled, finished_process(), PATIENCE), profiled, 60)[0] is None


def test_steps_that_always_take_long_are_no_hang(paths):
    watch = Watch(paths, LIVING, PATIENCE)
    # The third step takes 40 s, so the fourth may take 400 s.
    assert looks(watch, paths, 35)[0] is None
    keep_steps(paths, 3)
    stop, after_s = looks(watch, paths, 600)
    assert stop is not None
    assert 350 <= after_s <= 400


def test_the_first_steps_may_take_half_an_hour(paths):
    keep_steps(paths, 1)
    assert looks(Watch(paths, LIVING, PATIENCE), paths, 3600)[1] == 1800


def test_a_rank_that_is_behind_is_named(paths):
    lines = paths.rank_steps(1).read_text().splitlines(keepends=True)
    paths.rank_steps(1).write_text("".join(lines[:2]))
    stop, _ = looks(Watch(paths, LIVING, PATIENCE), paths, 300)
    assert "after 2 steps; rank 1 " in stop.cause


def test_a_gpu_that_failed_shortens_the_patience(paths):
    runs.report(paths, "xid", 79)
    stop, after_s = looks(Watch(paths, LIVING, PATIENCE), paths, 300)
    assert (stop.outcome, after_s) == (Outcome.NODE_FAILURE, 30)
    assert "of node1: Xid 79, " in stop.cause


def test_time_in_which_the_job_was_suspended_counts_for_nothing(paths, monkeypatch):
    """Each look comes ten minutes after the one before: nobody saw these minutes."""
    clock = iter(range(0, 10_000_000, 600))
    monkeypatch.setattr(stop_early.time, "monotonic", lambda: float(next(clock)))
    training = subprocess.Popen(["sleep", "600"])
    seen = []

    def sleep(seconds):
        sample(paths)
        seen.append(seconds)
        if len(seen) == 12:  # 12 looks of 10 s at most are no two minutes
            training.kill()
            training.wait()

    stop_early.watch(paths, LIVING, training.pid, PATIENCE, sleep)
    assert not paths.stopped.exists()


def test_where_the_jobs_script_is_gone_nothing_is_blamed_and_training_ends(paths, monkeypatch):
    """Samplers end with the script, and must not pass for the cause."""
    parents = iter([41, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as training:
        stop_early.watch(paths, finished_process(), training.pid, Patience(look_every_s=0.01))
        assert training.wait() == -signal.SIGTERM
    assert not paths.stopped.exists()


def test_ranks_that_a_launcher_leaves_after_one_died_are_ended_and_the_death_is_the_cause(paths):
    # As srun does if slurmctld is away when a rank is killed.
    runs.leave(paths, 0, "SIGKILL", 10)
    with subprocess.Popen(["sleep", "600"]) as training:
        patience = Patience(look_every_s=0.01, fault_s=0.05)
        stop_early.watch(paths, LIVING, training.pid, patience)
        assert training.wait() == -signal.SIGTERM
    assert not paths.stopped.exists()
    runs.end(paths, "training", training_exit=137)
    found = outcome.classify(paths, JobState("FAILED"))
    assert found.outcome is Outcome.ERROR
    assert "SIGKILL" in found.cause


def test_a_launcher_that_hears_no_signal_is_killed(paths):
    deaf = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as training:
        training.stdout.readline()
        patience = Patience(look_every_s=0.01, end_s=0.1)
        stop_early.watch(paths, finished_process(), training.pid, patience)
        assert training.wait() == -9
    assert read_record(paths.stopped, StopRecord).outcome is Outcome.TELEMETRY_INVALID


# -------------------------------------------------------------------------- what the run then is


def stopped(paths, kind):
    write_json(paths.stopped, StopRecord(kind, "stopped early: hung", runs.START_S + 10))
    for rank in range(2):
        runs.leave(paths, rank, "SIGTERM", 11, told=True)
    runs.end(paths, "training", training_exit=143)


@pytest.mark.parametrize(
    ("error_after_s", "words"),
    [(None, "stopped early: hung"), (5, "a bad batch"), (10.5, "stopped early: hung")],
)
def test_why_it_was_stopped_is_how_it_ended(paths, error_after_s, words):
    stopped(paths, Outcome.ERROR)
    if error_after_s is not None:
        runs.fail(paths, 1, Outcome.NONFINITE_LOSS, "a bad batch", error_after_s)
    found = outcome.classify(paths, JobState("FAILED"))
    came_first = words == "a bad batch"
    assert found.outcome is (Outcome.NONFINITE_LOSS if came_first else Outcome.ERROR)
    assert words in found.cause


def test_a_run_that_was_stopped_where_a_gpu_had_failed_is_tried_elsewhere(paths):
    runs.report(paths, "xid", 79)
    stopped(paths, Outcome.TELEMETRY_INVALID)
    found = outcome.classify(paths, JobState("FAILED"))
    assert (found.outcome, found.failed_nodes) == (Outcome.NODE_FAILURE, (runs.NODE,))
    assert "stopped early: hung" in found.cause


def test_a_run_that_was_suspended_says_so_with_its_cause(paths):
    write_json(paths.suspended, SuspensionRecord(runs.START_S + 5, 12.4))
    keep_steps(paths, 4)
    lines = paths.gpu_samples(runs.NODE).read_text().splitlines(keepends=True)
    # Of 24 ticks of two GPUs, those of 5 to 8 s are missing.
    paths.gpu_samples(runs.NODE).write_text("".join(lines[:21] + lines[34:]))
    runs.end(paths)
    found = outcome.classify(paths, JobState("COMPLETED"))
    assert found.outcome is Outcome.TELEMETRY_INVALID
    assert "for 12 s" in found.cause


def test_that_the_job_was_suspended_is_written_when_it_goes_on(paths, tmp_path):
    """The watch is stopped and goes on, as Slurm does it with all processes of a job."""
    with subprocess.Popen(["sleep", "600"]) as training:
        program = f"""
from pathlib import Path
from workflow_lib.launch.job.stop_early import Patience, watch
from workflow_lib.records.paths import RunPaths
print(flush=True)
paths = RunPaths(Path({str(paths.directory)!r}))
watch(paths, {LIVING}, {training.pid}, Patience(look_every_s=0.1))
"""
        with subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=ROOT
        ) as watching:
            watching.stdout.readline()
            deadline = time.monotonic() + 60
            while not paths.suspended.exists():
                assert time.monotonic() < deadline
                watching.send_signal(signal.SIGSTOP)
                time.sleep(0.5)
                watching.send_signal(signal.SIGCONT)
                time.sleep(0.5)
            training.kill()
            training.wait()
            assert watching.wait() == 0
    found = read_record(paths.suspended, SuspensionRecord)
    assert found.seconds > 0.1
    assert found.since_unix_s > runs.START_S
