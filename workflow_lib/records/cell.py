"""The cell: one point of a sweep, as ``cell.json`` holds it.

The annotation of each field is its axis: see :mod:`workflow_lib.records.axes`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from workflow_lib.records import axes, bounds, ranges
from workflow_lib.records.axes import Axis, beside, flag

Family = Literal["gpt", "neox", "llama", "mixtral"]
Precision = Literal["bf16", "fp32", "fp8"]
Recomputation = Literal["none", "selective", "full"]
Backend = Literal["deepspeed", "torch"]
Workload = Literal["pretrain", "lora", "inference"]
Routing = Literal["dropless", "balanced"]
Activation = Literal["usual", "silu", "gelu", "gelu_tanh"]
Schedule = Literal["1f1b", "zero-bubble", "zero-bubble-v"]
TelemetrySource = Literal["auto", "nvidia", "amd", "simulated"]


@dataclass(frozen=True)
class Model:
    """A decoder's dimensions. Counts are exact, lengths are in tokens."""

    name: Annotated[
        str, Axis("name of config/models/<model>.yaml", "work", column="model", says_itself=True)
    ]
    family: Annotated[
        Family,
        Axis(
            "what kind of layers: gpt, neox, llama or mixtral",
            "work",
            column="model_family",
            says_itself=True,
        ),
    ]
    layers: Annotated[int, Axis("transformer layers", "work")]
    hidden_size: Annotated[int, Axis("width of the model", "work")]
    ffn_hidden_size: Annotated[int, Axis("width of a feed-forward part, or of an expert", "work")]
    attention_heads: Annotated[int, Axis("attention heads", "work")]
    kv_heads: Annotated[int, Axis("heads of keys and values", "work")]
    sequence_length: Annotated[int, Axis("tokens per sequence", "work", label="sequences of")]
    vocabulary_size: Annotated[int, Axis("entries of the vocabulary", "work")]
    vocabulary_multiple: Annotated[
        int, Axis("the vocabulary is padded to a multiple of this before it is trained", "work")
    ] = 1
    experts: Annotated[int, Axis("experts per layer; 0 in a dense model", "work")] = 0
    experts_per_token: Annotated[
        int, Axis("how many experts see a token; 0 in a dense model", "work")
    ] = 0
    rotary_base: Annotated[
        float,
        Axis("base of the rotary positions' frequencies; not used by gpt", "work", since=3),
    ] = 500_000.0
    #: a single number divides all frequencies. Four numbers are Llama 3.1's: the divisor of low
    #: frequencies, the bounds of low and of high ones, and the original sequence length
    #: (training/rotary.py)
    rotary_scaling: Annotated[
        tuple[float, ...],
        Axis(
            "what stretches the rotary positions: one factor; or, as in Llama 3.1, a factor, its "
            "low and high frequency factors and the length before; null where nothing does",
            "work",
            since=6,
        ),
    ] = ()
    rotary_share: Annotated[
        float,
        Axis("share of a head's columns that rotary positions turn", "work", since=6),
    ] = 1.0
    tied_embeddings: Annotated[
        bool,
        Axis("whether the head is the input embedding; gpt's always is", "work", since=6),
    ] = False
    head_dimension: Annotated[
        int | None,
        Axis(
            "columns of an attention head; null where they are hidden_size / attention_heads",
            "work",
            since=6,
        ),
    ] = None
    qkv_bias: Annotated[
        bool,
        Axis(
            "biases of queries, keys and values; gpt and neox have biases everywhere",
            "work",
            since=6,
        ),
    ] = False
    qk_norm: Annotated[
        bool, Axis("an RMS norm over each head's queries and keys", "work", since=6)
    ] = False
    norm_epsilon: Annotated[
        float, Axis("what every norm adds to the variance", "work", since=6)
    ] = 1e-5
    activation: Annotated[
        Activation,
        Axis(
            "of the feed-forward part; usual is silu, gelu_tanh in gpt, gelu in neox",
            "work",
            since=6,
        ),
    ] = "usual"
    embedding_scale: Annotated[
        float, Axis("what the rows of the input embedding are multiplied by", "work", since=6)
    ] = 1.0

    @property
    def padded_vocabulary_size(self) -> int:
        """The vocabulary as trained: rounded up to ``vocabulary_multiple``."""
        return -(-self.vocabulary_size // self.vocabulary_multiple) * self.vocabulary_multiple

    @property
    def head_size(self) -> int:
        """Columns of one attention head."""
        return self.head_dimension or self.hidden_size // self.attention_heads

    @property
    def query_size(self) -> int:
        """Columns of all queries together, and of attention's output."""
        return self.head_size * self.attention_heads

    @property
    def key_value_size(self) -> int:
        """Columns of all keys together; all values together have as many."""
        return self.head_size * self.kv_heads

    @property
    def rotary_size(self) -> int:
        """Columns of a head that rotary positions turn."""
        return int(self.head_size * self.rotary_share)

    @property
    def is_plain(self) -> bool:
        """Whether the model has LayerNorms, biases everywhere and two matrices in the feed-forward
        part. Other models have RMSNorms, biases only as ``qkv_bias`` says, and a gated feed-forward
        part.
        """
        return self.family in ("gpt", "neox")

    @property
    def has_tied_embeddings(self) -> bool:
        """Whether the head is the input embedding."""
        return self.tied_embeddings or self.family == "gpt"


def _in_runs(before: str = "", behind: str = "") -> Callable[[Sequence[int]], str]:
    """Give a word for a list of numbers, with ``before`` and ``behind`` around it; "" if it is
    empty. Equal neighbours are counted: 3, 2, 2, 2 becomes ``3.2x3``, and seven limits of 500 W and
    one of 700 W become ``500x7.700w``.
    """

    def word(numbers: Sequence[int]) -> str:
        runs = ((number, len(list(run))) for number, run in itertools.groupby(numbers))
        told = ".".join(f"{n}x{times}" if times > 1 else f"{n}" for n, times in runs)
        return f"{before}{told}{behind}" if told else ""

    return word


@dataclass(frozen=True, kw_only=True)
class Degrees:
    """Parallelism degrees, and how ranks and layers are laid out.

    Ranks are ordered with TP innermost and PP outermost, as in Megatron.
    """

    tp: Annotated[int, Axis("tensor-parallel degree", "layout", label="TP", word="tp{}".format)] = 1
    pp: Annotated[
        int, Axis("pipeline-parallel degree", "layout", label="PP", word="pp{}".format)
    ] = 1
    #: above 1 the schedule is interleaved, and chunk c of pipeline rank p is stage c · pp + p
    virtual_stages: Annotated[
        int,
        Axis(
            "chunks of the model on each pipeline rank",
            "layout",
            word=lambda chunks: f"x{chunks}" if chunks > 1 else "",
            joins=True,
        ),
    ] = 1
    #: with "zero-bubble-v" ranks have two chunks, and pipeline rank p of pp has stages p and
    #: 2 · pp − 1 − p, so that the first rank has both ends of the model
    schedule: Annotated[
        Schedule,
        Axis(
            "order of a pipeline's passes: 1f1b (interleaved where ranks have several chunks), or "
            "zero-bubble or zero-bubble-v, which compute gradients of weights while they would "
            "wait",
            "layout",
            word={"1f1b": "", "zero-bubble": "zb", "zero-bubble-v": "zbv"}.__getitem__,
            joins=True,
            since=5,
        ),
    ] = "1f1b"
    #: each sequence is cut over cp ranks, which hold the same weights, as replicas do
    cp: Annotated[
        int,
        Axis(
            "context-parallel degree",
            "layout",
            label="CP",
            word=lambda cp: f"cp{cp}" if cp > 1 else "",
            since=5,
        ),
    ] = 1
    dp: Annotated[int, Axis("data-parallel degree", "layout", label="DP", word="dp{}".format)] = 1
    #: experts are spread over ep of the dp replicas, so ep divides dp
    ep: Annotated[
        int,
        Axis(
            "expert-parallel degree",
            "layout",
            label="EP",
            word=lambda ep: f"ep{ep}" if ep > 1 else "",
        ),
    ] = 1
    stage_layers: Annotated[
        tuple[int, ...],
        Axis(
            "layers of each stage, first to last; null where they are spread evenly",
            "layout",
            word=_in_runs("l"),
        ),
    ] = ()
    gpu_order: Annotated[
        tuple[int, ...],
        Axis(
            "the node's GPU of each local rank; null where local rank i uses GPU i",
            "layout",
            word=lambda order: "g" + ".".join(map(str, order)) if order else "",
        ),
    ] = ()
    #: each node's GPUs in order of their indices, one node after the other
    gpu_uuids: Annotated[
        tuple[str, ...],
        Axis(
            "UUIDs of the GPUs that the cell was placed on, without which it does not train; null "
            "where any GPUs will do",
            "layout",
            since=8,
        ),
    ] = ()

    @property
    def world_size(self) -> int:
        """The number of ranks, one GPU each."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def copies(self) -> int:
        """How many ranks hold the same weights and average their gradients. Experts are not
        counted: they have fewer copies if ``ep`` is above 1.
        """
        return self.cp * self.dp

    @property
    def stages(self) -> int:
        """Stages of the pipeline, over all ranks and their chunks."""
        return self.pp * self.virtual_stages

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages on a pipeline rank, in the order of the model."""
        if self.schedule == "zero-bubble-v":
            return rank, 2 * self.pp - 1 - rank
        return tuple(range(rank, self.stages, self.pp))

    def layers_of_stages(self, layers: int) -> tuple[int, ...]:
        """How many of a model's layers each stage holds, first stage to last.

        Layers that are left over after an even division go to the middle stages first, because the
        first stage also has the embedding, and the last one the head.
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
        """The short name of the layout, for example ``tp2-pp16-dp1``.

        ``-ep8`` means that experts are spread over 8 ranks; ``-cp2`` that sequences are cut over 2;
        ``pp4x2`` that each pipeline rank has two chunks of the model; ``pp4x2zbv`` also names a
        schedule other than 1F1B; ``-l3.2x3`` that stages have 3, 2, 2 and 2 layers; ``-g`` and
        numbers which GPU each local rank uses, if that is not its own index.
        """
        return "-".join(axes.words(self))


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a cell trains, and for how many steps. The words in its name are in this order."""

    micro_batch_size: Annotated[
        int,
        Axis(
            "sequences that a data-parallel replica sends through the model at once",
            "option",
            label="micro-batch",
            word="mb{}".format,
            varied_by=("microbatch", "pipeline-ranks"),
        ),
    ]
    global_batch_size: Annotated[
        int,
        Axis(
            "sequences per optimiser step, over all replicas",
            "work",
            label="batch",
            word="gb{}".format,
        ),
    ]
    #: fp8: as bf16, but for the matrix products of the decoder's layers
    precision: Annotated[Precision, Axis("bf16, fp32 or fp8", "work", says_itself=True, word=str)]
    zero_stage: Annotated[int, Axis("ZeRO stage", "option", label="ZeRO", word="zero{}".format)]
    #: false if tp is 1
    sequence_parallel: Annotated[
        bool,
        Axis("sequence cut between the tensor-parallel parts", "option", word=flag("sp")),
    ] = False
    recomputation: Annotated[
        Recomputation,
        Axis(
            "none, selective or full",
            "option",
            word={"none": "", "selective": "selective", "full": "recompute"}.__getitem__,
            varied_by=("optimisation", "recomputation"),
        ),
    ]
    #: gradient reduction, parameter gathering, tensor-parallel communication and the pipeline's
    #: sends
    overlap: Annotated[
        bool,
        Axis(
            "communication overlapped with compute",
            "option",
            word=flag("overlap"),
            varied_by=("optimisation",),
        ),
    ]
    #: dropless: each expert takes all tokens that the router sends it; balanced: each takes equally
    #: many rows, padded if it has fewer tokens, and drops the rest
    routing: Annotated[
        Routing | None,
        Axis(
            "dropless or balanced; null in a dense model",
            "work",
            word=lambda routing: "balanced" if routing == "balanced" else "",
        ),
    ] = None
    balancing_loss: Annotated[
        float,
        Axis(
            "coefficient of the router's load-balancing loss; 0 without",
            "work",
            word=flag("auxloss"),
        ),
    ] = 0.0
    workload: Annotated[Workload, Axis("pretrain, lora or inference", "work", says_itself=True)] = (
        "pretrain"
    )
    lora_rank: Annotated[
        int,
        Axis(
            "rank of the low-rank adapters; 0 unless the workload is lora",
            "work",
            label="LoRA rank",
            only_with=("workload", "lora"),
            word=beside("lora"),
        ),
    ] = 0
    #: the prompt is the rest of the model's sequence_length
    generated_tokens: Annotated[
        int,
        Axis(
            "tokens that each sequence generates after its prompt; 0 unless the workload is "
            "inference",
            "work",
            only_with=("workload", "inference"),
            word=beside("generate"),
        ),
    ] = 0
    compile: Annotated[
        bool, Axis("layers compiled by torch.compile", "option", word=flag("compiled"))
    ] = False
    backend: Annotated[
        Backend,
        Axis(
            "what trains, or generates: deepspeed or torch",
            "option",
            says_itself=True,
            word=lambda backend: "torch" if backend == "torch" else "",
        ),
    ] = "deepspeed"
    learning_rate: Annotated[float, Axis("of AdamW", "work", label="lr")]
    seed: Annotated[int, Axis("of the initial weights and the order of the data", "work")]
    warmup_steps: Annotated[int, Axis("steps before measuring starts", "protocol")]
    measured_steps: Annotated[int, Axis("steps to measure", "protocol")]
    weight_decay: Annotated[
        float, Axis("AdamW's; a step applies it times the learning rate", "work", since=4)
    ] = 0.01
    power_limits_w: Annotated[
        tuple[int, ...],
        Axis(
            "power limit that the job sets on each GPU of a node, by its index; null where it sets "
            "none",
            "option",
            "W",
            label="power limits",
            word=_in_runs(behind="w"),
            since=8,
        ),
    ] = ()
    clock_limits_mhz: Annotated[
        tuple[int, ...],
        Axis(
            "upper limit to which the job locks the SM clock of each GPU of a node, by its index; "
            "null where it locks none",
            "option",
            "MHz",
            label="clock limits",
            word=_in_runs(behind="mhz"),
            since=8,
        ),
    ] = ()

    @property
    def held_precision(self) -> Precision:
        """Precision of activations, and of the weights that layers compute with. Operands in fp8
        are cast from these.
        """
        return "bf16" if self.precision == "fp8" else self.precision

    def micro_batches(self, dp: int) -> int:
        """Micro-batches that one replica accumulates in a step."""
        return self.global_batch_size // (self.micro_batch_size * dp)

    @property
    def sets_limits(self) -> bool:
        """Whether the job changes settings of GPUs, which it restores at its end."""
        return bool(self.power_limits_w or self.clock_limits_mhz)

    @property
    def name(self) -> str:
        """The short name of the options, for example ``mb1-gb128-bf16-zero1-sp-recompute``.

        ``-500x8w`` means that the 8 GPUs of a node are limited to 500 W; ``-1200x8mhz`` that their
        clocks are locked to 1200 MHz at most.
        """
        return "-".join(axes.words(self))


@dataclass(frozen=True)
class Data:
    """The tokens that a cell trains on."""

    name: Annotated[
        str, Axis("name of config/data/<data>.yaml", "work", column="data", says_itself=True)
    ]
    kind: Annotated[
        Literal["text", "synthetic"],
        Axis("text or synthetic", "work", column="data_kind", says_itself=True),
    ]
    definition: Annotated[
        str | None,
        Axis(
            "eight digits of a SHA-256 over what that file says, its description apart; null in "
            "runs of version 0.1, which did not keep it",
            "work",
            column="data_definition",
            since=2,
        ),
    ] = None


@dataclass(frozen=True)
class Hardware:
    """The GPUs and nodes of a platform. An unknown value is null, never a guess."""

    platform: Annotated[
        str, Axis("name of config/platforms/<platform>.yaml", "place", says_itself=True)
    ]
    gpu: Annotated[
        str | None,
        Axis(
            "model of each GPU, or words of its driver's name; null where any will do",
            "place",
            column="gpu_model",
        ),
    ]
    gpus_per_node: Annotated[int, Axis("GPUs of a node", "place")]
    gpus_per_package: Annotated[
        int,
        Axis(
            "GPUs that share one package and its power sensor: 2 on MI250, whose GPU is a die",
            "analysis",
        ),
    ]
    gpu_memory_bytes: Annotated[int | None, Axis("memory of one GPU", "analysis", "B")]
    peak_bf16_flops_per_s: Annotated[
        float | None, Axis("dense bf16 peak of one GPU", "analysis", "FLOP/s")
    ]
    peak_fp32_flops_per_s: Annotated[
        float | None, Axis("dense fp32 peak of one GPU", "analysis", "FLOP/s")
    ]
    power_limit_w: Annotated[float | None, Axis("of one package", "analysis", "W")]
    airflow: Annotated[
        tuple[str, ...],
        Axis("where each GPU of a node sits in the air stream: front, rear, unknown", "analysis"),
    ]
    intra_node_bytes_per_s: Annotated[
        float | None,
        Axis("peak in one direction of all links of a GPU to others of its node", "analysis"),
    ] = None
    #: shared by all GPUs of the node
    inter_node_bytes_per_s: Annotated[
        float | None,
        Axis("peak in one direction of all adapters of one node", "analysis"),
    ] = None
    peak_fp8_flops_per_s: Annotated[
        float | None, Axis("dense fp8 peak of one GPU", "analysis", "FLOP/s", since=7)
    ] = None

    def peak_flops_per_s(self, precision: Precision) -> float | None:
        """The peak of one GPU in a precision, in FLOP/s; None if it is not known."""
        return {
            "bf16": self.peak_bf16_flops_per_s,
            "fp32": self.peak_fp32_flops_per_s,
            "fp8": self.peak_fp8_flops_per_s,
        }[precision]


@dataclass(frozen=True)
class Telemetry:
    """How a run is sampled before and during training."""

    source: Annotated[
        TelemetrySource,
        Axis("auto, nvidia, amd or simulated", "place", column="telemetry_source"),
    ]
    sample_rate_hz: Annotated[
        float, Axis("rate of GPU samples", "protocol", "Hz", label="sample rate")
    ]
    idle_baseline_s: Annotated[
        float,
        Axis(
            "idle time before training, watched but not trained in",
            "protocol",
            "s",
            label="idle baseline",
        ),
    ]
    #: a run with alternating rates has no energy
    interleaved_rates_hz: Annotated[
        tuple[float, ...],
        Axis(
            "rates that alternate within the run, one in each block, to measure what sampling "
            "costs; null where the rate is sample_rate_hz throughout",
            "protocol",
            "Hz",
            label="alternating rates",
        ),
    ] = ()
    block_s: Annotated[
        float,
        Axis(
            "length of a block, which has one rate; 0 without blocks",
            "protocol",
            "s",
            label="block",
        ),
    ] = 0.0
    cool_down_to_c: Annotated[
        float | None,
        Axis(
            "before the idle baseline, the job waits until every GPU is at most this warm; null if "
            "it does not wait",
            "place",
            "°C",
            label="cool down to",
        ),
    ] = None
    cool_down_limit_s: Annotated[
        float,
        Axis(
            "longest time to wait for that; 0 without a cool-down",
            "protocol",
            "s",
            label="cool down for at most",
        ),
    ] = 0.0


@dataclass(frozen=True)
class Cell:
    """One point of a sweep, resolved: all that training, telemetry and analysis know of it.

    ``id`` is ``<platform>/<model>/<parallelism>_<options>_<digest>``. The digest covers all fields
    that distinguish cells, so two different cells never share a directory. Fields of role
    ``analysis`` are not among them.
    """

    id: str
    model: Model
    degrees: Degrees
    training: Training
    data: Data
    hardware: Hardware
    telemetry: Telemetry
    nodes: Annotated[int, Axis("nodes", "layout")]
    software: Annotated[
        Mapping[str, str],
        Axis(
            "variables, modules and container that the job sets up, as they bear on what is "
            "measured",
            "place",
        ),
    ]
    #: of the record itself: see :mod:`workflow_lib.records.formats`
    format: int = 1

    @property
    def impossible(self) -> str:
        """Why the cell's fields contradict each other; "" if they do not."""
        degrees, hardware = self.degrees, self.hardware
        if not ranges.is_cell_id(self.id):
            return f"id is {self.id[:120]!r}, expected three names of directories, a/b/c"
        if degrees.world_size > bounds.RANKS.most:
            return f"tp × cp × pp × dp is {degrees.world_size}, more than {bounds.RANKS.most}"
        if not self.nodes <= degrees.world_size <= self.nodes * hardware.gpus_per_node:
            return (
                f"{degrees.world_size} ranks do not fit {self.nodes} nodes of "
                f"{hardware.gpus_per_node} GPUs"
            )
        return ""

    @property
    def parallelism(self) -> str:
        """The short name of the layout, as in ``tp2-pp16-dp1``."""
        return self.degrees.name

    @property
    def ranks_per_node(self) -> int:
        """Ranks on each node. The planner makes sure that all nodes have as many."""
        return self.degrees.world_size // self.nodes
