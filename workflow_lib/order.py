"""The order in which runs are submitted: blocks of one run of each cell, in a seeded random order.

Machines drift while a sweep runs: rooms warm up, other jobs come and go, drivers are updated. If
all repeats of a cell ran together, a drift would look like a difference between cells. So runs are
submitted in blocks: block k has the k-th repeat of every cell. Within a block the order is random.
Every second block has the reversed order of the block before it::

    block 1   c a d b
    block 2   b d a c
    block 3   a c b d
    …

A steady drift then has opposite signs in the two blocks, and cancels from the mean of both.
Profiled runs come last.

The order depends only on the seed and the cells' ids. So a cell that is added to a sweep does not
change the order of the other cells.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from workflow_lib.records.outcomes import OrderRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import write_json
from workflow_lib.results import PROFILED_RUN

#: a run: its cell's id and its number
Run = tuple[str, int]


def in_order(runs: Iterable[Run], seed: int) -> list[Run]:
    """The runs in the order of submission."""
    blocks: dict[int, list[str]] = {}
    for cell, run in runs:
        blocks.setdefault(run, []).append(cell)
    profiled = [(PROFILED_RUN, blocks.pop(PROFILED_RUN))] if PROFILED_RUN in blocks else []
    return [
        (cell, block)
        for block, cells in (*sorted(blocks.items()), *profiled)
        for cell in _shuffled(cells, block, seed)
    ]


def _shuffled(cells: Iterable[str], block: int, seed: int) -> list[str]:
    pair = (block + 1) // 2

    def key(cell: str) -> str:
        return hashlib.sha256(f"{seed}/{pair}/{cell}".encode()).hexdigest()

    return sorted(cells, key=key, reverse=block > 0 and block % 2 == 0)


def write(paths: RunPaths, order: OrderRecord) -> None:
    """Write ``order.json`` of a run, unless the run was submitted and has not failed since."""
    if not paths.job.exists() or paths.failure.exists():
        write_json(paths.order, order)


def places(runs: Iterable[Run], seed: int) -> dict[Run, OrderRecord]:
    """Run → its place in the order of all these runs."""
    ordered = in_order(runs, seed)
    return {
        run: OrderRecord(seed=seed, block=run[1], place=place, runs=len(ordered))
        for place, run in enumerate(ordered, start=1)
    }


def write_all(directories: Iterable[tuple[Path, OrderRecord]]) -> None:
    """Write ``order.json`` of each run whose directory exists."""
    for directory, order in directories:
        if directory.is_dir():
            write(RunPaths(directory), order)
