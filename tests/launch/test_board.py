"""One question for all who wait, at fake ``squeue`` and ``sacct``."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from workflow_lib.launch import answers, board, messages
from workflow_lib.launch.board import Board, Found
from workflow_lib.records import JobState

ROOT = Path(__file__).parents[2]
PERIOD_S = 0.05


class Cluster:
    """Commands that say what they are told, and count how often they were asked."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self.squeue({})
        self.sacct({})

    def write(self, name: str, script: str) -> None:
        command = self.directory / f"{name}.new"
        command.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.directory}/asked\n{script}\n')
        command.chmod(0o755)
        command.replace(self.directory / name)

    def squeue(self, states: dict[str, str], reason: str = "None", status: int = 0) -> None:
        """Jobs by id; one that is looked for is called "wanted"."""
        rest = f"{reason}|{status}|"
        lines = (f"echo '{job}|wanted|{state}|{rest}'\n" for job, state in states.items())
        self.write("squeue", "".join(lines))

    def sacct(self, states: dict[str, str], rest: str = "None|0:0|0:0|") -> None:
        """Jobs by id, with reason, exit codes of the job and its steps, and the failed node."""
        lines = (f"echo '{job}|wanted|{state}|{rest}'\n" for job, state in states.items())
        self.write("sacct", "".join(lines))

    def asked(self) -> list[str]:
        path = self.directory / "asked"
        return path.read_text().splitlines() if path.exists() else []


