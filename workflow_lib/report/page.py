"""Writes the report: one page that holds everything, needs no network and is readable without
scripts."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workflow_lib import __version__, power_errors, results
from workflow_lib.comparison.sides import Side, of_gpus
from workflow_lib.records import cell_axes, measures
from workflow_lib.records.checksums import write_checksums
from workflow_lib.records.labels import labels
from workflow_lib.records.labels import left_out as left_out_of_names
from workflow_lib.records.measures import Measure
from workflow_lib.records.outcomes import Outcome
from workflow_lib.records.paths import SweepPaths
from workflow_lib.records.tables import CELLS, OVERHEAD, PLAN, TABLES, UNUSED_GPUS
from workflow_lib.records.whole_files import whole_file
from workflow_lib.report import summary
from workflow_lib.report.caveats import (
    allocators_set,
    capped_below_limit,
    energy_errors,
    shared_nodes,
    short_memory,
    trained_otherwise,
    trainers_differ,
    unused_gpus,
)
from workflow_lib.report.cell_pages import cell_pages
from workflow_lib.report.figures import figures_and_gaps, read_tables
from workflow_lib.report.figures.cell_names import (
    Row,
    completed,
    in_order,
    in_words,
    marked,
    profiled_runs,
    runs_by_cell,
)
from workflow_lib.report.figures.embedding import figures_in_page
from workflow_lib.report.figures.environments import environments
from workflow_lib.report.figures.html import address, embedded, page_templates
from workflow_lib.report.figures.numbers import (
    NOTHING,
    interval_in_words,
    shown,
    significant,
    systematic_error,
)
from workflow_lib.report.missing import (
    counts,
    failures,
    gpu_hours,
    has_values,
    left_out,
    unmeasured,
)
from workflow_lib.report.overlap import slower_with_overlap
from workflow_lib.report.predictions import predictions
from workflow_lib.report.watching import (
    overhead_lines,
    steadiness,
    steady_state,
    trained_unwatched,
    warm_starts,
)
from workflow_lib.results import run_name
from workflow_lib.table_files import read_table

#: the shell's variable for the directory of results; a path would make the page depend on where it
#: is made
_RESULTS = '"$results"'


def rebuilding_commands(sweep: str, description: str, runs: Iterable[Row]) -> str:
    """Lines for a shell, which reduce the sweep's own runs and write tables, figures and page.

    Only runs that the workflow reduces are named; the others have no summary.
    """
    reduced = [
        _below_results(results.run_directory(Path(), run["cell"], run["run"]))
        for run in runs
        if run["outcome"] in _ENDINGS
    ]
    paths = results.sweep_paths(Path(), sweep)
    tables, figures, plan = map(_below_results, (paths.directory, paths.figures, paths.plan))
    lines = ["results=results  # or their directory"]
    if reduced:
        listed = " \\\n    ".join(reduced)
        reduce = 'python -m workflow_lib.analysis reduce "$run"'
        lines.append(f"for run in \\\n    {listed}; do\n  {reduce}\ndone")
    lines.append(
        f"python -m workflow_lib.analysis collect --plan {plan} --results {_RESULTS}"
        f" --output {tables}"
    )
    lines.append(f"python -m workflow_lib.report figures --tables {tables} --output {figures}")
    # With an equals sign, because a description may begin with a dash.
    option = f" --description={shlex.quote(description)}" if description else ""
    lines.append(
        f"python -m workflow_lib.report page --sweep {shlex.quote(sweep)}{option}"
        f" --results {_RESULTS} --directory {tables}"
    )
    return "\n".join(lines)


def _below_results(path: Path) -> str:
    return f"{_RESULTS}/{shlex.quote(str(path))}"


_ENDINGS = frozenset(outcome.value for outcome in Outcome if outcome.is_result)


_TEMPLATES = page_templates("workflow_lib.report")
_TEMPLATES.filters["address"] = address
#: columns that are listed if no cell has a value; the sensors' error has a sentence of its own
_WATCHED = measures.shown_in("watched")
_LISTED_IF_EMPTY = tuple(column for column in _WATCHED if column.name != "energy_systematic_share")


def write_page(sweep: str, description: str, results: Path, directory: Path) -> Path:
    """Write ``report.html`` of a sweep beside its tables, and return its path.

    ``directory`` holds ``plan.parquet``, the tables that collecting writes, and ``figures/``.
    ``results`` holds the runs, whose environments and logs are read. Raises FileNotFoundError if a
    table or figure is missing, and RecordError if a file is damaged.
    """
    paths = SweepPaths(directory)
    plan = in_order(read_table(paths.plan, PLAN).to_dicts())
    tables = read_tables(directory)
    cells = in_order(tables.cells)
    overhead = read_table(paths.table("overhead"), OVERHEAD).to_dicts()
    unused = read_table(paths.table("unused_gpus"), UNUSED_GPUS).to_dicts()
    done = [cell for cell in cells if completed(cell)]
    applying = [measure for measure in measures.shown_in("cells") if _applies(measure, cells)]
    # If nothing completed, empty columns show what would have been measured.
    columns = [measure for measure in applying if not done or has_values(measure.name, done)]
    watched = [measure for measure in _WATCHED if has_values(measure.name, done)]
    names = marked(cells, labels(cells))
    of_cell = {cell["cell"]: label for cell, label in zip(cells, names, strict=True)}
    present = {column.name for column in CELLS if has_values(column.name, done)}
    side = Side(sweep, sweep, tuple(cells), tables.runs, **of_gpus(tables.gpus))
    entries, undrawn = figures_and_gaps(tables)
    text = _TEMPLATES.get_template("report.html.j2").render(
        sweep=sweep,
        tables=[paths.plan.name, *(paths.table(name).name for name in TABLES)],
        description=description,
        version=__version__,
        simulated=any(cell["simulated"] for cell in cells),
        simulated_all=all(cell["simulated"] for cell in cells if completed(cell)),
        emulated=cell_axes.emulated_in_words((*cells, *plan)),
        left_out_of_names=left_out_of_names(cells),
        counts=counts(cells, tables.runs),
        groups=summary.groups(cells, of_cell, side),
        slower_with_overlap=slower_with_overlap(tables, of_cell),
        predictions=predictions(plan, tables, of_cell),
        failures=failures(cells, tables.runs),
        choices=_choices(cells),
        interval=interval_in_words(cells),
        columns=columns,
        cells=[_cell(cell, label, columns) for cell, label in zip(cells, names, strict=True)],
        left_out=left_out(applying, done, tables.runs) if done else "",
        present=present,
        trainers=trainers_differ(cells, results),
        sensor_error=power_errors.IN_WORDS,
        systematic_error=systematic_error(tables.runs) if "energy_j" in present else "",
        watched=watched,
        watched_cells=[
            {**_cell(cell, label, watched), "steady": steady_state(cell, tables.runs)}
            for cell, label in zip(cells, names, strict=True)
            if completed(cell)
        ],
        watched_left_out=left_out(_LISTED_IF_EMPTY, done, tables.runs),
        steadiness=steadiness(cells, names, tables.runs),
        warm_starts=warm_starts(tables.runs, of_cell, results),
        unused_gpus=unused_gpus(unused, of_cell),
        shared_nodes=shared_nodes(tables.runs, of_cell),
        capped=capped_below_limit(cells, names, tables.runs),
        energy_errors=energy_errors(cells, names, tables.runs),
        short_memory=short_memory(cells, names, tables.runs),
        trained_otherwise=trained_otherwise(cells, names, tables.runs),
        allocators_set=allocators_set(cells, names),
        overhead=overhead_lines(overhead, of_cell),
        plan=[planned_row(cell, label) for cell, label in zip(plan, labels(plan), strict=True)],
        gpu_hours=gpu_hours(plan, NOTHING),
        figures=figures_in_page(entries, paths.figures),
        undrawn=undrawn,
        embedded_cells=embedded("cells", cell_pages(tables, plan, of_cell, results)),
        unfinished=_unfinished(cells, of_cell, tables.runs),
        trained_unwatched=trained_unwatched(tables.runs),
        unmeasured=unmeasured(tables.runs),
        environment=environments(tables.runs, results),
        rebuilding=rebuilding_commands(sweep, description, tables.runs),
        gpu_names=sorted({cell["gpu_name"] for cell in cells if cell["gpu_name"]}),
    )
    with whole_file(paths.report) as draft:
        draft.write_text(text, encoding="utf-8")
    write_checksums(paths.report_checksum, (paths.report,))
    return paths.report


def _choices(cells: Sequence[Row]) -> list[tuple[str, str, list[str]]]:
    """The filters of the table of cells: column, its name, its values."""
    filters = []
    for column in ("outcome", "model", "platform"):
        values = list(dict.fromkeys(cell[column] for cell in cells))
        if column == "outcome":
            values = sorted(in_words(value) for value in values)
        filters.append((column, column.capitalize(), values))
    return filters


def _applies(measure: Measure, cells: Sequence[Row]) -> bool:
    """Whether a measure applies to the workload of any cell, and does not repeat
    another measure."""
    if measure.name == "mfu_causal_bf16_peak" and not any(c["precision"] == "fp8" for c in cells):
        return False
    return any(measure.applies(cell["workload"]) for cell in cells)


def _cell(cell: Row, label: str, columns: Sequence[Measure]) -> dict[str, Any]:
    return {
        "row": cell,
        "label": label,
        "outcome": in_words(cell["outcome"]),
        "completed": completed(cell),
        "values": [shown(cell, measure) for measure in columns],
    }


def planned_row(cell: Row, label: str) -> dict[str, Any]:
    """A row of the plan's table, as text."""

    def text(name: str, factor: float = 1.0) -> str:
        return NOTHING if cell[name] is None else significant(cell[name] * factor)

    return {
        "row": cell,
        "label": label,
        "memory_gb": text("memory_allocated_per_gpu_bytes", 1e-9),
        "memory_used_gb": text("memory_used_per_gpu_bytes", 1e-9),
        "step_time_s": text("step_time_s"),
        "gpu_hours": text("gpu_hours"),
    }


def _unfinished(
    cells: Sequence[Row], labels: Mapping[str, str], runs: Sequence[Row]
) -> list[dict[str, Any]]:
    """Everything that did not complete: infeasible cells, and runs, with equal ones in one line."""
    measured, profiled = runs_by_cell(runs), runs_by_cell(profiled_runs(cells))
    lines: dict[tuple[str, str, str], list[str]] = {}
    for cell in cells:
        if cell["outcome"] == "infeasible":
            lines[cell["cell"], "infeasible", cell["cause"]] = []
        for run in (*measured.get(cell["cell"], ()), *profiled.get(cell["cell"], ())):
            if run["outcome"] != "completed":
                key = run["cell"], run["outcome"], run["cause"] or "no cause was recorded"
                lines.setdefault(key, []).append(run_name(run["run"]))
    return [
        {
            "cell": cell,
            "label": labels[cell],
            "outcome": in_words(outcome),
            "cause": cause,
            "runs": numbers,
        }
        for (cell, outcome, cause), numbers in lines.items()
    ]
