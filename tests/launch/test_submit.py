"""A run is submitted once and waited for, and how it ended is written down, or said in one line."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launch import runs, scripts
from tests.launch.fake_slurm import Fake
from tests.waiting import until
from workflow_lib.launch import interruption, job_wait, run_lock, run_to_end, submit
from workflow_lib.launch.interruption import ToldToEndError
from workflow_lib.launch.schedulers import choice, queries, refusals, slurm
from workflow_lib.launch.schedulers.local import Local
from workflow_lib.launch.schedulers.refusals import NotNowError, SubmissionError
from workflow_lib.launch.schedulers.scheduler import Submission
from workflow_lib.launch.schedulers.slurm import Slurm
from workflow_lib.records.cell import Cell
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import (
    JobRecord,
    JobState,
    Outcome,
    OutcomeRecord,
    SubmissionRecord,
)
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.records.whole_files import write_json

ROOT = Path(__file__).parent.parent.parent
SUBMISSION = SubmissionRecord("triptych-0a1b2c3d-1-00ff00ff", 1.0, "somebody")


@pytest.fixture(autouse=True)
def _impatient(impatient, monkeypatch):
    monkeypatch.setattr(submit, "TRUST_ABSENCE_AFTER_S", 0.3)
    monkeypatch.setattr(run_to_end, "CANCEL_PATIENCE_S", 0.5)


@pytest.fixture
def use(monkeypatch):
    """Makes every run use a scheduler, and returns it; without a course, it takes no job."""

    def install(*courses, states=(), found=(), kind: type[Fake] = Fake) -> Fake:
        scheduler = kind(*courses, states=states)
        scheduler.found = list(found)
        monkeypatch.setattr(choice, "choose", lambda name: scheduler)
        return scheduler

    return install


def run(paths: RunPaths) -> OutcomeRecord:
    return run_to_end.run_to_end(paths.directory, "slurm")


def ignored(job_id: str) -> None:
    """A job that leaves nothing."""


def completes(paths: RunPaths) -> Callable[[str], None]:
    return lambda job_id: runs.complete(paths, job_id)


def job(paths: RunPaths, job_id: str) -> None:
    record = JobRecord("slurm", job_id, submitted_unix_s=1.0, submitted_by="an earlier process")
    write_json(paths.job, record)


def known_job(paths: RunPaths) -> JobRecord:
    return read_record(paths.job, JobRecord)


def read_outcome(path: Path) -> str:
    return str(json.loads(path.read_text())["outcome"])


def test_a_run_is_submitted_once_and_its_result_written(paths, use, capsys):
    scheduler = use(completes(paths))
    assert run(paths).outcome is Outcome.COMPLETED
    assert scheduler.submitted == ["1"]
    assert read_outcome(paths.outcome) == "completed"
    assert not paths.failure.exists()
    known = known_job(paths)
    assert (known.scheduler, known.job_id) == ("slurm", "1")
    assert f"process {os.getpid()}" in known.submitted_by
    assert "job 1 for local/" in capsys.readouterr().err


def test_a_copy_without_its_empty_directories_gets_a_place_for_the_jobs_log(paths, use):
    paths.logs.rmdir()

    def begin(job_id: str) -> None:
        assert paths.logs.is_dir()
        runs.complete(paths, job_id)

    use(begin)
    assert run(paths).outcome is Outcome.COMPLETED


def test_where_there_can_be_no_log_nothing_is_submitted(paths, use):
    paths.logs.rmdir()
    paths.logs.symlink_to(paths.directory / "nowhere")
    use()
    with pytest.raises(SubmissionError, match=str(paths.logs)):
        run(paths)
    assert not paths.submission.exists()


def test_a_job_that_was_submitted_before_is_waited_for_and_not_submitted_again(paths, use, capsys):
    use(states=("PENDING", "RUNNING"))
    job(paths, "41")
    threading.Timer(0.2, runs.complete, [paths, "41"]).start()
    assert run(paths).job_id == "41"
    assert "job 41 was submitted" in capsys.readouterr().err


def test_the_result_of_a_run_by_hand_is_taken(paths, use):
    use()
    runs.complete(paths, "77")
    ended = run(paths)
    assert (ended.outcome, ended.job_id) == (Outcome.COMPLETED, "77")


def test_a_failure_is_no_outcome_and_is_set_aside_when_the_run_is_tried_again(paths, use):
    def crash(job_id: str) -> None:
        (paths.logs / "training.log").write_text("it crashed\n")
        runs.end(paths, "training", training_exit=3, job_id=job_id)

    scheduler = use(crash, completes(paths), states=("FAILED",))
    assert run(paths).outcome is Outcome.ERROR
    assert scheduler.submitted == ["1"]
    assert not paths.outcome.exists()
    assert read_outcome(paths.failure) == "error"

    assert run(paths).outcome is Outcome.COMPLETED
    assert scheduler.submitted == ["1", "2"]
    assert not paths.failure.exists()
    kept = RunPaths(paths.attempts / "1")
    assert read_outcome(kept.failure) == "error"
    assert (kept.logs / "training.log").read_text() == "it crashed\n"
    assert kept.ended.exists()
    assert known_job(kept).job_id == "1"
    # The cell and its script stay where they are.
    assert not kept.cell.exists()
    assert paths.script.exists()


@pytest.mark.parametrize(
    ("state", "outcome", "jobs"),
    [
        # What the cluster took is tried again at once, and given up after three times.
        ("NODE_FAIL", "node_failure", 3),
        ("PREEMPTED", "preempted", 3),
        ("OUT_OF_MEMORY", "out_of_memory", 1),
        ("TIMEOUT", "timeout", 1),
        ("FAILED", "error", 1),
        ("CANCELLED by 0", "cancelled", 1),
    ],
)
def test_what_the_cluster_took_alone_is_tried_again_by_itself(paths, use, state, outcome, jobs):
    scheduler = use(*[ignored] * 4, states=(state,))
    assert run(paths).outcome == outcome
    assert len(scheduler.submitted) == jobs
    kept = [RunPaths(paths.attempts / str(number)) for number in range(1, jobs)]
    assert [read_outcome(attempt.failure) for attempt in kept] == [outcome] * (jobs - 1)
    assert not (paths.attempts / str(jobs)).exists()
    is_result = state == "OUT_OF_MEMORY"
    assert (paths.outcome.exists(), paths.failure.exists()) == (is_result, not is_result)


@pytest.mark.parametrize(
    ("end", "states", "expected"),
    [
        # Slurm says so only after the end record.
        (("training", 137), (None, "RUNNING", "COMPLETING", "OUT_OF_MEMORY"), "out_of_memory"),
        # It may know nothing of a job that was just submitted, or not answer at all.
        (None, (*[None] * 5, "PENDING", "TIMEOUT"), "timeout"),
        # It took the job back before it was cancelled.
        (("interrupted", 143), ("REQUEUED", "PENDING", "CANCELLED by 0"), "cancelled"),
    ],
)
def test_slurms_last_word_says_how_it_ended(paths, use, end, states, expected):
    scheduler = use(lambda job_id: end and runs.end(paths, *end, job_id=job_id), states=states)
    assert run(paths).outcome == expected
    assert scheduler.states == [states[-1]]


def test_what_slurm_says_is_looked_at_more_often_than_slurm_is_asked(paths, use, monkeypatch):
    monkeypatch.setattr(job_wait, "ASK_EVERY_S", 3600.0)
    use(ignored, states=("RUNNING", "RUNNING", "FAILED"))
    assert run(paths).outcome is Outcome.ERROR


def test_an_end_record_that_comes_after_slurm_says_completed_is_waited_for(paths, use, monkeypatch):
    monkeypatch.setattr(job_wait, "FILE_SYSTEM_LAG_S", 5.0)
    use(lambda job_id: threading.Timer(0.3, runs.complete, [paths, job_id]).start())
    assert run(paths).outcome is Outcome.COMPLETED


def test_a_job_that_slurm_takes_back_is_waited_for_until_it_has_run_again(paths, use, capsys):
    """Preempted and requeued: its first end record, that it was interrupted, is not the last."""

    class Requeueing(Fake):
        def state(self, job: JobRecord) -> JobState | None:
            answer = super().state(job)
            # It starts again: it moves what it left aside, and completes.
            if answer == JobState("RUNNING"):
                paths.ended.unlink()
                runs.complete(paths, job.job_id)
                self.states = ["COMPLETED"]
            return answer

    states = ("PENDING", "PENDING", "RUNNING", "COMPLETED")

    def interrupts(job_id: str) -> None:
        runs.end(paths, "interrupted", 143, job_id=job_id)

    scheduler = use(interrupts, states=states, kind=Requeueing)
    assert run(paths).outcome is Outcome.COMPLETED
    assert scheduler.submitted == ["1"]
    assert "will start again" in capsys.readouterr().err


def test_an_edited_script_is_refused(paths, use):
    use()
    paths.script.write_text(paths.script.read_text() + "# mine\n")
    with pytest.raises(SubmissionError, match="edited"):
        run(paths)
    assert not paths.job.exists()


@pytest.mark.parametrize("expected", [Outcome.COMPLETED, Outcome.TIMEOUT])
def test_a_second_process_waits_for_the_first_and_takes_what_it_has(paths, use, capfd, expected):
    """A failure, too: to try the run again is what the first was asked for."""
    use()
    outcomes: list[OutcomeRecord] = []
    with run_lock.acquire(paths, Fake()):
        second = threading.Thread(target=lambda: outcomes.append(run(paths)))
        second.start()
        until(lambda: "another process" in capfd.readouterr().err)
        if expected is Outcome.COMPLETED:
            job(paths, "7")
            runs.complete(paths, "7")
        else:
            runs.failure(paths, "timeout")
    second.join()
    assert outcomes[0].outcome is expected
    assert not paths.attempts.exists()


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        ("an end record", Outcome.CANCELLED),
        ("a damaged end record", Outcome.ERROR),
        # As on a file system that was full: neither the job nor who waited for it could write.
        ("nothing", Outcome.ERROR),
    ],
)
def test_what_failed_while_nobody_waited_is_run_again_at_once(paths, use, left, expected):
    job(paths, "6")
    if left != "nothing":
        runs.end(paths, stage="interrupted", training_exit=143, job_id="6")
    if left == "a damaged end record":
        paths.ended.write_bytes(paths.ended.read_bytes()[:40])
    scheduler = use(completes(paths), states=("FAILED",))
    assert run(paths).outcome == Outcome.COMPLETED
    assert len(scheduler.submitted) == 1
    earlier = read_record(RunPaths(paths.attempts / "1").failure, OutcomeRecord)
    assert earlier.outcome == expected
    assert (f"not readable: {paths.ended}: " in earlier.cause) == (left == "a damaged end record")


def test_a_job_that_ends_while_it_is_waited_for_is_not_run_again(paths, use):
    job(paths, "6")
    use(states=("RUNNING", "FAILED"))
    assert run(paths).outcome == Outcome.ERROR


# --------------------------------------------------------------------------- nothing runs twice


def raising(error: Exception) -> Callable[[str], None]:
    def course(job_id: str) -> None:
        raise error

    return course


@pytest.fixture
def interrupted(paths) -> RunPaths:
    """A run whose submitter was killed before it heard of the job's number."""
    write_json(paths.submission, SUBMISSION)
    return paths


