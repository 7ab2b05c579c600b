"""Every file under ``results/``: where it lies, and the names, units and types of what it holds.

Stages meet only through these files, and this module is the only one that knows their names. It
needs nothing but the standard library, because training and telemetry read it on compute nodes and
in site containers.

A run's directory, in the order in which its files appear::

    cell.json               the resolved cell: all that training and telemetry read
    job.sh                  the whole job; can be given to sbatch by hand
    job.json                the scheduler's id, when submitted, by what
    environment.json        versions, host, commit
    telemetry/<node>.json   what the sampler found on the node
    telemetry/<node>.csv    one row a sample and GPU, flushed every second
    telemetry/<node>-host.csv   one row a second: CPU, memory, network
    telemetry/<node>-end.json   counts, when the sampler ended in order
    steps/rank<n>.json      where rank n ran and which part of the model it held
    steps/rank<n>.csv       one row a step
    errors/rank<n>.json     what rank n died of
    logs/                   what each process printed
    ended.json              exit codes, written by the job as its last act
    outcome.json            how a run that is a result ended
    failure.json            the same record for a run that is not a result
    attempts/<k>/           all of the above of an earlier attempt
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import socket
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

# ---------------------------------------------------------------------------------------- the cell

Family = Literal["gpt", "llama", "mixtral"]
Precision = Literal["bf16", "fp32"]
Recomputation = Literal["none", "full"]
TelemetrySource = Literal["auto", "nvidia", "amd", "simulated"]


@dataclass(frozen=True)
class Model:
    """A decoder's dimensions. Counts are exact, lengths are in tokens."""

    name: str
    family: Family
    layers: int
    hidden_size: int
    ffn_hidden_size: int
    attention_heads: int
    kv_heads: int
    sequence_length: int
    vocabulary_size: int
    #: the vocabulary is padded to a multiple of this before it is trained
    vocabulary_multiple: int = 1
    #: experts per layer, and how many of them see a token; 0 and 0 in a dense model
    experts: int = 0
    experts_per_token: int = 0

    @property
    def padded_vocabulary_size(self) -> int:
        """The vocabulary as trained: rounded up to ``vocabulary_multiple``."""
        return -(-self.vocabulary_size // self.vocabulary_multiple) * self.vocabulary_multiple


@dataclass(frozen=True)
class Degrees:
    """Parallelism degrees. Ranks are ordered with TP innermost and PP outermost, as in Megatron."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    #: experts are spread over ep of the dp replicas, so ep divides dp
    ep: int = 1

    @property
    def world_size(self) -> int:
        """The number of ranks, one GPU each."""
        return self.tp * self.pp * self.dp

    @property
    def name(self) -> str:
        """For example ``tp2-pp16-dp1``, with ``-ep8`` where experts are spread."""
        name = f"tp{self.tp}-pp{self.pp}-dp{self.dp}"
        return name if self.ep == 1 else f"{name}-ep{self.ep}"


@dataclass(frozen=True)
class Training:
    """How a cell trains, and how long it is measured."""

    zero_stage: int
    #: sequences that a data-parallel replica sends through the model at once
    micro_batch_size: int
    #: sequences per optimiser step, over all replicas
    global_batch_size: int
    precision: Precision
    recomputation: Recomputation
    #: gradient reduction and parameter gathering overlapped with compute
    overlap: bool
    warmup_steps: int
    measured_steps: int
    learning_rate: float
    seed: int

    def micro_batches(self, dp: int) -> int:
        """Micro-batches that one replica accumulates in a step."""
        return self.global_batch_size // (self.micro_batch_size * dp)

    @property
    def name(self) -> str:
        """For example ``mb1-gb128-bf16-zero1-recompute``."""
        name = (
            f"mb{self.micro_batch_size}-gb{self.global_batch_size}-{self.precision}"
            f"-zero{self.zero_stage}"
        )
        if self.recomputation == "full":
            name += "-recompute"
        return f"{name}-overlap" if self.overlap else name


@dataclass(frozen=True)
class Data:
    """The tokens that a cell trains on."""

    name: str
    kind: Literal["text", "synthetic"]


@dataclass(frozen=True)
class Hardware:
    """What a platform's GPUs and nodes are; unknown figures are null, never a guess."""

    platform: str
    #: must occur in the name that the driver reports, e.g. "H200"; null where any will do
    gpu: str | None
    gpus_per_node: int
    #: GPUs that share one package and its power sensor: 2 on MI250, whose "GPU" is a die
    gpus_per_package: int
    #: of one GPU
    gpu_memory_bytes: int | None
    #: dense bf16 and fp32 peak of one GPU, in FLOP/s
    peak_bf16_flops_per_s: float | None
    peak_fp32_flops_per_s: float | None
    #: of one package
    power_limit_w: float | None
    #: for each GPU of a node, where it sits in the air stream: "front", "rear" or "unknown"
    airflow: tuple[str, ...]


@dataclass(frozen=True)
class Telemetry:
    """How a run is watched."""

    source: TelemetrySource
    sample_rate_hz: float
    #: idle time before training, watched but not trained in
    idle_baseline_s: float


@dataclass(frozen=True)
class Cell:
    """One point of a sweep, resolved: all that training, telemetry and analysis know of it.

    ``id`` is ``<platform>/<model>/<parallelism>_<options>_<digest>``; the digest covers everything
    here but the id itself, so that two different cells can never share a directory.
    """

    id: str
    model: Model
    degrees: Degrees
    training: Training
    data: Data
    hardware: Hardware
    telemetry: Telemetry
    nodes: int
    #: variables, modules and container that the job sets up, as they bear on what is measured
    software: Mapping[str, str]

    @property
    def parallelism(self) -> str:
        """The short name of the layout, as in ``tp2-pp16-dp1``."""
        return self.degrees.name

    @property
    def ranks_per_node(self) -> int:
        """Ranks on each node; the planner has seen to it that they spread evenly."""
        return self.degrees.world_size // self.nodes


# ------------------------------------------------------------------------------------ the outcomes


class Outcome(enum.StrEnum):
    """How a run ended, or why it never began."""

    COMPLETED = "completed"
    OUT_OF_MEMORY = "out_of_memory"
    INFEASIBLE = "infeasible"
    TIMEOUT = "timeout"
    COMMUNICATION_TIMEOUT = "communication_timeout"
    NODE_FAILURE = "node_failure"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    TELEMETRY_INVALID = "telemetry_invalid"
    NONFINITE_LOSS = "nonfinite_loss"
    ERROR = "error"

    @property
    def is_result(self) -> bool:
        """Whether the outcome tells of the cell, so that a rerun would not change it."""
        return self in (Outcome.COMPLETED, Outcome.OUT_OF_MEMORY, Outcome.INFEASIBLE)


@dataclass(frozen=True)
class OutcomeRecord:
    """``outcome.json`` and ``failure.json``."""

    outcome: Outcome
    #: one sentence: what was seen, and where
    cause: str
    job_id: str | None
    nodes: tuple[str, ...]
    started_unix_s: float | None
    ended_unix_s: float | None
    #: what the scheduler called the end, e.g. "COMPLETED" or "NODE_FAIL"
    scheduler_state: str | None
    #: true where job.sh was not what was rendered (it then was submitted by hand)
    script_edited: bool


@dataclass(frozen=True)
class JobRecord:
    """``job.json``: what was submitted, written before anybody waits for it."""

    scheduler: Literal["slurm", "local"]
    job_id: str
    submitted_unix_s: float
    submitted_by: str


@dataclass(frozen=True)
class EndedRecord:
    """``ended.json``: the job's own last word."""

    job_id: str
    nodes: tuple[str, ...]
    started_unix_s: float
    ended_unix_s: float
    #: exit code of the training step; null where training never started
    training_exit_code: int | None
    #: exit code of the telemetry step
    telemetry_exit_code: int | None
    #: which part of the job failed first, null where none did
    failed_stage: str | None
    script_sha256: str


@dataclass(frozen=True)
class RankRecord:
    """``steps/rank<n>.json``: where a rank ran and what it held."""

    rank: int
    node: str
    #: index of the GPU within its node, as telemetry counts them; null on a CPU
    gpu: int | None
    device_name: str
    tp_rank: int
    pp_rank: int
    dp_rank: int
    ep_rank: int
    #: parameters that this rank holds, before any ZeRO partitioning
    parameters: int
    pid: int
    started_unix_s: float


@dataclass(frozen=True)
class ErrorRecord:
    """``errors/rank<n>.json``: what a rank died of."""

    rank: int
    node: str
    unix_time_s: float
    #: where it was: "setup", "build", "forward_backward", "data", …
    phase: str
    #: the outcome that this error means for the run
    outcome: Outcome
    message: str
    traceback: str


@dataclass(frozen=True)
class TelemetryStart:
    """``telemetry/<node>.json``: what the sampler found, written before its first sample."""

    node: str
    #: "nvidia", "amd" or "simulated": never "auto"
    source: str
    simulated: bool
    started_unix_s: float
    sample_rate_hz: float
    #: one entry a GPU: name, uuid, serial, power_limit_w, driver_version, as far as known
    gpus: tuple[Mapping[str, Any], ...]
    #: column name → why it stays empty on this node
    missing: Mapping[str, str]


@dataclass(frozen=True)
class TelemetryEnd:
    """``telemetry/<node>-end.json``: what the sampler did, written when it ends in order."""

    node: str
    ended_unix_s: float
    samples: int
    #: samples that came later than half a period after their deadline
    late_samples: int
    #: "column: message" → how often a reading failed
    errors: Mapping[str, int]
    cpu_time_s: float
    peak_memory_bytes: int


# ------------------------------------------------------------------------------------- the columns


@dataclass(frozen=True)
class Column:
    """One column of a file or table: its name, type, unit and meaning."""

    name: str
    type: type
    unit: str
    description: str


def _columns(*rows: tuple[str, type, str, str]) -> tuple[Column, ...]:
    return tuple(Column(*row) for row in rows)


#: telemetry/<node>.csv; an empty field is a reading that could not be had
GPU_SAMPLES = _columns(
    ("unix_time_s", float, "s", "wall clock of the node when the GPU was read"),
    ("gpu", int, "", "index of the GPU in its node"),
    ("power_w", float, "W", "board (NVIDIA) or package (AMD) power, as the driver averages it"),
    ("energy_j", float, "J", "the driver's cumulative energy counter; read about once a second"),
    ("temperature_c", float, "°C", "GPU core temperature"),
    ("memory_temperature_c", float, "°C", "memory temperature; read about once a second"),
    ("sm_clock_mhz", float, "MHz", "streaming-multiprocessor or shader clock"),
    ("memory_clock_mhz", float, "MHz", "memory clock"),
    ("utilisation_percent", float, "%", "share of time with a kernel running, as the driver says"),
    ("memory_used_bytes", int, "B", "device memory in use; read about once a second"),
    ("event_reasons", int, "", "NVML clocks-event-reasons bits"),
    ("throttle_power_cap_s", float, "s", "cumulative time at the software power cap"),
    ("throttle_sw_thermal_s", float, "s", "cumulative software thermal slowdown"),
    ("throttle_hw_thermal_s", float, "s", "cumulative hardware thermal slowdown"),
    ("throttle_power_brake_s", float, "s", "cumulative hardware power-brake slowdown"),
    ("read_cost_s", float, "s", "time that reading this GPU took"),
)

#: telemetry/<node>-host.csv
HOST_SAMPLES = _columns(
    ("unix_time_s", float, "s", "wall clock of the node"),
    ("cpu_utilisation_percent", float, "%", "busy share of all CPUs since the row before"),
    ("memory_used_bytes", int, "B", "host memory in use (total − available)"),
    ("network_received_bytes", int, "B", "cumulative, over all Ethernet interfaces but loopback"),
    ("network_sent_bytes", int, "B", "cumulative, over all Ethernet interfaces but loopback"),
    ("infiniband_received_bytes", int, "B", "cumulative, over all InfiniBand port counters"),
    ("infiniband_sent_bytes", int, "B", "cumulative, over all InfiniBand port counters"),
)

#: steps/rank<n>.csv
STEPS = _columns(
    ("step", int, "", "from 0, warm-up included"),
    ("phase", str, "", "warmup or measured"),
    ("started_unix_s", float, "s", "wall clock of the node at the start of the step"),
    ("ended_unix_s", float, "s", "wall clock of the node once the step's work had ended"),
    ("loss", float, "nat", "mean cross-entropy over the global batch; empty where not known here"),
    ("tokens", int, "", "tokens that this rank's replica consumed"),
    ("memory_allocated_bytes", int, "B", "allocated at the end of the step; host RSS on a CPU"),
    ("memory_peak_bytes", int, "B", "highest so far; host peak RSS on a CPU"),
)

_IDENTITY = (
    ("cell", str, "", "the cell's id: its directory under results/cells"),
    ("platform", str, "", "name of config/platforms/<platform>.yaml"),
    ("model", str, "", "name of config/models/<model>.yaml"),
    ("parallelism", str, "", "short name of the layout"),
    ("options", str, "", "short name of the training options"),
    ("tp", int, "", "tensor-parallel degree"),
    ("pp", int, "", "pipeline-parallel degree"),
    ("dp", int, "", "data-parallel degree"),
    ("ep", int, "", "expert-parallel degree"),
    ("zero_stage", int, "", "ZeRO stage"),
    ("micro_batch_size", int, "", "sequences that a replica processes at once"),
    ("global_batch_size", int, "", "sequences per optimiser step"),
    ("sequence_length", int, "", "tokens per sequence"),
    ("precision", str, "", "bf16 or fp32"),
    ("recomputation", str, "", "none or full"),
    ("overlap", bool, "", "communication overlapped with compute"),
    ("nodes", int, "", "nodes"),
    ("gpus", int, "", "GPUs (ranks)"),
)

#: what tells one cell from another, in every table
IDENTITY = _columns(*_IDENTITY)


def identity(cell: Cell) -> dict[str, Any]:
    """The IDENTITY columns of a cell."""
    degrees, training = cell.degrees, cell.training
    return {
        "cell": cell.id,
        "platform": cell.hardware.platform,
        "model": cell.model.name,
        "parallelism": degrees.name,
        "options": training.name,
        "tp": degrees.tp,
        "pp": degrees.pp,
        "dp": degrees.dp,
        "ep": degrees.ep,
        "zero_stage": training.zero_stage,
        "micro_batch_size": training.micro_batch_size,
        "global_batch_size": training.global_batch_size,
        "sequence_length": cell.model.sequence_length,
        "precision": training.precision,
        "recomputation": training.recomputation,
        "overlap": training.overlap,
        "nodes": cell.nodes,
        "gpus": degrees.world_size,
    }


#: plan.parquet: one row a cell that the sweep asks for, infeasible ones included
PLAN = _columns(
    *_IDENTITY,
    ("sweeps", str, "", "every sweep that asks for the cell, separated by commas"),
    ("repeats", int, "", "runs of the cell"),
    ("memory_per_gpu_bytes", float, "B", "estimated peak of the fullest rank"),
    ("step_time_s", float, "s", "estimated, at the platform's expected MFU"),
    ("gpu_hours", float, "h", "estimated, over all repeats"),
    ("time_limit_min", int, "min", "asked of the scheduler, for one run"),
    ("feasible", bool, "", "whether the cell can run"),
    ("reason", str, "", "why not, with the arithmetic"),
)

#: what reduce computes of one run, or null with a reason in missing_reasons
MEASURES = _columns(
    ("measured_steps", int, "", "steps measured, warm-up excluded"),
    ("measured_duration_s", float, "s", "from the first measured step's start to the last's end"),
    ("step_time_s", float, "s", "median over measured steps of the slowest rank's step"),
    ("step_time_iqr_s", float, "s", "interquartile range of the same"),
    ("tokens_per_s", float, "1/s", "tokens of the measured steps over measured_duration_s"),
    ("tokens_per_s_per_gpu", float, "1/s", "the same for one GPU"),
    ("model_tflops_per_s_per_gpu", float, "TFLOP/s", "model FLOPs, counted as in mfu_causal"),
    ("mfu_6n", float, "", "model FLOPs utilisation, 6·N·tokens"),
    ("mfu_causal", float, "", "without the input embedding, causal attention counted once"),
    ("mfu_full_attention", float, "", "without the input embedding, attention as if not causal"),
    ("power_mean_w", float, "W", "all GPUs together: energy over duration"),
    ("power_per_gpu_mean_w", float, "W", "the same for one GPU"),
    ("power_peak_w", float, "W", "highest reading of any one package: a lower bound of the peak"),
    ("idle_power_w", float, "W", "all GPUs together, in the idle baseline before training"),
    ("energy_j", float, "J", "all GPUs over the measured steps, trapezoid of power"),
    ("energy_counter_j", float, "J", "the same from the driver's energy counters"),
    ("energy_difference", float, "", "energy_counter_j / energy_j − 1"),
    ("tokens_per_j", float, "1/J", "tokens of the measured steps over energy_j"),
    ("energy_delay_product_js", float, "J·s", "energy of a step times the median step time"),
    ("samples_per_s_per_mj", float, "1/(s·MJ)", "the study's efficiency: counts time twice"),
    ("temperature_mean_c", float, "°C", "mean over GPUs and time"),
    ("temperature_peak_c", float, "°C", "highest reading of any GPU"),
    ("temperature_spread_c", float, "°C", "hottest less coolest GPU (means) of the worst node"),
    ("sm_clock_mean_mhz", float, "MHz", "mean over GPUs and time"),
    ("throttle_power_share", float, "", "share of time at the software power cap"),
    (
        "throttle_thermal_share",
        float,
        "",
        "share of time in thermal slowdown, software or hardware",
    ),
    ("throttle_brake_share", float, "", "share of time in power-brake slowdown"),
    ("memory_peak_bytes", float, "B", "of the fullest rank; host memory on a CPU"),
    ("loss_first", float, "nat", "loss of the first step"),
    ("loss_last", float, "nat", "loss of the last step"),
)

#: runs.parquet: one row a run of every feasible cell, whatever became of it
RUNS = (
    *_columns(
        *_IDENTITY,
        ("run", int, "", "which repeat, from 1"),
        ("gpu_name", str, "", "as the driver calls it"),
        ("simulated", bool, "", "whether GPU readings were simulated"),
        ("outcome", str, "", "how the run ended; not_run where it has not"),
        ("cause", str, "", "one sentence on the outcome"),
        ("missing_reasons", str, "", "JSON: column → why it is null"),
    ),
    *MEASURES,
)

#: gpus.parquet: one row a GPU and run, over the measured steps
GPUS = _columns(
    ("cell", str, "", "the cell's id"),
    ("run", int, "", "which repeat, from 1"),
    ("node", str, "", "the node's name"),
    ("gpu", int, "", "index of the GPU in its node"),
    ("airflow", str, "", "front, rear or unknown"),
    ("simulated", bool, "", "whether its readings were simulated"),
    ("samples", int, "", "samples within the measured steps"),
    ("longest_gap_s", float, "s", "longest time between two of them"),
    ("power_mean_w", float, "W", "energy_j over duration"),
    ("power_peak_w", float, "W", "highest reading"),
    ("energy_j", float, "J", "trapezoid of power"),
    ("energy_counter_j", float, "J", "from the driver's counter"),
    ("temperature_mean_c", float, "°C", "time-weighted mean"),
    ("temperature_peak_c", float, "°C", "highest reading"),
    ("sm_clock_mean_mhz", float, "MHz", "time-weighted mean"),
    ("throttle_power_share", float, "", "share of time at the software power cap"),
    ("throttle_thermal_share", float, "", "share of time in thermal slowdown"),
    ("throttle_brake_share", float, "", "share of time in power-brake slowdown"),
    ("throttle_source", str, "", "counters (exact) or events (sampled); null where neither is"),
    ("missing_reasons", str, "", "JSON: column → why it is null"),
)

#: cells.parquet: one row a cell of the plan, infeasible ones included
CELLS = (
    *_columns(
        *_IDENTITY,
        ("gpu_name", str, "", "as the driver calls it, in the completed runs"),
        ("simulated", bool, "", "whether GPU readings of any run were simulated"),
        ("repeats", int, "", "runs that the plan asks for"),
        ("completed", int, "", "runs that completed"),
        ("outcome", str, "", "completed where any run did, else how most of its runs ended"),
        ("outcomes", str, "", 'every outcome and its count, as in "completed 2, timeout 1"'),
        ("cause", str, "", "one sentence on the outcome; why not, where infeasible"),
    ),
    *(
        Column(name + suffix, float, unit, f"{what} over completed runs: {description}")
        for name, unit, description in ((m.name, m.unit, m.description) for m in MEASURES)
        for suffix, what in (("", "median"), ("_low", "lowest"), ("_high", "highest"))
    ),
)


# --------------------------------------------------------------------------------------- the paths


@dataclass(frozen=True)
class RunPaths:
    """Every path of one run. Nothing else in the project spells these names."""

    directory: Path

    @property
    def cell(self) -> Path:
        return self.directory / "cell.json"

    @property
    def script(self) -> Path:
        return self.directory / "job.sh"

    @property
    def job(self) -> Path:
        return self.directory / "job.json"

    @property
    def environment(self) -> Path:
        return self.directory / "environment.json"

    @property
    def ended(self) -> Path:
        return self.directory / "ended.json"

    @property
    def outcome(self) -> Path:
        return self.directory / "outcome.json"

    @property
    def failure(self) -> Path:
        return self.directory / "failure.json"

    @property
    def summary(self) -> Path:
        return self.directory / "summary.json"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    @property
    def steps(self) -> Path:
        return self.directory / "steps"

    @property
    def errors(self) -> Path:
        return self.directory / "errors"

    @property
    def telemetry(self) -> Path:
        return self.directory / "telemetry"

    @property
    def attempts(self) -> Path:
        return self.directory / "attempts"

    @property
    def lock(self) -> Path:
        """Held by the process that waits for the run."""
        return self.directory / ".lock"

    @property
    def telemetry_stop(self) -> Path:
        """Its existence asks every sampler to end."""
        return self.telemetry / "stop"

    def rank(self, rank: int) -> Path:
        return self.steps / f"rank{rank}.json"

    def rank_steps(self, rank: int) -> Path:
        return self.steps / f"rank{rank}.csv"

    def rank_error(self, rank: int) -> Path:
        return self.errors / f"rank{rank}.json"

    def gpu_samples(self, node: str) -> Path:
        return self.telemetry / f"{node}.csv"

    def host_samples(self, node: str) -> Path:
        return self.telemetry / f"{node}-host.csv"

    def telemetry_start(self, node: str) -> Path:
        return self.telemetry / f"{node}.json"

    def telemetry_end(self, node: str) -> Path:
        return self.telemetry / f"{node}-end.json"

    def telemetry_ready(self, node: str) -> Path:
        """Its existence says that the node's first samples are on disk."""
        return self.telemetry / f"{node}.ready"

    def telemetry_lock(self, node: str) -> Path:
        """Held by the node's sampler while it lives; says which process that is."""
        return self.telemetry / f"{node}.lock"

    def sampled_nodes(self) -> list[str]:
        """Names of the nodes whose sampler started, sorted."""
        starts = self.telemetry.glob("*.json")
        return sorted(p.stem for p in starts if not p.name.endswith("-end.json"))


def node_name() -> str:
    """This node's name: Slurm's where there is one, else the host's, without a domain."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]


# ------------------------------------------------------------------------- reading and writing JSON

Record = TypeVar("Record")


class RecordError(ValueError):
    """A file under ``results/`` does not hold what this module says that it holds."""


def write_json(path: Path, record: Any) -> None:
    """Write a dataclass or plain data as JSON, whole or not at all.

    The text goes to a neighbouring file, reaches the disk, and is then renamed, so that a reader
    sees the old content or the new, even after a crash. NaN and infinities are refused.
    """
    plain = dataclasses.asdict(record) if dataclasses.is_dataclass(record) else record  # type: ignore[arg-type]
    text = json.dumps(plain, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """Read JSON. Raises RecordError, naming the file, where it is not JSON in UTF-8."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RecordError(f"{path}: not readable as JSON: {error}") from None


def read_record(path: Path, kind: type[Record]) -> Record:
    """Read one of this module's dataclasses from a JSON file.

    Raises FileNotFoundError, or RecordError with the file and the key where the content is not a
    ``kind``.
    """
    plain = read_json(path)
    try:
        value = _decode(plain, kind, kind.__name__)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from None
    return typing.cast(Record, value)


def read_outcome(paths: RunPaths) -> OutcomeRecord | None:
    """How the run's latest attempt ended, or None where it has not."""
    for path in (paths.outcome, paths.failure):
        if path.exists():
            return read_record(path, OutcomeRecord)
    return None


def _decode(plain: Any, kind: Any, where: str) -> Any:
    """Turn parsed JSON into ``kind``: a dataclass, or a type that a dataclass here uses."""
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if kind is Any:
        return plain
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(plain, kind, where)
    if origin in (types.UnionType, typing.Union):
        if plain is None and type(None) in arguments:
            return None
        return _decode(plain, next(a for a in arguments if a is not type(None)), where)
    if origin is Literal:
        if plain in arguments:
            return plain
    elif origin is tuple and isinstance(plain, list):
        return tuple(_decode(item, arguments[0], f"{where}[{i}]") for i, item in enumerate(plain))
    elif origin is Mapping and isinstance(plain, dict):
        return {key: _decode(item, arguments[1], f"{where}.{key}") for key, item in plain.items()}
    elif kind is float and isinstance(plain, (int, float)) and not isinstance(plain, bool):
        return float(plain)
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        if plain in [member.value for member in kind]:
            return kind(plain)
    elif isinstance(kind, type) and type(plain) is kind:
        return plain
    raise RecordError(f"{where} is {plain!r}, expected {getattr(kind, '__name__', kind)}")


def _decode_dataclass(plain: Any, kind: Any, where: str) -> Any:
    if not isinstance(plain, dict):
        raise RecordError(f"{where} is {plain!r}, expected an object")
    hints = typing.get_type_hints(kind)
    names = {field.name for field in dataclasses.fields(kind)}
    if unknown := sorted(plain.keys() - names):
        raise RecordError(f"{where} has the unknown key {unknown[0]!r}")
    values = {}
    for field in dataclasses.fields(kind):
        if field.name in plain:
            values[field.name] = _decode(
                plain[field.name], hints[field.name], f"{where}.{field.name}"
            )
        elif field.default is dataclasses.MISSING:
            raise RecordError(f"{where} lacks the key {field.name!r}")
    return kind(**values)
