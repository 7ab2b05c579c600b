"""How a model is spread over GPUs, with everything that the time of a step depends on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from workflow_lib.projection.machines import Machine, machine_names, published_machine
from workflow_lib.projection.published import PublishedRun
from workflow_lib.projection.shapes import Shape
from workflow_lib.records import Degrees, Model, Training

#: chunks per pipeline rank of a published run, if neither it nor another row of the model states
#: them
_CHUNKS_WHERE_NOBODY_SAYS = 1
_GRADIENT_BYTES = 4
#: In steps, in 4 bytes: converted, largest, subtracted, exponential, summed, divided; backward
#: multiplied and converted (Megatron-LM, core/tensor_parallel/cross_entropy.py).
_UNFUSED_LOSS_BYTES = 6 + 4 + 8 + 8 + 4 + 8 + 8 + 6
#: Compiled, as here: the logits are read for their largest and for the sum; backward they are read
#: and their gradient written, all in 2 bytes.
_COMPILED_LOSS_BYTES = 2 + 2 + 2 + 2
#: kinds of recomputation that the model of a step supports
RECOMPUTATIONS = ("none", "selective", "full")
#: What evaluation adds to the time of training in MLPerf's GPT-3: 11 590 004 tokens after every
#: 50 331 648 (eval_samples and epoch_num in the logs of round 3.0), forward alone.
_EVALUATION = 11_590_004 / 50_331_648 / 3


@dataclass(frozen=True)
class Layout:
    """A model, its workload and its degrees, on a machine."""

    machine: Machine
    shape: Shape
    #: layers that run: a twin has fewer than the shape
    layers: int
    sequence_length: int
    micro_batch: int
    #: micro-batches of a step and replica
    micro_batches: float
    tp: int
    pp: int
    dp: int
    cp: int = 1
    virtual_stages: int = 1
    #: layers of each stage, first to last; empty where they are spread evenly
    stage_layers: tuple[int, ...] = ()
    ep: int = 1
    #: ZeRO's stage; stage 2 scatters gradients in every pass, and stage 3 gathers weights, too
    sharding: int = 1
    #: none, selective or full
    recomputation: str = "none"
    precision: str = "BF16"
    #: whether communication runs beside computation if the stack can do that
    overlap: bool = True
    sequence_parallel: bool = True
    #: bytes of a gradient that replicas exchange
    gradient_bytes: int = _GRADIENT_BYTES
    #: bytes that the loss reads and writes for each entry of the logits
    loss_bytes: int = _UNFUSED_LOSS_BYTES
    #: whether torch.compile fuses the layers of this workflow's stack
    compiled: bool = True
    #: what evaluation adds to the time of passes, if the time of a step includes it
    evaluation: float = 0.0

    @property
    def gpus(self) -> int:
        """The number of GPUs, one for each rank."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def tokens(self) -> float:
        """Tokens of a step."""
        return self.dp * self.micro_batches * self.micro_batch * self.sequence_length

    @property
    def bubble(self) -> float:
        """Passes of the pipeline in a step, in micro-batches: m + (p − 1)/v (arXiv 2104.04473,
        sections 2.2.1 and 2.2.2).
        """
        return self.micro_batches + (self.pp - 1) / self.virtual_stages

    @property
    def ideal_s(self) -> float:
        """Seconds of a step's model FLOPs at the GPUs' peak, with the pipeline's bubble."""
        shape = self.shape
        products = 6.0 * (self.layers * shape.layer_active_parameters + shape.end_parameters)
        # Scores and weighted sums of half the matrix, in the forward and backward pass.
        attended = 6.0 * self.layers * self.sequence_length * shape.heads * shape.head_size
        rate = self.gpus * self.machine.peak(self.precision)
        idle = self.bubble / self.micro_batches
        return self.tokens * (products + attended) / rate * idle

    @property
    def layers_of_ranks(self) -> tuple[int, ...]:
        """The number of layers on each pipeline rank."""
        degrees = Degrees(
            pp=self.pp, virtual_stages=self.virtual_stages, stage_layers=self.stage_layers
        )
        spread = degrees.layers_of_stages(self.layers)
        return tuple(sum(spread[rank :: self.pp]) for rank in range(self.pp))


