"""Checks a platform before its first GPU-hour is spent.

``python -m workflow_lib.check --platform h200``, on a login node, compares the platform's file with
Slurm's partition, has sbatch test the options of a job, and submits a job of a minute. Its script
begins as that of a run. On up to two nodes it imports the packages, opens the sensors and writes
into the results. ``check.json`` has what was found.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tabulate import tabulate

from workflow_lib import cells, commands, node_check, partition, results
from workflow_lib.cells import PlannedCell
from workflow_lib.config import Platform
from workflow_lib.launch import interruption, job_script, rendering, snapshot
from workflow_lib.launch.interruption import InterruptedRunError, pause, signals_noted
from workflow_lib.launch.schedulers import queries
from workflow_lib.launch.schedulers.choice import choose
from workflow_lib.launch.schedulers.refusals import NotNowError, SubmissionError, refused
from workflow_lib.launch.schedulers.scheduler import Submission
from workflow_lib.launch.schedulers.slurm import sbatch
from workflow_lib.launch.submit import look_for
from workflow_lib.options import add_config, add_results, ends_quietly
from workflow_lib.records.checks import CheckPaths, CheckRecord, Finding, NodeCheck
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import JobRecord, SubmissionRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.records.whole_files import error_text, user_name, write_json
from workflow_lib.safety import printable
from workflow_lib.study import ConfigError, Files, Study, load_study, lookup, plain_of
from workflow_lib.words import counted

#: the job's time limit; packages on a busy file system take minutes to import
_LIMIT_MIN = 15
_LOOK_EVERY_S = 0.5
_ANSWER_TIMEOUT_S = 60.0
#: how long files of a job that has ended may take to be seen here, as over NFS
_LATE_S = 75.0
#: a clock that is off by more confuses which file is younger
_CLOCKS_AGREE_S = 1.0
#: the line with which the job's script ends
_ENDED = "triptych: the check ended with code "


def directory_of(results_directory: Path, name: str, platform: Platform) -> Path:
    """The directory of the check of a platform with this content."""
    digest = hashlib.sha256(platform.model_dump_json().encode()).hexdigest()[:12]
    return results.check_directory(results_directory, name, digest)


def is_passed(results_directory: Path, name: str, platform: Platform) -> bool:
    """Whether a check of the platform, with this content, has passed; a damaged one has not."""
    path = CheckPaths(directory_of(results_directory, name, platform)).result
    try:
        return path.exists() and read_record(path, CheckRecord).passed
    except (OSError, RecordError):
        return False


def is_due(results_directory: Path, name: str, platform: Platform) -> bool:
    """Whether no run on the platform, one of Slurm, was rendered yet, and no check has passed."""
    begun = (results_directory / "cells" / name).exists()
    on_slurm = platform.scheduler == "slurm"
    return on_slurm and not begun and not is_passed(results_directory, name, platform)


def _of_results(directory: Path) -> Iterator[Finding]:
    """Say what will be made of the path to the results, which may be mistyped."""
    if not directory.parent.exists():
        yield Finding("results", None, f"{directory.parent} is not there yet, and is made")


def of_file(name: str, platform: Platform, profiles: Path) -> Iterator[Finding]:
    """Compare the platform's file with Slurm's partition and with its profile."""
    if platform.partition is not None:
        try:
            nodes = partition.nodes_of(platform.partition, platform.exclude_nodes)
        except partition.NoAnswerError as error:
            # Nor does Slurm answer what follows.
            yield Finding("partition", False, str(error))
            return
        differences = list(partition.differences(platform, nodes))
        for difference in differences:
            yield Finding("partition", False, difference)
        for note in (partition.unavailable(platform, nodes), partition.unused(platform, nodes)):
            if note:
                yield Finding("partition", None, note)
        if not differences:
            yield Finding("partition", True, f"{platform.partition} is as the file says")
    yield from _of_profile(profiles / platform.profile(name) / "config.yaml", platform, name)


def _of_profile(profile: Path, platform: Platform, name: str) -> Iterator[Finding]:
    """Have Slurm say whether it takes a job with the partition, account, QOS and reservation that
    the profile gives the analysis: where it does not, Snakemake waits without a word."""
    if not profile.is_file():
        yield Finding("profile", None, f"{profile} is not there: `make profiles` writes it")
        return
    plain = plain_of(profile)
    given = plain.get("default-resources") or ()
    resources = dict(str(entry).partition("=")[::2] for entry in given)
    resources["reservation"] = str(plain.get("slurm-reservation") or "")
    remedy = "or delete its directory and type `make profiles`"
    if platform.account is not None and not resources.get("slurm_account"):
        # Where the site gives a user a default account, the analysis needs none.
        yield Finding(
            "profile",
            None,
            f"{profile} names no account for analysis, and the platform's is {platform.account}: "
            f"add `- slurm_account={platform.account}` to its default-resources and delete "
            f"slurm-no-account, {remedy}",
        )
    options = [
        f"--{key.removeprefix('slurm_')}={resources[key]}"
        for key in ("slurm_partition", "slurm_account", "qos", "reservation")
        if resources.get(key)
    ]
    command = ("sbatch", "--test-only", *options, "--wrap=true")
    if platform.partition is None or shutil.which("sbatch") is None:
        return
    try:
        done = commands.run_slurm(command, _ANSWER_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding("profile", None, f"sbatch: {error}")
        return
    if done.exit_code:
        is_later = isinstance(refused(done.errors, done.exit_code, name), NotNowError)
        yield Finding(
            "profile",
            None if is_later else False,
            f"{profile}: Slurm takes no job of the analysis with {' '.join(options)} "
            f"({'; '.join(done.errors.splitlines())}): correct slurm_partition, slurm_account "
            f"and qos in its default-resources, and slurm-reservation, {remedy}",
        )


def cell_for(study: Study, name: str) -> PlannedCell:
    """The cell whose job the check resembles: of the sweep smoke, which has up to two nodes, or of
    another where smoke can not run. Raises ConfigError if no cell can run."""
    for sweep, spec in sorted(study.sweeps.items(), key=lambda item: item[0] != "smoke"):
        alone = replace(study, sweeps=Files({sweep: spec}))
        for view in cells.expand_study(alone).values():
            for planned in view.cells:
                if view.platform == name and planned.feasible:
                    return planned
    raise ConfigError(
        f"no sweep has a cell that {name} can run, so there is no job to check it with; "
        f"`python -m workflow_lib.plan --platform {name}` says why"
    )


def write_job(
    planned: PlannedCell, platform: Platform, paths: CheckPaths, results_directory: Path
) -> RunPaths:
    """Write the script of the check's job, its cell and its code, without results of an earlier
    check. ``results_directory`` is absolute.

    Raises RenderError and OSError.
    """
    for old in (paths.result, *paths.nodes.glob("*.json")):
        old.unlink(missing_ok=True)
    root = Path(__file__).resolve().parents[1]
    code = snapshot.write(results.code_directory(results_directory))
    places = job_script.Places(root=root, run_directory=paths.directory, tokens=None, code=code)
    limit_min = min(_LIMIT_MIN, platform.time_limit_max_min)
    own = rendering.with_own_python(platform)
    script = job_script.job_script(planned.cell, own, places, limit_min, check=True)
    job_script.write(planned.cell, script, paths.directory)
    paths.nodes.mkdir(exist_ok=True)
    return RunPaths(paths.directory)


def of_options(name: str, platform: Platform, run: RunPaths) -> Finding:
    """Have sbatch test the options of the largest and longest job that the file allows."""
    largest = (f"--nodes={platform.nodes}", f"--time={platform.time_limit_max_min}")
    try:
        sbatch(run.script, run.logs, "slurm-%j.log", name, "--test-only", *largest)
    except NotNowError as error:
        return Finding("sbatch --test-only", None, str(error))
    except SubmissionError as error:
        return Finding("sbatch --test-only", False, str(error))
    asked = f"{counted(platform.nodes, 'node')} for {platform.time_limit_max_min} min"
    return Finding("sbatch --test-only", True, f"Slurm takes a job of {asked}")


def of_job(planned: PlannedCell, platform: Platform, paths: CheckPaths) -> Iterator[Finding]:
    """Submit the job, wait for it, and say what it found.

    Raises InterruptedRunError after Ctrl-C, which cancels the job.
    """
    run, cell = RunPaths(paths.directory), planned.cell
    scheduler = choose(platform.scheduler)
    now = time.time()
    by, uid = user_name(os.getuid()), os.getuid()
    record = SubmissionRecord(f"triptych-check-{time.time_ns():x}", now, by, user_id=uid)
    try:
        job_id = scheduler.submit(Submission(run, cell, record)) or look_for(scheduler, record)
    except SubmissionError as error:
        yield Finding("job", False, str(error))
        return
    except InterruptedRunError:
        with interruption.with_job(times=2):
            raise _left(scheduler.cancel_submission(record), record.job_name) from None
    if job_id is None:
        yield Finding("job", False, "sbatch said that it submitted a job, and there is none")
        return
    job = JobRecord(scheduler.name, job_id, now, by, record.job_name, uid)
    print(f"Job {job_id} was submitted; Ctrl-C cancels it.", file=sys.stderr, flush=True)
    state = None
    try:
        while not queries.is_over(state) and len(_nodes(paths)) < cell.nodes:
            pause(_LOOK_EVERY_S)
            state = scheduler.state(job)
            if queries.is_held_unlaunched(state):
                left = scheduler.cancel(job)
                held = f"no node could launch job {job_id}: ask your admin"
                yield Finding("job", False, f"{held}; it is left: {left}" if left else held)
                return
    except InterruptedRunError:
        with interruption.with_job(times=2):
            raise _left(scheduler.cancel(job), job_id) from None
    late_s = _LATE_S if scheduler.runs_elsewhere else _LOOK_EVERY_S
    log = _last_files(paths, cell.nodes, job_id, late_s)
    nodes = _nodes(paths)
    if len(nodes) < cell.nodes:
        ended = f" and ended as {state.state}" if state is not None else ""
        yield Finding(
            "job",
            False,
            f"job {job_id} ran{ended}, but {len(nodes)} of {counted(cell.nodes, 'node')} wrote "
            f"what they have: {_last_words(log) or 'it printed nothing'}. Correct `python`, "
            "`modules` or `container` of the platform (where there is no command `module`, export "
            f"BASH_ENV with the path of the site's initialisation of bash), or see {run.logs}",
        )
        if not nodes:
            return
    else:
        on = ", ".join(node.node for node in nodes)
        yield Finding("job", True, f"job {job_id} ran on {on}, wrote its files and read them")
    yield from _of_nodes(nodes, platform)
    yield _of_clocks(nodes, node_check.clock_ahead_s(paths.directory))


def _left(problem: str | None, job: str) -> InterruptedRunError:
    """What is said after a signal of a job that Slurm was asked to cancel."""
    if problem is None:
        return InterruptedRunError(f"interrupted; job {job} is cancelled")
    return InterruptedRunError(f"interrupted; job {job} may be left: {problem}. Cancel it")


def _of_nodes(nodes: Sequence[NodeCheck], platform: Platform) -> Iterator[Finding]:
    wrong = {
        (part, problem): [other.node for other in nodes if other.problems.get(part) == problem]
        for node in nodes
        for part, problem in node.problems.items()
    }
    for (part, problem), where in wrong.items():
        remedy = f"; install it where {platform.python} finds it: envs/training.txt has versions"
        is_package = part not in ("sensors", "GPUs", "compile")
        on = f"on {', '.join(where)}: {problem}"
        # Not every sweep compiles, or trains with DeepSpeed.
        held = None if part in ("compile", "deepspeed") else False
        yield Finding(part, held, f"{on}{remedy if is_package else ''}")
    versions = {
        f"Python {node.python}, {', '.join(f'{k} {v}' for k, v in node.packages.items())}"
        for node in nodes
    }
    alike = len(versions) == 1
    yield Finding("python", True if alike else None, "; ".join(sorted(versions)))
    for source in sorted({node.source for node in nodes if node.source is not None}):
        gpus = [gpu for node in nodes if node.source == source for gpu in node.gpus]
        if source == "simulated":
            yield Finding("sensors", None, "readings of GPUs are simulated on these nodes")
        else:
            yield Finding("sensors", True, f"{source}: {counted(len(gpus), 'GPU')}")


def _of_clocks(nodes: Sequence[NodeCheck], here_s: float) -> Finding:
    """Compare clocks of nodes with this host's, each by what it is ahead of the file system's."""
    ahead = {check.node: check.clock_ahead_s - here_s for check in nodes}
    node = max(ahead, key=lambda name: abs(ahead[name]))
    if abs(ahead[node]) > _CLOCKS_AGREE_S:
        return Finding(
            "clock",
            False,
            f"the clock of {node} is {ahead[node]:+.1f} s from this host's, and Snakemake goes by "
            "the times of files: have your admin synchronise them (chrony)",
        )
    return Finding("clock", True, f"within {max(abs(ahead[node]), 0.1):.1f} s of this host's")


def _nodes(paths: CheckPaths) -> list[NodeCheck]:
    return [read_record(path, NodeCheck) for path in sorted(paths.nodes.glob("*.json"))]


def _last_files(paths: CheckPaths, nodes: int, job_id: str, late_s: float) -> str:
    """Wait for the files of a job that has ended: those of all nodes, or a whole log that says that
    there will be no more, for at most ``late_s``. Returns the log."""
    until_s = time.monotonic() + late_s
    while True:
        text = "".join(
            path.read_text(encoding="utf-8", errors="replace")
            for path in sorted(RunPaths(paths.directory).logs.glob(f"*{job_id}*"))
            if path.suffix in (".log", ".out", ".err")
        )
        failed = _ENDED in text and f"{_ENDED}0" not in text
        if len(_nodes(paths)) >= nodes or failed or time.monotonic() > until_s:
            return text
        pause(_LOOK_EVERY_S)


def _last_words(log: str) -> str:
    """The last line that the job's own programs printed, else the last of srun's."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    printed = [line for line in lines if not line.startswith((_ENDED, "submitit "))]
    own = [line for line in printed if not line.startswith("srun: ")]
    return (own or printed or [""])[-1]


