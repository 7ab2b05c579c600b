"""Runs of this workflow as rows for fitting: a row for each cell, with medians over completed runs.

``data/own_runs.csv`` holds those of the archives in evidence/, from which ``python -m docs.evidence
--write`` makes it; ``collecting.py`` makes such rows of the tables of any sweep.
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
from typing import Any

from workflow_lib.projection.layouts import RECOMPUTATIONS, Layout, own_layout
from workflow_lib.projection.machines import published_machine
from workflow_lib.records import bounds
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.model import Model
from workflow_lib.records.reading import RecordError
from workflow_lib.records.training import Training
from workflow_lib.records.whole_files import whole_file

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
        own = {column.name for column in fields(self)}
        return {
            column.name: getattr(self, column.name)
            for column in fields(record)
            if column.name in own
        }


#: names of a row.s columns
NAMES = tuple(field.name for field in fields(OwnRun))


def write_own(runs: Sequence[OwnRun], path: Path) -> None:
    """Write a file that :func:`read_own` reads."""
    with whole_file(path) as draft:
        draft.write_text(own_text(runs), encoding="utf-8", newline="")


def own_text(runs: Iterable[OwnRun]) -> str:
    """The content of a file that :func:`read_own` reads."""
    lines = io.StringIO(newline="")
    writer = csv.DictWriter(lines, NAMES, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(run) for run in runs)
    return lines.getvalue()


def read_own(path: Path = SHIPPED) -> list[OwnRun]:
    """Read what :func:`write_own` wrote. Raises FileNotFoundError, or RecordError."""
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines)
        try:
            if tuple(next(reader, ())) != NAMES:
                raise RecordError(f"{path}: its columns are not those of {NAMES}; collect it again")
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
    return {choice: choice for choice in choices}.__getitem__, f"one of {', '.join(choices)}"


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
    if len(row) != len(NAMES):
        raise RecordError(f"{where}: has {len(row)} fields, expected {len(NAMES)}")
    values: dict[str, Any] = {}
    for field, text in zip(fields(OwnRun), row, strict=True):
        read, expected = _BY_NAME.get(field.name) or _BY_TYPE[str(field.type)]
        try:
            values[field.name] = read(text)
        except (KeyError, ValueError):
            raise RecordError(f"{where}: {field.name} is {text!r}, expected {expected}") from None
    return OwnRun(**values)