def assumed_chunks(rows: Iterable[PublishedRun]) -> Mapping[tuple[str, int | None], int]:
    """(model, PP) → the number of chunks per pipeline rank that most rows state, for rows that do
    not."""
    stated: dict[tuple[str, int | None], Counter[int]] = {}
    for row in rows:
        if row.virtual_stages:
            stated.setdefault((row.model, row.pp), Counter())[row.virtual_stages] += 1
    return {key: counts.most_common(1)[0][0] for key, counts in stated.items()}


def published_layout(
    row: PublishedRun, chunks: Mapping[tuple[str, int | None], int]
) -> Layout | str:
    """A published run's layout, or why there is none if the row does not state enough.

    Tensor parallelism is taken to include sequence parallelism, as in Megatron's runs. If the
    chunks per rank are not stated, those of ``chunks`` are taken.
    """
    machine = published_machine(row.gpu, row.gpus_per_node)
    if row.shape is None or row.layers is None:
        return "the model's dimensions are not known"
    if not 1 <= row.layers <= row.shape.layers:
        return f"its notes say {row.layers} layers, and the model has {row.shape.layers}"
    if row.model.endswith("LoRA"):
        return "it trained adapters: its other weights have no gradients and no optimiser"
    if machine is None:
        known = ", ".join(machine_names())
        return f"its GPU is {row.gpu or 'not stated'}: peaks are known of {known}"
    if row.precision not in dict(machine.peak_flops_per_s):
        return (
            f"no peak of {row.gpu} in {row.precision or 'a precision that is not stated'} is known"
        )
    if row.tp is None or row.pp is None or row.dp is None:
        return "its layout is not stated"
    if row.gpus % (row.tp * row.cp * row.pp):
        return f"tp × cp × pp = {row.tp * row.cp * row.pp} does not divide its {row.gpus} GPUs"
    if row.sequence_length is None:
        return "its sequence length is not stated"
    if row.micro_batch is None or row.micro_batches is None:
        return "its micro-batch is not stated"
    virtual = row.virtual_stages or chunks.get((row.model, row.pp), _CHUNKS_WHERE_NOBODY_SAYS)
    recomputation = row.recomputation.partition(" ")[0].lower() or "none"
    if recomputation not in RECOMPUTATIONS:
        return f"its recomputation is {row.recomputation!r}, none of {', '.join(RECOMPUTATIONS)}"
    if row.micro_batches < 1:
        return f"its {row.dp} replicas have {row.micro_batches:.2g} micro-batches each"
    if row.layers < max(row.pp, virtual):
        return f"{row.layers} layers on {row.pp} pipeline ranks of {virtual} chunks"
    return Layout(
        machine=machine,
        shape=row.shape,
        layers=row.layers,
        sequence_length=row.sequence_length,
        micro_batch=row.micro_batch,
        micro_batches=row.micro_batches,
        tp=row.tp,
        pp=row.pp,
        dp=row.dp,
        cp=row.cp,
        virtual_stages=virtual if row.pp > 1 else 1,
        ep=row.ep or 1,
        sharding=_stage(row.sharding),
        recomputation=recomputation,
        precision=row.precision,
        gradient_bytes=row.configuration.gradient_bytes or _GRADIENT_BYTES,
        evaluation=_EVALUATION if row.includes_evaluation else 0.0,
    )


def own_layout(model: Model, degrees: Degrees, training: Training, machine: Machine) -> Layout:
    """The layout of a cell of this workflow."""
    return Layout(
        machine=machine,
        shape=Shape.of(model),
        layers=model.layers,
        sequence_length=model.sequence_length,
        micro_batch=training.micro_batch_size,
        micro_batches=training.micro_batches(degrees.dp),
        tp=degrees.tp,
        pp=degrees.pp,
        dp=degrees.dp,
        cp=degrees.cp,
        virtual_stages=degrees.virtual_stages,
        stage_layers=degrees.stage_layers,
        ep=degrees.ep,
        sharding=training.zero_stage,
        recomputation=training.recomputation,
        precision=training.precision.upper(),
        overlap=training.overlap,
        sequence_parallel=training.sequence_parallel,
        loss_bytes=_COMPILED_LOSS_BYTES if training.compile else _UNFUSED_LOSS_BYTES,
        compiled=training.compile,
    )


def _stage(sharding: str) -> int:
    """ZeRO's stage by a source's name for it; a distributed optimiser is stage 1."""
    if "ZeRO-2" in sharding or "no reshard" in sharding:
        return 2
    return 3 if "FSDP" in sharding or "ZeRO-3" in sharding else 1
