"""Reads published training runs from a CSV file, and says which rows cannot be used and why.

The columns are those of ``data/published_runs.csv``, in any order; others are ignored. An empty
field means that the source does not state it. A row that cannot be used does not stop the reading,
because the other rows do not depend on it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from research.projection.published import PublishedRun
from workflow_lib.records import bounds
from workflow_lib.records.reading import RecordError

#: the published runs that are shipped, and their name in the repository
_NAME = "data/published_runs.csv"
PUBLISHED = Path(str(resources.files("research.projection") / _NAME))
SHIPPED_NAME = f"research/projection/{_NAME}"

COLUMNS = (
    *("source", "url_or_repo_path", "date", "gpu", "gpus", "gpus_per_node", "model", "params_b"),
    *("seq_len", "global_batch", "micro_batch", "tp", "cp", "pp", "virtual_pp", "dp", "ep"),
    *("zero_or_dist_opt", "recompute", "dtype", "step_time_s", "tokens_per_s_per_gpu"),
    *("tflops_per_gpu", "mfu_pct", "notes"),
)
_MAKER = re.compile(r"^(NVIDIA|AMD)\s+", re.IGNORECASE)
_PRECISIONS = {"BFLOAT16": "BF16", "FLOAT16": "FP16", "FLOAT8": "FP8"}
#: A stated time and a stated throughput that differ by more than this factor are in different
#: units.
_UNITS_DIFFER = 2.0


@dataclass(frozen=True)
class Unusable:
    """A row that cannot be used, and why."""

    line: int
    reason: str


class _Wrong(Exception):
    """What is wrong with a row."""


def read_published(path: Path) -> tuple[list[PublishedRun], list[Unusable]]:
    """Read the rows of a file. The second list has the rows that cannot be used.

    Raises FileNotFoundError, or RecordError if the file is not such a table or has no usable row.
    """
    runs, unusable = [], []
    first: dict[tuple[str, ...], int] = {}
    for line, row in _rows(path):
        try:
            if isinstance(row, str):
                raise _Wrong(row)
            same = first.setdefault(tuple(row[name] for name in COLUMNS), line)
            if same != line:
                raise _Wrong("it repeats an earlier row")
            runs.append(_run(row, line))
        except _Wrong as wrong:
            unusable.append(Unusable(line, str(wrong)))
    if not runs:
        told = f"its line {unusable[0].line}: {unusable[0].reason}" if unusable else "no row"
        raise RecordError(f"{path}: has {told}; expected at least one row of a published run")
    return runs, unusable


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str] | str]]:
    """The last line of each row, and its fields or what is wrong with their number."""
    # Spreadsheets begin a file with a byte-order mark, which utf-8-sig leaves out.
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines)
        try:
            heading = [name.strip() for name in next(reader, [])]
            if missing := [name for name in COLUMNS if name not in heading]:
                raise RecordError(
                    f"{path}: has no column {', '.join(map(repr, missing))}; expected the columns "
                    f"{', '.join(COLUMNS)}. Leave a field empty if the source does not state it."
                )
            for fields in reader:
                if len(fields) == len(heading):
                    values = (field.strip() for field in fields)
                    yield reader.line_num, dict(zip(heading, values, strict=True))
                elif any(fields):
                    told = f"it has {len(fields)} fields, and the heading has {len(heading)}"
                    hint = "expected as many, with a field that holds a comma in quotes"
                    yield reader.line_num, f"{told}: {hint}"
        except UnicodeDecodeError:
            raise RecordError(f"{path}: is not text in UTF-8; save it as CSV in UTF-8") from None
        except csv.Error as error:
            raise RecordError(f"{path}, line {reader.line_num}: is not CSV: {error}") from None


def _run(row: dict[str, str], line: int) -> PublishedRun:
    gpus = _count(row, "gpus")
    if gpus is None:
        raise _Wrong("its number of GPUs is not stated")
    precision = row["dtype"].upper()
    run = PublishedRun(
        line=line,
        source=row["source"],
        address=row["url_or_repo_path"],
        gpu=_MAKER.sub("", row["gpu"]),
        gpus=gpus,
        gpus_per_node=_count(row, "gpus_per_node") or 8,
        model=row["model"],
        sequence_length=_count(row, "seq_len"),
        global_batch=_count(row, "global_batch"),
        micro_batch=_count(row, "micro_batch"),
        tp=_count(row, "tp"),
        cp=_count(row, "cp") or 1,
        pp=_count(row, "pp"),
        stated_virtual_stages=_count(row, "virtual_pp"),
        stated_dp=_count(row, "dp"),
        ep=_count(row, "ep"),
        sharding=row["zero_or_dist_opt"],
        stated_recomputation=row["recompute"],
        precision=_PRECISIONS.get(precision, precision),
        stated_step_time_s=_number(row, "step_time_s"),
        stated_tokens_per_s_per_gpu=_number(row, "tokens_per_s_per_gpu"),
        stated_tflops_per_gpu=_number(row, "tflops_per_gpu"),
        notes=row["notes"],
    )
    _check_units(run)
    return run


def _number(row: dict[str, str], name: str) -> float | None:
    text = row[name]
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= bounds.QUANTITY.most:
        raise _Wrong(
            f"{name} is {text!r}, expected a number above 0 such as 1024 or 12.9, without unit or "
            "separators of thousands; leave it empty if the source does not state it"
        )
    return value


def _count(row: dict[str, str], name: str) -> int | None:
    value = _number(row, name)
    if value is not None and (value != int(value) or value > bounds.DIMENSION.most):
        most = bounds.DIMENSION.most
        raise _Wrong(f"{name} is {row[name]!r}, expected a whole number of at most {most}")
    return None if value is None else int(value)


def _check_units(run: PublishedRun) -> None:
    stated, by_throughput = run.stated_step_time_s, run.step_time_by_throughput_s
    if stated is None or by_throughput is None:
        return
    if not 1 / _UNITS_DIFFER <= stated / by_throughput <= _UNITS_DIFFER:
        raise _Wrong(
            f"step_time_s is {stated:g}, but global_batch, seq_len and tokens_per_s_per_gpu give "
            f"{by_throughput:.4g} s: expected seconds, and tokens per second and GPU"
        )
