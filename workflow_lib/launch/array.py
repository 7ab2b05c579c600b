"""Submits many runs as tasks of job arrays. Runs that ask Slurm for the same form one array.

A task is one run: it executes that run's own script, and the workflow afterwards waits for job
"<array>_<task>" as for any other. Below ``results/arrays/<name>/``::

    job.sh          the array's script for sbatch, with the longest of the runs' time limits
    1.sh, 2.sh, …   copies of the runs' scripts as submitted, as Slurm keeps them of other jobs
    1, 2, …         links to the run directories; Slurm writes each task's log through them
"""

from __future__ import annotations

import functools
import getpass
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from workflow_lib import results
from workflow_lib.launch import attempts, job_script, run_place, submit
from workflow_lib.launch.attempts import claim_run
from workflow_lib.launch.messages import say
from workflow_lib.launch.run_lock import try_to_lock
from workflow_lib.launch.schedulers import choice
from workflow_lib.launch.schedulers.refusals import NotNowError, SubmissionError, UnclearError
from workflow_lib.launch.schedulers.slurm import sbatch
from workflow_lib.launch.submit import look_for
from workflow_lib.records.cell import Cell
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import JobRecord, SubmissionRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import write_json

#: How many tasks an array has at most. Slurm's own limit, MaxArraySize, is 1001 unless the site
#: sets it. Every run's lock is an open file, and a process may commonly have 1024.
LONGEST = 500
_PER_RUN = re.compile(r"#SBATCH --(job-name|time)=(.*)")


def submit_all(
    directories: Iterable[Path],
    results_directory: Path,
    at_once: int,
    render_anew: Callable[[Path], None] | None = None,
) -> list[str]:
    """Submit the runs that need a job; returns the arrays' ids.

    Runs that have a result, a job, or a process that waits for them are left alone. No more than
    ``at_once`` tasks of an array run at a time. ``render_anew`` renders the script of a run
    directory again, if the results were moved or copied since it was rendered.

    Raises SubmissionError before any run is submitted if one cannot be, or if Slurm refuses an
    array.
    """
    waiting = [paths for paths in map(RunPaths, directories) if _needs_job(paths)]
    if not waiting:
        say("nothing to submit: every run has a result, a job, or an end record")
    alike: dict[tuple[str, ...], list[RunPaths]] = {}
    for paths in waiting:
        _check(paths, results_directory, render_anew)
        alike.setdefault(_request(paths), []).append(paths)
    ids = []
    for request, runs in alike.items():
        for first in range(0, len(runs), LONGEST):
            job_id = _submit(runs[first : first + LONGEST], request, results_directory, at_once)
            ids += [job_id] if job_id else []
    return ids


def _needs_job(paths: RunPaths) -> bool:
    """Whether the run has no result, and was never submitted or failed after it was."""
    if paths.outcome.exists():
        return False
    begun = any(path.exists() for path in (paths.submission, paths.job, paths.ended))
    return paths.failure.exists() or not begun


def _check(
    paths: RunPaths, results_directory: Path, render_anew: Callable[[Path], None] | None
) -> None:
    """Raise SubmissionError if the run's script or its tokens are missing, or if the script was
    edited or is not safe to submit.
    """
    if not paths.script.exists():
        raise SubmissionError(
            f"{paths.script} is not there: `snakemake --profile … --until render tokenize` writes "
            "every run's script and tokens"
        )
    run_place.check(paths)
    if not job_script.is_intact(paths.script):
        raise SubmissionError(
            f"{paths.script} was edited after it was rendered, so it may not measure the cell that "
            "it is for. Delete it to have it rendered again, or submit it by hand"
        )
    again = None if render_anew is None else functools.partial(render_anew, paths.directory)
    run_place.render_if_stale(paths, again)
    cell = read_record(paths.cell, Cell)
    submit.check(results_directory, cell)


def _lines(paths: RunPaths) -> list[str]:
    """The lines of a run's script that sbatch reads."""
    lines = paths.script.read_text(encoding="utf-8").splitlines()
    asked = [line for line in lines if line.startswith("#SBATCH ")]
    if not asked:
        raise SubmissionError(f"{paths.script} asks Slurm for nothing: its platform is not Slurm's")
    return asked


def _request(paths: RunPaths) -> tuple[str, ...]:
    """The ``#SBATCH`` lines of a run's script, without its name and its time limit."""
    return tuple(line for line in _lines(paths) if not _PER_RUN.fullmatch(line))


def _time_limit_min(paths: RunPaths) -> int:
    return next(
        int(match[2])
        for line in _lines(paths)
        if (match := _PER_RUN.fullmatch(line)) and match[1] == "time"
    )


