"""A made-up run whose every figure is known, written as training and telemetry write theirs.

Timeline, in seconds after ``START``::

    -10 .. 0   idle: every GPU draws 100 W (of GPU 0) + 10 W a further index
    0          the first rank starts
    10 .. 20   step 0: warm-up
    20 .. 30   step 1: measured
    30 .. 40   step 2: measured
    50         the last sample
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.made_cells import made_cell
from workflow_lib.analysis.reduce import reduce_run
from workflow_lib.records.cell import Cell, Hardware, Telemetry
from workflow_lib.records.cell_axes import IDENTITY
from workflow_lib.records.columns import Column
from workflow_lib.records.contract import STEPS, RankRecord
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.model import Model
from workflow_lib.records.nodes import LinkCount, LinkReading, TelemetryEnd, TelemetryStart
from workflow_lib.records.outcomes import OrderRecord, Outcome, OutcomeRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.telemetry_columns import (
    GPU_COUNTERS,
    GPU_EVENTS,
    GPU_SAMPLES,
    HOST_SAMPLES,
    POWER_SAMPLES,
)
from workflow_lib.records.whole_files import write_json

START = 1_700_000_000.0
#: columns that say which cell it is: a null there is a value, as the routing of a dense model
_NAMES = {column.name for column in IDENTITY}

#: what no run of three steps, and without a cool-down, has
LACKING = {
    **dict.fromkeys(("steady", "step_time_drift", "step_time_drift_margin"), "too_few_blocks"),
    **dict.fromkeys(("power_drift", "power_drift_margin"), "too_few_blocks"),
    **dict.fromkeys(("temperature_drift_c", "temperature_drift_margin_c"), "too_few_blocks"),
    "cool_down_s": "no_cool_down",
    **dict.fromkeys(("clock_skew_s", "clock_error_s"), "one_clock"),
    "dropped_choices_share": "no_router",
    "at_power_limit_share": "readings_too_long_for_bursts",
    "at_power_limit_burst_s": "readings_too_long_for_bursts",
}

#: 2 layers of hidden size 4: parameters by hand in test_reduce.py
MODEL = Model(
    name="tiny", family="llama", layers=2, hidden_size=4, ffn_hidden_size=8, attention_heads=2,
    kv_heads=2, sequence_length=16, vocabulary_size=10,
)  # fmt: skip
HARDWARE = Hardware(
    platform="made-up", gpu="H200", gpus_per_node=2, gpus_per_package=1, gpu_memory_bytes=10**9,
    peak_bf16_flops_per_s=1000.0, peak_fp32_flops_per_s=None, power_limit_w=700.0,
    airflow=("front", "rear"),
)  # fmt: skip


def cell(**changes: Any) -> Cell:
    """Two replicas on one node with two GPUs, one step of warm-up and two measured ones; but for
    fields of it, and of its training, hardware or telemetry."""
    plain = made_cell(
        id="made-up/tiny/tp1-pp1-dp2_mb1-gb4-bf16-zero1_01234567",
        model=MODEL,
        degrees=Degrees(dp=2),
        training=replace(
            made_cell().training, global_batch_size=4, warmup_steps=1, measured_steps=2
        ),
        hardware=HARDWARE,
        telemetry=Telemetry("nvidia", 10.0, 10.0),
    )
    for name in ("training", "hardware", "telemetry"):
        part = getattr(plain, name)
        of_part = {key: changes.pop(key) for key in vars(part).keys() & changes.keys()}
        plain = replace(plain, **{name: replace(part, **of_part)})
    return replace(plain, **changes)


#: of a GPU that no heat slows
NO_HEAT = {"throttle_sw_thermal_s": 0, "throttle_hw_thermal_s": 0}


def sample(elapsed_s: float, gpu: int) -> dict[str, Any]:
    """A GPU's readings at a time, fast ones and counters: idle, then 400 W (GPU 0) or 600 W (GPU 1)
    from 5 s on."""
    busy_w = 400 + 200 * gpu
    return {
        "unix_time_s": START + elapsed_s,
        "gpu": gpu,
        "power_w": 100 + 10 * gpu if elapsed_s < 5 else busy_w,
        "energy_j": busy_w * elapsed_s + 100_000,
        "temperature_c": 50 + 10 * gpu + (5 if elapsed_s == 25 else 0),
        "sm_clock_mhz": 1500,
        "event_reasons": 4,
        # At the cap for half of the time, hot for a tenth in software and a twentieth in hardware.
        "throttle_power_cap_s": 0.5 * (elapsed_s + 10),
        "throttle_sw_thermal_s": 0.1 * (elapsed_s + 10),
        "throttle_hw_thermal_s": 0.05 * (elapsed_s + 10),
        "throttle_power_brake_s": 0,
        "memory_clock_mhz": 2600,
        "utilisation_percent": 80,
        "power_instant_w": 500 + 200 * gpu + (50 if elapsed_s == 25 else 0),
        "edge_temperature_c": 45 + gpu,
        "memory_used_bytes": 2000 + gpu,
        "memory_temperature_c": 70 + 2 * gpu,
        "gpu_fan_speed_percent": 40 + 10 * gpu + (5 if elapsed_s == 25 else 0),
        "thermal_margin_c": 30 - gpu - (1 if elapsed_s == 25 else 0),
        # What the sampler reads of links makes no figure, and so may say anything.
        "gpu_link_received_bytes": round(3000 * (elapsed_s + 10)),
        "gpu_link_sent_bytes": round(2000 * (elapsed_s + 10)),
        "ecc_corrected_errors": 5 + (elapsed_s > 30),
        "ecc_uncorrected_errors": 0,
        "read_cost_s": 0.001,
    }


def host_sample(elapsed_s: float) -> dict[str, Any]:
    """A node's readings at a time: CPUs at 150 W, the whole node at 2 kW."""
    peak = elapsed_s == 25
    return {
        "unix_time_s": START + elapsed_s,
        "cpu_energy_j": 150 * (elapsed_s + 10),
        "node_power_w": 2000,
        "cpu_utilisation_percent": 25,
        "cpu_temperature_c": 60 + 5 * peak,
        "memory_used_bytes": 5000 + 100 * peak,
        # 100 and 50 B a second by Ethernet, 1000 each way by InfiniBand.
        "network_received_bytes": 100 * (elapsed_s + 10),
        "network_sent_bytes": 50 * (elapsed_s + 10),
        "infiniband_received_bytes": 1000 * (elapsed_s + 10),
        "infiniband_sent_bytes": 1000 * (elapsed_s + 10),
        "inlet_temperature_c": 20 + 2 * peak,
        "fan_speed_rpm": 6000 + 600 * peak,
        "other_jobs": 2 * peak,
        # Half a second to start, then 5 ms a second.
        "sampler_cpu_time_s": 0.5 + 0.005 * (elapsed_s + 10),
    }


