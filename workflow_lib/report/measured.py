"""The page of commands that were measured: what each took, and its GPUs over time."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from workflow_lib import __version__
from workflow_lib.analysis.samples import read_rows
from workflow_lib.records.files import read_measured
from workflow_lib.records.paths import RunPaths, measured_runs
from workflow_lib.records.telemetry_columns import (
    GPU_SAMPLES,
    LEAST_THROTTLED_SHARE,
    THROTTLES,
)
from workflow_lib.records.whole_files import whole_file
from workflow_lib.report.figures import style
from workflow_lib.report.figures.embedding import drawn_for_page
from workflow_lib.report.figures.html import page_templates
from workflow_lib.report.figures.kind import FigureEntry
from workflow_lib.report.figures.numbers import NOTHING, significant

#: measure → its heading and unit, in the order of the table
MEASURES = {
    "counted_steps": ("Steps", ""),
    "step_time_s": ("Step", "s"),
    "tokens_per_s": ("Tokens", "1/s"),
    "energy_per_token_j": ("Energy a token", "J"),
    "energy_per_step_j": ("Energy a step", "J"),
    "energy_j": ("Energy", "J"),
    "energy_error_share": ("Energy may be off by", "share"),
    "power_mean_w": ("Power of all GPUs", "W"),
    "measured_duration_s": ("Time", "s"),
}
_OF_GPU = ("power_mean_w", "temperature_mean_c", "temperature_max_c", "sm_clock_mean_mhz")
_PANELS = {"power_w": "Power (W)", "temperature_c": "Temperature (°C)"}
#: a line for each GPU, and a legend for as many as differ
_COLOURS = (style.BLUE, style.VERMILLION, style.GREEN, style.PURPLE, style.ORANGE, style.SKY)
_LINES = ("-", "--", ":", "-.")


def write_page(directories: Sequence[Path], output: Path) -> Path:
    """Write the page of runs' directories; returns its path. Raises RecordError and OSError."""
    runs = [read_measured(path) for each in directories for path in measured_runs(each)]
    templates = page_templates("workflow_lib.report")
    with tempfile.TemporaryDirectory() as place:
        figures = drawn_for_page(
            (entry for number, run in enumerate(runs) for entry in _figures(number, run)),
            Path(place),
        )
    text = templates.get_template("measured.html.j2").render(
        version=__version__,
        runs=[_shown(run) for run in runs],
        headings=MEASURES.values(),
        simulated=any(run["simulated"] for run in runs),
        rungs=sorted({run["rung"] for run in runs}),
        figures=figures,
    )
    with whole_file(output) as draft:
        draft.write_text(text, encoding="utf-8")
    return output


def _shown(run: Mapping[str, Any]) -> dict[str, Any]:
    """What the page says of a run: texts, but for the directory."""
    gpus = [
        {
            "place": f"{gpu['node']}, GPU {gpu['gpu']}",
            "name": gpu["name"] or NOTHING,
            "uuid": gpu["uuid"] or NOTHING,
            "values": [_number(gpu[name]) for name in _OF_GPU],
            "throttled": ", ".join(
                f"{THROTTLES[name]} {100 * share:.1f} %"
                for name, share in gpu["throttle_shares"].items()
                if share >= LEAST_THROTTLED_SHARE
            )
            or ("never" if gpu["throttle_shares"] else "not known"),
        }
        for gpu in run["gpus"]
    ]
    return {
        "directory": run["directory"],
        "name": _name(run),
        "program": run["program"],
        "rung": run["rung"],
        "cells": [
            (_number(run["values"].get(name)), _why(run["missing"].get(name))) for name in MEASURES
        ],
        "invalid": run["invalid"],
        "limits": [_why(code) for code in run.get("limits", ())],
        "exit": run.get("exit_code"),
        "gpus": gpus,
    }


def _name(run: Mapping[str, Any]) -> str:
    """A run's directory, below the one that may hold its repeats."""
    return "/".join(run["directory"].parts[-2:]) or str(run["program"])


def _number(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value == round(value) else significant(value, 4)


def _why(code: str | None) -> str:
    return code.replace("_", " ") if code else ""


def _figures(number: int, run: Mapping[str, Any]) -> list[FigureEntry]:
    series = _series(run)
    if not any(series[column] for column in _PANELS):
        return []
    title = f"{_name(run)} over time"
    caption = (
        "Each line is a GPU. Time begins where the first step that counts does, and these steps "
        "are on white; what is not counted is shaded."
    )
    return [FigureEntry(f"run-{number}", title, caption, partial(_draw, title, run, series))]


def _series(run: Mapping[str, Any]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Column → GPU → times in s since the first counted step, and values."""
    paths = RunPaths(run["directory"])
    start = (run["window_unix_s"] or [run["started_unix_s"]])[0]
    series: dict[str, dict[str, list[tuple[float, float]]]] = {column: {} for column in _PANELS}
    for node in run["nodes"]:
        if not paths.gpu_samples(node).exists():
            continue
        rows = read_rows(paths.gpu_samples(node), GPU_SAMPLES, ("unix_time_s", "gpu"))
        for (gpu,), of_gpu in rows.group_by("gpu", maintain_order=True):
            for column in _PANELS:
                if points := of_gpu.select("unix_time_s", column).drop_nulls().rows():
                    series[column][f"{node}, GPU {gpu}"] = [(at - start, v) for at, v in points]
    return series


def _draw(
    title: str,
    run: Mapping[str, Any],
    series: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
) -> Figure:
    figure = Figure(figsize=(2 * style.COLUMN_IN, 3.4))
    panels = figure.subplots(len(_PANELS), 1, sharex=True)
    for axes, (column, label) in zip(panels, _PANELS.items(), strict=True):
        axes.set_ylabel(label)
        if not series[column]:
            style.blank_panel(axes, "no readings")
        for number, (gpu, points) in enumerate(series[column].items()):
            line = _LINES[number // len(_COLOURS) % len(_LINES)]
            colour = _COLOURS[number % len(_COLOURS)]
            axes.plot(*zip(*points, strict=True), color=colour, linestyle=line, lw=0.8, label=gpu)
        if window := run["window_unix_s"]:
            left, right = axes.get_xlim()
            for edges in ((left, 0.0), (window[1] - window[0], right)):
                if edges[0] < edges[1]:
                    axes.axvspan(*edges, facecolor="#ececec", linewidth=0, zorder=-1)
            axes.set_xlim(left, right)
    panels[-1].set_xlabel("Time (s)")
    handles, labels = panels[0].get_legend_handles_labels()
    if 1 < len(labels) <= len(_COLOURS) * len(_LINES):
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)))
    style.title(figure, title, style.marks([run]))
    return figure
