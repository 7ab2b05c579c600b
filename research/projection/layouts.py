"""The layouts of published runs, whether they can be used, and whether they fit in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import mode

from research.grouping import grouped
from research.plain import PLAIN
from research.projection.published import PublishedRun
from research.projection.reading import Unusable
from workflow_lib import memory
from workflow_lib.projection.layouts import GRADIENT_BYTES, RECOMPUTATIONS, Layout
from workflow_lib.projection.machines import machine_names, published_machine
from workflow_lib.records.model import Model

#: chunks per pipeline rank of a published run, if neither it nor another row of the model states
#: them
_CHUNKS_WHERE_NOBODY_SAYS = 1
#: (model, PP) → the number of chunks per pipeline rank
Chunks = Mapping[tuple[str, int | None], int]
#: What evaluation adds to the time of training in MLPerf's GPT-3: 11 590 004 tokens after every
#: 50 331 648 (eval_samples and epoch_num in the logs of round 3.0), forward alone.
_EVALUATION = 11_590_004 / 50_331_648 / 3
#: the least share of the peak that a run is believed to have reached
_LEAST_SHARE = 0.01


def assumed_chunks(rows: Iterable[PublishedRun]) -> Chunks:
    """The number of chunks that most rows state, for rows that do not."""
    stated = grouped((row for row in rows if row.virtual_stages), lambda row: (row.model, row.pp))
    return {key: mode(row.virtual_stages or 0 for row in of) for key, of in stated.items()}


def published_layout(row: PublishedRun, chunks: Chunks) -> Layout | str:
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
        gradient_bytes=row.configuration.gradient_bytes or GRADIENT_BYTES,
        evaluation=_EVALUATION if row.includes_evaluation else 0.0,
    )


def _stage(sharding: str) -> int:
    """ZeRO's stage by a source's name for it; a distributed optimiser is stage 1."""
    if "ZeRO-2" in sharding or "no reshard" in sharding:
        return 2
    return 3 if "FSDP" in sharding or "ZeRO-3" in sharding else 1


def usable(
    runs: Sequence[PublishedRun], chunks: Chunks
) -> tuple[dict[int, Layout], list[Unusable]]:
    """The layouts by the runs' lines, and the runs without a layout with the reason."""
    layouts, unusable = {}, []
    for run in runs:
        layout = published_layout(run, chunks)
        reason = layout if isinstance(layout, str) else _impossible(run, layout)
        if isinstance(layout, str) or reason:
            unusable.append(Unusable(run.line, str(reason)))
        else:
            layouts[run.line] = layout
    return layouts, unusable


def _impossible(run: PublishedRun, layout: Layout) -> str | None:
    """Why a run's time cannot be right, if its GPUs would have done more or far less work."""
    if run.step_time_s is None or _LEAST_SHARE <= layout.ideal_s / run.step_time_s <= 1:
        return None
    share = layout.ideal_s / run.step_time_s
    return (
        f"its step of {run.step_time_s:.4g} s would be {share:.3g} of its GPUs' peak, expected "
        f"{_LEAST_SHARE} to 1: is its time in seconds, and are its batch and model right?"
    )


def fits(layout: Layout) -> memory.Fit:
    """Whether a layout is predicted to run, by the rule of plans.

    Context-parallel ranks are counted as replicas with a shorter sequence: they hold the same
    weights and their part of the activations. FP8 is counted as bf16, because its master weights
    are kept.
    """
    shape = layout.shape
    family = "mixtral" if shape.experts else "llama" if shape.gated else "gpt"
    model = Model(
        name=shape.name,
        family=family,  # type: ignore[arg-type]
        layers=layout.layers,
        hidden_size=shape.hidden,
        ffn_hidden_size=shape.ffn,
        attention_heads=shape.heads,
        kv_heads=shape.kv_heads,
        sequence_length=layout.sequence_length // layout.cp,
        vocabulary_size=shape.vocabulary,
        experts=shape.experts,
        experts_per_token=shape.experts_per_token,
        tied_embeddings=shape.tied and family != "gpt",
        head_dimension=shape.head_size,
    )
    replicas = layout.dp * layout.cp
    experts_over = layout.ep if replicas % layout.ep == 0 else 1
    degrees = replace(layout, cp=1, dp=replicas, ep=experts_over)
    training = replace(
        PLAIN,
        micro_batch_size=layout.micro_batch,
        global_batch_size=round(layout.micro_batches) * replicas * layout.micro_batch,
        zero_stage=layout.sharding,
        sequence_parallel=layout.tp > 1 and layout.sequence_parallel,
        recomputation=layout.recomputation,  # type: ignore[arg-type]
        overlap=True,
        routing="dropless" if shape.experts else None,
    )
    return memory.estimate(model, degrees, training).fits(layout.machine.memory_bytes)
