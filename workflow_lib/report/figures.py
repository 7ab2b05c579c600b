"""Every figure of a sweep: which there are, what they show, and how they are drawn from tables.

A new figure is a function of rows in a module of its own, and an entry in :func:`figures`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from workflow_lib.analysis.tables import read_table
from workflow_lib.records import CELLS, GPUS, RUNS
from workflow_lib.report import style
from workflow_lib.report.cells import Row, in_order, natural
from workflow_lib.report.gpu_figure import gpu_figure, has_gpu_data
from workflow_lib.report.parallelism_figure import panels_of, parallelism_figure
from workflow_lib.report.watching import systematic_error

#: cells in one heat map
_ROWS = 14
_OF_POWER = (
    "Mean power is of one GPU; peak power is the highest reading of any one power sensor, a lower "
    "bound. "
)


@dataclass(frozen=True)
class Tables:
    """The rows of a sweep's tables."""

    cells: tuple[Row, ...]
    runs: tuple[Row, ...]
    gpus: tuple[Row, ...]


@dataclass(frozen=True)
class FigureEntry:
    """A figure: the stem of its files, what the page says of it, and how it is drawn."""

    stem: str
    title: str
    caption: str
    draw: Callable[[], Figure]


def read_tables(directory: Path) -> Tables:
    """Read ``cells.parquet``, ``runs.parquet`` and ``gpus.parquet``; raises as read_table does."""
    return Tables(
        tuple(read_table(directory / "cells.parquet", CELLS).to_dicts()),
        tuple(read_table(directory / "runs.parquet", RUNS).to_dicts()),
        tuple(read_table(directory / "gpus.parquet", GPUS).to_dicts()),
    )


def figures(tables: Tables) -> list[FigureEntry]:
    """The figures that a sweep's tables give: one a model, and one a platform and model.

    There is none of which every panel would be empty, unless that is because no cell completed.
    """
    entries = []
    for model in sorted({cell["model"] for cell in tables.cells}, key=natural):
        cells = [cell for cell in tables.cells if cell["model"] == model]
        if panels := panels_of(cells):
            entries.append(_parallelism_entry(model, cells, panels, tables))
        for platform in sorted({cell["platform"] for cell in cells}, key=natural):
            feasible = [
                cell
                for cell in cells
                if cell["platform"] == platform and cell["outcome"] != "infeasible"
            ]
            chosen = {cell["cell"] for cell in feasible}
            gpus = [gpu for gpu in tables.gpus if gpu["cell"] in chosen]
            if has_gpu_data(gpus):
                entries += _gpu_entries(platform, model, feasible, gpus)
    return entries


def write_figures(
    tables: Tables, output: Path, formats: Sequence[str] = style.FORMATS
) -> list[Path]:
    """Draw every figure into ``output``, as SVG and PDF unless told; returns what was written."""
    output.mkdir(parents=True, exist_ok=True)
    written = []
    for entry in figures(tables):
        with style.styled(entry.stem):
            written += style.save(entry.draw(), output / entry.stem, formats)
    return written


def _parallelism_entry(
    model: str, cells: Sequence[Row], panels: Sequence[str], tables: Tables
) -> FigureEntry:
    runs = [run for run in tables.runs if run["model"] == model]
    *first, last = panels
    of_power = {"power", "efficiency"} & set(panels)
    error = systematic_error(runs) if of_power else ""
    return FigureEntry(
        stem=f"parallelism-{_slug(model)}",
        title=f"{model}: {', '.join(first)}{' and ' if first else ''}{last}",
        caption=(
            "One column a cell, laid out like figure 4 of the study. Markers are medians over "
            "completed runs, bars their range, grey dots single runs. "
            + (_OF_POWER if "power" in panels else "")
            + (f"Power and efficiency have a systematic error of {error}. " if error else "")
            + "Hatched columns have no values, and say why."
        ),
        draw=lambda: parallelism_figure(model, cells, runs),
    )


def _gpu_entries(
    platform: str, model: str, cells: Sequence[Row], gpus: Sequence[Row]
) -> list[FigureEntry]:
    """One figure, or several of at most :data:`_ROWS` cells each, so that each fits on a page."""
    ordered = in_order(cells)
    parts = [ordered[first : first + _ROWS] for first in range(0, len(ordered), _ROWS)]
    stem = f"gpus-{_slug(platform)}-{_slug(model)}"
    return [
        _gpu_entry(
            stem if len(parts) == 1 else f"{stem}-{number}",
            f"{model} on {platform}" + (f" ({number} of {len(parts)})" if len(parts) > 1 else ""),
            part,
            gpus,
        )
        for number, part in enumerate(parts, start=1)
    ]


def _gpu_entry(stem: str, heading: str, cells: Sequence[Row], gpus: Sequence[Row]) -> FigureEntry:
    return FigureEntry(
        stem=stem,
        title=f"{heading}: temperature and throttling of every GPU",
        caption=(
            "One column a GPU, node by node, as in figure 17 of the study; F and R mark the front "
            "and the rear of the air stream where the platform says so. Means over completed "
            "runs; hatched fields have no values. A power cap under load is ordinary."
        ),
        draw=lambda: gpu_figure(heading, cells, gpus),
    )


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.") or "unnamed"