@pytest.mark.parametrize("damaged", [None, "", '{"job_id": "4'])
def test_a_job_whose_number_nobody_wrote_down_is_found_by_its_name(interrupted, use, damaged):
    if damaged is not None:
        interrupted.job.write_text(damaged)
    use(states=("RUNNING",), found=["41"])
    threading.Timer(0.5, runs.complete, [interrupted, "41"]).start()
    assert run(interrupted).job_id == "41"
    known = known_job(interrupted)
    assert (known.job_id, known.submitted_by) == ("41", "somebody")


def test_where_nothing_names_the_job_its_record_is_named(paths, use):
    paths.job.write_text("")
    use()
    with pytest.raises(RecordError, match=str(paths.job)):
        run(paths)


def test_a_run_is_submitted_anew_once_it_is_certain_that_no_job_was(interrupted, use):
    began = time.monotonic()
    scheduler = use(completes(interrupted), found=[None])
    assert run(interrupted).outcome is Outcome.COMPLETED
    assert scheduler.submitted == ["1"]
    assert time.monotonic() - began >= submit.TRUST_ABSENCE_AFTER_S
    assert scheduler.names[0] != SUBMISSION.job_name
    assert re.fullmatch(r"triptych-[0-9a-f]{8}-1-[0-9a-f]{8}", scheduler.names[0])


