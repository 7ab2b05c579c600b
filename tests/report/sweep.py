"""A made-up sweep: its tables and environments, as the stages before the report leave them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.made_cells import made_cell
from workflow_lib.analysis.collect import collect
from workflow_lib.records.cell_axes import identity
from workflow_lib.records.measures import MEASURES, inapplicable
from workflow_lib.records.nodes import CoolDown
from workflow_lib.records.outcomes import Outcome, OutcomeRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.tables import GPUS, PLAN, RUNS, SERIES, STEP_TIMES
from workflow_lib.records.whole_files import write_json
from workflow_lib.results import run_directory
from workflow_lib.table_files import table, write_table

#: values of MEASURES that are not 1.0
_VALUES = {"tokens_per_s": 40_000.0, "tokens_per_j": 2.5, "temperature_mean_c": 61.0}
#: values that are those of every run
_SAME = {"energy_systematic_share": 0.06, "energy_error_share": 0.0005, "steady": True}


_DEGREE = re.compile(r"(tp|pp|dp|ep)([0-9]+)")


@dataclass
class Planned:
    """A cell, and what becomes of each of its runs; an outcome of None is a run not run."""

    parallelism: str = "tp2-pp16-dp1"
    model: str = "gpt3-175b"
    platform: str = "h200"
    options: str = "mb1-bf16"
    workload: str = "pretrain"
    outcomes: Sequence[Outcome | None] = (Outcome.COMPLETED,)
    cause: str = "all ranks ended in order"
    reason: str = ""
    simulated: bool = False
    emulated: str | None = None
    nodes: int = 1
    digest: str = "01234567"
    measures: dict[str, Any] = field(default_factory=dict)
    #: of the runs, by number, what differs from ``measures``
    of_run: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: of GPUS, what differs from the values made up here
    of_gpus: dict[str, Any] = field(default_factory=dict)
    #: rows of UNUSED_GPUS of every run, less what tells which run that is
    unused_gpus: Sequence[dict[str, Any]] = ()
    #: of the training, what differs from what is made up here
    training: dict[str, Any] = field(default_factory=dict)
    #: of how it is measured, likewise
    telemetry: dict[str, Any] = field(default_factory=dict)
    #: what cool-down.json holds
    cool_down: CoolDown | None = None
    #: what cell.json holds
    record: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"{self.platform}/{self.model}/{self.parallelism}_{self.options}_{self.digest}"


def write_sweep(
    results: Path, cells: Sequence[Planned], overhead: Sequence[dict[str, Any]] = ()
) -> Path:
    """Write plan, summaries, environments and tables; returns the sweep's directory."""
    directory = results / "sweeps" / "made-up"
    write_table(table([_plan(cell) for cell in cells], PLAN), directory / "plan.parquet")
    for cell in cells:
        for repeat, outcome in enumerate(cell.outcomes, start=1):
            if outcome is not None and not cell.reason:
                rates = [r for r in overhead if (r["cell"], r["run"]) == (cell.id, repeat)]
                paths = RunPaths(run_directory(results, cell.id, repeat))
                _write_run(paths, cell, repeat, outcome, rates)
    collect(directory / "plan.parquet", results, directory)
    return directory


def _identity(cell: Planned) -> dict[str, Any]:
    """Degrees are those that ``parallelism`` names, and options those of ``options`` that are known
    here; the names stand as they are.
    """
    degrees = {name: int(value) for name, value in _DEGREE.findall(cell.parallelism)}
    words = cell.options.split("-")
    sizes = [int(word[2:]) for word in words if re.fullmatch(r"mb[0-9]+", word)]
    plain = made_cell()
    training = dataclasses.replace(
        plain.training,
        micro_batch_size=sizes[0] if sizes else 1,
        overlap="overlap" in words,
        workload=cell.workload,
        **cell.training,
    )
    made = made_cell(
        cell.platform,
        cell.model,
        id=cell.id,
        degrees=dataclasses.replace(plain.degrees, **{"dp": 1, **degrees}),
        training=training,
        nodes=cell.nodes,
    )
    hardware = dataclasses.replace(made.hardware, emulated=cell.emulated)
    telemetry = dataclasses.replace(made.telemetry, **cell.telemetry)
    made = dataclasses.replace(made, hardware=hardware, telemetry=telemetry)
    names = {"parallelism": cell.parallelism, "options": cell.options, "gpus": 8 * cell.nodes}
    return identity(made) | names


def _plan(cell: Planned) -> dict[str, Any]:
    return {
        **_identity(cell),
        "sweeps": "made-up",
        "repeats": len(cell.outcomes),
        "memory_per_gpu_bytes": 98.2e9,
        "memory_used_per_gpu_bytes": 107.7e9,
        "step_time_s": 12.3,
        "gpu_hours": None if cell.reason else 4.0,
        "time_limit_min": 30,
        "feasible": not cell.reason,
        "reason": cell.reason,
    }


def _write_run(
    paths: RunPaths,
    cell: Planned,
    repeat: int,
    outcome: Outcome,
    overhead: Sequence[dict[str, Any]],
) -> None:
    cause = cell.cause if outcome is not Outcome.COMPLETED else "all ranks ended in order"
    record = OutcomeRecord(outcome, cause, "1", ("node1",), None, None, None, False)
    write_json(paths.outcome if outcome.is_result else paths.failure, record)
    if cell.record:
        write_json(paths.cell, cell.record)
    if cell.cool_down is not None:
        write_json(paths.cool_down, cell.cool_down)
    write_json(
        paths.environment,
        {
            "recorded_unix_s": 1_700_000_000 + repeat,
            "node": f"node{repeat}",
            "packages": {"torch": "2.13.0"},
            "nvidia_driver": None,
        },
    )
    if outcome not in (Outcome.COMPLETED, Outcome.TELEMETRY_INVALID):
        return
    run = {
        **dict.fromkeys(column.name for column in RUNS),
        **_identity(cell),
        "run": repeat,
        "gpu_name": "NVIDIA H200",
        "sensors": "simulated" if cell.simulated else "nvidia",
        "simulated": cell.simulated,
        "outcome": outcome.value,
        "cause": cause,
        "missing_reasons": "{}",
        **{m.name: m.type(_VALUES.get(m.name, 1.0) + repeat) for m in MEASURES.values()},
        **_SAME,
        **dict.fromkeys(inapplicable(cell.workload)),
        **cell.measures,
        **cell.of_run.get(repeat, {}),
    }
    gpus = [
        {
            **dict.fromkeys(column.name for column in GPUS),
            "cell": cell.id,
            "run": repeat,
            "node": f"node{node}",
            "gpu": gpu,
            "gpu_uuid": f"GPU-{node}-{gpu}",
            "airflow": "rear" if gpu in (1, 2, 5, 6) else "front",
            "simulated": cell.simulated,
            "temperature_mean_c": 58.0 + gpu,
            "throttle_power_share": 0.9,
            "throttle_thermal_share": 0.0,
            "throttle_brake_share": 0.0,
            **cell.of_gpus,
        }
        for node in range(1, cell.nodes + 1)
        for gpu in range(8)
    ]
    write_table(table([], STEP_TIMES), paths.step_times)
    write_table(table([], SERIES), paths.series)
    parts = {
        "run": run,
        "gpus": gpus,
        "unused_gpus": [{"cell": cell.id, "run": repeat, **row} for row in cell.unused_gpus],
        "nodes": [],
        "overhead": overhead,
    }
    write_json(paths.summary, parts)
