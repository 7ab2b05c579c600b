"""The distinct values of each key in the ``environment.json`` of runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workflow_lib.records import ranges
from workflow_lib.records.files import read_json
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.report.figures.cell_names import Row, natural
from workflow_lib.report.figures.numbers import NOTHING
from workflow_lib.results import run_directory

#: the most distinct values of one key that are listed
_LISTED_VALUES = 6


def environments(runs: Iterable[Row], results: Path) -> dict[str, Any]:
    """Summarise the environments of runs; ``results`` holds their directories.

    ``rows`` has, for each key, its values with their counts, most frequent first, and how many
    values are not listed. ``first`` and ``last`` hold the first and last time of recording, and
    ``absent`` is how many ended runs recorded none. Raises RecordError if a record is damaged.
    """
    values: dict[str, Counter[str]] = {}
    moments: list[float] = []
    absent = 0
    for run in runs:
        path = RunPaths(run_directory(results, run["cell"], run["run"])).environment
        if not path.is_file():
            absent += run["outcome"] != "not_run"
            continue
        record = read_json(path)
        if not isinstance(record, dict):
            raise RecordError(f"{path}: expected an object of key and value")
        for key, value in flat(record):
            if key == "recorded_unix_s" and isinstance(value, int | float):
                if problem := ranges.problem(key, value):
                    raise RecordError(f"{path}: {key} is {value!r}, expected {problem}")
                moments.append(value)
            else:
                values.setdefault(key, Counter())[NOTHING if value is None else str(value)] += 1
    rows = []
    for key in sorted(values):
        ranked = sorted(values[key].items(), key=lambda item: (-item[1], natural(item[0])))
        rows.append((key, ranked[:_LISTED_VALUES], max(0, len(ranked) - _LISTED_VALUES)))
    days = [datetime.fromtimestamp(m, UTC).strftime("%Y-%m-%d %H:%M UTC") for m in sorted(moments)]
    return {"rows": rows, "absent": absent, "first": days[:1], "last": days[-1:]}


def flat(record: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Key and value of nested objects, keys joined with dots; lists as JSON."""
    pairs: list[tuple[str, Any]] = []
    for key, value in record.items():
        if isinstance(value, dict):
            pairs += flat(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            pairs.append((prefix + key, json.dumps(value, ensure_ascii=False)))
        else:
            pairs.append((prefix + key, value))
    return pairs
