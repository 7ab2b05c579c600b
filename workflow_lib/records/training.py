"""How a cell trains: its options, and the precisions that follow from them.

The annotation of each field is its axis: see :mod:`workflow_lib.records.axes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from workflow_lib.records import axes
from workflow_lib.records.axes import Axis, beside, flag, in_runs
from workflow_lib.records.degrees import Degrees

Precision = Literal["bf16", "fp32", "fp8"]
Recomputation = Literal["none", "selective", "full"]
Backend = Literal["deepspeed", "torch", "own"]
Workload = Literal["pretrain", "lora", "inference"]
Routing = Literal["dropless", "balanced"]
Float8Recipe = Literal["rowwise", "tensorwise", "rowwise_with_gw_hp"]


#: the trainer of this repository
NATIVE = "native"


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a cell trains, and for how many steps. The words in its name are in this order."""

    # fmt: off
    micro_batch_size: Annotated[int, Axis(
        "sequences that a data-parallel replica sends through the model at once", "option",
        label="micro-batch", word="mb{}".format, varied_by=("microbatch", "pipeline-ranks"))]
    global_batch_size: Annotated[int, Axis(
        "sequences per optimiser step, over all replicas", "work", label="batch",
        word="gb{}".format)]
    #: fp8: as bf16, but for the matrix products of the decoder's layers
    precision: Annotated[Precision, Axis("bf16, fp32 or fp8", "work", says_itself=True, word=str)]
    zero_stage: Annotated[int, Axis("ZeRO stage", "option", label="ZeRO", word="zero{}".format)]
    #: false if tp is 1
    sequence_parallel: Annotated[bool, Axis(
        "sequence cut between the tensor-parallel parts", "option", word=flag("sp"))] = False
    recomputation: Annotated[Recomputation, Axis(
        "none, selective or full", "option",
        word={"none": "", "selective": "selective", "full": "recompute"}.__getitem__,
        varied_by=("optimisation", "recomputation"))]
    #: gradient reduction, parameter gathering, tensor-parallel communication and the pipeline's
    #: sends
    overlap: Annotated[bool, Axis(
        "communication overlapped with compute", "option", word=flag("overlap"),
        varied_by=("optimisation",))]
    #: dropless: each expert takes all tokens that the router sends it; balanced: each takes equally
    #: many rows, padded if it has fewer tokens, and drops the rest
    routing: Annotated[Routing | None, Axis(
        "dropless or balanced; null in a dense model", "work",
        word=lambda routing: "balanced" if routing == "balanced" else "")] = None
    balancing_loss: Annotated[float, Axis(
        "coefficient of the router's load-balancing loss; 0 without", "work",
        word=flag("auxloss"))] = 0.0
    workload: Annotated[Workload, Axis(
        "pretrain, lora or inference", "work", says_itself=True)] = "pretrain"
    lora_rank: Annotated[int, Axis(
        "rank of the low-rank adapters; 0 unless the workload is lora", "work", label="LoRA rank",
        only_with=("workload", "lora"), word=beside("lora"))] = 0
    #: the prompt is the rest of the model's sequence_length
    generated_tokens: Annotated[int, Axis(
        "tokens that each sequence generates after its prompt; 0 unless the workload is inference",
        "work", only_with=("workload", "inference"), word=beside("generate"))] = 0
    compile: Annotated[bool, Axis(
        "layers compiled by torch.compile", "option", word=flag("compiled"))] = False
    backend: Annotated[Backend, Axis(
        "what trains, or generates: deepspeed or torch; own where another trainer does", "option",
        says_itself=True, word=lambda backend: "torch" if backend == "torch" else "",
        detail_of="trainer")] = "deepspeed"
    learning_rate: Annotated[float, Axis("of AdamW", "work", label="lr")]
    seed: Annotated[int, Axis("of the initial weights and the order of the data", "work")]
    warmup_steps: Annotated[int, Axis("steps before measuring starts", "protocol")]
    measured_steps: Annotated[int, Axis("steps to measure", "protocol")]
    weight_decay: Annotated[float, Axis(
        "AdamW's; a step applies it times the learning rate", "work", since=4)] = 0.01
    power_limits_w: Annotated[tuple[int, ...], Axis(
        "power limit that the job sets on each GPU of a node, by its index; null where it sets "
        "none", "option", "W", label="power limits", word=in_runs(behind="w"), since=8)] = ()
    clock_limits_mhz: Annotated[tuple[int, ...], Axis(
        "upper limit to which the job locks the SM clock of each GPU of a node, by its index; "
        "null where it locks none", "option", "MHz", label="clock limits",
        word=in_runs(behind="mhz"), since=8)] = ()
    cuda_graphs: Annotated[bool, Axis(
        "each generated token replays a captured CUDA graph", "option", label="CUDA graphs",
        only_with=("workload", "inference"), word=flag("graphs"), since=9)] = False
    fp8_recipe: Annotated[Float8Recipe, Axis(
        "torchao's name for what shares a scale in fp8: rowwise, tensorwise or rowwise_with_gw_hp",
        "option", says_itself=True, only_with=("precision", "fp8"),
        word=lambda recipe: "" if recipe == "rowwise" else recipe.replace("_", ""),
        since=12)] = "rowwise"

    trainer: Annotated[str, Axis(
        "the program that trains: native, or the name of config/trainers/<trainer>.yaml", "option",
        says_itself=True, word=lambda trainer: "" if trainer == "native" else trainer,
        since=11)] = NATIVE
    trainer_definition: Annotated[str | None, Axis(
        "eight digits of a SHA-256 over what that file says, and over the files that it lists; "
        "null where the trainer is native", "option", detail_of="trainer", since=11)] = None
    trainer_command: Annotated[tuple[str, ...], Axis(
        "the command of each rank; null where the trainer is native", "analysis", since=11)] = ()
    trainer_steps: Annotated[str, Axis(
        "how steps are seen: hook or calls", "analysis", since=11)] = "hook"
    trainer_differs: Annotated[str | None, Axis(
        "what differs from native, as its file says", "analysis", since=11)] = None
    trainer_files: Annotated[tuple[str, ...], Axis(
        "its files, each with eight digits of its SHA-256", "analysis", since=11)] = ()
    # fmt: on

    @property
    def held_precision(self) -> Precision:
        """Precision of activations, and of the weights that layers compute with. Operands in fp8
        are cast from these."""
        return "bf16" if self.precision == "fp8" else self.precision

    @property
    def gathers_float8(self) -> bool:
        """Whether weights of layers are cast to fp8 before replicas gather them: each can, once all
        know the one scale of a matrix."""
        return self.precision == "fp8" and self.fp8_recipe == "tensorwise"

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