def words(made: Board, *jobs: str) -> list[str | None]:
    """What is said of jobs, without why."""
    states = [made.state(job) for job in jobs]
    return [state and state.state for state in states]


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    made = Cluster(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{made.directory}{os.pathsep}{os.environ['PATH']}")
    return made


@pytest.fixture
def made(tmp_path):
    return Board(PERIOD_S, tmp_path / "board")


def next_period() -> None:
    time.sleep(PERIOD_S * 1.5)


def test_jobs_have_the_state_that_squeue_tells(cluster, made):
    cluster.squeue({"1": "RUNNING", "2": "PENDING", "3": "COMPLETED"})
    made.state("1"), made.state("2")
    next_period()
    assert words(made, "1") == ["RUNNING"]
    assert words(made, "2") == ["PENDING"]
    assert cluster.asked()[-1].endswith("--jobs=1,2")


def test_within_a_period_nobody_is_asked_twice(cluster, tmp_path):
    cluster.squeue({str(job): "RUNNING" for job in range(400)})
    boards = [Board(30.0, tmp_path / "board") for _ in range(400)]
    for _ in range(3):
        states = [each.state(str(job)) for job, each in enumerate(boards)]
    assert len(cluster.asked()) == 1
    # The first to come asked before the others were there.
    assert states[0] == JobState("RUNNING")
    assert states[1:] == [None] * 399


def test_processes_that_ask_at_once_share_one_question(cluster, tmp_path):
    cluster.write(
        "squeue",
        'sleep 0.5; for job in 1 2 3; do echo "$job||RUNNING|None|0|"; done',
    )
    program = (
        "import sys, time; from pathlib import Path; from workflow_lib.launch.board import Board\n"
        "board = Board(60.0, Path(sys.argv[1]))\n"
        "for _ in range(20): board.state(sys.argv[2]); time.sleep(0.05)\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "board"), job],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        for job in ("1", "2", "3")
    ]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert len(cluster.asked()) == 1


def test_a_job_that_slurmctld_forgot_is_looked_up_in_the_accounting(cluster, made):
    cluster.squeue({"1": "RUNNING"})
    cluster.sacct({"2": "CANCELLED by 0", "22": "FAILED"})
    made.state("1")
    assert made.state("2") is None
    for _ in range(4):
        next_period()
        states = words(made, "1", "2")
        if states == ["RUNNING", "CANCELLED by 0"]:
            break
    assert states == ["RUNNING", "CANCELLED by 0"]
    assert [line.split()[0] for line in cluster.asked()[:3]] == ["squeue", "squeue", "sacct"]
    assert cluster.asked()[2].endswith("--jobs=2")


def test_squeue_that_knows_none_of_the_jobs_has_answered(cluster, made, capsys):
    cluster.write("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    cluster.sacct({"1": "TIMEOUT"})
    made.state("1")
    next_period()
    assert words(made, "1") == ["TIMEOUT"]
    assert capsys.readouterr().err == ""


def test_an_outage_is_said_once_and_survived(cluster, made, capsys):
    cluster.write("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert made.state("1") is None
    time.sleep(PERIOD_S * 2.5)
    assert made.state("1") is None
    cluster.squeue({"1": "RUNNING"})
    time.sleep(PERIOD_S * 4.5)
    assert words(made, "1") == ["RUNNING"]
    said = capsys.readouterr().err
    assert said == (
        "triptych: Slurm does not answer now, asking on: squeue: Unable to contact slurm "
        "controller\n"
    )


def test_a_slurm_that_does_not_answer_is_asked_ever_more_rarely(cluster, tmp_path, monkeypatch):
    clock = [1e9]
    monkeypatch.setattr(board.time, "time", lambda: clock[0])
    cluster.write("squeue", "exit 1")
    made = Board(10.0, tmp_path / "board")
    times = []
    for _ in range(1200):
        before = len(cluster.asked())
        made.state("1")
        if len(cluster.asked()) > before:
            times.append(clock[0] - 1e9)
        clock[0] += 1
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert gaps == [20, 40, 80, 160, 300, 300]


def test_a_database_that_is_down_ends_no_run(cluster, made):
    cluster.write("sacct", "echo 'Unable to contact slurmdbd' >&2; exit 1")
    for _ in range(6):
        assert made.state("1") is None
        next_period()


def test_a_database_that_is_down_keeps_nobody_from_asking_squeue(cluster, made, capsys):
    cluster.write("sacct", "echo 'Unable to contact slurmdbd' >&2; exit 1")
    cluster.squeue({"1": "RUNNING"})
    for _ in range(8):
        made.state("1"), made.state("2")
        next_period()
    cluster.squeue({"1": "TIMEOUT"})
    next_period()
    made.state("1")
    next_period()
    assert words(made, "1") == ["TIMEOUT"]
    commands = [line.split()[0] for line in cluster.asked()]
    assert commands.count("sacct") <= 3 < commands.count("squeue")
    assert capsys.readouterr().err.count("does not answer now") == 1


def test_without_accounting_a_job_that_is_long_gone_is_over(cluster, made, monkeypatch):
    cluster.write("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    monkeypatch.setattr(answers, "VANISHED_AFTER_S", 0.3)
    started = time.monotonic()
    assert made.state("1") is None
    while made.state("1") is None:
        assert time.monotonic() < started + 10
        time.sleep(0.02)
    assert time.monotonic() >= started + 0.3
    assert words(made, "1") == ["VANISHED"]


def test_what_was_told_of_an_earlier_job_with_the_same_id_is_not_taken(cluster, tmp_path):
    cluster.squeue({"1": "COMPLETED"})
    Board(60.0, tmp_path / "board").state("1")
    assert Board(60.0, tmp_path / "board").state("1") is None


def test_an_id_that_has_become_another_jobs_is_no_answer(cluster, made, monkeypatch):
    monkeypatch.setattr(answers, "LOST_AFTER_S", 0.3)
    cluster.squeue({"1": "COMPLETED"})  # called "wanted"; slurmctld lost its state and counts anew
    cluster.sacct({"1": "RUNNING"})
    started = time.monotonic()
    assert made.state("1", "triptych-1") is None
    while (said := made.state("1", "triptych-1")) is None:
        assert time.monotonic() < started + 10
        time.sleep(0.02)
    assert said.state == "VANISHED"
    made.state("1", "wanted")
    next_period()
    next_period()
    answer = made.state("1", "wanted")
    assert answer is not None
    assert answer.state == "COMPLETED"


def test_a_job_that_nobody_waits_for_is_not_asked_about(cluster, made, tmp_path):
    made.state("1"), made.state("2")
    made.forget("1")
    stale = tmp_path / "board" / "3.job"
    stale.touch()
    os.utime(stale, (0, 0))
    next_period()
    made.state("2")
    assert cluster.asked()[-1].endswith("--jobs=2")
    assert not stale.exists()


def test_a_directory_that_others_can_write_is_refused(tmp_path):
    directory = tmp_path / "board"
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(PermissionError, match="set TMPDIR"):
        Board(1.0, directory)


def test_a_damaged_board_is_made_anew(cluster, made, tmp_path):
    (tmp_path / "board" / "board.json").write_text("{")
    cluster.squeue({"1": "RUNNING"})
    assert words(made, "1") == ["RUNNING"]


# ------------------------------------------------------------------------------ what is told


def test_squeue_tells_why_a_job_waits_and_an_element_of_an_array_is_a_job(cluster, made):
    cluster.squeue({"123_4": "PENDING", "123_5": "RUNNING"}, reason="ReqNodeNotAvail")
    assert made.state("123_4") == JobState("PENDING", reason="ReqNodeNotAvail")


@pytest.mark.parametrize(("status", "exit_code"), [(9, "0:9"), (768, "3:0"), (0, None)])
def test_squeue_tells_how_a_script_ended_as_wait_does(cluster, made, status, exit_code):
    cluster.squeue({"1": "FAILED"}, reason="JobLaunchFailure", status=status)
    assert made.state("1") == JobState("FAILED", reason="JobLaunchFailure", exit_code=exit_code)


def test_sacct_tells_codes_reason_and_the_failed_node(cluster, made):
    cluster.sacct({"1": "NODE_FAIL"}, rest="NodeDown|1:0|0:9|h200-2")
    made.state("1")
    next_period()
    assert made.state("1") == JobState(
        "NODE_FAIL",
        reason="NodeDown",
        exit_code="1:0",
        step_exit_code="0:9",
        failed_node="h200-2",
    )


def test_a_column_that_an_older_sacct_lacks_is_left_out_from_then_on(cluster, made, capsys):
    cluster.write(
        "sacct",
        """case "$*" in *FailedNode*)
        echo 'sacct: error: Invalid field requested: "FailedNode"' >&2; exit 1;; esac
        echo '1|wanted|FAILED|None|3:0|3:0'""",
    )
    made.state("1")
    for _ in range(3):
        next_period()
        found = made.state("1")
    assert found == JobState("FAILED", exit_code="3:0", step_exit_code="3:0")
    for _ in range(4):
        next_period()
        made.state("1")
    commands = [line for line in cluster.asked() if line.startswith("sacct")]
    assert [command.count("FailedNode") for command in commands] == [1] + [0] * (len(commands) - 1)
    assert len(commands) > 1
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("known", [{}, {"1": "RUNNING"}])
def test_a_job_that_slurmctld_lost_is_over_in_the_end(cluster, made, monkeypatch, known):
    """It is killed before it has saved a job; the accounting never hears of that job's end."""
    cluster.sacct(known)
    monkeypatch.setattr(answers, "LOST_AFTER_S", 0.5)
    began = time.monotonic()
    while words(made, "1") != ["VANISHED"]:
        assert time.monotonic() < began + 10
        time.sleep(0.02)
    assert time.monotonic() >= began + 0.5


# ------------------------------------------------------------------------- jobs without a number


def looked_for(made: Board, trusted_after_unix_s: float = 0.0, periods: int = 8) -> Found:
    for _ in range(periods):
        found = made.find("wanted", 1e9, trusted_after_unix_s)
        if found != Found(None, is_absent=False):
            break
        next_period()
    return found


def test_a_job_is_found_by_its_name_in_the_queue(cluster, made):
    cluster.squeue({"41": "PENDING"})
    assert looked_for(made) == Found("41", is_absent=False)
    assert "--me --name=wanted" in cluster.asked()[-1]


def test_a_job_that_has_left_the_queue_is_found_in_the_accounting(cluster, made):
    cluster.sacct({"41": "COMPLETED"})
    assert looked_for(made) == Found("41", is_absent=False)
    # From an hour before the submission, by this machine's clock.
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(1e9 - 3600))
    assert cluster.asked()[-1].endswith(f"--name=wanted --starttime={since}")


def test_there_is_no_such_job_once_both_have_said_so(cluster, made):
    assert made.find("wanted", 1e9, 0.0) == Found(None, is_absent=False)  # squeue alone
    assert looked_for(made) == Found(None, is_absent=True)
    assert looked_for(made, time.time() + 60) == Found(None, is_absent=False)


def test_there_may_be_one_while_the_accounting_is_silent(cluster, made):
    cluster.write("sacct", "echo 'Unable to contact slurmdbd' >&2; exit 1")
    assert looked_for(made) == Found(None, is_absent=False)


def test_without_accounting_squeue_is_believed_alone(cluster, made):
    cluster.write("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert looked_for(made) == Found(None, is_absent=True)


def test_names_and_numbers_are_asked_for_in_turns(cluster, made):
    cluster.squeue({"1": "RUNNING"})
    for _ in range(6):
        made.state("1"), made.find("other", 1e9, 0.0)
        next_period()
    kinds = ["--jobs" in line for line in cluster.asked() if line.startswith("squeue")]
    assert True in kinds
    assert False in kinds
    assert words(made, "1") == ["RUNNING"]


# --------------------------------------------------------------------- a directory that is no use


@pytest.fixture
def full(monkeypatch):
    """No board can be written, as on a full file system."""

    def refuse(path: Path, record: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(board, "write_json", refuse)
    monkeypatch.setattr(messages, "_said", set())


def test_a_board_that_cannot_be_written_ends_no_wait_and_is_said_once(cluster, made, full, capsys):
    cluster.squeue({"1": "RUNNING"})
    for _ in range(3):
        assert words(made, "1") == ["RUNNING"]
        next_period()
    assert capsys.readouterr().err.count("No space left on device") == 1


def test_nobody_asks_more_often_for_that(cluster, tmp_path, full):
    boards = [Board(30.0, tmp_path / "board") for _ in range(20)]
    for _ in range(3):
        for job, each in enumerate(boards):
            each.state(str(job))
    assert len(cluster.asked()) == 1


def test_a_directory_that_cannot_be_made_leaves_each_to_ask_rarely_for_itself(
    cluster, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(messages, "_said", set())
    (tmp_path / "file").touch()
    made = Board(PERIOD_S, tmp_path / "file" / "board")
    cluster.squeue({"1": "RUNNING"})
    assert words(made, "1") == ["RUNNING"]
    next_period()
    assert words(made, "1") == ["RUNNING"]
    assert len(cluster.asked()) == 1
    assert "Not a directory" in capsys.readouterr().err


def test_a_directory_that_somebody_tidied_up_is_made_again(cluster, made, tmp_path):
    cluster.squeue({"1": "RUNNING"})
    made.state("1")
    shutil.rmtree(tmp_path / "board")
    next_period()
    assert words(made, "1") == ["RUNNING"]
    assert (tmp_path / "board" / "board.json").exists()