def test_while_nobody_can_tell_nothing_is_submitted_and_that_is_said(interrupted, use, capfd):
    scheduler = use()
    taken: list[OutcomeRecord] = []
    thread = threading.Thread(target=lambda: taken.append(run(interrupted)))
    thread.start()
    until(lambda: SUBMISSION.job_name in capfd.readouterr().err)
    runs.complete(interrupted, "41")
    scheduler.found = ["41"]
    thread.join()
    assert taken[0].job_id == "41"


def test_a_submission_without_an_answer_may_have_been_taken(paths, use):
    """sbatch timed out, and yet there is a job."""
    sent = raising(NotNowError("Socket timed out", may_have_been_submitted=True))
    scheduler = use(sent, states=("TIMEOUT",), found=["1"])
    assert run(paths).job_id == "1"
    assert scheduler.submitted == ["1"]


def test_what_slurm_refuses_leaves_nothing_to_look_for(paths, use):
    use(raising(SubmissionError("no such partition")))
    with pytest.raises(SubmissionError, match="no such partition"):
        run(paths)
    assert not paths.submission.exists()
    assert not paths.job.exists()


def test_a_job_that_took_the_run_meanwhile_keeps_it(paths, use, capsys):
    """Submitted by hand, it began while the workflow's was submitted."""

    def by_hand(job_id: str) -> None:
        job(paths, "77")
        runs.complete(paths, "77")

    use(by_hand)
    assert run(paths).job_id == "77"
    assert known_job(paths).job_id == "77"
    assert "job 77 owns" in capsys.readouterr().err


