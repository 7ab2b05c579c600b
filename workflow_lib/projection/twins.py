"""Twins: models with fewer layers of full width on fewer GPUs, whose step time gives the whole
model's.

A twin keeps width, TP, EP, micro-batch, the number of micro-batches, virtual stages and layers per
stage, and reduces PP. Then the first, the last and the other stages do the same work as in the
whole model. The step differs by the passes that are added up in their order
(:mod:`workflow_lib.schedules`). Where a stage of layers takes a, and the head h besides, that is
``(m·(a + h) + (P − 1)/v·a) / (m·(a + h) + (p − 1)/v·a)``: all micro-batches wait for the head, and
the bubble has none of it. In published runs of Grok-1 and Llama 3.1 405B that kept these, this is
off by 1.6 % on average, mostly because the whole models had more replicas. A comparison that breaks
the rule is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from workflow_lib import formulas, schedules
from workflow_lib.records.cell_axes import AXES
from workflow_lib.records.degrees import DEGREES, Degrees
from workflow_lib.records.model import Model
from workflow_lib.records.reading import RecordError
from workflow_lib.records.training import Training
from workflow_lib.words import counted

#: fields that must be equal in both, and their names in messages
_OF_MODELS = (
    ("family", "family"),
    ("hidden_size", "width"),
    ("ffn_hidden_size", "width of the feed-forward part"),
    ("attention_heads", "attention heads"),
    ("kv_heads", "key and value heads"),
    ("head_size", "width of a head"),
    ("has_tied_embeddings", "tied embeddings"),
    ("qkv_bias", "biases of queries, keys and values"),
    ("qk_norm", "norms of queries and keys"),
    ("activation", "activation"),
    ("sequence_length", "sequence length"),
    ("padded_vocabulary_size", "vocabulary"),
    ("experts", "experts"),
    ("experts_per_token", "experts a token"),
)
#: a twin has fewer stages and replicas than the whole
_OF_DEGREES = tuple(
    (name, AXES[name].field.axis.label or name.replace("_", " "))
    for name in DEGREES
    if name not in ("pp", "dp")
)
_OF_TRAININGS = (
    ("micro_batch_size", "micro-batch"),
    ("precision", "precision"),
    ("zero_stage", "ZeRO"),
    ("sequence_parallel", "sequence parallelism"),
    ("recomputation", "recomputation"),
    ("overlap", "overlap"),
    ("routing", "routing"),
    ("compile", "compilation"),
    ("workload", "workload"),
    ("lora_rank", "rank of adapters"),
    ("generated_tokens", "generated tokens"),
    ("fp8_recipe", "recipe of fp8"),
    ("backend", "backend"),
    ("trainer", "trainer"),
)


@dataclass(frozen=True)
class Side:
    """A twin, or the whole model."""

    model: Model
    degrees: Degrees
    training: Training
    #: the model of GPU that it is to run on; "" if that was not asked
    gpu: str = ""

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step and replica."""
        return self.training.micro_batches(self.degrees.dp)

    @property
    def step(self) -> float:
        """How long a step takes, in the FLOPs of a token that its longest way through the pipeline
        has. Communication, and what a step does besides its passes, take no time."""
        of, work = self.degrees, formulas.stage_work(self.model, self.training)
        stages = np.array(of.layers_of_stages(self.model.layers)) * work.layer
        stages[0] += work.embedding
        stages[-1] += work.head
        held = [list(of.stages_of(rank)) for rank in range(of.pp)]
        ranks = np.array([stages[mine].sum() for mine in held])
        if self.training.workload == "inference":
            # Forward passes alone: one micro-batch after the other through the slowest rank.
            return float(ranks.sum() + (self.micro_batches - 1) * ranks.max())
        for rank, mine in zip(ranks, held, strict=True):
            stages[mine] /= rank
        forward = schedules.forward_share(self.training)
        return float(schedules.step(of, self.micro_batches, ranks, stages.tolist(), forward))


def refusals(twin: Side, whole: Side) -> Iterator[str]:
    """Why a twin does not represent the whole model, with both values; nothing if it does."""
    for fields, a, b in (
        (_OF_MODELS, twin.model, whole.model),
        (_OF_DEGREES, twin.degrees, whole.degrees),
        (_OF_TRAININGS, twin.training, whole.training),
    ):
        for field, name in fields:
            yield from _other(name, getattr(a, field), getattr(b, field))
    yield from _other("GPU", twin.gpu, whole.gpu)
    yield from _other("limits of GPUs", _limits(twin), _limits(whole))
    yield from _other("number of micro-batches", twin.micro_batches, whole.micro_batches)
    yield from _other("layers of the stages", _stages(twin), _stages(whole))
    if twin.degrees.pp > whole.degrees.pp:
        yield f"PP {twin.degrees.pp} of the twin is more than the whole's {whole.degrees.pp}"
    for side, name in ((twin, "twin"), (whole, "whole")):
        if not _in_rounds(side.degrees, side.degrees.pp, side.micro_batches):
            yield (
                f"{side.micro_batches} micro-batches on PP {side.degrees.pp} of the {name}: its "
                "schedule needs whole rounds of PP micro-batches"
            )


