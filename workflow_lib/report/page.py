"""The report: one page with everything in it, which needs neither a network nor scripts."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from workflow_lib import __version__
from workflow_lib.analysis.tables import read_table
from workflow_lib.records import OVERHEAD, PLAN, RecordError, RunPaths, inapplicable, read_json
from workflow_lib.report.cells import Row, completed, in_order, in_words, labels, natural
from workflow_lib.report.figures import FigureEntry, Tables, figures, read_tables
from workflow_lib.report.quantities import NOTHING, SHOWN, WATCHED, Quantity, shown, significant
from workflow_lib.report.watching import (
    overhead_lines,
    systematic_error,
    trained_unwatched,
    unsteady,
)
from workflow_lib.results import run_directory

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("workflow_lib.report"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
#: distinct values of one key of the environments that are listed
_LISTED_VALUES = 6


def write_page(sweep: str, description: str, results: Path, directory: Path) -> Path:
    """Write ``report.html`` of a sweep beside its tables, and return its path.

    ``directory`` holds ``plan``, ``cells``, ``runs``, ``gpus`` and ``overhead.parquet``, and
    ``figures/``; ``results`` holds the runs themselves, whose environments are read. Raises
    FileNotFoundError where a table or figure is missing, and RecordError where a file is damaged.
    """
    plan = in_order(read_table(directory / "plan.parquet", PLAN).to_dicts())
    tables = read_tables(directory)
    cells = in_order(tables.cells)
    overhead = read_table(directory / "overhead.parquet", OVERHEAD).to_dicts()
    quantities = [each for each in SHOWN if _applies(each.measure, cells)]
    done = [cell for cell in cells if completed(cell)]
    watched = [each for each in WATCHED if any(cell[each.measure] is not None for cell in done)]
    names = labels(cells)
    text = _ENVIRONMENT.get_template("report.html.j2").render(
        sweep=sweep,
        description=description,
        version=__version__,
        results=results,
        directory=directory,
        simulated=any(cell["simulated"] for cell in cells),
        simulated_all=all(cell["simulated"] for cell in cells if completed(cell)),
        counts=_counts(cells, tables.runs),
        best=_best(cells),
        quantities=quantities,
        cells=[_cell(cell, label, quantities) for cell, label in zip(cells, names, strict=True)],
        systematic_error=systematic_error(tables.runs),
        watched=watched,
        watched_cells=[
            _cell(cell, label, watched)
            for cell, label in zip(cells, names, strict=True)
            if completed(cell)
        ],
        unsteady=unsteady(cells, names, tables.runs),
        overhead=overhead_lines(
            overhead, {cell["cell"]: label for cell, label in zip(cells, names, strict=True)}
        ),
        plan=[_planned(cell, label) for cell, label in zip(plan, labels(plan), strict=True)],
        gpu_hours=_gpu_hours(plan),
        figures=[_inline(entry, directory / "figures") for entry in figures(tables)],
        unfinished=_unfinished(cells, tables.runs),
        trained_unwatched=trained_unwatched(tables.runs),
        missing=_missing(tables),
        environment=_environment(tables.runs, results),
        gpu_names=sorted({cell["gpu_name"] for cell in cells if cell["gpu_name"]}),
    )
    path = directory / "report.html"
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _counts(cells: Sequence[Row], runs: Sequence[Row]) -> dict[str, int]:
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


def _gpu_hours(plan: Sequence[Row]) -> str:
    """The estimate over all feasible cells; unknown as soon as one of theirs is."""
    hours = [cell["gpu_hours"] for cell in plan if cell["feasible"]]
    return NOTHING if None in hours else significant(sum(hours))


def _best(cells: Sequence[Row]) -> list[dict[str, Any]]:
    """For each model, the completed cells that are best by throughput, energy and temperature."""
    questions = (
        ("Fastest", "tokens_per_s", "tokens/s", max),
        ("Fastest prefill", "prefill_tokens_per_s_per_gpu", "tokens/s per GPU", max),
        ("Fastest decoding", "decode_tokens_per_s_per_gpu", "tokens/s per GPU", max),
        ("Most tokens per joule", "tokens_per_j", "tokens/J", max),
        ("Most decoded tokens per joule", "decode_tokens_per_j", "tokens/J", max),
        ("Coolest (mean)", "temperature_mean_c", "°C", min),
    )
    names = {cell["cell"]: label for cell, label in zip(cells, labels(cells), strict=True)}
    models = []
    for model in sorted({cell["model"] for cell in cells}, key=natural):
        all_of_model = [cell for cell in cells if cell["model"] == model]
        of_model = [cell for cell in all_of_model if completed(cell)]
        answers: list[tuple[Any, ...]] = []
        for question, measure, unit, choose in questions:
            if not _applies(measure, all_of_model):
                continue
            known = [cell for cell in of_model if cell[measure] is not None]
            if known:
                winner = choose(known, key=lambda cell: cell[measure])
                value = f"{significant(winner[measure])} {unit}"
                name = names[winner["cell"]]
                answers.append((question, name, winner["platform"], winner["gpus"], value))
            else:
                answers.append((question, None, None, None, None))
        models.append({"model": model, "completed": len(of_model), "answers": answers})
    return models


def _applies(measure: str, cells: Sequence[Row]) -> bool:
    """Whether a measure means anything for the workload of any cell."""
    return any(measure not in inapplicable(cell["workload"]) for cell in cells)


def _cell(cell: Row, label: str, quantities: Sequence[Quantity]) -> dict[str, Any]:
    return {
        "row": cell,
        "label": label,
        "outcome": in_words(cell["outcome"]),
        "completed": completed(cell),
        "values": [shown(cell, quantity) for quantity in quantities],
    }


def _planned(cell: Row, label: str) -> dict[str, Any]:
    def text(name: str, factor: float = 1.0) -> str:
        return NOTHING if cell[name] is None else significant(cell[name] * factor)

    return {
        "row": cell,
        "label": label,
        "memory_gb": text("memory_per_gpu_bytes", 1e-9),
        "step_time_s": text("step_time_s"),
        "gpu_hours": text("gpu_hours"),
    }


def _unfinished(cells: Sequence[Row], runs: Sequence[Row]) -> list[dict[str, Any]]:
    """Everything that did not complete: infeasible cells, and runs, alike ones in one line."""
    lines: dict[tuple[str, str, str], list[int]] = {}
    for cell in cells:
        if cell["outcome"] == "infeasible":
            lines[cell["cell"], "infeasible", cell["cause"]] = []
        for run in sorted((r for r in runs if r["cell"] == cell["cell"]), key=lambda r: r["run"]):
            if run["outcome"] != "completed":
                key = run["cell"], run["outcome"], run["cause"] or "no cause was recorded"
                lines.setdefault(key, []).append(run["run"])
    return [
        {"cell": cell, "outcome": in_words(outcome), "cause": cause, "runs": numbers}
        for (cell, outcome, cause), numbers in lines.items()
    ]


def _missing(tables: Tables) -> list[tuple[str, str, int]]:
    """Measures that completed runs lack: column, reason, and how many runs lack it for that."""
    found: Counter[tuple[str, str]] = Counter()
    for run in tables.runs:
        if run["outcome"] == "completed" and run["missing_reasons"]:
            reasons = json.loads(run["missing_reasons"])
            meant = reasons.keys() - inapplicable(run["workload"])
            found.update((column, reasons[column]) for column in meant)
    return [(column, reason, count) for (column, reason), count in sorted(found.items())]


def _environment(runs: Sequence[Row], results: Path) -> dict[str, Any]:
    """The distinct values of every key of the runs' ``environment.json``, most frequent first."""
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
        for key, value in _flat(record):
            if key == "recorded_unix_s" and isinstance(value, (int, float)):
                moments.append(value)
            else:
                values.setdefault(key, Counter())[NOTHING if value is None else str(value)] += 1
    rows = []
    for key in sorted(values):
        ranked = sorted(values[key].items(), key=lambda item: (-item[1], natural(item[0])))
        rows.append((key, ranked[:_LISTED_VALUES], max(0, len(ranked) - _LISTED_VALUES)))
    days = [datetime.fromtimestamp(m, UTC).strftime("%Y-%m-%d %H:%M UTC") for m in sorted(moments)]
    return {"rows": rows, "absent": absent, "first": days[:1], "last": days[-1:]}


