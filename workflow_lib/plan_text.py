"""Writes the plan as text: a line for each cell by its name, cells that
cannot run with the reason, the cost of each sweep, and the sweeps that run by default."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from tabulate import tabulate

from workflow_lib import gpu_models
from workflow_lib.feasibility import INTERVAL_KINDS
from workflow_lib.records import cell_axes
from workflow_lib.records.labels import labels, left_out
from workflow_lib.words import counted

Row = dict[str, Any]


def describe(
    plan: pl.DataFrame,
    by_sweep: Mapping[str, pl.DataFrame] | None = None,
    default: tuple[str, pl.DataFrame] | None = None,
) -> str:
    """The plan as text.

    ``by_sweep`` maps sweeps to the plan of each alone. ``default`` is the command that runs the
    sweeps of the configuration, and their plan.
    """
    rows = list(plan.iter_rows(named=True))
    names = dict(zip((row["cell"] for row in rows), labels(rows), strict=True))
    several = len({name for row in rows for name in _sweeps(row)}) > 1
    rows_by_sweep = {
        name: list(own.iter_rows(named=True)) for name, own in (by_sweep or {}).items()
    }
    runnable = [row for row in rows if row["feasible"]]
    others = [row for row in rows if not row["feasible"]]
    parts = [_feasible(runnable, names, several)]
    if others:
        heads = ["cannot run", *(["sweeps"] if several else []), "because"]
        lines = [
            [_named(row, names), *([", ".join(_sweeps(row))] if several else []), row["reason"]]
            for row in others
        ]
        parts.append(tabulate(lines, heads, disable_numparse=True))
    parts.append(left_out(rows))
    if len(rows_by_sweep) > 1:
        parts.append(_by_sweep(rows, rows_by_sweep))
    if emulated := cell_axes.emulated_in_words(rows):
        parts.append(emulated)
    profiled = sum(row["profiled_steps"] > 0 for row in runnable)
    profiles = f" ({profiled} of them profiled, the +1 above)" if profiled else ""
    hours = _hours(runnable)
    total = f"unknown ({_why_unknown(runnable)})" if hours is None else _shown_hours(hours)
    parts.append(
        f"{counted(len(rows), 'cell')}: {len(runnable)} can run, in "
        f"{counted(_runs(runnable), 'run')}{profiles}; {len(others)} cannot. "
        f"Estimated GPU-hours: {total}.\n{_default(default)}"
        "Memory, times and GPU-hours are estimates from the configuration, not measurements."
        + _sources(runnable)
    )
    return "\n\n".join(parts)


def _feasible(rows: Sequence[Row], names: Mapping[str, str], several: bool) -> str:
    """A line for each cell that can run."""
    memory = ["GB allocated", "GB used", "fits"]
    numbers = ["nodes", "GPUs", *memory, "bubble %", "s/step", "runs", "GPU-hours"]
    heads = ["cell", *numbers, *(["sweeps"] if several else [])]
    lines = [
        [
            _named(row, names),
            row["nodes"],
            row["gpus"],
            _number(row["memory_allocated_per_gpu_bytes"], 1e-9, 1),
            _number(row["memory_used_per_gpu_bytes"], 1e-9, 1),
            row["fits"] or "–",
            _number(row["planned_bubble_share"], 100, 1),
            _seconds(row["step_time_s"]) + _interval(row),
            f"{row['repeats']}+1" if row["profiled_steps"] else row["repeats"],
            _shown_hours(row["gpu_hours"]),
            *([", ".join(_sweeps(row))] if several else []),
        ]
        for row in rows
    ]
    alignment = ["left", *["right"] * len(numbers), *["left"] * several]
    colalign = tuple(alignment) if lines else None
    return str(tabulate(lines, heads, disable_numparse=True, colalign=colalign))


def _named(row: Row, names: Mapping[str, str]) -> str:
    return f"{row['model']} {names[row['cell']]}"


def _number(value: float | None, scale: float, digits: int) -> str:
    return "–" if value is None else f"{value * scale:.{digits}f}"


def _seconds(value: float | None) -> str:
    """Hundredths, and of shorter steps two digits."""
    return "–" if value is None else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def _interval(row: Row) -> str:
    low, high = row["step_time_low_s"], row["step_time_high_s"]
    return "" if low is None else f" ({_seconds(low)} to {_seconds(high)})"


def _shown_hours(hours: float | None) -> str:
    """GPU-hours: whole from 100 on, tenths below, and of less than a tenth one digit."""
    if hours is None:
        return "–"
    return f"{hours:.0f}" if hours >= 99.95 else f"{hours:.1f}" if hours >= 0.1 else f"{hours:.1g}"


# ----------------------------------------------------------------------------- what it costs


def _sweeps(row: Row) -> list[str]:
    return str(row["sweeps"]).split(",")


def _runs(rows: Sequence[Row]) -> int:
    """The number of runs of cells that can run, profiled runs included."""
    return sum(row["repeats"] + (row["profiled_steps"] > 0) for row in rows if row["feasible"])


def _hours(rows: Sequence[Row]) -> float | None:
    """GPU-hours of cells that can run; None if those of one cell are not known."""
    hours = [row["gpu_hours"] for row in rows if row["feasible"]]
    return None if None in hours else sum(hours)


def _why_unknown(rows: Sequence[Row]) -> str:
    """Why GPU-hours are not known."""
    gpu = next((row["gpu_model"] for row in rows if row["gpu_model"]), None)
    if gpu is None or gpu_models.named(gpu) is not None:
        return "the platform's peak rate is not known"
    known = ", ".join(model.key for model in gpu_models.MODELS)
    return (
        f"the peak rate of {gpu} is not known: give peak_bf16_tflops in the platform's file; known "
        f"are {known}"
    )


def _by_sweep(rows: Sequence[Row], rows_by_sweep: Mapping[str, Sequence[Row]]) -> str:
    """A table of the cells, runs and GPU-hours of each sweep. A cell of two sweeps counts in both,
    but runs once."""
    lines = [
        [name, len(own), _runs(own), _shown_hours(_hours(own))]
        for name, own in rows_by_sweep.items()
    ]
    headers = ["sweep", "cells", "runs", "GPU-hours"]
    text = tabulate(lines, headers, disable_numparse=True, colalign=("left", *["right"] * 3))
    shared = [row for row in rows if len(_sweeps(row)) > 1]
    if not shared:
        return str(text)
    of_sweeps, once = [_hours(own) for own in rows_by_sweep.values()], _hours(rows)
    hours = ""
    if once is not None and None not in of_sweeps:
        added = sum(hour for hour in of_sweeps if hour is not None)
        hours = (
            f": the sweeps add up to {_shown_hours(added)} GPU-hours, and the plan to "
            f"{_shown_hours(once)}"
        )
    verb = "is" if len(shared) == 1 else "are"
    return (
        f"{text}\n{counted(len(shared), 'cell')} {verb} asked for by several sweeps, counted in "
        f"each, and run once{hours}."
    )


def _default(default: tuple[str, pl.DataFrame] | None) -> str:
    """A line on what the workflow runs by default; empty if ``default`` is None."""
    if default is None:
        return ""
    command, plan = default
    rows = list(plan.iter_rows(named=True))
    if not rows:
        return (
            f"`{command}` runs nothing: config.yaml chooses no sweep of this platform. Name one: "
            f"`{command} results/sweeps/NAME/report.html`.\n"
        )
    names = list(dict.fromkeys(name for row in rows for name in _sweeps(row)))
    hours = _hours(rows)
    shown = "an unknown number of" if hours is None else _shown_hours(hours)
    sweeps = f"the sweep{'' if len(names) == 1 else 's'} {', '.join(names)}"
    return (
        f"`{command}` runs {sweeps}, which config.yaml chooses: {counted(_runs(rows), 'run')}, "
        f"{shown} GPU-hours.\n"
    )


def _sources(feasible: Sequence[Row]) -> str:
    """Lines that say where the step times come from; each begins a new line."""
    counts = Counter(row["step_time_source"] for row in feasible if row["step_time_source"])
    lines = []
    if projected := counts.pop("projected", 0):
        lines.append(
            f"{counted(projected, 'step time')} with intervals of 90 %: projected from runs of "
            "this workflow on that GPU and published ones."
        )
        lines += [
            f"{counted(count, 'interval')} for {INTERVAL_KINDS[kind]}."
            for kind, count in Counter(
                row["step_time_kind"] for row in feasible if row["step_time_kind"]
            ).items()
        ]
    lines += [
        f"{counted(count, 'step time')} without an interval: {source}, and no communication."
        for source, count in counts.items()
    ]
    return "".join(f"\n{line}" for line in lines)
