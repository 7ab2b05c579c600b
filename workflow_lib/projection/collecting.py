"""Collects runs of this workflow, as rows to fit to, from the tables of sweeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

import polars as pl

from workflow_lib import table_files
from workflow_lib.projection.layouts import is_like_fitted
from workflow_lib.projection.machines import WHOLE_LIMIT, published_machine
from workflow_lib.projection.own_runs import NAMES, OwnRun
from workflow_lib.records.tables import RUNS

_OF_A_CELL = tuple(
    name for name in NAMES if name not in ("sweep", "gpu", "runs", "step_time_s", "power_per_gpu_w")
)

#: a cell of one run would be as sure as the model takes repeats to be
_LEAST_RUNS = 2
#: of a model and its division, what a row cannot state, null where it is usual
_NO_COLUMN = ("stage_layers", "head_dimension")


def collect(sweeps: Iterable[Path]) -> list[OwnRun]:
    """The cells of sweeps that were pre-trained, each once, by their ids: runs of a cell that
    several sweeps measured are taken together, and a run that several sweeps hold counts once.

    Cells with simulated readings are left out. So are those in other precisions than bf16, in which
    layouts are projected; those of DeepSpeed, which is another stack; dense ones in ZeRO-2 and 3
    that are not compiled, whose host takes time that the fit would give to gathers; and cells for
    which a row has no column: those with context parallelism, balanced routing (which drops
    tokens), a zero-bubble schedule, layers that are divided otherwise than evenly, an order or
    choice of GPUs, limits of power or clocks that the job set, tied embeddings (except gpt's, which
    always are) or a head_dimension; those of GPUs that a site limits to less than their model's
    power; those on emulated nodes or links, which are not those of the row's machine; and those of
    one run, which does not show how it repeats. Cells on any data are taken: tokens do not
    change a step's products.

    Raises FileNotFoundError and RecordError.
    """
    of_cells: dict[str, list[tuple[str, pl.DataFrame]]] = {}
    for directory in sweeps:
        runs = table_files.read_table(directory / "runs.parquet", RUNS)
        done = runs.filter(
            (pl.col("outcome") == "completed")
            & pl.col("step_time_s").is_not_null()
            & ~pl.col("simulated")
            & (pl.col("compile") | (pl.col("experts") > 0) | (pl.col("zero_stage") < 2))
            & pl.all_horizontal(pl.col(name).is_null() for name in _NO_COLUMN)
            & ~pl.col("tied_embeddings")
        )
        for cell in done.partition_by("cell", maintain_order=True):
            if is_like_fitted(cell.row(0, named=True)):
                of_cells.setdefault(cell["cell"][0], []).append((directory.name, cell))
    own_runs = [_own_run(of_cells[name]) for name in sorted(of_cells)]
    return [run for run in own_runs if run is not None]


def _own_run(parts: Sequence[tuple[str, pl.DataFrame]]) -> OwnRun | None:
    """A cell of its runs in each sweep; None if it ran once, or its GPUs were limited."""
    cell = pl.concat([runs for _, runs in parts]).unique(["run", "started_unix_s"])
    first = cell.row(0, named=True)
    if len(cell) < _LEAST_RUNS or _is_capped(
        first["gpu_model"], first["gpus_per_node"], cell["power_limit_w"]
    ):
        return None
    powers = cell["power_per_gpu_mean_w"].drop_nulls().to_list()
    return OwnRun(
        sweep=" ".join(sorted({sweep for sweep, _ in parts})),
        gpu=first["gpu_model"],
        **{name: first[name] for name in _OF_A_CELL},
        runs=len(cell),
        step_time_s=median(cell["step_time_s"].to_list()),
        power_per_gpu_w=median(powers) if powers else None,
    )


def _is_capped(gpu: str | None, gpus_per_node: int, limits_w: pl.Series) -> bool:
    """Whether a run's GPUs had a limit below that of their model, with which projected GPUs run."""
    machine = None if gpu is None else published_machine(gpu, gpus_per_node)
    lowest_w = limits_w.min()
    if machine is None or not isinstance(lowest_w, float):
        return False
    return lowest_w < WHOLE_LIMIT * machine.power_limit_w
