"""One rank of a cell that another program trains.

    python -m workflow_lib.trainers.foreign_rank CELL_JSON [--profile STEPS]

becomes the trainer's command, with the variables of torchrun. ``triptych_steps`` in it, or its
hook, then leaves the files of the contract.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

from workflow_lib.records.bounds import PARALLEL
from workflow_lib.records.cell import Cell
from workflow_lib.records.files import read_record
from workflow_lib.records.paths import RunPaths, boot_id, code_sha256, job_id
from workflow_lib.records.reading import RecordError
from workflow_lib.safety import private_directory
from workflow_lib.trainers import foreign, hook
from workflow_lib.trainers.native import launch as launching


def main(arguments: list[str] | None = None) -> int:
    """Become one rank's command. Returns the exit code if it cannot be started."""
    parser = argparse.ArgumentParser(prog="workflow_lib.trainers.foreign_rank")
    parser.add_argument("cell", type=Path)
    parser.add_argument("--profile", type=int, default=0)
    options = parser.parse_args(arguments)
    paths = RunPaths(options.cell.resolve().parent)
    try:
        _become(read_record(options.cell, Cell), paths, options.profile)
    except (RecordError, ValueError, OSError) as error:
        print(f"training: {error}", file=sys.stderr)
        return 1


def _become(cell: Cell, paths: RunPaths, profiled_steps: int) -> NoReturn:
    training, launch = cell.training, launching.detect()
    launching.check(launch, cell.degrees)
    planned = training.trainer_files
    now = foreign.digits_of([file.rpartition("=")[0] for file in planned], Path())
    if changed := [file for file in planned if file not in now]:
        raise ValueError(
            f"{changed[0].rpartition('=')[0]} is not as it was when the cell was planned; run the "
            "sweep again, which plans new cells"
        )
    steps = foreign.steps_of_a_run(training, profiled_steps)
    words = [
        word.replace(foreign.PYTHON, sys.executable).replace(foreign.STEPS, str(steps))
        for word in training.trainer_command
    ]
    tokens = training.global_batch_size * cell.model.sequence_length
    search = os.environ.get("PYTHONPATH", "")
    environment = {
        **os.environ,
        **hook.environment(
            # Jobs of one version of the code share it; those of another have their own.
            private_directory(Path(tempfile.gettempdir()), f"triptych-hook-{hook.version()}"),
            paths.steps,
            training.warmup_steps,
            search,
        ),
        "TRIPTYCH_DEGREES": json.dumps({name: getattr(cell.degrees, name) for name in PARALLEL}),
        "TRIPTYCH_STEPS_SEEN": training.trainer_steps,
        "TRIPTYCH_STEPS_MOST": str(foreign.counted_steps(training, profiled_steps)),
        "TRIPTYCH_RANK": json.dumps(
            {
                **{"started_unix_s": time.time(), "boot_id": boot_id()},
                **{"job_id": job_id(), "code_sha256": code_sha256()},
            }
        ),
        "RANK": str(launch.rank),
        "WORLD_SIZE": str(launch.world_size),
        "LOCAL_RANK": str(launch.local_rank),
        "LOCAL_WORLD_SIZE": str(launch.local_world_size),
        "MASTER_ADDR": launch.master_address,
        "MASTER_PORT": str(launch.master_port),
    }
    if profiled_steps:
        environment[hook.TRACE] = str(paths.trace(launch.rank))
        environment[hook.PROFILED_STEPS] = str(profiled_steps)
    if training.trainer_steps == "hook":
        # Nobody tells them. A rank that does not say of which replica it is has its share.
        environment["TRIPTYCH_TOKENS"] = str(tokens // cell.degrees.world_size)
    # The job keeps Python from searching the working directory and that of scripts.
    environment.pop("PYTHONSAFEPATH", None)
    paths.steps.mkdir(exist_ok=True)
    try:
        os.execvpe(words[0], words, environment)
    except OSError as error:
        raise ValueError(
            f"{words[0]} of trainer {training.trainer} cannot be started: {error.strerror}; see "
            f"config/trainers/{training.trainer}.yaml"
        ) from None


if __name__ == "__main__":
    sys.exit(main())
