"""The cell: one point of a sweep, as ``cell.json`` holds it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Family = Literal["gpt", "llama", "mixtral"]
Precision = Literal["bf16", "fp32"]
Recomputation = Literal["none", "selective", "full"]
Backend = Literal["deepspeed", "torch"]
Workload = Literal["pretrain", "lora", "inference"]
Routing = Literal["dropless", "balanced"]
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
    """Parallelism degrees, and how ranks and layers lie on them.

    Ranks are ordered with TP innermost and PP outermost, as in Megatron.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    #: experts are spread over ep of the dp replicas, so ep divides dp
    ep: int = 1
    #: chunks of the model that each pipeline rank holds; above 1 the schedule is interleaved, and
    #: chunk c of pipeline rank p is stage c · pp + p
    virtual_stages: int = 1
    #: transformer layers of each stage, first to last; empty where they are spread evenly
    stage_layers: tuple[int, ...] = ()
    #: the node's GPU of each local rank; empty where local rank i uses GPU i
    gpu_order: tuple[int, ...] = ()

    @property
    def world_size(self) -> int:
        """The number of ranks, one GPU each."""
        return self.tp * self.pp * self.dp

    @property
    def stages(self) -> int:
        """Stages of the pipeline, over all ranks and their chunks."""
        return self.pp * self.virtual_stages

    def layers_of_stages(self, layers: int) -> tuple[int, ...]:
        """How many of a model's layers each stage holds, first stage to last.

        Layers that are left over after an even division go to the middle stages first: the first
        stage has the embedding besides, and the last one the head.
        """
        if self.stage_layers:
            return self.stage_layers
        base, rest = divmod(layers, self.stages)
        spread = [base] * self.stages
        last = self.stages - 1
        for stage in [*range(1, last), 0, last][:rest]:
            spread[stage] += 1
        return tuple(spread)

    @property
    def name(self) -> str:
        """For example ``tp2-pp16-dp1``; ``-ep8`` where experts are spread, ``pp4x2`` where two
        chunks of the model are on each pipeline rank, ``-l3.2x3`` where stages have 3, 2, 2 and 2
        layers, ``-g`` and numbers where ranks do not use the GPUs in their order.
        """
        name = f"tp{self.tp}-pp{self.pp}"
        if self.virtual_stages > 1:
            name += f"x{self.virtual_stages}"
        name += f"-dp{self.dp}"
        if self.ep > 1:
            name += f"-ep{self.ep}"
        if self.stage_layers:
            runs = (
                (layers, len(list(run))) for layers, run in itertools.groupby(self.stage_layers)
            )
            name += "-l" + ".".join(f"{n}x{times}" if times > 1 else f"{n}" for n, times in runs)
        if self.gpu_order:
            name += "-g" + ".".join(map(str, self.gpu_order))
        return name


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
    #: gradient reduction, parameter gathering, tensor-parallel communication and the pipeline's
    #: sends overlapped with compute
    overlap: bool
    warmup_steps: int
    measured_steps: int
    learning_rate: float
    seed: int
    #: what trains, or generates
    backend: Backend = "deepspeed"
    workload: Workload = "pretrain"
    #: between the tensor-parallel parts, each rank of the group has its slice of the sequence;
    #: never with tp 1
    sequence_parallel: bool = False
    #: blocks of layers through torch.compile
    compile: bool = False
    #: whether each expert takes whatever the router sends it, or equally many padded rows with the
    #: rest dropped; null in a dense model
    routing: Routing | None = None
    #: coefficient of the router's load-balancing loss; 0 without
    balancing_loss: float = 0.0
    #: rank of the low-rank adapters; 0 unless the workload is lora
    lora_rank: int = 0
    #: tokens that each sequence generates after its prompt, which is the rest of the model's
    #: sequence_length; 0 unless the workload is inference
    generated_tokens: int = 0

    def micro_batches(self, dp: int) -> int:
        """Micro-batches that one replica accumulates in a step."""
        return self.global_batch_size // (self.micro_batch_size * dp)

    @property
    def name(self) -> str:
        """For example ``mb1-gb128-bf16-zero1-sp-recompute``."""
        words = [
            f"mb{self.micro_batch_size}",
            f"gb{self.global_batch_size}",
            self.precision,
            f"zero{self.zero_stage}",
            *(["sp"] if self.sequence_parallel else []),
            *{"none": [], "selective": ["selective"], "full": ["recompute"]}[self.recomputation],
            *(["overlap"] if self.overlap else []),
            *([self.routing] if self.routing == "balanced" else []),
            *(["auxloss"] if self.balancing_loss else []),
            *([f"lora{self.lora_rank}"] if self.workload == "lora" else []),
            *([f"generate{self.generated_tokens}"] if self.workload == "inference" else []),
            *(["compiled"] if self.compile else []),
            *(["torch"] if self.backend == "torch" else []),
        ]
        return "-".join(words)


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
    #: peak in one direction of all links of one GPU to others of its node
    intra_node_bytes_per_s: float | None = None
    #: peak in one direction of all adapters of one node, which its GPUs share
    inter_node_bytes_per_s: float | None = None

    def peak_flops_per_s(self, precision: Precision) -> float | None:
        """The peak that training in a precision is measured against; null where not known."""
        return self.peak_bf16_flops_per_s if precision == "bf16" else self.peak_fp32_flops_per_s


@dataclass(frozen=True)
class Telemetry:
    """How a run is watched."""

    source: TelemetrySource
    sample_rate_hz: float
    #: idle time before training, watched but not trained in
    idle_baseline_s: float
    #: rates that take turns, for what sampling costs training; 0 reads nothing. Empty: the rate is
    #: sample_rate_hz throughout, and only then has the run an energy
    interleaved_rates_hz: tuple[float, ...] = ()
    #: how long each of them lasts
    block_s: float = 0.0
    #: before the idle baseline, wait until every GPU is at most this warm; null does not wait
    cool_down_to_c: float | None = None
    #: but at most this long
    cool_down_limit_s: float = 0.0


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
