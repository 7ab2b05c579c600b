"""Programs that take cells of one world size in turn, in the same processes: imports are paid for
once. One half starts the processes, the other runs in each of them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tests.training import gpus
from workflow_lib.records.cell import Cell
from workflow_lib.records.files import read_record
from workflow_lib.records.whole_files import write_json
from workflow_lib.trainers.capabilities import refusal
from workflow_lib.trainers.native import device as devices
from workflow_lib.trainers.native.launch import detect

#: whether torch can compile for CPUs
HAS_COMPILER = any(map(shutil.which, ("c++", "g++", "clang++")))
#: Each cell leaves groups, whose threads take turns with those of all later ones.
_CELLS_OF_A_START = 24


def launch(
    program: str,
    cells: Mapping[str, Cell],
    directory: Path,
    *arguments: object,
    environment: Mapping[str, str] | None = None,
) -> dict[str, list[Any]] | str:
    """Start ``tests.training.<program>`` on as many ranks as the cells have, with the variables of
    ``environment`` besides.

    Returns what each rank returned, cell by cell; or what was printed, where a process failed: an
    exception would not be cached, and each test would start the processes again.
    """
    if len(cells) > _CELLS_OF_A_START:
        results: dict[str, list[Any]] = {}
        for first in range(0, len(cells), _CELLS_OF_A_START):
            some = dict(list(cells.items())[first : first + _CELLS_OF_A_START])
            of_some = launch(
                program, some, directory / str(first), *arguments, environment=environment
            )
            if isinstance(of_some, str):
                return of_some
            results |= of_some
        return results
    for name, cell in cells.items():
        write_json(directory / "cells" / f"{name}.json", cell)
    (ranks,) = {cell.degrees.world_size for cell in cells.values()}
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(ranks), "-m", f"tests.training.{program}"),
            *(directory / "cells", directory / "results.json", *map(str, arguments)),
        ],
        cwd=Path(__file__).parents[2],
        # Compiled anew: torch's own cache does not see when one of our operators has changed.
        env=os.environ
        | {"TORCHINDUCTOR_CACHE_DIR": str(directory / "compiled")}
        | dict(environment or {}),
        capture_output=True,
        text=True,
    )
    if ended.returncode:
        return ended.stdout[-2000:] + ended.stderr[-8000:]
    results = json.loads((directory / "results.json").read_text())
    return dict(results)


def on_every_rank(run: Callable[[Cell, devices.Device], Any]) -> None:
    """Do with each cell of the first argument's directory what ``run`` says; write the second.

    In place of what ``run`` returns stands ``{"error": …}`` where it raised.
    """
    launched = detect()
    files = sorted(Path(sys.argv[1]).glob("*.json"))
    cells = {file.stem: read_record(file, Cell) for file in files}
    first = next(iter(cells.values()))
    device = devices.choose(gpus.of_the_rank(launched), first.hardware, first.telemetry)
    if device.gpu is not None:
        os.environ["LOCAL_RANK"] = str(device.gpu)  # what DeepSpeed goes by
    dist.init_process_group(
        device.backend,
        init_method=f"tcp://{launched.master_address}:{launched.master_port}",
        rank=launched.rank,
        world_size=launched.world_size,
        timeout=timedelta(seconds=60),
    )
    results = {}
    for name, cell in cells.items():
        assert refusal(cell.degrees, cell.training, cell.model) is None
        try:
            mine = run(cell, device)
        except Exception:
            # What fails on every rank alike leaves the other cells their turn.
            mine = {"error": traceback.format_exc()}
        everyone: list[Any] = [None] * launched.world_size
        dist.all_gather_object(everyone, mine)
        results[name] = everyone
    if launched.rank == 0:
        Path(sys.argv[2]).write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()
