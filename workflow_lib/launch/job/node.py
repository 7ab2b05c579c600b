"""The steps of a job script that are written in Python: ``begin``, ``wait-for-limits``,
``wait-for-telemetry``, ``cool-down``, ``stop-early`` and ``end``.

They run on the job's first node, perhaps in a site's container, so they need only the standard
library.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.metadata
import os
import platform
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import workflow_lib
from workflow_lib import results
from workflow_lib.launch import attempts
from workflow_lib.launch.attempts import claim_run
from workflow_lib.launch.job import settings, stop_early
from workflow_lib.launch.processes import is_running
from workflow_lib.records.cell import Cell
from workflow_lib.records.contract import RankRecord
from workflow_lib.records.files import read_if_there, read_json, read_record
from workflow_lib.records.nodes import CoolDown, TelemetryStart
from workflow_lib.records.outcomes import EndedRecord, JobRecord
from workflow_lib.records.paths import RunPaths, code_sha256, node_name
from workflow_lib.records.reading import RecordError, end_of_file
from workflow_lib.records.telemetry_columns import GPU_SAMPLES
from workflow_lib.records.whole_files import write_json

#: exit code of ``begin`` if another job owns the run, or the run has a result
TAKEN = 75
#: how long the processes of all nodes may take to say that they are ready
TELEMETRY_TIMEOUT_S = 120.0

#: how names of records end: of tables, JSON and compressed traces
_RECORDS = (".csv", ".json", ".gz")
_PACKAGES = (
    *("torch", "deepspeed", "submitit", "nvidia-ml-py", "amdsmi", "numpy", "torchao"),
    *("torchtitan", "megatron-core", "transformers", "accelerate"),
)


class TakenError(RuntimeError):
    """Another job owns the run, or the run has a result."""


def begin(paths: RunPaths, job: str, scheduler: str, script: bytes) -> None:
    """Make the job the owner of the run, and record the environment.

    Files of an earlier attempt are moved to ``attempts/`` first; an earlier start of the same job,
    before it was requeued, is such an attempt. A job that was submitted by hand writes its own
    ``job.json``. For other jobs the process that submitted them writes it.

    Raises TakenError, and changes nothing, if another job owns the run and has not ended, or if the
    run has a result. Raises SystemExit if ranks on this machine could not find each other.
    """
    owner = read_if_there(paths.job, JobRecord)
    if paths.outcome.exists() or _ended_well(paths):
        raise TakenError(
            f"{paths.directory} has a result, which is kept. To run it again: python -m "
            "workflow_lib.status --again, with --cell and this cell's id, then submit again"
        )
    this_job = JobRecord(
        scheduler=scheduler,  # type: ignore[arg-type]  # one of the two literals
        job_id=job,
        submitted_unix_s=time.time(),
        submitted_by="the job itself",
        # In some containers this process has another user id.
        user_id=int(os.environ.get("SLURM_JOB_UID", os.getuid())),
    )
    over = paths.ended.exists() or paths.failure.exists()
    if owner is None:
        owner = claim_run(paths, this_job)
    if owner.job_id == job:
        if attempts.has_evidence(paths):
            attempts.set_aside(paths, job)
    elif over:
        attempts.set_aside(paths, job)
        write_json(paths.job, this_job)
        paths.submission.unlink(missing_ok=True)  # it was the other job's
    else:
        raise TakenError(
            f"job {owner.job_id}, submitted by {owner.submitted_by}, owns this run and has not "
            f"ended. Let it finish; or, if it is gone, delete {paths.job} and submit again"
        )
    for directory in (paths.logs, paths.steps, paths.telemetry):
        directory.mkdir(parents=True, exist_ok=True)
    if scheduler == "local":
        _refuse_unknown("localhost")
    digest = hashlib.sha256(script).hexdigest()
    ran = {"job_id": job, "script_sha256": digest}
    write_json(paths.environment, environment() | ran)


def _refuse_unknown(host: str) -> None:
    """Raise SystemExit if this machine has no address for ``host``: torch.distributed.run would
    wait for it until the time limit, without a word.
    """
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        raise SystemExit(
            f"triptych: this machine has no address for {host} ({error}): /etc/hosts needs the "
            f"line '127.0.0.1 {host}'"
        ) from None


def _ended_well(paths: RunPaths) -> bool:
    """Whether the last job's end record shows success, and the run was not yet judged a failure."""
    ended = None if paths.failure.exists() else read_if_there(paths.ended, EndedRecord)
    return ended is not None and ended.failed_stage is None and ended.training_exit_code == 0


