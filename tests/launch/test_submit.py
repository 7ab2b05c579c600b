"""A run is submitted once and waited for, and how it ended is written down, or said in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch import runs
from workflow_lib import records
from workflow_lib.launch import schedulers, submit
from workflow_lib.launch.schedulers import SubmissionError
from workflow_lib.records import Cell, JobRecord, Outcome, OutcomeRecord, RunPaths

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """Waits are as in real life, only shorter."""
    monkeypatch.setattr(submit, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(submit, "ASK_EVERY_S", 0.02)
    monkeypatch.setattr(submit, "FILE_SYSTEM_LAG_S", 0.1)
    monkeypatch.setattr(submit, "SETTLE_S", 0.1)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return runs.rendered(tmp_path)


class Fake(schedulers.Slurm):
    """Slurm's words, without Slurm: each submission starts the next course of events.

    States are given in the order in which they are answered; the last is answered for good.
    """

    def __init__(
        self, *courses: Callable[[str], None], states: tuple[str | None, ...] = ()
    ) -> None:
        self.courses = list(courses)
        self.states = list(states or ("COMPLETED",))
        self.submitted: list[str] = []

    def submit(self, paths: RunPaths, cell: Cell) -> str:
        self.submitted.append(str(len(self.submitted) + 1))
        self.courses.pop(0)(self.submitted[-1])
        return self.submitted[-1]

    def state(self, job_id: str) -> str | None:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]


@pytest.fixture
def use(monkeypatch):
    """Makes ``submit`` use a scheduler, and returns it."""

    def install(scheduler: Fake) -> Fake:
        monkeypatch.setattr(schedulers, "choose", lambda name: scheduler)
        return scheduler

    return install


def job(paths: RunPaths, job_id: str) -> None:
    record = JobRecord("slurm", job_id, submitted_unix_s=1.0, submitted_by="an earlier process")
    records.write_json(paths.job, record)


def read_outcome(path: Path) -> str:
    return str(json.loads(path.read_text())["outcome"])


def test_a_run_is_submitted_once_and_its_result_written(paths, use, capsys):
    scheduler = use(Fake(lambda job_id: runs.complete(paths, job_id)))
    ended = submit.run(paths.directory, "slurm")
    assert scheduler.submitted == ["1"]
    assert ended.outcome is Outcome.COMPLETED
    assert read_outcome(paths.outcome) == "completed"
    assert not paths.failure.exists()
    known = records.read_record(paths.job, JobRecord)
    assert (known.scheduler, known.job_id) == ("slurm", "1")
    assert f"process {os.getpid()}" in known.submitted_by
    assert "submitted job 1 for local/" in capsys.readouterr().err


def test_the_job_is_on_record_before_anybody_waits_for_it(paths, use):
    class Watching(Fake):
        def state(self, job_id: str) -> str | None:
            assert records.read_record(paths.job, JobRecord).job_id == job_id
            runs.complete(paths, job_id)
            return "COMPLETED"

    use(Watching(lambda job_id: None))
    assert submit.run(paths.directory, "slurm").outcome is Outcome.COMPLETED


def test_a_job_that_was_submitted_before_is_waited_for_and_not_submitted_again(paths, use, capsys):
    scheduler = use(Fake())
    job(paths, "41")
    threading.Timer(0.2, runs.complete, [paths, "41"]).start()
    scheduler.states = ["PENDING", "RUNNING"]
    assert submit.run(paths.directory, "slurm").job_id == "41"
    assert scheduler.submitted == []
    assert "job 41 was submitted before, by an earlier process" in capsys.readouterr().err


def test_the_result_of_a_run_by_hand_is_taken(paths, use):
    scheduler = use(Fake())
    runs.complete(paths, "77")
    ended = submit.run(paths.directory, "slurm")
    assert (ended.outcome, ended.job_id) == (Outcome.COMPLETED, "77")
    assert scheduler.submitted == []


def test_a_failure_is_no_outcome_and_is_set_aside_when_the_run_is_tried_again(paths, use):
    def crash(job_id: str) -> None:
        (paths.logs / "training.log").write_text("it crashed\n")
        runs.end(paths, "training", training_exit=3, job_id=job_id)

    scheduler = use(Fake(crash, lambda job_id: runs.complete(paths, job_id), states=("FAILED",)))
    assert submit.run(paths.directory, "slurm").outcome is Outcome.ERROR
    assert scheduler.submitted == ["1"]
    assert not paths.outcome.exists()
    assert read_outcome(paths.failure) == "error"

    assert submit.run(paths.directory, "slurm").outcome is Outcome.COMPLETED
    assert scheduler.submitted == ["1", "2"]
    assert not paths.failure.exists()
    kept = RunPaths(paths.attempts / "1")
    assert read_outcome(kept.failure) == "error"
    assert (kept.logs / "training.log").read_text() == "it crashed\n"
    assert kept.ended.exists()
    assert records.read_record(kept.job, JobRecord).job_id == "1"
    # The cell and its script stay where they are.
    assert not kept.cell.exists()
    assert paths.script.exists()


def test_a_node_failure_is_tried_again_at_once(paths, use, capsys):
    scheduler = use(
        Fake(
            lambda job_id: None,
            lambda job_id: runs.complete(paths, job_id),
            states=("NODE_FAIL", "COMPLETED"),
        )
    )
    assert submit.run(paths.directory, "slurm").outcome is Outcome.COMPLETED
    assert scheduler.submitted == ["1", "2"]
    assert read_outcome(RunPaths(paths.attempts / "1").failure) == "node_failure"
    assert (
        "node_failure: a node of the job failed (NODE_FAIL); trying again"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("state", ["NODE_FAIL", "PREEMPTED"])
def test_what_fails_three_times_is_given_up(paths, use, state):
    scheduler = use(Fake(*[lambda job_id: None] * 4, states=(state,)))
    assert not submit.run(paths.directory, "slurm").outcome.is_result
    assert scheduler.submitted == ["1", "2", "3"]
    assert sorted(path.name for path in paths.attempts.iterdir()) == ["1", "2"]
    assert paths.failure.exists()


@pytest.mark.parametrize("state", ["OUT_OF_MEMORY", "TIMEOUT", "FAILED", "CANCELLED by 0"])
def test_nothing_else_is_tried_again_by_itself(paths, use, state):
    scheduler = use(Fake(*[lambda job_id: None] * 2, states=(state,)))
    submit.run(paths.directory, "slurm")
    assert scheduler.submitted == ["1"]
    assert paths.outcome.exists() == (state == "OUT_OF_MEMORY")
    assert paths.failure.exists() != (state == "OUT_OF_MEMORY")


def test_host_memory_is_recognised_though_slurm_says_so_only_after_the_last_word(paths, use):
    scheduler = use(Fake(lambda job_id: runs.end(paths, "training", 137, job_id=job_id)))
    scheduler.states = [None, "RUNNING", "COMPLETING", "OUT_OF_MEMORY"]
    assert submit.run(paths.directory, "slurm").outcome is Outcome.OUT_OF_MEMORY


def test_no_answer_is_no_end(paths, use):
    """Slurm may know nothing of a job that was just submitted, or not answer at all."""
    scheduler = use(Fake(lambda job_id: None))
    scheduler.states = [None] * 5 + ["PENDING", "TIMEOUT"]
    assert submit.run(paths.directory, "slurm").outcome is Outcome.TIMEOUT
    assert scheduler.states == ["TIMEOUT"]


def test_a_last_word_that_comes_after_slurm_says_completed_is_waited_for(paths, use, monkeypatch):
    monkeypatch.setattr(submit, "FILE_SYSTEM_LAG_S", 5.0)
    use(Fake(lambda job_id: threading.Timer(0.3, runs.complete, [paths, job_id]).start()))
    assert submit.run(paths.directory, "slurm").outcome is Outcome.COMPLETED


def test_a_job_that_slurm_takes_back_is_waited_for_until_it_has_run_again(paths, use, capsys):
    """Preempted and requeued: its first last word, that it was interrupted, is not the last."""

    class Requeueing(Fake):
        def state(self, job_id: str) -> str | None:
            answer = super().state(job_id)
            if answer == "RUNNING":  # it starts again: it moves what it left aside, and completes
                paths.ended.unlink()
                runs.complete(paths, job_id)
                self.states = ["COMPLETED"]
            return answer

    scheduler = use(Requeueing(lambda job_id: runs.end(paths, "interrupted", 143, job_id=job_id)))
    scheduler.states = ["PENDING", "PENDING", "RUNNING", "COMPLETED"]
    assert submit.run(paths.directory, "slurm").outcome is Outcome.COMPLETED
    assert scheduler.submitted == ["1"]
    assert "it will start again" in capsys.readouterr().err


def test_a_job_that_is_cancelled_after_slurm_took_it_back_has_ended(paths, use):
    scheduler = use(Fake(lambda job_id: runs.end(paths, "interrupted", 143, job_id=job_id)))
    scheduler.states = ["REQUEUED", "PENDING", "CANCELLED by 0"]
    assert submit.run(paths.directory, "slurm").outcome is Outcome.CANCELLED


def test_an_edited_script_is_refused(paths, use):
    scheduler = use(Fake())
    paths.script.write_text(paths.script.read_text() + "# mine\n")
    with pytest.raises(SubmissionError, match=r"was edited after it was rendered.*Delete it"):
        submit.run(paths.directory, "slurm")
    assert scheduler.submitted == []
    assert not paths.job.exists()


def test_a_second_process_waits_for_the_first_and_takes_its_result(paths, use, capfd):
    scheduler = use(Fake())
    second: list[OutcomeRecord] = []
    with submit._alone(paths):
        thread = threading.Thread(
            target=lambda: second.append(submit.run(paths.directory, "slurm"))
        )
        thread.start()
        while "another process waits" not in capfd.readouterr().err:
            time.sleep(0.01)
        records.write_json(paths.job, JobRecord("slurm", "7", 1.0, "the first"))
        runs.complete(paths, "7")
    thread.join()
    assert second[0].outcome == Outcome.COMPLETED
    assert scheduler.submitted == []


def test_what_failed_while_nobody_waited_is_run_again_at_once(paths, use):
    records.write_json(paths.job, JobRecord("slurm", "6", 1.0, "a workflow that was interrupted"))
    runs.end(paths, stage="interrupted", training_exit=143, job_id="6")
    scheduler = use(Fake(lambda job_id: runs.complete(paths, job_id)))
    assert submit.run(paths.directory, "slurm").outcome == Outcome.COMPLETED
    assert len(scheduler.submitted) == 1
    earlier = records.read_record(RunPaths(paths.attempts / "1").failure, OutcomeRecord)
    assert earlier.outcome == Outcome.CANCELLED


# ----------------------------------------------------------------------- Slurm, at its commands


class Commands:
    """Fake ``sbatch`` and ``squeue`` on a path of their own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self.squeue("")

    def write(self, name: str, script: str) -> None:
        command = self.directory / name
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(0o755)

    def sbatch(self, script: str) -> None:
        self.write("sbatch", f'printf "%s\\n" "$@" >>{self.directory}/arguments\n{script}')

    def squeue(self, states: str) -> None:
        self.write("squeue", f"cat <<'EOF'\n{states}\nEOF" if states else "exit 0")

    def arguments(self) -> list[str]:
        path = self.directory / "arguments"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def commands(tmp_path: Path, monkeypatch) -> Commands:
    made = Commands(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{made.directory}{os.pathsep}{os.environ['PATH']}")
    return made


@pytest.fixture
def slurm_paths(tmp_path: Path) -> RunPaths:
    return runs.rendered(tmp_path, "smoke-h200")


def launch(paths: RunPaths, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command that the run rule calls."""
    board = paths.directory.parent / "board"
    board.mkdir(exist_ok=True)
    own = {"TRIPTYCH_ASK_SCHEDULER_EVERY_S": "0.1", "TMPDIR": str(board), **environment}
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "workflow_lib.launch",
            "run",
            str(paths.directory),
            "--scheduler",
            "slurm",
        ],
        cwd=ROOT,
        env=os.environ | own,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_sbatch_gets_the_script_and_where_its_log_goes(slurm_paths, commands):
    commands.sbatch("echo '4242;cluster'")
    cell = records.read_record(slurm_paths.cell, Cell)
    assert schedulers.Slurm().submit(slurm_paths, cell) == "4242"
    assert commands.arguments() == [
        "--parsable",
        f"--output={slurm_paths.logs}/slurm-%j.log",
        str(slurm_paths.script),
    ]


def test_what_sbatch_would_expand_in_a_path_is_escaped(slurm_paths, commands, tmp_path):
    commands.sbatch("echo 1")
    cell = records.read_record(slurm_paths.cell, Cell)
    schedulers.Slurm().submit(RunPaths(tmp_path / "%j.log" / "50%"), cell)
    assert commands.arguments()[1] == f"--output={tmp_path}/%%j.log/50%%/logs/slurm-%j.log"
    with pytest.raises(SubmissionError, match="backslash"):
        schedulers.Slurm().submit(RunPaths(tmp_path / "a\\b"), cell)


@pytest.mark.parametrize(
    ("state", "over"),
    [
        (None, False),
        ("PENDING", False),
        ("RUNNING", False),
        ("COMPLETING", False),
        ("REQUEUED", False),
        ("COMPLETED", True),
        ("CANCELLED by 0", True),
        ("NODE_FAIL", True),
        ("OUT_OF_MEMORY", True),
        ("VANISHED", True),
    ],
)
def test_slurms_word_says_whether_a_job_is_over(state, over):
    assert schedulers.Slurm().is_over(state) == over


@pytest.mark.parametrize(
    ("refusal", "key"),
    [
        (
            "invalid partition specified: h300\nsbatch: error: Invalid partition name specified",
            "partition",
        ),
        ("User's group not permitted to use this partition", "partition"),
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
        (
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "qos, nodes or time_limit_max_min",
        ),
    ],
)
def test_a_refusal_names_the_file_and_the_key(slurm_paths, commands, refusal, key):
    text = "\n".join(
        f"echo 'sbatch: error: {line}' >&2" for line in refusal.replace("'", "").splitlines()
    )
    commands.sbatch(f"{text}\nexit 1")
    cell = records.read_record(slurm_paths.cell, Cell)
    with pytest.raises(SubmissionError) as raised:
        schedulers.Slurm().submit(slurm_paths, cell)
    message = str(raised.value)
    assert f"Set {key} in the configuration's platforms/h200.yaml; " in message
    assert refusal.replace("'", "").splitlines()[0] in message
    assert "\n" not in message


def test_a_refusal_of_another_kind_is_passed_on(slurm_paths, commands):
    commands.sbatch("echo 'sbatch: error: Unable to contact slurm controller' >&2; exit 1")
    done = launch(slurm_paths)
    assert done.returncode == 1
    assert done.stderr == (
        "triptych: Slurm refused the job: sbatch: error: Unable to contact slurm controller\n"
    )
    assert not slurm_paths.job.exists()


def test_a_result_exits_with_0_and_a_failure_with_1_and_its_reason(slurm_paths, commands):
    last_word = RunPaths(slurm_paths.directory.with_name("last_word"))
    runs.end(last_word, "training", training_exit=137)
    commands.sbatch(f"cp {last_word.ended} {slurm_paths.directory}; echo 4242")
    commands.squeue("4242|TIMEOUT")
    done = launch(slurm_paths)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last == (
        "triptych: timeout: the job reached its time limit (TIMEOUT); the evidence is in "
        f"{slurm_paths.directory}"
    )
    assert read_outcome(slurm_paths.failure) == "timeout"
    assert not slurm_paths.outcome.exists()

    commands.squeue("4242|OUT_OF_MEMORY")
    done = launch(slurm_paths)
    assert done.returncode == 0, done.stderr
    assert read_outcome(slurm_paths.outcome) == "out_of_memory"
    assert len(commands.arguments()) == 6  # two submissions


def test_without_sbatch_the_message_says_where_to_run(slurm_paths, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    done = launch(slurm_paths, PATH=str(empty))
    assert done.returncode == 1
    assert done.stderr.startswith("triptych: sbatch is not on the path: run this on a login node")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("damage", ["no directory", "no cell", "corrupt job"])
def test_a_run_whose_files_are_damaged_gives_one_line(slurm_paths, commands, damage):
    commands.sbatch("echo 4242")
    missing = slurm_paths
    if damage == "no directory":
        missing = RunPaths(slurm_paths.directory / "elsewhere")
    elif damage == "no cell":
        slurm_paths.cell.unlink()
    else:
        slurm_paths.job.write_text("{")
    done = launch(missing)
    assert done.returncode == 1
    assert done.stderr.startswith("triptych: ")
    assert done.stderr.count("\n") == 1
    assert "elsewhere" in done.stderr or "cell.json" in done.stderr or "job.json" in done.stderr
    assert commands.arguments() == []


# ------------------------------------------------------------------------------- this machine


def test_a_local_job_is_over_when_its_process_is_gone():
    local = schedulers.Local()
    with subprocess.Popen(["sleep", "30"]) as other:
        # The number of a process that is no job of ours was given to somebody else.
        assert local.state(str(other.pid)) == "FINISHED"
        other.kill()
    assert local.state(str(other.pid)) == "FINISHED"
    assert local.is_over("FINISHED")
    assert not local.is_over("RUNNING")
    assert not local.is_over(None)


def test_a_script_that_was_started_by_hand_is_a_local_job(tmp_path):
    script = tmp_path / "job.sh"
    script.write_text("sleep 30 & child=$!\ntrap 'kill $child; exit' TERM\nwait\n")
    with subprocess.Popen(["bash", str(script)]) as process:
        time.sleep(0.2)
        assert schedulers.Local().state(str(process.pid)) == "RUNNING"
        process.terminate()
    assert schedulers.Local().state(str(process.pid)) == "FINISHED"