def test_what_was_half_set_aside_is_set_aside_before_anything_else(paths, use):
    """A process was killed while it moved a failed attempt: its job must not be waited for."""
    job(paths, "6")
    half = RunPaths(paths.attempts / ".moving")
    half.directory.mkdir(parents=True)
    runs.failure(half, "timeout")
    use(completes(paths))
    assert run(paths).job_id == "1"
    kept = RunPaths(paths.attempts / "1")
    assert known_job(kept).job_id == "6"
    assert read_outcome(kept.failure) == "timeout"


# ------------------------------------------------------------------------------------- retries


def lose(paths: RunPaths, *nodes: str) -> None:
    """Earlier attempts, each of which lost a node."""
    for number, node in enumerate(nodes, start=1):
        attempt = RunPaths(paths.attempts / str(number))
        attempt.directory.mkdir(parents=True)
        runs.failure(attempt, "node_failure", failed_nodes=(node,))


@pytest.mark.parametrize("refused", [False, True])
def test_a_retry_avoids_the_nodes_that_failed_unless_too_few_are_left(paths, use, refused, capsys):
    lose(paths, "h200-2", "h200-1")
    too_few = raising(SubmissionError("Requested node configuration is not available"))
    scheduler = use(*[too_few] * refused, completes(paths))
    assert run(paths).outcome is Outcome.COMPLETED
    assert scheduler.avoided == [("h200-1", "h200-2"), ()][: 1 + refused]
    assert ("without h200-1, h200-2" in capsys.readouterr().err) == refused


def test_a_restarted_workflow_does_not_retry_for_ever(paths, use):
    lose(paths, "h200-1", "h200-2")
    use(ignored, states=("NODE_FAIL",))
    assert run(paths).outcome is Outcome.NODE_FAILURE


# ----------------------------------------------------------------------- Slurm, at its commands


