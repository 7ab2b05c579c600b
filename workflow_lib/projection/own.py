"""Runs of this workflow as rows for fitting: a row for each cell, with medians over completed runs.

``data/own_runs.csv`` holds those of the archives in evidence/, from which ``python -m docs.evidence
--write`` makes it; ``collect`` writes such a file from the tables of any sweep.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl

from workflow_lib.analysis import tables
from workflow_lib.projection.layouts import RECOMPUTATIONS, Layout, own_layout
from workflow_lib.projection.machines import published_machine
from workflow_lib.records import (
    RUNS,
    Degrees,
    Model,
    RecordError,
    Training,
    bounds,
    whole_file,
)

SHIPPED = Path(str(resources.files("workflow_lib.projection") / "data" / "own_runs.csv"))


@dataclass(frozen=True)
class OwnRun:
    """A cell's completed runs. Times are medians over runs of their median steps."""

    #: the sweeps that have runs of it, with spaces between
    sweep: str
    cell: str
    platform: str
    gpu: str
    gpus_per_node: int
    model: str
    model_family: str
    layers: int
    hidden_size: int
    ffn_hidden_size: int
    attention_heads: int
    kv_heads: int
    sequence_length: int
    vocabulary_size: int
    experts: int
    experts_per_token: int
    tp: int
    pp: int
    virtual_stages: int
    dp: int
    ep: int
    micro_batch_size: int
    global_batch_size: int
    precision: str
    zero_stage: int
    sequence_parallel: bool
    recomputation: str
    overlap: bool
    compile: bool
    runs: int
    step_time_s: float
    #: mean power of one GPU over the measured steps, by the GPU's own sensor
    power_per_gpu_w: float | None

    @property
    def layout(self) -> Layout:
        """The cell's layout. Raises RecordError if its GPU's peak is not known here."""
        machine = published_machine(self.gpu, self.gpus_per_node)
        if machine is None:
            raise RecordError(f"{self.cell}: the memory and links of {self.gpu} are not known")
        if self.precision.upper() not in dict(machine.peak_flops_per_s):
            raise RecordError(
                f"{self.cell}: the peak of {self.gpu} in {self.precision} is not known; leave the "
                "cell out"
            )
        model = Model(
            name=self.model,
            family=self.model_family,  # type: ignore[arg-type]
            **self._shared(Model),
        )
        training = Training(
            **self._shared(Training),
            routing="dropless" if self.experts else None,
            # These have no effect on a step's time.
            learning_rate=1e-4,
            seed=0,
            warmup_steps=0,
            measured_steps=1,
        )
        return own_layout(model, Degrees(**self._shared(Degrees)), training, machine)

    def _shared(self, record: type) -> dict[str, Any]:
        """The values of a record's fields that a row has too, under the same names."""
        own = {each.name for each in fields(self)}
        return {each.name: getattr(self, each.name) for each in fields(record) if each.name in own}


_NAMES = tuple(field.name for field in fields(OwnRun))
_OF_A_CELL = tuple(
    name
    for name in _NAMES
    if name not in ("sweep", "gpu", "runs", "step_time_s", "power_per_gpu_w")
)

#: Axes that change a step's time or power and that a row cannot state, null where they are usual.
#: An order or choice of GPUs was made for those of one host, and a projection is for any.
_NO_COLUMN = (
    *("stage_layers", "power_limits_w", "clock_limits_mhz", "head_dimension"),
    *("gpu_order", "gpu_uuids"),
)
#: of the model's power: a limit at or above this share is the model's own
_WHOLE_LIMIT = 0.99


