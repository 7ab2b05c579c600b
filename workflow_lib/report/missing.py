"""What is missing: cells and runs that did not complete, with causes, and measures without
values, with reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from workflow_lib.records.measures import Measure, inapplicable
from workflow_lib.records.reasons import Reason
from workflow_lib.report.figures.cell_names import Row, completed, in_words, profiled_runs
from workflow_lib.report.figures.numbers import significant
from workflow_lib.words import counted

#: letters of a cause that are shown; the page's table has all of it
_MOST_LETTERS = 160


@dataclass(frozen=True)
class Fate:
    """An outcome that kept cells or runs from completing: "3 runs of 2 cells: out of memory"."""

    counted: str
    outcome: str
    #: the most frequent cause, with its count if there are several
    cause: str


def failures(cells: Sequence[Row], runs: Iterable[Row]) -> list[Fate]:
    """The outcomes of everything that did not complete: how often each occurred, and its most
    frequent cause."""
    fates = []
    infeasible = [cell for cell in cells if cell["outcome"] == "infeasible"]
    if infeasible:
        causes = Counter(cell["cause"] for cell in infeasible)
        fates.append(Fate(counted(len(infeasible), "cell"), "infeasible", _most(causes)))
    return [*fates, *_of_runs(runs, "run"), *_of_runs(profiled_runs(cells), "profiled run")]


def _of_runs(runs: Iterable[Row], noun: str) -> list[Fate]:
    fates = []
    by_outcome: dict[str, list[Row]] = {}
    for run in runs:
        if run["outcome"] not in ("completed", "infeasible"):
            by_outcome.setdefault(run["outcome"], []).append(run)
    for outcome, some in sorted(by_outcome.items(), key=lambda item: (-len(item[1]), item[0])):
        of_cells = len({run["cell"] for run in some})
        causes = Counter(run["cause"] or "no cause was recorded" for run in some)
        number = f"{counted(len(some), noun)} of {counted(of_cells, 'cell')}"
        fates.append(Fate(number, in_words(outcome), _most(causes)))
    return fates


def _most(causes: Counter[str]) -> str:
    """The most frequent cause; if there are several, with its count."""
    cause, count = min(causes.items(), key=lambda item: (-item[1], item[0]))
    cause = cause.rstrip(".")
    if len(cause) > _MOST_LETTERS:
        cause = f"{cause[:_MOST_LETTERS]}…"
    if len(causes) == 1:
        return cause
    return (
        f"most often ({count} of {sum(causes.values())}) {cause}"
        if count > 1
        else (f"{len(causes)} different causes, one of them: {cause}")
    )


def counts(cells: Sequence[Row], runs: Sequence[Row]) -> dict[str, int]:
    """How many cells and runs there are of each kind."""
    fates = Counter(run["outcome"] for run in runs)
    others = ("completed", "out_of_memory", "not_run")
    return {
        "cells": len(cells),
        "completed_cells": sum(completed(cell) for cell in cells),
        "infeasible_cells": sum(cell["outcome"] == "infeasible" for cell in cells),
        "runs": len(runs),
        "completed": fates["completed"],
        "out_of_memory": fates["out_of_memory"],
        "not_run": fates["not_run"],
        "failed": sum(count for fate, count in fates.items() if fate not in others),
    }


def gpu_hours(plan: Sequence[Row], unknown: str) -> str:
    """The estimated GPU hours of all feasible cells; ``unknown`` if one of them has no estimate."""
    hours = [cell["gpu_hours"] for cell in plan if cell["feasible"]]
    return unknown if None in hours else significant(sum(hours))


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


def _reasons(run: Row) -> dict[str, Reason]:
    """The reasons of a run for missing measures, only of those that apply to its workload."""
    reasons = Reason.of_row(run)
    meant = reasons.keys() - set(inapplicable(run["workload"]))
    return {column: reasons[column] for column in meant}