class Commands:
    """Fake ``sbatch`` and ``squeue`` on a path of their own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.squeue("")

    def write(self, name: str, script: str) -> None:
        scripts.command(self.directory, name, script)

    def sbatch(self, script: str) -> None:
        self.write("sbatch", f'printf "%s\\n" "$@" >>{self.directory}/arguments\n{script}')

    def squeue(self, states: str) -> None:
        """``$name`` is what the job was submitted as."""
        self.write("squeue", f"{self.name}\ncat <<EOF\n{states}\nEOF" if states else "exit 0")

    @property
    def name(self) -> str:
        """Shell that sets ``name`` to that of the latest submission."""
        return f"name=$(sed -n s/--job-name=//p {self.directory}/arguments | tail -n 1)"

    def arguments(self) -> list[str]:
        path = self.directory / "arguments"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def commands(tmp_path: Path, monkeypatch) -> Commands:
    made = Commands(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{made.directory}{os.pathsep}{os.environ['PATH']}")
    return made


def start(paths: RunPaths, **environment: str) -> subprocess.Popen[str]:
    """The command that the run rule calls."""
    own = {"TRIPTYCH_ASK_SCHEDULER_EVERY_S": "0.1", "TRIPTYCH_TRUST_ABSENCE_AFTER_S": "0.5"}
    command = [sys.executable, "-m", "workflow_lib.launch", "run", str(paths.directory)]
    return subprocess.Popen(
        [*command, "--scheduler", "slurm"],
        cwd=ROOT,
        env=os.environ | own | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # nohup, under which somebody may run the tests, has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )


def launch(paths: RunPaths, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs that command to its end."""
    process = start(paths, **environment)
    output, errors = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def submission(paths: RunPaths) -> Submission:
    return Submission(paths, read_record(paths.cell, Cell), SUBMISSION)


def leaves(paths: RunPaths, job_id: str, training_exit: int = 1) -> str:
    """Shell by which a job leaves its end record."""
    elsewhere = RunPaths(paths.directory.with_name("end_record"))
    runs.end(elsewhere, "training", training_exit=training_exit, job_id=job_id)
    return f"cp {elsewhere.ended} {paths.directory}"


def test_sbatch_gets_the_script_and_where_its_log_goes(slurm_paths, commands):
    commands.sbatch("echo '4242;cluster'")
    assert Slurm().submit(submission(slurm_paths)) == "4242"
    assert commands.arguments() == [
        "--parsable",
        f"--output={slurm_paths.logs}/slurm-%j.log",
        "--job-name=triptych-0a1b2c3d-1-00ff00ff",
        "--open-mode=append",
        str(slurm_paths.script),
    ]


def test_what_sbatch_would_expand_in_a_path_is_escaped(slurm_paths, commands, tmp_path):
    commands.sbatch("echo 1")
    elsewhere = RunPaths(tmp_path / "%j.log" / "50%")
    Slurm().submit(dataclasses.replace(submission(slurm_paths), paths=elsewhere))
    assert commands.arguments()[1] == f"--output={tmp_path}/%%j.log/50%%/logs/slurm-%j.log"
    backslash = RunPaths(tmp_path / "a\\b")
    with pytest.raises(SubmissionError, match="backslash"):
        Slurm().submit(dataclasses.replace(submission(slurm_paths), paths=backslash))


VIOLATES = "Job violates accounting/QOS policy (job submit limit, users size and/or time limits)"


@pytest.mark.parametrize(
    ("refusal", "key"),
    [
        ("invalid partition specified: h300", "partition"),
        ("Users group not permitted to use this partition", "partition"),
        ("Invalid account or account/partition combination specified", "account"),
        ("Invalid qos specification", "qos"),
        ("Requested reservation is invalid", "reservation"),
        ("Invalid feature specification", "constraint"),
        ("Invalid generic resource (gres) specification", "gpu_type or gpu_request"),
        ("Memory specification can not be satisfied", "memory_per_node_gb"),
        ("CPU count per node can not be satisfied", "cpus_per_gpu"),
        ("Requested node configuration is not available", "nodes"),
        ("Node count specification invalid", "nodes"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "time_limit_max_min"),
        (VIOLATES, "qos, nodes or time_limit_max_min"),
    ],
)
def test_a_refusal_names_the_file_and_the_key(slurm_paths, commands, refusal, key):
    commands.sbatch(f"echo 'sbatch: error: {refusal}\nsbatch: error: Batch job' >&2; exit 1")
    with pytest.raises(SubmissionError) as raised:
        Slurm().submit(submission(slurm_paths))
    message = str(raised.value)
    assert f"Set {key} in" in message
    assert "platforms/h200.yaml" in message
    assert refusal in message
    assert "\n" not in message