def environment() -> dict[str, Any]:
    """Versions and settings that can change what is measured. A value that is not known is null."""
    packages: dict[str, str | None] = {}
    drivers = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    # Not git, which would tell of the repository, and that may have been changed since.
    changes = os.environ.get("TRIPTYCH_UNCOMMITTED_CHANGES")
    for name in _PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            packages[name] = None
    return {
        "recorded_unix_s": time.time(),
        "node": node_name(),
        "triptych": workflow_lib.__version__,
        "commit": os.environ.get("TRIPTYCH_COMMIT") or None,
        "uncommitted_changes": None if changes is None else bool(changes),
        "code_sha256": code_sha256(),
        "python": platform.python_version(),
        "packages": packages,
        "kernel": platform.release(),
        "operating_system": _operating_system(),
        "cpu_model": _cpu_model(),
        "cpus": os.cpu_count(),
        "nvidia_driver": next(iter((drivers or "").splitlines()), None),
        **settings.of(os.environ),
    }


def _output(*command: str) -> str | None:
    """What a command prints; None if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _operating_system() -> str | None:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), None)


def wait_for_telemetry(paths: RunPaths, process: int) -> None:
    """Wait until the sampler of every node has written its first samples.

    ``process`` is the process id of the samplers' launcher. Raises SystemExit with a message if
    that process ends or a node's sampler fails, or if the wait takes too long.
    """
    _wait_for_every_node(paths, process, paths.telemetry, "telemetry")


def wait_for_limits(paths: RunPaths, process: int) -> None:
    """Wait until the limits of every node's GPUs are in force.

    ``process`` is the process id of the launcher that sets them. Raises SystemExit as
    wait_for_telemetry does.
    """
    _wait_for_every_node(paths, process, paths.gpu_limits, "gpu-limits")


def _wait_for_every_node(paths: RunPaths, process: int, directory: Path, step: str) -> None:
    cell = read_record(paths.cell, Cell)
    deadline = time.monotonic() + TELEMETRY_TIMEOUT_S
    log = paths.logs / f"{step}.log"
    while (ready := len(list(directory.glob("*.ready")))) < cell.nodes:
        if not is_running(process):
            raise SystemExit(f"{step} ended before it was ready; see {log}")
        if failed := sorted(path.stem for path in directory.glob("*.failed")):
            raise SystemExit(f"{step} failed on {', '.join(failed)}; see {log}")
        if time.monotonic() > deadline:
            raise SystemExit(
                f"{step} is ready on {ready} of {cell.nodes} nodes after "
                f"{TELEMETRY_TIMEOUT_S:.0f} s; see {log}"
            )
        time.sleep(0.05)


#: how often the samples are looked at
LOOK_EVERY_S = 1.0
#: how much of a file's end is read: more than a node writes within a second, at 50 Hz
_TAIL_BYTES = 1 << 17

_NAMES = [column.name for column in GPU_SAMPLES]
_GPU, _TEMPERATURE = map(_NAMES.index, ("gpu", "temperature_c"))


def cool_down(paths: RunPaths, process: int) -> None:
    """Wait until the samplers' files show cool GPUs, at most as long as the cell allows, and write
    ``cool-down.json``.

    No work runs on the GPUs meanwhile, so they only cool. A sample that is read late shows more
    than the present temperature, so it never ends the wait too early.

    ``process`` is the process id of the samplers' launcher. Raises SystemExit with a message if
    that process ends, or if a GPU reports no temperature.
    """
    cell = read_record(paths.cell, Cell)
    wanted_c, limit_s = cell.telemetry.cool_down_to_c, cell.telemetry.cool_down_limit_s
    if wanted_c is None:
        raise SystemExit(f"{paths.cell} asks for no cool-down: cool_down_to_c is null")
    started_unix_s, began = time.time(), time.monotonic()
    before_c: float | None = None
    while True:
        if not is_running(process):
            raise SystemExit(
                f"telemetry ended during the cool-down; see {paths.logs}/telemetry.log"
            )
        hottest_c = _hottest_c(paths)
        before_c = hottest_c if before_c is None else before_c
        waited_s = time.monotonic() - began
        reached = hottest_c is not None and hottest_c <= wanted_c
        if reached or waited_s >= limit_s:
            break
        time.sleep(min(LOOK_EVERY_S, limit_s - waited_s))
    if hottest_c is None or before_c is None:
        raise SystemExit(
            f"the cell asks for GPUs at {wanted_c:g} °C at most, but some reported no "
            f"temperature for {waited_s:.0f} s; see {paths.telemetry}, or leave cool_down out of "
            "the sweep"
        )
    done = CoolDown(started_unix_s, waited_s, reached, before_c, hottest_c)
    write_json(paths.cool_down, done)
    if not reached:
        print(
            f"triptych: after {waited_s:.0f} s the hottest GPU is still at {hottest_c:g} °C, above "
            f"the {wanted_c:g} °C that the cell asks for; training starts anyway",
            file=sys.stderr,
        )


def _hottest_c(paths: RunPaths) -> float | None:
    """The highest temperature of all nodes' GPUs in their latest samples, in °C; None if a GPU has
    none.
    """
    temperatures: list[float | None] = []
    for node in paths.sampled_nodes():
        gpus = len(read_record(paths.telemetry_start(node), TelemetryStart).gpus)
        latest = _latest_c(paths.gpu_samples(node))
        temperatures += [latest.get(gpu) for gpu in range(gpus)]
    known = [temperature for temperature in temperatures if temperature is not None]
    return max(known) if known and len(known) == len(temperatures) else None


def _latest_c(path: Path) -> dict[int, float]:
    """GPU → the last temperature, in °C, in the last 128 KiB of a node's samples."""
    text = end_of_file(path, _TAIL_BYTES).decode("ascii", "replace")
    latest = {}
    # The first line is the header or incomplete. The text after the last newline is incomplete.
    for line in text.split("\n")[1:-1]:
        fields = line.split(",")
        if len(fields) == len(_NAMES) and fields[_TEMPERATURE]:
            # A damaged line is reported when the run ends; here another line will do.
            with contextlib.suppress(ValueError):
                latest[int(fields[_GPU])] = float(fields[_TEMPERATURE])
    return latest


