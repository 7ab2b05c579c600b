"""The report: one page with everything in it, which needs neither a network nor scripts."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from workflow_lib import __version__
from workflow_lib.analysis.tables import read_table
from workflow_lib.records import CELLS, OVERHEAD, PLAN, RecordError, inapplicable
from workflow_lib.report.cells import Row, completed, in_order, in_words, labels, natural
from workflow_lib.report.differences import differences
from workflow_lib.report.environments import environments
from workflow_lib.report.figures import FigureEntry, figures, read_tables
from workflow_lib.report.quantities import (
    NOTHING,
    SHOWN,
    WATCHED,
    Quantity,
    counted,
    shown,
    significant,
)
from workflow_lib.report.rebuilding import rebuilding_commands
from workflow_lib.report.unmeasured import has_values, left_out, unmeasured
from workflow_lib.report.watching import (
    overhead_lines,
    steadiness,
    steady_state,
    systematic_error,
    trained_unwatched,
)

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("workflow_lib.report"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
#: columns that are named where no cell has a value; of the error of sensors the text says enough
_LISTED_IF_EMPTY = tuple(each for each in WATCHED if each.measure != "energy_systematic_share")
_ENVIRONMENT.filters["counted"] = counted


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
    done = [cell for cell in cells if completed(cell)]
    applying = [each for each in SHOWN if _applies(each.measure, cells)]
    # Where nothing completed, empty columns show what would have been measured.
    quantities = [each for each in applying if not done or has_values(each.measure, done)]
    watched = [each for each in WATCHED if has_values(each.measure, done)]
    names = labels(cells)
    present = {column.name for column in CELLS if has_values(column.name, done)}
    text = _ENVIRONMENT.get_template("report.html.j2").render(
        sweep=sweep,
        description=description,
        version=__version__,
        simulated=any(cell["simulated"] for cell in cells),
        simulated_all=all(cell["simulated"] for cell in cells if completed(cell)),
        counts=_counts(cells, tables.runs),
        best=_best(cells),
        quantities=quantities,
        cells=[_cell(cell, label, quantities) for cell, label in zip(cells, names, strict=True)],
        left_out=left_out(applying, done, tables.runs) if done else "",
        differences=differences(cells, names, results),
        present=present,
        systematic_error=systematic_error(tables.runs) if "energy_j" in present else "",
        watched=watched,
        watched_cells=[
            {**_cell(cell, label, watched), "steady": steady_state(cell, tables.runs)}
            for cell, label in zip(cells, names, strict=True)
            if completed(cell)
        ],
        watched_left_out=left_out(_LISTED_IF_EMPTY, done, tables.runs),
        steadiness=steadiness(cells, names, tables.runs),
        overhead=overhead_lines(
            overhead, {cell["cell"]: label for cell, label in zip(cells, names, strict=True)}
        ),
        plan=[_planned(cell, label) for cell, label in zip(plan, labels(plan), strict=True)],
        gpu_hours=_gpu_hours(plan),
        figures=[_inline(entry, directory / "figures") for entry in figures(tables)],
        unfinished=_unfinished(cells, tables.runs),
        trained_unwatched=trained_unwatched(tables.runs),
        unmeasured=unmeasured(tables.runs),
        environment=environments(tables.runs, results),
        rebuilding=rebuilding_commands(sweep, description, tables.runs),
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
    """For each model, the completed cells that are best by throughput, energy and temperature.

    Where fewer than two cells can be compared, none is best.
    """
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
        of_model = [cell for cell in cells if cell["model"] == model and completed(cell)]
        answers: list[tuple[Any, ...]] = []
        for question, measure, unit, choose in questions:
            able = [cell for cell in of_model if measure not in inapplicable(cell["workload"])]
            if len(able) < 2:
                continue
            known = [cell for cell in able if cell[measure] is not None]
            if len(known) > 1:
                winner = choose(known, key=lambda cell: cell[measure])
                value = f"{significant(winner[measure])} {unit}"
                name = names[winner["cell"]]
                answers.append((question, name, winner["platform"], winner["gpus"], value))
            else:
                why = "only one completed cell has" if known else "no completed cell has"
                answers.append((question, None, None, None, why))
        alone = names[of_model[0]["cell"]] if len(of_model) == 1 else None
        counts = {"completed": len(of_model), "alone": alone}
        models.append({"model": model, **counts, "answers": answers})
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