FAILED = "Batch job submission failed: "


@pytest.mark.parametrize(
    ("said", "may_have_been_submitted"),
    [
        ("Unable to contact slurm controller (connect failure)", False),
        ("Slurm backup controller in standby mode", False),
        (f"AssocMaxSubmitJobLimit; {VIOLATES}", False),
        ("QOSMaxSubmitJobPerUserLimit", False),
        (f"{FAILED}Resource temporarily unavailable", False),
        (f"{FAILED}I/O error writing script/environment to file", False),
        (f"{FAILED}MaxJobCount limit reached", False),
        (f"{FAILED}Socket timed out on send/recv operation", True),
        ("Unable to contact slurm controller (receive failure)", True),
        ("Zero Bytes were transmitted or received", True),
        # What an overloaded or half-started controller says.
        (f"{FAILED}Unexpected message received", True),
        (f"{FAILED}Communication connection failure", True),
        (f"{FAILED}Protocol authentication error", True),
        (f"{FAILED}No route to host", True),
        (f"{FAILED}Accounting storage error", True),
        (f"{FAILED}Slurm internal error, contact system administrator", True),
        (f"{FAILED}Error generating job credential", True),
        (f"{FAILED}Munge encode failed: Failed to access the socket", True),
        (f"{FAILED}Unspecified error", True),
        (f"{FAILED}an error that no version of Slurm has had so far", True),
        # Words of a refusal in another text are no refusal.
        ("slurmdbd: the account database is down, the partition of its disk is full", True),
    ],
)
def test_what_passes_is_told_from_what_is_refused(said, may_have_been_submitted):
    error = refusals.refused(f"sbatch: error: {said}", 1, "h200")
    assert isinstance(error, NotNowError)
    assert error.may_have_been_submitted == may_have_been_submitted


def test_a_controller_that_restarts_is_waited_for(slurm_paths, commands):
    down = slurm_paths.directory / "down"
    down.touch()
    commands.sbatch(
        f"if rm {down} 2>/dev/null; then"
        " echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1;"
        f" fi; {leaves(slurm_paths, '4242')}; echo 4242"
    )
    commands.squeue("4242|$name|FAILED|NonZeroExitCode|0|")
    assert "takes no jobs" in launch(slurm_paths).stderr
    assert known_job(slurm_paths).job_id == "4242"
    names = [line for line in commands.arguments() if line.startswith("--job-name=")]
    assert len(set(names)) == 2


def test_an_orphaned_sbatch_keeps_the_run_locked_until_it_has_finished(slurm_paths, commands):
    """Whoever waits is killed while sbatch is at it; the next one attaches to what it submits."""
    submitted = slurm_paths.directory.parent / "submitted"
    noticed = slurm_paths.directory.parent / "noticed"
    commands.sbatch(
        f'for each in "$@"; do case $each in --job-name=*) name=${{each#*=}};; esac; done\n'
        f"kill -KILL $PPID; until [ -e {noticed} ]; do sleep 0.05; done\n"
        f'echo "$name" >{submitted}; echo 4242'
    )
    # Slurm knows the job from when it was submitted; it ends once it was found.
    commands.write(
        "squeue",
        f'[ ! -e {submitted} ] || echo "4242|$(cat {submitted})|FAILED|NonZeroExitCode|0|"\n'
        f'case "$*" in *--jobs*) {leaves(slurm_paths, "4242")};; esac',
    )
    assert launch(slurm_paths).returncode == -signal.SIGKILL
    assert not slurm_paths.job.exists()
    second = start(slurm_paths)
    assert second.stderr is not None
    assert "another process" in second.stderr.readline()
    noticed.touch()
    _, said = second.communicate()
    assert commands.arguments().count("--parsable") == 1
    assert "4242" in said


def test_a_lock_that_a_dead_process_left_locks_nothing(slurm_paths, commands):
    slurm_paths.lock.write_text("4711\n")
    commands.sbatch("echo 'sbatch: error: Invalid qos specification' >&2; exit 1")
    assert "another process" not in launch(slurm_paths).stderr
    assert commands.arguments().count("--parsable") == 1