def end(paths: RunPaths, job: str, stage: str, training_exit: str, telemetry_exit: str) -> None:
    """Write ``ended.json``. An empty exit code means that the step never started."""
    started = None
    if paths.environment.exists():
        started = read_json(paths.environment)
    now = time.time()
    ranks = [read_record(path, RankRecord) for path in paths.steps.glob("rank*.json")]
    nodes = {rank.node for rank in ranks} or _nodes_of_job()
    if stage == "complete" and not _all_finished(paths, ranks):
        stage = "training"  # srun exits with 0 where a node failed under it
    write_json(
        paths.ended,
        EndedRecord(
            job_id=job,
            nodes=tuple(sorted(nodes)),
            started_unix_s=started["recorded_unix_s"] if started else now,
            ended_unix_s=now,
            training_exit_code=int(training_exit) if training_exit else None,
            telemetry_exit_code=int(telemetry_exit) if telemetry_exit else None,
            failed_stage=None if stage == "complete" else stage,
            script_sha256=started["script_sha256"] if started else "",
            code_sha256=code_sha256(),
            left_bytes=_left_bytes(paths),
        ),
    )


def _left_bytes(paths: RunPaths) -> dict[str, int]:
    """The size of each record that the job wrote, by its path in the run's directory. Files by
    which its processes signal one another are left out.
    """
    files = [file for directory in paths.of_job() for file in sorted(directory.glob("*"))]
    return {
        str(file.relative_to(paths.directory)): file.stat().st_size
        for file in files
        if file.suffix in _RECORDS and file.is_file() and not file.name.startswith(".")
    }