def command_line(prog: str) -> argparse.ArgumentParser:
    """The options of the command, which is called ``prog``."""
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    add_config(parser)
    add_results(parser)
    parser.add_argument("--platform", required=True, help="a name of config/platforms")
    parser.add_argument("--without-job", action="store_true", help="only ask Slurm")
    return parser


@ends_quietly
def main(argv: Sequence[str] | None = None, prog: str = "python -m workflow_lib.check") -> int:
    """Check, and print what was found. Returns the exit code: 0 if nothing failed, 130 after
    Ctrl-C, else 1."""
    chosen = command_line(prog).parse_args(argv)
    name = chosen.platform
    try:
        study = load_study(chosen.config)
        platform = lookup("platform", name, study.platforms)
        planned = cell_for(study, name)
        paths = CheckPaths(directory_of(chosen.results.absolute(), name, platform))
        findings = list(_of_results(chosen.results.absolute()))
        findings += of_file(name, platform, Path("profiles"))
        run = write_job(planned, platform, paths, chosen.results.absolute())
        differs = any(found.part == "partition" and found.held is False for found in findings)
        # What sbatch says of a file that contradicts the partition leads to another key of it.
        if platform.scheduler == "slurm" and not differs:
            findings.append(of_options(name, platform, run))
        failed = any(finding.held is False for finding in findings)
        with signals_noted():
            if not chosen.without_job and not failed:
                findings += of_job(planned, platform, paths)
        failed = any(finding.held is False for finding in findings)
        passed = not failed and not chosen.without_job
        write_json(paths.result, CheckRecord(name, time.time(), passed, tuple(findings)))
    except InterruptedRunError as error:
        print(f"triptych: {error}", file=sys.stderr)
        return interruption.exit_code() or 1
    except KeyboardInterrupt:
        print("triptych: interrupted; no job was submitted", file=sys.stderr)
        return 128 + signal.SIGINT
    except (ConfigError, RecordError, job_script.RenderError, OSError) as error:
        print(f"triptych: {printable(error_text(error))}", file=sys.stderr)
        return 1
    words = {True: "holds", False: "FAILS", None: "note"}
    lines = [(finding.part, words[finding.held], printable(finding.said)) for finding in findings]
    print(tabulate(lines, ("part", "", f"platform {name}"), maxcolwidths=[None, None, 100]))
    print(f"\nWritten to {paths.result}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