def _in_rounds(of: Degrees, pp: int, micro_batches: int) -> bool:
    """Whether a schedule that needs whole rounds of PP micro-batches would have them with PP."""
    in_any = of.schedule == "zero-bubble-v" or (of.schedule == "1f1b" and of.virtual_stages == 1)
    return in_any or micro_batches % pp == 0


def _other(name: str, of_twin: object, of_whole: object) -> Iterator[str]:
    if of_twin != of_whole:
        yield f"{name}: {of_twin} in the twin, {of_whole} in the whole"


def _limits(side: Side) -> list[list[int]]:
    """The distinct limits of power and of clocks that a cell sets on its GPUs."""
    of = side.training
    return [sorted(set(of.power_limits_w)), sorted(set(of.clock_limits_mhz))]


def _stages(side: Side) -> tuple[int, ...]:
    """The distinct numbers of layers of its stages."""
    return tuple(sorted(set(side.degrees.layers_of_stages(side.model.layers))))


def whole_over_twin(twin: Side, whole: Side) -> float:
    """The factor by which the whole model's step is longer than the twin's.

    Raises RecordError with every reason if the rule is broken.
    """
    if reasons := list(refusals(twin, whole)):
        raise RecordError(
            f"{twin.model.name} is not a twin of {whole.model.name}: {'; '.join(reasons)}"
        )
    return whole.step / twin.step


def twin_of(whole: Side, gpus: int) -> Side:
    """The largest twin on at most so many GPUs: PP is reduced, and replicas to one, or to EP of
    them.

    Raises RecordError if no PP leaves whole stages on so few GPUs.
    """
    of = whole.degrees
    replicas = of.ep
    least = of.expert_span
    if of.schedule != "1f1b":
        raise RecordError(
            f"{whole.model.name} on {of.name}: the idle time of its schedule was not measured; "
            "twins exist only for 1F1B"
        )
    stages = of.layers_of_stages(whole.model.layers)
    if len(set(stages)) > 1:
        raise RecordError(
            f"{whole.model.name} on {of.name}: its stages have {sorted(set(stages))} layers; "
            "a twin needs equally many in each"
        )
    fewest = 2 if of.virtual_stages > 1 else 1
    can_run = [pp for pp in range(fewest, of.pp + 1) if _in_rounds(of, pp, whole.micro_batches)]
    pp = max((pp for pp in can_run if pp * least <= gpus), default=None)
    if pp is None:
        needed = least * min(can_run, default=of.pp)
        raise RecordError(
            f"{whole.model.name} on {of.name}: its twin needs {counted(needed, 'GPU')}, not {gpus}"
        )
    degrees = dataclasses.replace(of, pp=pp, dp=replicas)
    sequences = whole.training.micro_batch_size * whole.micro_batches * replicas
    layers = stages[0] * degrees.stages
    return Side(
        dataclasses.replace(whole.model, name=f"{whole.model.name}-{layers}-layers", layers=layers),
        degrees,
        dataclasses.replace(whole.training, global_batch_size=sequences),
        whole.gpu,
    )


def describe(twin: Side, whole: Side) -> str:
    """A twin as files of the configuration: its model, and an entry of a sweep's matrix."""
    model, degrees = twin.model, twin.degrees
    given = ", ".join(f"{name}: {getattr(degrees, name)}" for name in DEGREES)
    lines = [
        f"# config/models/{model.name}.yaml: {whole.model.name}'s file with this instead:",
        f"layers: {model.layers}",
        "# an entry of a sweep's matrix:",
        f"- {{models: {model.name}, gpus: {degrees.world_size}, {given}, "
        f"global_batch_size: {twin.training.global_batch_size}}}",
        f"# its step time multiplied by {whole_over_twin(twin, whole):.4f} is that of "
        f"{whole.model.name} on {whole.degrees.name}: the passes of {whole.micro_batches} "
        f"micro-batches through {whole.degrees.pp} ranks, with embedding and head, over those "
        f"through {degrees.pp}",
        f"# not in it: what {whole.degrees.dp} replicas exchange, and what a larger fabric costs",
    ]
    return "\n".join(lines)