def _flat(record: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Key and value of nested objects, keys joined with dots; lists as JSON."""
    pairs: list[tuple[str, Any]] = []
    for key, value in record.items():
        if isinstance(value, dict):
            pairs += _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            pairs.append((prefix + key, json.dumps(value, ensure_ascii=False)))
        else:
            pairs.append((prefix + key, value))
    return pairs


def _inline(entry: FigureEntry, directory: Path) -> dict[str, Any]:
    """A figure's SVG, made fit to stand in the page.

    Its ids get the figure's name, so that figures do not share clip paths; what would load or run
    something is refused.
    """
    path = directory / f"{entry.stem}.svg"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such figure; draw the figures of these tables first")
    text = path.read_text(encoding="utf-8")
    start = text.find("<svg")
    size = re.search(r'<svg[^>]* width="([0-9.]+)pt"', text)
    if start < 0 or size is None:
        raise RecordError(f"{path}: not an SVG as this package draws it; draw the figures anew")
    svg = re.sub(r"<metadata>.*?</metadata>", "", text[start:], flags=re.DOTALL)
    if re.search(r"<script|<foreignObject|<[^>]*\son\w+\s*=|href=\"(?!#|data:image/png;)", svg):
        raise RecordError(f"{path}: it holds a script or a link; draw the figures anew")
    svg = re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>{entry.stem}-", svg)
    root, rest = svg.split(">", 1)
    svg = re.sub(r' (width|height)="[^"]*"', "", root) + ">" + rest
    svg = svg.replace("<svg", f'<svg role="img" aria-labelledby="{entry.stem}-title"', 1)
    return {
        "stem": entry.stem,
        "title": entry.title,
        "caption": entry.caption,
        "width_pt": float(size[1]) * 1.3,
        "svg": Markup(svg),
    }