#: whether, at a time in s after START and of a GPU
When = Callable[[float, int], bool]
Edit = Callable[[dict[str, Any]], dict[str, Any] | None]


def setting(when: When = lambda at_s, gpu: True, **fields: Any) -> Edit:
    """An edit of samples that sets fields, at some times or of some GPUs; a function gives a
    field's value at a time."""

    def edit(row: dict[str, Any]) -> dict[str, Any]:
        at_s = row["unix_time_s"] - START
        if not when(at_s, row["gpu"]):
            return row
        return row | {name: of(at_s) if callable(of) else of for name, of in fields.items()}

    return edit


def keeping(when: When) -> Edit:
    """An edit of samples that leaves out all others."""
    return lambda row: row if when(row["unix_time_s"] - START, row["gpu"]) else None


def link_count(rank: int) -> LinkCount:
    """Of both measured steps: 30 kB received and 20 kB sent a step."""
    before = LinkReading(START + 20, 500, 700)
    after = LinkReading(START + 40, 500 + 2 * 20_000, 700 + 2 * 30_000)
    return LinkCount(rank, 1, 2, before, after)


@dataclass
class Run:
    """What to write; tests change a field, then call :meth:`write`."""

    cell: Cell = field(default_factory=cell)
    outcome: Outcome = Outcome.COMPLETED
    nodes: tuple[str, ...] = ("node1",)
    gpus_per_node: int = 2
    #: as ranks and as the sampler call it
    device_name: str = "NVIDIA H200"
    gpu_name: str = "NVIDIA H200"
    #: rank → the UUID of its GPU, where ranks tell it
    rank_uuids: Mapping[int, str] = field(default_factory=dict)
    on_cpu: bool = False
    simulated: bool = False
    #: whether the driver says which GPUs these are
    identified: bool = True
    #: as samplers list GPUs that the job does not have
    other_gpus: Sequence[Mapping[str, Any]] = ()
    #: GPU → its enforced power limit, where that is not 700 W
    power_limits_w: Mapping[int, float | None] = field(default_factory=dict)
    #: a sample's fields → the fields to write, or None to leave it out
    edit: Edit = lambda fields: fields
    #: the same of a node's own samples
    edit_host: Callable[[dict[str, Any]], dict[str, Any]] = lambda fields: fields
    missing: Mapping[str, str] = field(default_factory=dict)
    #: when counters are read, in s after START: by default with every sample
    counted_at: Callable[[float], bool] = lambda elapsed_s: True
    period_s: float = 0.5
    step_tokens: int = 32
    #: rank → choices that its routers made in a step, and those that were dropped
    choices: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    #: rank → its allocator, and its retries and frees at the end of each step; on a CPU none
    allocators: Mapping[int, tuple[str, Sequence[tuple[int | None, int | None]]]] = field(
        default_factory=dict
    )
    #: a rank → what it counted over its GPU's links; null as in earlier versions
    links: Callable[[int], LinkCount] | None = link_count
    #: of inference: from a step's start to the end of rank 1's prefill; rank 0's is 1 s shorter
    prefill_s: float | None = None

    def write(self, directory: Path) -> RunPaths:
        """Write the run's files."""
        paths = RunPaths(directory)
        write_json(paths.cell, self.cell)
        record = OutcomeRecord(
            self.outcome,
            f"the run was {self.outcome}",
            "1",
            self.nodes,
            START - 90,
            None,
            None,
            False,
        )
        write_json(paths.order, OrderRecord(seed=0, block=1, place=1, runs=1))
        write_json(paths.outcome if self.outcome.is_result else paths.failure, record)
        for node in self.nodes:
            self.write_telemetry(paths, node)
        for rank in range(self.cell.degrees.world_size):
            self._write_rank(paths, rank)
        return paths

    def reduced(self, directory: Path) -> dict[str, Any]:
        """Write the run's files as its first run in a directory; returns the summary of it."""
        return summary(self.write(directory / "run1"))

    def write_telemetry(self, paths: RunPaths, node: str) -> None:
        """Write a node's telemetry alone."""
        gpus = tuple(
            {
                "name": self.gpu_name,
                "uuid": f"GPU-{node}-{gpu}" if self.identified else None,
                "power_limit_w": self.power_limits_w.get(gpu, 700.0),
                "sm_clock_max_mhz": 2000,
            }
            for gpu in range(self.gpus_per_node)
        )
        start = TelemetryStart(
            node, "simulated" if self.simulated else "nvidia", self.simulated, START - 10,
            1 / self.period_s, gpus, self.missing, tuple(self.other_gpus),
        )  # fmt: skip
        write_json(paths.telemetry_start(node), start)
        ticks = range(round(60 / self.period_s) + 1)
        rows = [
            self.edit(sample(-10 + tick * self.period_s, gpu))
            for tick in ticks
            for gpu in range(self.gpus_per_node)
        ]
        kept = [row for row in rows if row is not None]
        counted = [row for row in kept if self.counted_at(row["unix_time_s"] - START)]
        write_csv(paths.gpu_samples(node), GPU_SAMPLES, kept)
        write_csv(paths.gpu_counters(node), GPU_COUNTERS, counted)
        host = [self.edit_host(host_sample(second)) for second in range(-10, 51)]
        write_csv(paths.host_samples(node), HOST_SAMPLES, host)
        write_csv(paths.gpu_events(node), GPU_EVENTS, [])
        # Of the minute from 10 s before the start, 0.3 s.
        end = TelemetryEnd(node, START + 50, len(ticks), 0, 0, {}, 0.3, 10**7)
        write_json(paths.telemetry_end(node), end)

    def _write_rank(self, paths: RunPaths, rank: int) -> None:
        per_node = self.cell.ranks_per_node
        allocator: str | None
        counts: Sequence[tuple[int | None, int | None]]
        allocator, counts = self.allocators.get(rank, ("native", [(0, 4)] * 3))
        if self.on_cpu:
            allocator, counts = None, [(None, None)] * 3
        place = RankRecord(
            rank, self.nodes[rank // per_node], None if self.on_cpu else rank % per_node,
            self.device_name, 0, 0, rank, 0, 100, pid=1, started_unix_s=START + rank,
            gpu_uuid=self.rank_uuids.get(rank),
            allocator=allocator,
        )  # fmt: skip
        write_json(paths.rank(rank), place)
        if self.links is not None:
            write_json(paths.link_count(rank), self.links(rank))
        rows = [
            {
                "step": step,
                "phase": "warmup" if step == 0 else "measured",
                "started_unix_s": START + 10 + 10 * step,
                # Rank 1 is the slower one, but for the last step, where rank 0 is.
                "ended_unix_s": START + 20 + 10 * step - (0 if (rank == 1) != (step == 2) else 1),
                "prefill_ended_unix_s": None
                if self.prefill_s is None
                else START + 10 + 10 * step + self.prefill_s - (rank == 0),
                "loss": 3.0 - step if rank == 0 and self.prefill_s is None else None,
                "tokens": self.step_tokens,
                "memory_peak_bytes": 1000 + 100 * rank,
                "memory_reserved_bytes": None if self.on_cpu else 1500 + 100 * rank,
                "memory_used_bytes": None if self.on_cpu else 4 * 10**8 + 10**8 * (step == rank),
                "allocator_retries": counts[step][0],
                "allocator_frees": counts[step][1],
                "expert_choices": self.choices.get(rank, (None, None))[0],
                "dropped_choices": self.choices.get(rank, (None, None))[1],
            }
            for step in range(3)
        ]
        write_csv(paths.rank_steps(rank), STEPS, rows)


def write_driver_samples(
    paths: RunPaths,
    power_w: Callable[[float], float],
    from_s: float = -10.0,
    to_s: float = 50.02,
    gpus: Sequence[int] = (0, 1),
) -> None:
    """Write the driver's own samples, 20 ms apart, of such power at a time in s after START."""
    rows = [
        {
            "driver_time_us": round((START + tick / 50) * 1e6),
            "gpu": gpu,
            "power_mw": round(1000 * power_w(tick / 50)),
        }
        for tick in range(round(from_s * 50), round(to_s * 50))
        for gpu in gpus
    ]
    write_csv(paths.power_samples("node1"), POWER_SAMPLES, rows)


def write_csv(path: Path, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows under their header, of the columns alone; what a row lacks is empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(
            stream, [column.name for column in columns], lineterminator="\n", extrasaction="ignore"
        )
        writer.writeheader()
        writer.writerows(rows)


def write_steps(
    paths: RunPaths,
    spans: Sequence[tuple[float, float]],
    ranks: int = 2,
    warmup_steps: int = 0,
    tokens: int = 32,
) -> None:
    """Write other steps, which last from and to times in s after START, alike on all ranks."""
    rows = [
        {
            "step": step,
            "phase": "warmup" if step < warmup_steps else "measured",
            "started_unix_s": START + started_s,
            "ended_unix_s": START + ended_s,
            "tokens": tokens,
        }
        for step, (started_s, ended_s) in enumerate(spans)
    ]
    for rank in range(ranks):
        write_csv(paths.rank_steps(rank), STEPS, rows)


def edit_csv(path: Path, edit: Callable[[dict[str, str]], Mapping[str, Any]]) -> None:
    """Write each row of a file as edited, under the same header."""
    with path.open(encoding="utf-8", newline="") as stream:
        rows = [{**row, **edit(row)} for row in csv.DictReader(stream)]
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def summary(paths: RunPaths) -> dict[str, Any]:
    """Reduce a run; returns its summary, in whose row each null has a reason, and nothing else."""
    reduce_run(paths.directory)
    read: dict[str, Any] = json.loads(paths.summary.read_text(encoding="utf-8"))
    row = read["run"]
    lacking = {name for name, value in row.items() if value is None and name not in _NAMES}
    reasons = json.loads(row["missing_reasons"])
    assert lacking == reasons.keys() == codes(row).keys()
    assert all(reasons.values())
    return read


def codes(row: Mapping[str, Any]) -> dict[str, str]:
    """A row's null columns, each with its code."""
    read: dict[str, str] = json.loads(row["missing_codes"])
    return read


def assert_null(row: Mapping[str, Any], column: str, code: str, *values: str) -> None:
    """Assert that a column is null by a code, and that its sentence holds the values."""
    found = row[column], codes(row).get(column)
    assert found == (None, code), (column, found)
    assert_holds(json.loads(row["missing_reasons"])[column], *values)


def assert_holds(sentence: str, *values: str) -> None:
    """Assert that a sentence holds each of some values as a whole."""
    for value in values:
        assert re.search(rf"(?<![\w.]){re.escape(value)}(?!\w)", sentence), (value, sentence)