def collect(sweeps: Iterable[Path]) -> list[OwnRun]:
    """The cells of sweeps that were pre-trained, each once, by their ids: runs of a cell that
    several sweeps measured are taken together, and a run that several sweeps hold counts once.

    Cells with simulated readings are left out. So are those in other precisions than bf16, in which
    layouts are projected; those of DeepSpeed, which is another stack; and cells for which a row has
    no column: those with context parallelism, balanced routing (which drops tokens), a zero-bubble
    schedule, layers that are divided otherwise than evenly, an order or choice of GPUs, limits of
    power or clocks that the job set, tied embeddings (except gpt's, which always are) or a
    head_dimension; those of GPUs that a site limits to less than their model's power; and those on
    emulated nodes or links, which are not those of the row's machine. Cells on any data are taken:
    tokens do not change a step's products.

    Raises FileNotFoundError and RecordError.
    """
    of_cells: dict[str, list[tuple[str, pl.DataFrame]]] = {}
    for directory in sweeps:
        runs = tables.read_table(directory / "runs.parquet", RUNS)
        done = runs.filter(
            (pl.col("outcome") == "completed")
            & pl.col("step_time_s").is_not_null()
            & (pl.col("workload") == "pretrain")
            & ~pl.col("simulated")
            & (pl.col("precision") == "bf16")
            & (pl.col("cp") == 1)
            & (pl.col("schedule") == "1f1b")
            & (pl.col("backend") == "torch")
            & (pl.col("routing").fill_null("dropless") == "dropless")
            & pl.all_horizontal(pl.col(name).is_null() for name in _NO_COLUMN)
            & pl.col("emulated").is_null()
            & ~pl.col("tied_embeddings")
        )
        for cell in done.partition_by("cell", maintain_order=True):
            of_cells.setdefault(cell["cell"][0], []).append((directory.name, cell))
    found = [_own_run(of_cells[name]) for name in sorted(of_cells)]
    return [each for each in found if each is not None]


def _own_run(parts: Sequence[tuple[str, pl.DataFrame]]) -> OwnRun | None:
    """A cell of its runs in each sweep; None if its GPUs were limited."""
    cell = pl.concat([runs for _, runs in parts]).unique(["run", "started_unix_s"])
    first = cell.row(0, named=True)
    if _is_capped(first["gpu_model"], first["gpus_per_node"], cell["power_limit_w"]):
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
    return lowest_w < _WHOLE_LIMIT * machine.power_limit_w


def write_own(runs: Sequence[OwnRun], path: Path) -> None:
    """Write a file that :func:`read_own` reads."""
    with whole_file(path) as draft:
        draft.write_text(own_text(runs), encoding="utf-8", newline="")


def own_text(runs: Iterable[OwnRun]) -> str:
    """The content of a file that :func:`read_own` reads."""
    lines = io.StringIO(newline="")
    writer = csv.DictWriter(lines, _NAMES, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(run) for run in runs)
    return lines.getvalue()


def read_own(path: Path = SHIPPED) -> list[OwnRun]:
    """Read what :func:`write_own` wrote. Raises FileNotFoundError, or RecordError."""
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines)
        try:
            if tuple(next(reader, ())) != _NAMES:
                raise RecordError(
                    f"{path}: its columns are not those of {_NAMES}; collect it again"
                )
            return [_run(row, f"{path}, line {reader.line_num}") for row in reader if row]
        except (UnicodeDecodeError, csv.Error) as error:
            raise RecordError(f"{path}: is not CSV in UTF-8: {error}; collect it again") from None


def _count(text: str, least: int = 1) -> int:
    return int(_between(int(text), least, bounds.DIMENSION.most))


def _above_0(text: str) -> float:
    return _between(float(text), sys.float_info.min, bounds.QUANTITY.most)


def _between(value: float, least: float, most: float) -> float:
    if not least <= value <= most:
        raise ValueError
    return value


#: what reads a field, and the words for what it expects
_Reader = tuple[Callable[[str], Any], str]


def _one_of(choices: Sequence[str]) -> _Reader:
    return {each: each for each in choices}.__getitem__, f"one of {', '.join(choices)}"


_BY_TYPE: Mapping[str, _Reader] = {
    "int": (_count, "a whole number of at least 1"),
    "str": (str, "text"),
    "float": (_above_0, "a number above 0"),
    "bool": ({"True": True, "False": False}.__getitem__, "True or False"),
    "float | None": (lambda text: _above_0(text) if text else None, "a number above 0, or nothing"),
}
_OR_0: _Reader = partial(_count, least=0), "a whole number"
#: of fields that are not read as others of their type
_BY_NAME: Mapping[str, _Reader] = {
    **dict.fromkeys(("experts", "experts_per_token", "zero_stage"), _OR_0),
    "recomputation": _one_of(RECOMPUTATIONS),
    "precision": _one_of(("bf16", "fp8", "fp32")),
}


def _run(row: Sequence[str], where: str) -> OwnRun:
    if len(row) != len(_NAMES):
        raise RecordError(f"{where}: has {len(row)} fields, expected {len(_NAMES)}")
    values: dict[str, Any] = {}
    for field, text in zip(fields(OwnRun), row, strict=True):
        read, expected = _BY_NAME.get(field.name) or _BY_TYPE[str(field.type)]
        try:
            values[field.name] = read(text)
        except (KeyError, ValueError):
            raise RecordError(f"{where}: {field.name} is {text!r}, expected {expected}") from None
    return OwnRun(**values)
