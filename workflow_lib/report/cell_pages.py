"""The data that the report holds for the pages of single cells."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workflow_lib.records.cell_axes import AXES, IDENTITY
from workflow_lib.records.files import read_outcome
from workflow_lib.records.measures import ESTIMATES, MEASURES, PROFILED, Measure
from workflow_lib.records.outcomes import Outcome
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reasons import Reason
from workflow_lib.report.cell_files import (
    Clean,
    cleaning,
    configuration,
    environment,
    failure,
    logs,
    precisions,
    script,
    sections,
)
from workflow_lib.report.cell_series import PANELS, series_of, steps_of
from workflow_lib.report.figures.cell_names import Row, completed, in_order, runs_by_cell
from workflow_lib.report.figures.numbers import NOTHING, interval_in_words, shown, significant
from workflow_lib.report.figures.style import marks
from workflow_lib.report.figures.tables import Tables, by_cell
from workflow_lib.results import PROFILED_RUN, run_directory
from workflow_lib.words import counted

_NOT_RUN = "not_run"
#: headings at the head of a page: by an axis's role, else by the part of the cell that it belongs
#: to
_HEADINGS = {
    "model": "Model",
    "data": "Data",
    "training": "Training",
    "layout": "Layout",
    "option": "Options",
    "protocol": "Protocol",
    "place": "Place",
}


def cell_pages(
    tables: Tables, plan: Sequence[Row], labels: Mapping[str, str], results: Path
) -> dict[str, Any]:
    """The data of the pages of all cells, for every row of CELLS, in the order of the report.

    It consists of lists of one length, with an entry for each cell, so that similar data lies
    together and compresses well. Only the page's script, ``cell_page.js.j2``, reads it. ``plan``
    holds rows of PLAN, ``labels`` maps cells to labels, and ``results`` holds the runs. Raises
    RecordError if a record of a run is damaged.
    """
    clean = cleaning(os.environ)
    cells = in_order(tables.cells)
    planned = {row["cell"]: row for row in plan}
    runs = runs_by_cell(tables.runs)
    nodes = _nodes(tables.gpus)
    series, steps = series_of(tables.series), by_cell(tables.steps)
    reasons = Reasons(clean)
    pages: dict[str, Any] = {
        "measures": [
            (measure.heading, measure.people_unit, bool(measure.places))
            for measure in MEASURES.values()
        ],
        "panels": [
            {
                "title": panel.title,
                "unit": panel.unit,
                "scale": panel.scale,
                "legend": [curve.legend for curve in panel.curves],
            }
            for panel in PANELS
        ],
        "cells": [],
        "figures": [],
        "runs": [],
        "series": [],
        "steps": [],
        "configurations": [],
        "scripts": [],
        "environments": [],
        "logs": [],
        "failures": [],
    }
    for cell in cells:
        name = cell["cell"]
        of_cell = runs.get(name, [])
        pages["cells"].append(_head(cell, planned.get(name), labels[name], clean))
        pages["figures"].append(
            figures_of_cell(cell, of_cell, reasons) if completed(cell) else None
        )
        pages["runs"].append([_run(run, nodes, results, reasons, clean) for run in of_cell])
        over_time = series.get(name)
        pages["series"].append(over_time)
        shown_run = _first(of_cell, completed=True)
        watched = over_time["run"] if over_time else shown_run or _first(of_cell, completed=False)
        times = None if watched is None else steps_of(steps.get(name), watched)
        pages["steps"].append(times and {"run": watched, **times})
        failed = _first_failed(cell, of_cell)
        _add_files(pages, cell, shown_run or failed or 1, failed, results, clean)
    pages["reasons"] = reasons.texts()
    return pages


def _nodes(gpus: Sequence[Row]) -> dict[tuple[str, int], list[str]]:
    """(cell, run) → the nodes whose GPUs were read."""
    nodes: dict[tuple[str, int], dict[str, None]] = {}
    for gpu in gpus:
        nodes.setdefault((gpu["cell"], gpu["run"]), {})[gpu["node"]] = None
    return {key: sorted(names) for key, names in nodes.items()}


def _first(runs: Sequence[Row], *, completed: bool) -> int | None:
    """The number of the first run that completed, or of the first that ended otherwise."""
    for run in runs:
        if run["outcome"] != _NOT_RUN and (run["outcome"] == Outcome.COMPLETED.value) == completed:
            return int(run["run"])
    return None


def _first_failed(cell: Row, runs: Sequence[Row]) -> int | None:
    """The number of the first run that did not complete; the profiled run counts last."""
    failed = _first(runs, completed=False)
    fine = (None, _NOT_RUN, Outcome.COMPLETED.value)
    if failed is None and cell["profiled_outcome"] not in fine:
        return PROFILED_RUN
    return failed


def _head(cell: Row, planned: Row | None, label: str, clean: Clean) -> dict[str, Any]:
    profiled = cell["profiled_outcome"]
    return {
        "id": cell["cell"],
        "label": clean(label),
        "facts": [(heading, clean(text)) for heading, text in _facts(cell)],
        "model": clean(cell["model"]),
        "mark": marks([cell]),
        "outcome": cell["outcome"],
        "cause": clean(cell["cause"] or ""),
        "completed": cell["completed"],
        "repeats": cell["repeats"],
        "interval": interval_in_words([cell]) if cell["interval"] else "",
        "planned": planned and estimates(planned),
        "profiled": profiled
        and (profiled, clean(cell["profiled_cause"] or ""), profiled_shares(cell)),
    }


def _facts(cell: Row) -> list[tuple[str, str]]:
    """The cell's axes in words, as (heading, text), a line for each role or part."""
    lines: dict[str, list[str]] = {}
    for axis in AXES.values():
        heading = _HEADINGS.get(axis.role) or _HEADINGS[axis.part]
        # Axes that are off or not set are not mentioned.
        if cell[axis.name] not in (None, False, 0) and (words := axis.in_words(cell)):
            lines.setdefault(heading, []).append(words)
    lines[_HEADINGS["layout"]].append(counted(cell["gpus"], "GPU"))
    if cell["emulated"]:
        lines[_HEADINGS["place"]].append(f"emulated: {cell['emulated']}")
    if cell["gpu_name"]:
        lines[_HEADINGS["place"]].append(cell["gpu_name"])
    return [
        (heading, ", ".join(lines[heading])) for heading in _HEADINGS.values() if heading in lines
    ]


