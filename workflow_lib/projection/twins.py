"""Twins: models with fewer layers of full width on fewer GPUs, whose step time gives the whole
model's.

A twin keeps width, TP, EP, micro-batch, the number of micro-batches, virtual stages and layers per
stage, and reduces PP. Then each pipeline rank does the same work as in the whole model, and the
step differs only by the bubble: ``(m + (P − 1)/v) / (m + (p − 1)/v)``. In published runs of Grok-1
and Llama 3.1 405B that kept these, this is right to about 1 %. A comparison that breaks the rule is
refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from workflow_lib.records import Degrees, Model, RecordError, Training

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
_OF_DEGREES = (
    ("tp", "TP"),
    ("cp", "CP"),
    ("ep", "EP"),
    ("virtual_stages", "virtual stages"),
    ("schedule", "schedule"),
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
)


@dataclass(frozen=True)
class Side:
    """A twin, or the whole model."""

    model: Model
    degrees: Degrees
    training: Training

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step and replica."""
        return self.training.micro_batches(self.degrees.dp)

    @property
    def bubble(self) -> float:
        """Passes of the pipeline in a step: m + (p − 1)/v."""
        return self.micro_batches + (self.degrees.pp - 1) / self.degrees.virtual_stages


def refusals(twin: Side, whole: Side) -> Iterator[str]:
    """Why a twin does not represent the whole model, with both values; nothing if it does."""
    for fields, a, b in (
        (_OF_MODELS, twin.model, whole.model),
        (_OF_DEGREES, twin.degrees, whole.degrees),
        (_OF_TRAININGS, twin.training, whole.training),
    ):
        for field, name in fields:
            yield from _other(name, getattr(a, field), getattr(b, field))
    yield from _other("number of micro-batches", twin.micro_batches, whole.micro_batches)
    yield from _other("layers of the stages", _stages(twin), _stages(whole))
    if twin.degrees.pp > whole.degrees.pp:
        yield f"PP {twin.degrees.pp} of the twin is more than the whole's {whole.degrees.pp}"


def _other(name: str, of_twin: object, of_whole: object) -> Iterator[str]:
    if of_twin != of_whole:
        yield f"{name}: {of_twin} in the twin, {of_whole} in the whole"


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
    return whole.bubble / twin.bubble


def twin_of(whole: Side, gpus: int) -> Side:
    """The largest twin on at most so many GPUs: PP is reduced, and replicas to one, or to EP of
    them.

    Raises RecordError if no PP leaves whole stages on so few GPUs.
    """
    of = whole.degrees
    replicas = of.ep
    least = of.tp * of.cp * replicas
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
    pp = min(gpus // least, of.pp)
    if of.virtual_stages > 1 and pp == 1:
        pp = 0
    if pp < 1:
        needed = least * (2 if of.virtual_stages > 1 else 1)
        raise RecordError(
            f"{whole.model.name} on {of.name}: its twin needs {needed} GPUs, not {gpus}"
        )
    degrees = dataclasses.replace(of, pp=pp, dp=replicas)
    sequences = whole.training.micro_batch_size * whole.micro_batches * replicas
    layers = stages[0] * degrees.stages
    return Side(
        dataclasses.replace(whole.model, name=f"{whole.model.name}-{layers}-layers", layers=layers),
        degrees,
        dataclasses.replace(whole.training, global_batch_size=sequences),
    )


def describe(twin: Side, whole: Side) -> str:
    """A twin as files of the configuration: its model, and an entry of a sweep's matrix."""
    model, degrees = twin.model, twin.degrees
    lines = [
        f"# config/models/{model.name}.yaml: {whole.model.name}'s file with this instead:",
        f"layers: {model.layers}",
        "# an entry of a sweep's matrix:",
        f"- {{models: {model.name}, gpus: {degrees.world_size}, tp: {degrees.tp}, "
        + (f"cp: {degrees.cp}, " if degrees.cp > 1 else "")
        + f"pp: {degrees.pp}, dp: {degrees.dp}, ep: {degrees.ep}, "
        f"virtual_stages: {degrees.virtual_stages}, "
        f"global_batch_size: {twin.training.global_batch_size}}}",
        f"# its step time multiplied by {whole_over_twin(twin, whole):.4f} is that of "
        f"{whole.model.name} on {whole.degrees.name}: "
        f"({whole.micro_batches} + {whole.degrees.pp - 1}/"
        f"{whole.degrees.virtual_stages}) / ({twin.micro_batches} + {degrees.pp - 1}/"
        f"{degrees.virtual_stages}) passes",
        f"# not in it: what {whole.degrees.dp} replicas exchange, and what a larger fabric costs",
    ]
    return "\n".join(lines)
