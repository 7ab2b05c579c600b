"""Missing values: measures that completed runs lack, with reasons, and columns without
any value."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from workflow_lib.records import Measure, inapplicable
from workflow_lib.report.cells import Row, completed
from workflow_lib.words import counted


def has_values(measure: str, cells: Iterable[Row]) -> bool:
    """Whether any cell has the measure."""
    return any(cell[measure] is not None for cell in cells)


def left_out(shown: Sequence[Measure], cells: Sequence[Row], runs: Iterable[Row]) -> str:
    """The columns of a table in which no cell has a value: "A, B (why); C", or "".

    A reason is given if all runs that lack the measure have the same one.
    """
    why: dict[str, set[str]] = {}
    for run in filter(completed, runs):
        for column, reason in _reasons(run).items():
            why.setdefault(column, set()).add(reason)
    headings: dict[str, list[str]] = {}
    for measure in shown:
        if not has_values(measure.name, cells):
            reasons = why.get(measure.name, set())
            text = f" ({next(iter(reasons))})" if len(reasons) == 1 else ""
            headings.setdefault(text, []).append(f"“{measure.heading}”")
    return "; ".join(", ".join(of_reason) + text for text, of_reason in headings.items())


def unmeasured(runs: Iterable[Row]) -> list[dict[str, Any]]:
    """Reasons why completed runs lack measures: each with the columns and the runs it is for.

    A column that only some of these runs lack says how many.
    """
    columns: dict[str, Counter[str]] = {}
    of_reason: Counter[str] = Counter()
    for run in filter(completed, runs):
        reasons = _reasons(run)
        for column, reason in reasons.items():
            columns.setdefault(reason, Counter())[column] += 1
        of_reason.update(set(reasons.values()))
    return [
        {
            "reason": reason,
            "columns": [
                column if count == of_reason[reason] else f"{column} ({counted(count, 'run')})"
                for column, count in sorted(columns[reason].items())
            ],
            "runs": of_reason[reason],
        }
        for reason in sorted(columns, key=lambda reason: (min(columns[reason]), reason))
    ]


def _reasons(run: Row) -> dict[str, str]:
    """The reasons of a run for missing measures, only of those that apply to its workload."""
    reasons: dict[str, str] = json.loads(run["missing_reasons"] or "{}")
    meant = reasons.keys() - set(inapplicable(run["workload"]))
    return {column: reasons[column] for column in meant}