# ----------------------------------------------------------------------------------- signals


@pytest.fixture
def waiting(slurm_paths, commands) -> Iterator[subprocess.Popen[str]]:
    """A process that waits for job 4242, which queues until scancel is called."""
    cancelled = commands.directory / "cancelled"
    commands.sbatch("echo 4242")
    commands.write("scancel", f'echo "$@" >{cancelled}')
    commands.write(
        "squeue",
        f"{commands.name}\n[ -e {cancelled} ] && s='CANCELLED by 0' || s=PENDING\n"
        'echo "4242|$name|$s|Priority|0|"',
    )
    process = start(slurm_paths)
    until(slurm_paths.job.exists, process)
    time.sleep(0.3)
    yield process
    process.kill()
    process.communicate()


def test_ctrl_c_has_slurm_cancel_the_job_and_says_how_it_ended(waiting, slurm_paths, commands):
    waiting.send_signal(signal.SIGINT)
    said = waiting.communicate()[1]
    assert waiting.returncode == 130
    name = known_job(slurm_paths).job_name
    # Only what has that name: a slurmctld that lost its state may have given the id to another.
    assert (commands.directory / "cancelled").read_text() == f"--name={name} 4242\n"
    assert read_outcome(slurm_paths.failure) == "cancelled"
    assert "cancelled job 4242; waiting" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("is_by_hand", [True, False])
def test_what_is_not_cancelled_is_said_to_go_on(waiting, slurm_paths, commands, is_by_hand):
    if is_by_hand:
        write_json(slurm_paths.job, JobRecord("slurm", "4242", 1.0, "the job itself"))
        slurm_paths.submission.unlink()
    else:
        commands.write("scancel", "echo 'scancel: error: Unable to contact' >&2; exit 1")
    waiting.send_signal(signal.SIGINT)
    said = waiting.communicate()[1]
    assert waiting.returncode == 130
    assert "4242" in said
    assert ("scancel: error: Unable" in said) != is_by_hand
    assert not (commands.directory / "cancelled").exists()
    assert not slurm_paths.failure.exists()


def test_a_job_that_no_node_launched_is_tried_again(slurm_paths, commands, monkeypatch):
    """As after slurmctld died while it launched the job: a node calls the next try a duplicate."""
    monkeypatch.setattr(job_wait, "HELD_FOR_S", 0.3)
    monkeypatch.setattr(job_wait, "ASK_EVERY_S", 0.1)
    monkeypatch.setattr(slurm, "ASK_EVERY_S", 0.1)
    cancelled = commands.directory / "cancelled"
    commands.write("scancel", f'echo "$@" >>{cancelled}')
    commands.sbatch(
        f"[ -e {cancelled} ] || {{ echo 4242; exit; }}\n{leaves(slurm_paths, '4243')}; echo 4243"
    )
    commands.squeue(
        "4242|$name|PENDING|launch failed requeued held|0|\n4243|$name|FAILED|NonZeroExitCode|256|"
    )
    assert run(slurm_paths).job_id == "4243"
    assert read_outcome(RunPaths(slurm_paths.attempts / "1").failure) == "node_failure"
    assert cancelled.read_text().split()[-1] == "4242"


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGHUP, -signal.SIGHUP), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_other_signals_leave_the_job(waiting, slurm_paths, commands, number, code):
    waiting.send_signal(number)
    waiting.communicate()
    assert waiting.returncode == code
    assert not (commands.directory / "cancelled").exists()
    assert not slurm_paths.failure.exists()
    assert known_job(slurm_paths).job_id == "4242"


