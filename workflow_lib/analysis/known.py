"""Values that are known or have a reason why not, and how several are combined into one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from workflow_lib.records.reasons import Reason, missing

#: why a value is not known; "" if it is
Why = Reason | Literal[""]
#: a value and "", or None and the reason why it is not known
Known = tuple[Any, Why]
#: columns of a table and their values
Values = dict[str, Known]

COMBINE: Mapping[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "max": max,
    "min": min,
    "mean": lambda values: sum(values) / len(values),
}


def known(value: Any, reason: Why = "") -> Known:
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
    problem: Reason | None = None,
) -> Known:
    """A column combined over rows of GPUS or NODES, or null with the reason of the first row that
    lacks it. If ``problem`` is given, the result is null for that reason, whatever the rows hold.
    """
    if problem:
        return None, problem
    values = []
    for row in rows:
        if row[column] is None:
            reason = Reason.of_column(row, column)
            return None, reason.of(f"{row['node']} GPU {row['gpu']}") if "gpu" in row else reason
        values.append(row[column])
    return (combine(values), "") if values else (None, Reason("no_node_telemetry"))


def missing_of(values: Values) -> dict[str, str]:
    """The columns ``missing_reasons`` and ``missing_codes`` of the values that are null."""
    return missing(
        {
            name: reason or Reason("no_reason")
            for name, (value, reason) in values.items()
            if value is None
        }
    )