def _run(
    run: Row,
    nodes: Mapping[tuple[str, int], list[str]],
    results: Path,
    reasons: Reasons,
    clean: Clean,
) -> list[Any]:
    """A run's number, outcome, cause, nodes, failed nodes, job and values of MEASURES."""
    ended = None
    if run["outcome"] != _NOT_RUN:
        ended = read_outcome(RunPaths(run_directory(results, run["cell"], run["run"])))
    where = nodes.get((run["cell"], run["run"])) or (sorted(ended.nodes) if ended else [])
    return [
        run["run"],
        run["outcome"],
        clean(run["cause"] or ""),
        clean(", ".join(where)),
        clean(", ".join(sorted(ended.failed_nodes))) if ended else "",
        clean(ended.job_id or "") if ended else "",
        figures_of_run(run, reasons),
    ]


def _add_files(
    pages: dict[str, Any], cell: Row, run: int, failed: int | None, results: Path, clean: Clean
) -> None:
    """Add the contents of the files of run ``run``; the logs are those of run ``failed`` if there
    is one."""
    paths = RunPaths(run_directory(results, cell["cell"], run))
    resolved = configuration(paths, clean)
    known = {column.name: cell[column.name] for column in IDENTITY}
    pages["configurations"].append(
        {"run": run, "sections": resolved + precisions(paths, clean)}
        if resolved is not None
        else {"run": None, "sections": sections(known, "cell", clean)}
    )
    pages["scripts"].append({"run": run, **script(paths, clean)})
    recorded = environment(paths, clean)
    pages["environments"].append({"run": run, "sections": recorded})
    logged = run if failed is None else failed
    of_logs = RunPaths(run_directory(results, cell["cell"], logged))
    ran = cell["outcome"] not in (Outcome.INFEASIBLE.value, _NOT_RUN) or failed is not None
    pages["logs"].append({"run": logged, "files": logs(of_logs, clean)} if ran else None)
    pages["failures"].append(None if failed is None else {"run": failed, **failure(of_logs, clean)})


_NO_REASON = Reason("no_reason")


class Reasons:
    """The distinct reasons why values are missing: hundreds of runs may share one."""

    def __init__(self, clean: Clean) -> None:
        self._clean = clean
        self._numbers: dict[str, int] = {}

    def number(self, reason: str) -> int:
        """A reason's index in :meth:`texts`."""
        return self._numbers.setdefault(self._clean(reason), len(self._numbers))

    def texts(self) -> list[str]:
        """All reasons."""
        return list(self._numbers)


def figures_of_cell(cell: Row, runs: Sequence[Row], reasons: Reasons) -> list[Any]:
    """A cell's MEASURES, in order. A value is its text, or its text and range. A missing value is
    the index of the reasons of the runs that lack it. A measure that does not apply to the workload
    is null."""
    why = [(run["run"], Reason.of_row(run)) for run in runs if completed(run)]
    figures: list[Any] = []
    for measure in MEASURES.values():
        text, interval, value = shown(cell, measure)
        if not measure.applies(cell["workload"]):
            figures.append(None)
        elif value is not None:
            figures.append([text, interval] if interval else text)
        else:
            lacking: dict[str, list[str]] = {}
            for number, of_run in why:
                if measure.name in of_run:
                    lacking.setdefault(of_run[measure.name], []).append(str(number))
            why_missing = "; ".join(
                reason if len(numbers) == len(why) else f"run {', '.join(numbers)}: {reason}"
                for reason, numbers in lacking.items()
            )
            figures.append(reasons.number(why_missing or _NO_REASON))
    return figures


def figures_of_run(run: Row, reasons: Reasons) -> list[Any]:
    """A run's MEASURES, as :func:`figures_of_cell` gives them."""
    why = Reason.of_row(run)
    figures: list[Any] = []
    for measure in MEASURES.values():
        value = run[measure.name]
        if not measure.applies(run["workload"]):
            figures.append(None)
        elif value is None:
            figures.append(reasons.number(why.get(measure.name, _NO_REASON)))
        elif isinstance(value, bool):
            figures.append("yes" if value else "no")
        else:
            figures.append(significant(value * measure.factor, decimals=measure.decimals))
    return figures


def estimates(planned: Row) -> list[tuple[str, str, str]]:
    """The plan's estimates of a cell, as (heading, unit, value)."""
    return [
        (
            measure.heading,
            measure.people_unit,
            NOTHING if value is None else _estimate(value, measure),
        )
        for measure in ESTIMATES.values()
        for value in (planned[measure.name],)
    ]


def profiled_shares(cell: Row) -> list[tuple[str, str, str]]:
    """The known shares from the traces of a cell's profiled run, as (heading, unit, value)."""
    return [
        (
            column.heading,
            column.people_unit,
            significant(value * column.factor, decimals=column.decimals),
        )
        for column in PROFILED.values()
        for value in (cell[column.name],)
        if value is not None
    ]


def _estimate(value: float, measure: Measure) -> str:
    # Counts have no decimals.
    return significant(value * measure.factor, decimals=0 if isinstance(value, int) else None)
