"""Values that are known or have a reason why not, and how several are combined into one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

#: a value and "", or None and the reason why it is not known
Known = tuple[Any, str]
#: columns of a table and their values
Values = dict[str, Known]

COMBINE: Mapping[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "max": max,
    "min": min,
    "mean": lambda values: sum(values) / len(values),
}


def known(value: Any, reason: str = "") -> Known:
    """``value``, or null with ``reason`` if it is None."""
    return (None, reason) if value is None else (value, "")


def scaled(value: Known, factor: float) -> Known:
    """A value times a factor."""
    return (None, value[1]) if value[0] is None else (value[0] * factor, "")


def over(value: Known, divisor: float) -> Known:
    """A value divided by a number."""
    return (None, value[1]) if value[0] is None else (value[0] / divisor, "")


def merged(*parts: Values) -> Values:
    """Values of different columns together. Raises ValueError where a column is in two parts."""
    whole: Values = {}
    for part in parts:
        if twice := whole.keys() & part.keys():
            raise ValueError(f"{sorted(twice)} have two values each")
        whole |= part
    return whole


def combined(
    rows: Iterable[Mapping[str, Any]],
    column: str,
    combine: Callable[[Sequence[float]], float],
    problem: str | None = None,
) -> Known:
    """A column combined over rows of GPUS or NODES, or null with the reason of the first row that
    lacks it. If ``problem`` is given, the result is null for that reason, whatever the rows hold.
    """
    if problem:
        return None, problem
    values = []
    for row in rows:
        if row[column] is None:
            whose = f"{row['node']} GPU {row['gpu']}: " if "gpu" in row else ""
            return None, f"{whose}{json.loads(row['missing_reasons'])[column]}"
        values.append(row[column])
    return (combine(values), "") if values else (None, "no node has telemetry")


def reasons_text(values: Values) -> str:
    """The reasons of the columns that are null, as the JSON text of a table's missing_reasons."""
    reasons = {name: reason for name, (value, reason) in values.items() if value is None}
    return json.dumps(reasons, sort_keys=True, ensure_ascii=False)