#: precision of gradient sums, of their reduction, and of the optimiser, in every cell
SUMS: Precision = "fp32"


@dataclass(frozen=True)
class Precisions:
    """The names of precisions, such as "bf16" or "fp32"; null if a cell has no such tensors."""

    #: weights that layers compute with, activations, and gradients of a micro-batch
    weights: str | None
    #: gradients summed over micro-batches, as the optimiser gets them
    gradients: str | None = None
    #: reduction of gradients over replicas
    reduction: str | None = None
    #: gathering of weights over replicas
    gathering: str | None = None
    #: weights that the optimiser updates
    master_weights: str | None = None
    #: both moments of Adam
    moments: str | None = None
    #: operands of the matrix products in decoder layers; null if they have that of weights
    products: str | None = None


def precisions_of(training: Training, degrees: Degrees) -> Precisions:
    """The precisions of a cell; both backends use the same. With one replica nothing is reduced or
    gathered, and ZeRO-0 gathers nothing."""
    if training.workload == "inference":
        return Precisions(training.held_precision)
    replicated = degrees.copies > 1
    gathered = "bf16 and fp8" if training.gathers_float8 else training.held_precision
    return Precisions(
        weights=training.held_precision,
        gradients=SUMS,
        reduction=SUMS if replicated else None,
        gathering=gathered if replicated and training.zero_stage > 0 else None,
        master_weights=SUMS,
        moments=SUMS,
        products="fp8" if training.precision == "fp8" else None,
    )
