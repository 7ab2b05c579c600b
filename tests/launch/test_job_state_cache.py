"""One query for all who wait, at fake ``squeue`` and ``sacct``."""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path

import pytest

from tests.launch import scripts
from tests.waiting import until
from workflow_lib.launch.schedulers import job_state_cache, queries
from workflow_lib.launch.schedulers.job_state_cache import JobStateCache
from workflow_lib.launch.schedulers.scheduler import Found
from workflow_lib.records.outcomes import JobState

PERIOD_S = 0.05


class Cluster:
    """Commands that say what they are told, and count how often they were asked."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.squeue({})
        self.sacct({})
        self.scontrol({})

    def write(self, name: str, script: str) -> None:
        scripts.command(
            self.directory, name, f'echo "{name} $*" >>{self.directory}/asked\n{script}'
        )

    def squeue(self, states: dict[str, str], reason: str = "None", status: int = 0) -> None:
        """Jobs by id; one that is looked for is called "wanted"."""
        rest = f"{reason}|{status}|"
        lines = (f"echo '{job}|wanted|{state}|{rest}'\n" for job, state in states.items())
        self.write("squeue", "".join(lines))

    def sacct(self, states: dict[str, str], rest: str = "None|0:0|0:0|") -> None:
        """Jobs by id, with reason, exit codes of the job and its steps, and the failed node."""
        lines = (f"echo '{job}|wanted|{state}|{rest}'\n" for job, state in states.items())
        self.write("sacct", "".join(lines))

    def scontrol(self, states: dict[str, str]) -> None:
        """Jobs by id, called "wanted"."""
        lines = "".join(
            f"[ $5 = {job} ] && echo 'JobId={job} JobName=wanted JobState={state} Reason=None "
            "ExitCode=0:0' && exit\n"
            for job, state in states.items()
        )
        self.write("scontrol", f"{lines}echo 'Invalid job id specified' >&2; exit 1")

    def asked(self) -> list[str]:
        path = self.directory / "asked"
        return path.read_text().splitlines() if path.exists() else []


def words(made: JobStateCache, *jobs: str) -> list[str | None]:
    """What is said of jobs, without why."""
    states = [made.state(job) for job in jobs]
    return [state and state.state for state in states]


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    made = Cluster(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{made.directory}{os.pathsep}{os.environ['PATH']}")
    return made


@pytest.fixture
def made():
    return JobStateCache(PERIOD_S)


def next_period() -> None:
    time.sleep(PERIOD_S * 1.5)


def test_jobs_have_the_state_that_squeue_tells(cluster, made):
    cluster.squeue({"1": "RUNNING", "2": "PENDING", "3": "COMPLETED"})
    made.state("1"), made.state("2")
    next_period()
    assert words(made, "1") == ["RUNNING"]
    assert words(made, "2") == ["PENDING"]
    assert cluster.asked()[-1].endswith("--jobs=1,2")


def test_within_a_period_nobody_is_asked_twice(cluster):
    cluster.squeue({str(job): "RUNNING" for job in range(400)})
    made = JobStateCache(30.0)
    for _ in range(3):
        states = [made.state(str(job)) for job in range(400)]
    assert len(cluster.asked()) == 1
    # The first to come asked before the others were there.
    assert states[0] == JobState("RUNNING")
    assert states[1:] == [None] * 399


def test_while_one_thread_asks_the_others_go_on_with_what_is_known(cluster):
    go = cluster.directory / "go"
    cluster.write(
        "squeue", f'until [ -e {go} ]; do sleep 0.02; done; echo "1|wanted|RUNNING|None|0|"'
    )
    made = JobStateCache(60.0)
    first = threading.Thread(target=made.state, args=("1",))
    first.start()
    until(cluster.asked)
    assert [made.state(job) for job in ("2", "3")] == [None, None]
    go.touch()
    first.join()
    assert words(made, "1") == ["RUNNING"]
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
    assert said.count("\n") == 1


def test_a_slurm_that_does_not_answer_is_asked_ever_more_rarely(cluster, monkeypatch):
    clock = [1e9]
    monkeypatch.setattr(job_state_cache.time, "monotonic", lambda: clock[0])
    cluster.write("squeue", "exit 1")
    made = JobStateCache(10.0)
    times = []
    for _ in range(1200):
        before = len(cluster.asked())
        made.state("1")
        if len(cluster.asked()) > before:
            times.append(clock[0] - 1e9)
        clock[0] += 1
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert gaps == [20, 40, 80, 160, 300, 300]


def test_a_database_that_is_down_ends_no_run(cluster, made, capsys):
    cluster.write("sacct", "echo 'Unable to contact slurmdbd' >&2; exit 1")
    cluster.squeue({"1": "RUNNING"})
    for _ in range(8):
        made.state("1")
        assert made.state("2") is None
        next_period()
    cluster.squeue({"1": "TIMEOUT"})
    next_period()
    made.state("1")
    next_period()
    assert words(made, "1") == ["TIMEOUT"]
    commands = [line.split()[0] for line in cluster.asked()]
    assert commands.count("sacct") <= 3 < commands.count("squeue")
    assert capsys.readouterr().err.count("slurmdbd") == 1


@pytest.mark.parametrize(
    ("accounting", "patience"),
    [
        (None, "FORGOTTEN_AFTER_S"),
        # slurmctld is killed before it has saved a job; the accounting never hears of its end.
        ({}, "LOST_AFTER_S"),
        ({"1": "RUNNING"}, "LOST_AFTER_S"),
    ],
)
def test_a_job_that_is_long_gone_is_over(cluster, made, monkeypatch, accounting, patience):
    if accounting is None:
        cluster.write("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    else:
        cluster.sacct(accounting)
    monkeypatch.setattr(job_state_cache, patience, 0.4)
    began = time.monotonic()
    until(lambda: words(made, "1") == ["LOST"])
    assert time.monotonic() >= began + 0.4


def never_lost(made: JobStateCache, monkeypatch) -> list[str | None]:
    """What is said of job 1 once squeue and sacct have not known it for long enough."""
    monkeypatch.setattr(job_state_cache, "LOST_AFTER_S", 0.0)
    said: list[str | None] = []
    for _ in range(8):
        said += words(made, "1")
        next_period()
    return said


def test_a_job_that_only_scontrol_shows_is_not_lost(cluster, made, monkeypatch):
    cluster.scontrol({"1": "PENDING"})
    assert never_lost(made, monkeypatch)[-1] == "PENDING"
    cluster.scontrol({})
    until(lambda: words(made, "1") == ["LOST"])


def test_while_scontrol_does_not_answer_no_job_is_lost(cluster, made, monkeypatch):
    cluster.write("scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert set(never_lost(made, monkeypatch)) == {None}


@pytest.mark.parametrize(
    ("variable", "gets_it"),
    [
        *((f"{tool}_PARTITION", False) for tool in ("SQUEUE", "SBATCH", "SCANCEL", "SINFO")),
        ("SQUEUE_STATES", False),
        ("SACCT_LOCAL", False),
        ("SCONTROL_ALL", False),
        ("SLURM_JOB_ID", False),
        ("SLURM_CONF", True),
        ("SLURM_JWT", True),
    ],
)
def test_users_defaults_of_commands_reach_none(cluster, made, monkeypatch, variable, gets_it):
    monkeypatch.setenv(variable, "mine")
    for command in ("squeue", "sacct", "scontrol"):
        cluster.write(command, f"printenv {variable} >>{cluster.directory}/seen; exit 1")
    for ask in (
        lambda: queries.squeue(["1"]),
        lambda: queries.sacct(["1"]),
        lambda: queries.scontrol("1"),
    ):
        with pytest.raises(queries.NoAnswerError):
            ask()
    seen = (cluster.directory / "seen").read_text().split()
    assert seen == (["mine"] * 3 if gets_it else [])


def test_what_was_told_before_a_job_was_waited_for_is_not_taken(cluster):
    cluster.squeue({"1": "COMPLETED"})
    made = JobStateCache(60.0)
    assert words(made, "1") == ["COMPLETED"]
    made.forget("1")
    assert made.state("1") is None


def test_an_id_that_has_become_another_jobs_is_no_answer(cluster, made, monkeypatch):
    monkeypatch.setattr(job_state_cache, "LOST_AFTER_S", 0.3)
    cluster.squeue({"1": "COMPLETED"})  # called "wanted"; slurmctld lost its state and counts anew
    cluster.sacct({"1": "RUNNING"})
    assert made.state("1", "triptych-1") is None
    started = time.monotonic()
    while (said := made.state("1", "triptych-1")) is None:
        assert time.monotonic() < started + 10
        time.sleep(0.02)
    assert said.state == "LOST"
    made.state("1", "wanted")
    next_period()
    next_period()
    answer = made.state("1", "wanted")
    assert answer is not None
    assert answer.state == "COMPLETED"


def test_a_job_that_nobody_waits_for_is_not_asked_about(cluster, made):
    made.state("1"), made.state("2")
    made.forget("1")
    next_period()
    made.state("2")
    assert cluster.asked()[-1].endswith("--jobs=2")


# ------------------------------------------------------------------------------ what is told


@pytest.mark.parametrize(
    ("job", "status", "exit_code"),
    # An element of an array is a job, too.
    [("1", 9, "0:9"), ("1", 768, "3:0"), ("123_4", 0, None)],
)
def test_squeue_tells_why_and_how_a_script_ended_as_wait_does(
    cluster, made, job, status, exit_code
):
    cluster.squeue({job: "FAILED", "123_5": "RUNNING"}, reason="JobLaunchFailure", status=status)
    assert made.state(job) == JobState("FAILED", reason="JobLaunchFailure", exit_code=exit_code)


def test_sacct_tells_codes_reason_and_the_failed_node(cluster, made):
    cluster.sacct({"1": "NODE_FAIL"}, rest="NodeDown|1:0|0:9|h200-2")
    made.state("1")
    next_period()
    assert made.state("1") == JobState(
        "NODE_FAIL", reason="NodeDown", exit_code="1:0", step_exit_code="0:9", failed_node="h200-2"
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


# ------------------------------------------------------------------------- jobs without a number


def looked_for(made: JobStateCache, trusted_after_s: float = 0.0, periods: int = 8) -> Found:
    for _ in range(periods):
        found = made.find("wanted", 1e9, trusted_after_s)
        if found != Found(None, is_absent=False):
            break
        next_period()
    return found


def test_a_job_is_found_by_its_name_while_others_are_asked_for(cluster, made):
    cluster.squeue({"41": "PENDING"})
    made.state("41")
    assert looked_for(made) == Found("41", is_absent=False)
    assert any("--me --name=wanted" in line for line in cluster.asked())
    for _ in range(6):
        made.state("41"), made.find("other", 1e9, 0.0)
        next_period()
    assert words(made, "41") == ["PENDING"]
    assert sum("--jobs=41" in line for line in cluster.asked()) > 1
    assert sum("--name=other" in line for line in cluster.asked()) > 1


def test_a_job_that_has_left_the_queue_is_found_in_the_accounting(cluster, made):
    cluster.sacct({"41": "COMPLETED"})
    assert looked_for(made) == Found("41", is_absent=False)
    # From an hour before the submission, by this machine's clock.
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(1e9 - 3600))
    assert cluster.asked()[-1].endswith(f"--name=wanted --starttime={since}")


def test_there_is_no_such_job_once_both_have_said_so(cluster, made):
    assert made.find("wanted", 1e9, 0.0) == Found(None, is_absent=False)  # squeue alone
    assert looked_for(made) == Found(None, is_absent=True)
    assert looked_for(made, time.monotonic() + 60) == Found(None, is_absent=False)


@pytest.mark.parametrize(
    ("words", "is_absent"),
    [("Unable to contact slurmdbd", False), ("Slurm accounting storage is disabled", True)],
)
def test_without_accounting_squeue_is_believed_alone(cluster, made, words, is_absent):
    cluster.write("sacct", f"echo '{words}' >&2; exit 1")
    assert looked_for(made) == Found(None, is_absent=is_absent)
