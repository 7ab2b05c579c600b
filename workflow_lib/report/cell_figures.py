"""The figures of a cell and its runs as text, and why they are missing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from workflow_lib.records import inapplicable
from workflow_lib.report.cell_text import Clean
from workflow_lib.report.cells import Row, completed
from workflow_lib.report.quantities import NOTHING, SHOWN, WATCHED, Quantity, shown, significant

#: what is told of a cell
OF_CELLS = tuple(
    # In the table of cells it stands beside that of all GPUs.
    replace(each, heading="Throughput per GPU") if each.heading == "per GPU" else each
    for each in (*SHOWN, *WATCHED)
)
#: what is told of each run
OF_RUNS = (
    Quantity("step_time_s", "Step time", "s"),
    Quantity("tokens_per_s", "Throughput", "tokens/s"),
    Quantity("decode_tokens_per_s_per_gpu", "Decoding per GPU", "tokens/s"),
    Quantity("tokens_per_j", "Efficiency", "tokens/J"),
    Quantity("decode_tokens_per_j", "Decoding efficiency", "tokens/J"),
    Quantity("energy_j", "Energy of all GPUs", "kJ", 1e-3),
    Quantity("temperature_mean_c", "Mean temperature", "°C"),
    Quantity("temperature_peak_c", "Peak temperature", "°C"),
    Quantity("throttle_power_share", "At power cap", "% of time", 100.0),
    Quantity("throttle_thermal_share", "Thermal slowdown", "% of time", 100.0),
    Quantity("throttle_brake_share", "Power brake", "% of time", 100.0),
)
#: what the plan says of a cell
_PLANNED = (
    Quantity("memory_per_gpu_bytes", "Memory of the fullest GPU", "GB", 1e-9),
    Quantity("step_time_s", "Step time", "s"),
    Quantity("gpu_hours", "All repeats", "GPU-hours"),
    Quantity("time_limit_min", "Time limit of a run", "min"),
)
_NO_REASON = "no reason was recorded"


class Reasons:
    """Reasons why figures are missing, each once: hundreds of runs may share one."""

    def __init__(self, clean: Clean) -> None:
        self._clean = clean
        self._numbers: dict[str, int] = {}

    def number(self, reason: str) -> int:
        """A reason's place in :meth:`texts`."""
        return self._numbers.setdefault(self._clean(reason), len(self._numbers))

    def texts(self) -> list[str]:
        """All reasons."""
        return list(self._numbers)


def figures_of_cell(cell: Row, runs: Sequence[Row], reasons: Reasons) -> list[Any]:
    """A cell's :data:`OF_CELLS`: text, or text and range; where one is missing, the number of the
    reasons of the runs that lack it; null where it means nothing for the workload.
    """
    meaningless = inapplicable(cell["workload"])
    why = [(run["run"], _reasons(run)) for run in runs if completed(run)]
    found: list[Any] = []
    for quantity in OF_CELLS:
        text, interval, value = shown(cell, quantity)
        if quantity.measure in meaningless:
            found.append(None)
        elif value is not None:
            found.append([text, interval] if interval else text)
        else:
            lacking: dict[str, list[str]] = {}
            for number, of_run in why:
                if quantity.measure in of_run:
                    lacking.setdefault(of_run[quantity.measure], []).append(str(number))
            told = "; ".join(
                reason if len(numbers) == len(why) else f"run {', '.join(numbers)}: {reason}"
                for reason, numbers in lacking.items()
            )
            found.append(reasons.number(told or _NO_REASON))
    return found


def figures_of_run(run: Row, reasons: Reasons) -> list[Any]:
    """A run's :data:`OF_RUNS`, as :func:`figures_of_cell` gives them."""
    meaningless = inapplicable(run["workload"])
    why = _reasons(run)
    found: list[Any] = []
    for quantity in OF_RUNS:
        value = run[quantity.measure]
        if quantity.measure in meaningless:
            found.append(None)
        elif value is None:
            found.append(reasons.number(why.get(quantity.measure, _NO_REASON)))
        else:
            found.append(significant(value * quantity.factor, decimals=quantity.decimals))
    return found


def estimates(planned: Row) -> list[tuple[str, str, str]]:
    """What the plan says of a cell: heading, unit and figure."""
    return [
        (
            quantity.heading,
            quantity.unit,
            NOTHING if value is None else _estimate(value, quantity),
        )
        for quantity in _PLANNED
        for value in (planned[quantity.measure],)
    ]


def _estimate(value: float, quantity: Quantity) -> str:
    # What is counted has no decimals.
    return significant(value * quantity.factor, decimals=0 if isinstance(value, int) else None)


def _reasons(run: Row) -> dict[str, str]:
    found: dict[str, str] = json.loads(run["missing_reasons"] or "{}")
    return found