def _submit(
    runs: Sequence[RunPaths], request: tuple[str, ...], results_directory: Path, at_once: int
) -> str | None:
    """Submit one array. Returns its id; None if other processes took all of its runs meanwhile."""
    with ExitStack() as locks:
        descriptors = {paths: _lock(paths, locks) for paths in runs}
        locked = {
            paths: descriptor for paths, descriptor in descriptors.items() if descriptor is not None
        }
        # Another process may have submitted runs before this one took their locks.
        ours = [paths for paths in locked if _needs_job(paths)]
        if not ours:
            return None
        name = f"triptych-{secrets.token_hex(4)}"
        directory = results.array_directory(results_directory, name)
        script = _lay_out(directory, ours, request, at_once)
        submitted_by = f"{getpass.getuser()} (array {name})"
        for task, paths in enumerate(ours, start=1):
            if paths.failure.exists():
                attempts.set_aside(paths)
            paths.logs.mkdir(exist_ok=True)
            announced = SubmissionRecord(
                name, time.time(), submitted_by, array_task=task, user_id=os.getuid()
            )
            write_json(paths.submission, announced)
        job_id = _sbatch(script, ours, list(locked.values())) or _find_by_name(ours)
        for task, paths in enumerate(ours, start=1):
            task_id = f"{job_id}_{task}"
            record = JobRecord("slurm", task_id, time.time(), submitted_by, name, os.getuid())
            if (job := claim_run(paths, record)).job_id == record.job_id:
                write_json(paths.job, record)  # the task may have been faster
            else:
                say(f"job {job.job_id} owns the run already; job {record.job_id} will stop")
        say(f"submitted job {job_id} with {len(ours)} tasks; `snakemake` now waits for them")
        return job_id


def _lock(paths: RunPaths, locks: ExitStack) -> int | None:
    """Take the run's lock until ``locks`` is closed. Returns its descriptor; None if another
    process already waits for the run.
    """
    stream = locks.enter_context(paths.lock.open("a"))
    if try_to_lock(stream) is None:
        say(f"{paths.directory} is left out: a process already waits for it")
        return None
    return stream.fileno()


def _lay_out(
    directory: Path, runs: Sequence[RunPaths], request: tuple[str, ...], at_once: int
) -> Path:
    """Write the array's directory, which has its name; returns the script for sbatch. The first run
    is task 1."""
    directory.mkdir(parents=True)
    job_script.close(directory)
    for task, paths in enumerate(runs, start=1):
        (directory / str(task)).symlink_to(paths.directory)
        shutil.copyfile(paths.script, directory / f"{task}.sh")
        job_script.close(directory / f"{task}.sh")
    minutes = max(map(_time_limit_min, runs))
    lines = [
        job_script.INTERPRETER,
        f"# {len(runs)} runs, one a task: each executes its own script.",
        f"#SBATCH --job-name={directory.name}",
        *request,
        f"#SBATCH --time={minutes}",
        f"#SBATCH --array=1-{len(runs)}%{at_once}",
        "",
        f'script={job_script.quote(directory)}/"$SLURM_ARRAY_TASK_ID.sh"',
        "# Another user who may write a directory above may have replaced it since.",
        '[ -O "$script" ] || exit 77',
        'exec bash "$script" "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"',
    ]
    script = directory / "job.sh"
    script.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
    job_script.close(script)
    return script


def _sbatch(script: Path, runs: Sequence[RunPaths], locks: Sequence[int]) -> str | None:
    """Give the array to sbatch. Returns its id, or None if sbatch did not print it.

    Raises SubmissionError if the array was not submitted, and deletes ``submission.json`` of its
    runs then.
    """
    platform = read_record(runs[0].cell, Cell).hardware.platform
    try:
        with choice.choose("slurm").submission_lock():
            log = "%a/logs/slurm-%A_%a.log"
            return sbatch(script, script.parent, log, platform, locks=locks)
    except UnclearError as error:
        say(str(error))
        return None
    except SubmissionError as error:
        if not (isinstance(error, NotNowError) and error.may_have_been_submitted):
            for paths in runs:
                paths.submission.unlink()
        raise


def _find_by_name(runs: Sequence[RunPaths]) -> str:
    """The id of the array, looked for by its name.

    Raises SubmissionError if there is none, and deletes ``submission.json`` of its runs then.
    """
    announced = read_record(runs[0].submission, SubmissionRecord)
    task = look_for(choice.choose("slurm"), announced)
    if task is None:
        for paths in runs:
            paths.submission.unlink()
        raise SubmissionError("sbatch did not submit the array; submit it again")
    return task.partition("_")[0]
