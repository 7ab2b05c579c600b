"""``python -m workflow_lib.telemetry CELL_JSON``: sample this node until told to stop."""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import closing
from pathlib import Path

from workflow_lib.records.cell import Cell
from workflow_lib.records.files import read_record
from workflow_lib.records.paths import RunPaths, node_name
from workflow_lib.records.reading import RecordError
from workflow_lib.records.telemetry_columns import GPU_EVENTS
from workflow_lib.telemetry.choice import open_source
from workflow_lib.telemetry.devices.host import Host
from workflow_lib.telemetry.files import SampleFile, leave_mark
from workflow_lib.telemetry.limits import give_back_leftovers
from workflow_lib.telemetry.sampler import Sampler
from workflow_lib.telemetry.source import LostGpuError, TelemetryError


def main(arguments: list[str] | None = None) -> int:
    """Sample this node into the run directory that holds ``CELL_JSON``. Returns the exit code.

    It ends when ``telemetry/stop`` exists, on SIGTERM or SIGINT, or when its parent has died.
    """
    parser = argparse.ArgumentParser(prog="python -m workflow_lib.telemetry", description=__doc__)
    parser.add_argument("cell", type=Path, metavar="CELL_JSON", help="the run's cell.json")
    path: Path = parser.parse_args(arguments).cell
    node = node_name()
    try:
        cell = read_record(path, Cell)
    except FileNotFoundError:
        return _refuse(node, f"{path} does not exist; give the path of a run's cell.json")
    except RecordError as error:
        return _refuse(node, str(error))
    paths = RunPaths(path.parent)
    try:
        if cell.telemetry.source in ("nvidia", "auto"):
            give_back_leftovers()
        job_id = os.environ.get("SLURM_JOB_ID")
        with (
            closing(open_source(cell, node)) as source,
            closing(Host(job_id=job_id)) as host,
        ):
            Sampler(
                paths,
                node,
                cell.telemetry,
                source,
                host,
                cell.training.seed,
                cell.training.sets_limits,
            ).run()
    except (TelemetryError, OSError) as error:
        if isinstance(error, LostGpuError):
            _note_loss(paths, node, error.gpu)
        message = str(error)
        if isinstance(error, OSError):
            message = f"{error.filename or path.parent}: {error.strerror or error}"
        code = _refuse(node, message)
        # Last, as the job ends at once.
        leave_mark(paths.telemetry_failed(node))
        return code
    return 0


def _note_loss(paths: RunPaths, node: str, gpu: int) -> None:
    """Leave the event that a GPU lost in mid-run leaves, so that both are judged alike."""
    paths.telemetry.mkdir(parents=True, exist_ok=True)
    with closing(SampleFile(paths.gpu_events(node), GPU_EVENTS)) as events:
        events.add({"unix_time_s": time.time(), "gpu": gpu, "event": "lost", "code": None})


def _refuse(node: str, message: str) -> int:
    print(f"telemetry on {node}: {message}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
