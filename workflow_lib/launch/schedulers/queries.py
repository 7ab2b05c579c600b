"""Asks ``squeue`` and ``sacct`` about jobs, and interprets Slurm's job states."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping, Sequence

from workflow_lib import commands
from workflow_lib.launch import interruption
from workflow_lib.records.outcomes import JobState

#: how long a command may take to answer
ANSWER_TIMEOUT_S = 60.0
#: this project's state of a job if neither squeue nor sacct knows how it ended
LOST = "LOST"
#: this project's state of a job on this machine whose process has ended
FINISHED = "FINISHED"
#: states in which a job has ended for good
_OVER: tuple[str, ...] = ("COMPLETED", "FAILED", "TIMEOUT", "DEADLINE", "NODE_FAIL")
_OVER += ("BOOT_FAIL", "PREEMPTED", "CANCELLED", "OUT_OF_MEMORY", "REVOKED", LOST, FINISHED)
_QUEUED = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT")
_NAMED = "@"
_SCONTROL_FIELDS = re.compile(r"(?:^| )(JobName|JobState|Reason|ExitCode)=(\S+)")
_SQUEUE_COLUMNS = ("JobArrayID", "Name", "State", "Reason", "exit_code")
#: columns of sacct beside the state → fields of JobState; older versions of Slurm lack some
_COLUMNS = {
    "Reason": "reason",
    "ExitCode": "exit_code",
    "DerivedExitCode": "step_exit_code",
    "FailedNode": "failed_node",
}


class NoAnswerError(RuntimeError):
    """Slurm did not answer a query. The message is what it printed instead."""

    @property
    def no_accounting(self) -> bool:
        """Whether the cluster has no accounting."""
        return "accounting storage is disabled" in str(self).lower()

    @property
    def unknown_column(self) -> str | None:
        """The column that this version of sacct does not have; None if that is not the error."""
        match = re.search(r'invalid field requested: "(\w+)"', str(self), re.IGNORECASE)
        return match[1] if match and match[1] in _COLUMNS else None


#: job_key → the job's state; or job name → the job's id and state
States = dict[str, JobState]
Named = dict[str, tuple[str, JobState]]


def job_key(job_id: str, name: str | None) -> str:
    """The key of a job: its id and, if known, its name.

    The name is needed because a slurmctld that lost its state counts from 1 again, so the id may
    belong to another job.
    """
    return job_id if name is None else f"{job_id}{_NAMED}{name}"


def squeue(jobs: Sequence[str]) -> States:
    """job_key → state, for those jobs that slurmctld still knows. Some of them may have ended.

    Raises NoAnswerError.
    """
    if not jobs:
        return {}
    try:
        rows = _squeue(f"--jobs={_ids(jobs)}")
    except NoAnswerError as error:
        if "invalid job id" in str(error).lower():  # it knows none of these jobs
            return {}
        raise
    return _states(jobs, rows)


def squeue_by_name(names: Sequence[str]) -> Named:
    """Name → id and state, for this user's jobs of these names that slurmctld still knows.

    Raises NoAnswerError.
    """
    rows = _squeue("--me", f"--name={','.join(names)}")
    return {name: (job, state) for job, name, state in rows if name in names}


def scontrol(job: str) -> JobState | None:
    """What slurmctld says of a job, by a job_key: of its id, then of its name. None if it has no
    such job. Unlike squeue, ``scontrol`` has no filters.

    Raises NoAnswerError.
    """
    job_id, _, name = job.partition(_NAMED)
    try:
        text = _output("scontrol", "--all", "--oneliner", "show", "job", job_id)
    except NoAnswerError as error:
        if "invalid job id" not in str(error).lower():
            raise
        text = ""
    for line in text.splitlines():
        fields = dict(_SCONTROL_FIELDS.findall(line))
        if "JobState" in fields and (not name or fields.get("JobName") == name):
            ended_as = _known(fields.get("ExitCode", "").removesuffix("0:0"))
            return JobState(fields["JobState"], _known(fields.get("Reason", "")), ended_as)
    named = squeue_by_name([name]) if name else {}
    return named[name][1] if name in named else None


def sacct(jobs: Sequence[str], missing_columns: Sequence[str] = ()) -> States:
    """job_key → state, for those jobs that the accounting database knows. Does not ask for
    ``missing_columns``, which this version of Slurm lacks.

    Raises NoAnswerError.
    """
    return _states(jobs, _sacct(missing_columns, f"--jobs={_ids(jobs)}"))


def sacct_by_name(names: Mapping[str, float], missing_columns: Sequence[str] = ()) -> Named:
    """Name → id and state, for the jobs of these names that the accounting database knows.

    ``names`` gives for each name when its job was submitted, in Unix time. Raises NoAnswerError.
    """
    # An hour earlier, as the clocks of two machines may differ.
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(min(names.values()) - 3600))
    rows = _sacct(missing_columns, f"--name={','.join(names)}", f"--starttime={since}")
    return {name: (job, state) for job, name, state in rows if name in names}


def word(state: JobState | None) -> str:
    """The first word of a state: "CANCELLED" of "CANCELLED by 0". Empty for None."""
    return (state.state if state else "").partition(" ")[0].rstrip("+")


def is_over(state: JobState | None) -> bool:
    """Whether a job in that state has ended for good. A requeued job has not."""
    return word(state) in _OVER


def will_start_again(state: JobState | None) -> bool:
    """Whether a job that has run and is in that state was put back into the queue."""
    return word(state) in _QUEUED


def is_held_unlaunched(state: JobState | None) -> bool:
    """Whether a node could not launch the job, and Slurm holds it until an admin releases it.

    This happens, for example, if slurmctld dies while it launches a job.
    """
    reason = (state.reason or "") if state else ""
    return will_start_again(state) and reason.replace("_", " ").startswith("launch failed")


def _ids(jobs: Sequence[str]) -> str:
    return ",".join(sorted({job.partition(_NAMED)[0] for job in jobs}))


def _states(jobs: Sequence[str], rows: Sequence[tuple[str, str, JobState]]) -> States:
    """job_key → state. A job whose id now belongs to a job of another name is left out."""
    states = {job_key(job, n): state for job, name, state in rows for n in (None, name)}
    return {job: states[job] for job in jobs if job in states}


def _squeue(*which: str) -> list[tuple[str, str, JobState]]:
    """Id, name and state of each job."""
    # --array and JobArrayID: each task of an array has its own line, with the id "<array>_<task>".
    # --all: hidden partitions, and those that the user may no longer use.
    columns = ",".join(f"{name}:|" for name in _SQUEUE_COLUMNS)
    options = ("--all", "--array", "--noheader", "--states=all", f"--Format={columns}")
    text = _output("squeue", *options, *which)
    rows = [line.strip().split("|")[: len(_SQUEUE_COLUMNS)] for line in text.splitlines()]
    return [
        (name, job_name, JobState(state, reason=_known(reason), exit_code=_exit_code(status)))
        for name, job_name, state, reason, status in (
            row for row in rows if len(row) == len(_SQUEUE_COLUMNS)
        )
        if state
    ]


def _sacct(missing_columns: Sequence[str], *which: str) -> list[tuple[str, str, JobState]]:
    """Id, name and state of each job."""
    columns = [column for column in _COLUMNS if column not in missing_columns]
    options = ("-X", "--noheader", "--parsable2")
    wanted = ",".join(["JobID", "JobName", "State", *columns])
    text = _output("sacct", *options, f"--format={wanted}", *which)
    rows = [line.strip().split("|") for line in text.splitlines()]
    return [
        (
            row[0],
            row[1],
            JobState(
                row[2],
                **{_COLUMNS[c]: _known(value) for c, value in zip(columns, row[3:], strict=False)},
            ),
        )
        for row in rows
        if len(row) >= 3 and row[2]
    ]


def _exit_code(status: str) -> str | None:
    """The exit code in sacct's form, e.g. "1:0", from squeue's, which is the status of wait(2)."""
    if not status.isdecimal():
        return _known(status)
    return f"{int(status) >> 8}:{int(status) & 0x7F}" if int(status) else None


def _known(value: str) -> str | None:
    return value if value not in ("", "None", "Unknown") else None


def _output(*command: str) -> str:
    """What a command prints. Raises NoAnswerError if it fails, hangs or is missing, and
    InterruptedRunError if a signal ends this thread's wait.
    """
    try:
        result = commands.run_slurm(command, ANSWER_TIMEOUT_S, interruption.check)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswerError(f"{command[0]}: {error}") from None
    if result.exit_code:
        raise NoAnswerError(f"{command[0]}: {result.problem}")
    return result.output
