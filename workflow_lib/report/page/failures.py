"""The summary of what did not complete, with causes; and the counts of cells and runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workflow_lib.report.cells import Row, completed, in_words, profiled_runs
from workflow_lib.report.numbers import significant
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
    found = []
    infeasible = [cell for cell in cells if cell["outcome"] == "infeasible"]
    if infeasible:
        causes = Counter(cell["cause"] for cell in infeasible)
        found.append(Fate(counted(len(infeasible), "cell"), "infeasible", _most(causes)))
    return [*found, *_of_runs(runs, "run"), *_of_runs(profiled_runs(cells), "profiled run")]


def _of_runs(runs: Iterable[Row], noun: str) -> list[Fate]:
    found = []
    by_outcome: dict[str, list[Row]] = {}
    for run in runs:
        if run["outcome"] not in ("completed", "infeasible"):
            by_outcome.setdefault(run["outcome"], []).append(run)
    for outcome, some in sorted(by_outcome.items(), key=lambda item: (-len(item[1]), item[0])):
        of_cells = len({run["cell"] for run in some})
        causes = Counter(run["cause"] or "no cause was recorded" for run in some)
        number = f"{counted(len(some), noun)} of {counted(of_cells, 'cell')}"
        found.append(Fate(number, in_words(outcome), _most(causes)))
    return found


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
