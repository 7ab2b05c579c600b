"""Run directories as jobs leave them."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

from tests.analysis.synthetic_run import write_csv
from tests.launch import scripts
from workflow_lib import results
from workflow_lib.records.contract import STEPS, RankRecord
from workflow_lib.records.nodes import TelemetryStart
from workflow_lib.records.outcomes import (
    EndedRecord,
    ErrorRecord,
    ExitRecord,
    Outcome,
    OutcomeRecord,
)
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.telemetry_columns import GPU_COUNTERS, GPU_EVENTS, GPU_SAMPLES
from workflow_lib.records.whole_files import write_json

#: when the runs made here started
START_S = 1_700_000_000.0
NODE = "node1"


def rendered(directory: Path, sweep: str = "demo") -> RunPaths:
    """A run that was rendered and nothing more: of the demo, or of another sweep's first cell."""
    planned = scripts.planned(sweep)
    # Short, so that what a whole run leaves is quickly written.
    training = dataclasses.replace(planned.cell.training, warmup_steps=1, measured_steps=3)
    cell = dataclasses.replace(scripts.with_telemetry(planned.cell), training=training)
    site = scripts.study().platforms[cell.hardware.platform]
    if description := results.tokens(directory / "results", cell.data):
        write_json(description, {"tokens": 0, "dtype": "uint16"})
        results.token_array(description).touch()
    return RunPaths(scripts.write(cell, site, directory, directory / "results").run_directory)


def _script_sha256(paths: RunPaths) -> str:
    if not paths.script.exists():
        return ""
    return hashlib.sha256(paths.script.read_bytes()).hexdigest()


def end(
    paths: RunPaths,
    stage: str | None = None,
    training_exit: int | None = 0,
    telemetry_exit: int | None = 0,
    job_id: str = "7",
    script_sha256: str = "",
) -> None:
    """The job's end record; unless told otherwise, what ran is the script that lies there."""
    write_json(
        paths.ended,
        EndedRecord(
            job_id=job_id,
            nodes=(NODE,),
            started_unix_s=START_S,
            ended_unix_s=START_S + 20,
            training_exit_code=training_exit,
            telemetry_exit_code=telemetry_exit,
            failed_stage=stage,
            script_sha256=script_sha256 or _script_sha256(paths),
        ),
    )


def train(paths: RunPaths) -> None:
    """Steps of both ranks, and samples of both GPUs from before the first until after the last."""
    for rank in range(2):
        of_rank = {"device_name": "cpu", "pid": 100 + rank, "started_unix_s": START_S + 2}
        record = RankRecord(rank, NODE, tp_rank=0, pp_rank=0, dp_rank=rank, ep_rank=0, **of_rank)
        write_json(paths.rank(rank), record)
        rows = [
            {
                "step": step,
                "phase": "measured" if step else "warmup",
                "started_unix_s": START_S + 4 + step,
                "ended_unix_s": START_S + 5 + step,
                "tokens": 64,
            }
            for step in range(4)
        ]
        write_csv(paths.rank_steps(rank), STEPS, rows)
    gpu = {"name": "simulated", "uuid": None, "serial": None, "power_limit_w": None}
    start = TelemetryStart(
        node=NODE,
        source="simulated",
        simulated=True,
        started_unix_s=START_S,
        sample_rate_hz=10.0,
        gpus=(gpu, gpu),
        missing={},
    )
    write_json(paths.telemetry_start(NODE), start)
    samples = [
        {"unix_time_s": START_S + 0.5 * tick, "gpu": gpu, "power_w": 100.0}
        for tick in range(24)
        for gpu in range(2)
    ]
    write_csv(paths.gpu_samples(NODE), GPU_SAMPLES, samples)
    counters = [
        {"unix_time_s": START_S + second, "gpu": gpu, "energy_j": 5000.0 + 100 * second}
        for second in range(12)
        for gpu in range(2)
    ]
    write_csv(paths.gpu_counters(NODE), GPU_COUNTERS, counters)


def complete(paths: RunPaths, job_id: str = "7") -> None:
    """Everything that a run leaves that went well."""
    train(paths)
    end(paths, job_id=job_id)


def fail(
    paths: RunPaths,
    rank: int,
    outcome: Outcome,
    message: str,
    after_s: float,
    node: str = NODE,
    traceback: str = "",
) -> None:
    """An error of a rank, ``after_s`` after the start."""
    error = ErrorRecord(
        rank=rank,
        node=node,
        unix_time_s=START_S + after_s,
        phase="forward_backward",
        outcome=outcome,
        message=message,
        traceback=traceback,
    )
    write_json(paths.rank_error(rank), error)


def leave(
    paths: RunPaths,
    rank: int,
    how: str | int,
    after_s: float,
    told: bool = False,
    kills: int | None = 0,
    node: str = NODE,
) -> None:
    """The end of a rank, by a signal's name or with an exit code, as its watcher wrote it."""
    record = ExitRecord(
        rank=rank,
        node=node,
        unix_time_s=START_S + after_s,
        exit_code=how if isinstance(how, int) else None,
        signal=how if isinstance(how, str) else None,
        told_to_end=told,
        out_of_memory_kills=kills,
    )
    write_json(paths.rank_exit(rank), record)


def report(paths: RunPaths, event: str, code: int | None = None, node: str = NODE) -> None:
    """An event of GPU 1, which the node's sampler saw 4 s after the start."""
    if not paths.telemetry_start(node).exists():
        write_json(paths.telemetry_start(node), {})
    row = {"unix_time_s": START_S + 4, "gpu": 1, "event": event, "code": code}
    write_csv(paths.gpu_events(node), GPU_EVENTS, [row])


def failure(paths: RunPaths, outcome: str, failed_nodes: tuple[str, ...] = ()) -> None:
    """How an attempt ended that gave no result."""
    record = OutcomeRecord(
        outcome=Outcome(outcome),
        cause="a test",
        job_id="7",
        nodes=(),
        started_unix_s=None,
        ended_unix_s=None,
        scheduler_state=None,
        script_edited=False,
        failed_nodes=failed_nodes,
    )
    write_json(paths.failure, record)
