"""Times of exchanges and of the optimiser alone, as ``benchmarks/parts_on_gpus.py`` records them.

``data/own_parts.jsonl`` has the records of evidence/engine/parts-*.jsonl, from which ``python -m
docs.evidence --write`` makes it. Without that file nothing was measured alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Any

from workflow_lib.projection.machines import published_machine
from workflow_lib.records import RecordError, bounds

SHIPPED = Path(str(resources.files("workflow_lib.projection") / "data" / "own_parts.jsonl"))

OPTIMISER = "optimiser"
#: collectives as the benchmark names them
EXCHANGES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send/recv")


@dataclass(frozen=True)
class PartTime:
    """An exchange of one size, or the optimiser over so many weights, timed alone."""

    #: the model of GPU, as own runs name it
    gpu: str
    #: one of EXCHANGES, or OPTIMISER
    part: str
    #: ranks of a group; 1 of the optimiser
    ranks: int
    #: what a rank receives; of the optimiser what it reads and writes, as parts.py counts it
    bytes: float
    #: medians over repeats of the slowest rank's seconds, and the shortest and longest repeat
    seconds: float
    least_s: float
    most_s: float
    repeats: int


def read_parts(path: Path = SHIPPED) -> tuple[PartTime, ...]:
    """The times that the benchmark's ``--output`` recorded; none if the shipped file is not there.

    Raises FileNotFoundError, or RecordError.
    """
    if path == SHIPPED and not path.exists():
        return ()
    found = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: is not text in UTF-8: {error}; measure it again") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found.append(_part_time(json.loads(line)))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise RecordError(
                    f"{path}, line {number}: is no record of benchmarks/parts_on_gpus.py "
                    f"({type(error).__name__}: {error}); measure it again"
                ) from None
    return tuple(found)


def _part_time(record: Mapping[str, Any]) -> PartTime:
    name = str(record["gpu"])
    machine = published_machine(name.removeprefix("NVIDIA "))
    if machine is None:
        raise ValueError(f"the peaks of {name} are not known")
    if record["part"] == "collective":
        part, ranks, size = record["collective"], record["ranks"], record["received_bytes"]
        times = record["repeats_s"]
    else:
        part, ranks, size = record["part"], 1, record["bytes"]
        times = [sum(each) for each in zip(record["clip_s"], record["step_s"], strict=True)]
    if part not in (*EXCHANGES, OPTIMISER):
        raise ValueError(f"the part is {part!r}")
    seconds = [_above_0(each) for each in times]
    return PartTime(
        gpu=machine.gpu,
        part=part,
        ranks=int(_above_0(ranks)),
        bytes=_above_0(size),
        seconds=median(seconds),
        least_s=min(seconds),
        most_s=max(seconds),
        repeats=len(seconds),
    )


def _above_0(value: Any) -> float:
    number = float(value)
    if not (math.isfinite(number) and 0 < number <= bounds.QUANTITY.most):
        raise ValueError(f"{value!r} is not a number above 0")
    return number