#: what a controller does that takes no job: its commands, and the last one that is called
UNWILLING = {
    "refuses": (
        "echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1",
        "exit 1",
        "sbatch",
    ),
    "may have taken it, and does not answer": (
        "echo 'sbatch: error: Zero Bytes were transmitted or received' >&2; exit 1",
        "exec sleep 600",
        "squeue",
    ),
    "does not answer": ("exec sleep 600", "exec sleep 600", "sbatch"),
}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("unwilling", UNWILLING)
def test_a_signal_ends_the_wait_to_submit(slurm_paths, commands, unwilling, number, code, capfd):
    sbatch, squeue, last = UNWILLING[unwilling]
    called = commands.directory / "called"
    for name, script in {"sbatch": sbatch, "squeue": squeue, "sacct": "exit 1"}.items():
        commands.write(name, f"echo {name} $$ >>{called}\n{script}")
    commands.write("scancel", "exit 1")

    def calls() -> list[list[str]]:
        return [line.split() for line in called.read_text().splitlines()] if called.exists() else []

    process = start(slurm_paths, TRIPTYCH_ASK_SCHEDULER_EVERY_S="5")
    try:
        until(lambda: calls() and calls()[-1][0] == last, process)
        if unwilling == "refuses":
            assert process.stderr is not None
            assert "trying again" in process.stderr.readline()
        process.send_signal(number)
        # Long before what does not answer is given up: the signal ends the wait.
        said = process.communicate(timeout=40)[1]
    finally:
        process.kill()
    assert process.returncode == code, said
    assert "Traceback" not in said
    assert [name for name, _ in calls()].count("sbatch") == 1
    assert not any(Path("/proc", pid).exists() for _, pid in calls())
    # What may have been submitted is looked for by the next invocation.
    assert slurm_paths.submission.exists() == (unwilling != "refuses")
    assert not slurm_paths.failure.exists()


def test_after_sigterm_a_run_is_not_tried_again_and_one_under_way_is_taken(paths, use, monkeypatch):
    """As in Snakemake, of which other threads wait for other runs."""

    def end(job_id: str) -> None:
        monkeypatch.setattr(interruption, "_is_told_to_end", True)

    scheduler = use(end, end, states=("RUNNING", "RUNNING", "NODE_FAIL"))
    assert run(paths).outcome is Outcome.NODE_FAILURE
    assert paths.failure.exists()
    with pytest.raises(ToldToEndError):
        run(paths)
    assert scheduler.submitted == ["1"]
    assert paths.failure.exists()


def test_a_result_exits_with_0_and_a_failure_with_1_and_its_reason(slurm_paths, commands):
    commands.sbatch(f"{leaves(slurm_paths, '7', training_exit=137)}; echo 4242")
    commands.squeue("4242|$name|TIMEOUT|TimeLimit|0|")
    done = launch(slurm_paths)
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert last.startswith("triptych: timeout: ")
    assert last.endswith(f" {slurm_paths.directory}")
    assert read_outcome(slurm_paths.failure) == "timeout"
    assert not slurm_paths.outcome.exists()

    commands.squeue("4242|$name|OUT_OF_MEMORY|OutOfMemory|0|")
    assert launch(slurm_paths).returncode == 0
    assert read_outcome(slurm_paths.outcome) == "out_of_memory"
    assert commands.arguments().count("--parsable") == 2


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("no sbatch", "sbatch "),
        ("no directory", "elsewhere"),
        ("no cell", "cell.json"),
        ("corrupt job", "job.json"),
    ],
)
def test_a_run_that_cannot_start_gives_one_line(slurm_paths, commands, tmp_path, damage, named):
    commands.sbatch("echo 4242")
    paths, environment = slurm_paths, {}
    if damage == "no sbatch":
        environment["PATH"] = str(tmp_path / "empty")
    elif damage == "no directory":
        paths = RunPaths(slurm_paths.directory / "elsewhere")
    elif damage == "no cell":
        slurm_paths.cell.unlink()
    else:
        slurm_paths.job.write_text("{")
    done = launch(paths, **environment)
    assert done.returncode == 1
    assert done.stderr.startswith("triptych: ")
    assert done.stderr.count("\n") == 1
    assert named in done.stderr
    assert commands.arguments() == []


# ------------------------------------------------------------------------------- this machine


def test_a_local_job_is_over_when_its_process_is_gone():
    def state() -> JobState | None:
        return Local().state(JobRecord("local", str(other.pid), 1.0, "a test"))

    with subprocess.Popen(["sleep", "600"]) as other:
        # The number of a process that is no job of ours was given to somebody else.
        assert state() == JobState("FINISHED")
        other.kill()
    assert state() == JobState("FINISHED")
    states = (JobState("FINISHED"), JobState("RUNNING"), None)
    assert [queries.is_over(each) for each in states] == [True, False, False]