def _nodes_of_job() -> set[str]:
    """The nodes of a Slurm job, from scontrol or, in an image without it, from the variable that
    the job script sets; else this node.
    """
    in_job = "SLURM_JOB_NODELIST" in os.environ
    listed = _output("scontrol", "show", "hostnames") if in_job else None
    listed = listed or os.environ.get("TRIPTYCH_NODES", "")
    return {*listed.split()} or {node_name()}


def _all_finished(paths: RunPaths, ranks: list[RankRecord]) -> bool:
    """Whether every rank that began has done all its steps or, in a profiled run, left a trace."""
    if results.is_profiled(paths.directory):
        return all(paths.trace(record.rank).exists() for record in ranks)
    training = read_record(paths.cell, Cell).training
    lines = 1 + training.warmup_steps + training.measured_steps
    files = [paths.rank_steps(record.rank) for record in ranks]
    return all(file.exists() and file.read_bytes().count(b"\n") >= lines for file in files)


def main() -> None:
    """Run the step that the command line of a job script names."""
    parser = argparse.ArgumentParser(
        prog="python -m workflow_lib.launch.job.node", description=__doc__
    )
    commands = parser.add_subparsers(dest="command", required=True)
    begin_command = commands.add_parser("begin")
    begin_command.add_argument("--scheduler", choices=("slurm", "local"), required=True)
    limits_command = commands.add_parser("wait-for-limits")
    wait_command = commands.add_parser("wait-for-telemetry")
    cool_command = commands.add_parser("cool-down")
    stop_command = commands.add_parser("stop-early")
    stop_command.add_argument("--training", type=int, required=True, help="of its launcher")
    waits = (limits_command, wait_command, cool_command, stop_command)
    for command in waits:
        command.add_argument(
            "--process", type=int, required=True, help="of that step; its end ends the wait"
        )
    end_command = commands.add_parser("end")
    for name in ("--stage", "--training-exit", "--telemetry-exit"):
        end_command.add_argument(name, required=True)
    for command in (begin_command, end_command):
        command.add_argument("--job", required=True, help="the scheduler's id of the job")
    for command in (begin_command, *waits, end_command):
        command.add_argument("run_directory", type=Path)
    arguments = parser.parse_args()
    paths = RunPaths(arguments.run_directory)
    if arguments.command == "begin":
        begin(paths, arguments.job, arguments.scheduler, sys.stdin.buffer.read())
    elif arguments.command == "wait-for-limits":
        wait_for_limits(paths, arguments.process)
    elif arguments.command == "wait-for-telemetry":
        wait_for_telemetry(paths, arguments.process)
    elif arguments.command == "cool-down":
        cool_down(paths, arguments.process)
    elif arguments.command == "stop-early":
        stop_early.watch(paths, arguments.process, arguments.training, stop_early.Patience())
    else:
        end(
            paths, arguments.job, arguments.stage, arguments.training_exit, arguments.telemetry_exit
        )


if __name__ == "__main__":
    try:
        main()
    except TakenError as error:
        print(f"triptych: {error}", file=sys.stderr)
        sys.exit(TAKEN)
    except (OSError, RecordError) as error:
        sys.exit(f"triptych: {error}")
