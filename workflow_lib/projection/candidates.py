"""Layouts with which this workflow could train a model on a given number of GPUs."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workflow_lib.memory import Fit, MemoryEstimate, estimate
from workflow_lib.projection.layouts import Layout, own_layout
from workflow_lib.projection.machines import Machine
from workflow_lib.records import cell_axes
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.model import Model
from workflow_lib.records.training import Training
from workflow_lib.trainers import capabilities

#: values that are tried, besides every TP within a node that divides the model
_PIPELINES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
_CHUNKS = (1, 2, 4, 5, 8)
_MICRO_BATCHES = (1, 2, 4)
_RECOMPUTATIONS = ("none", "selective", "full")
#: ZeRO's stages with replicas. Stage 0 takes the time of stage 1 and more memory.
_SHARDINGS = (1, 2, 3)
#: of a cell's parts, those that are searched
_PARTS = ("degrees", "training")
_TENSOR, _EXPERT = (1, 2, 4, 8, 16), (1, 2, 4, 8)
#: tokens of a batch if none is given (arXiv 2407.21783, section 3.4.1, has 4 to 16 Mi)
BATCH_TOKENS = 4 * 2**20


@dataclass(frozen=True)
class Candidate:
    """A layout of a model."""

    model: Model
    degrees: Degrees
    training: Training
    layout: Layout

    @functools.cached_property
    def memory(self) -> MemoryEstimate:
        """The memory that its fullest GPU needs."""
        return estimate(self.model, self.degrees, self.training)

    @functools.cached_property
    def row(self) -> dict[str, object]:
        """What tables of cells hold of the layout and its options."""
        of_parts = (axis for axis in cell_axes.AXES.values() if axis.part in _PARTS)
        return {"platform": "", "model": "", **{axis.name: axis.of(self) for axis in of_parts}}

    @property
    def fits(self) -> Fit:
        """Whether the layout fits into memory, by the rule of plans."""
        return self.memory.fits(self.layout.machine.memory_bytes)


def batch(model: Model, gpus: int, wanted: int | None = None) -> int:
    """The sequences of a step: those wanted, else as many as make BATCH_TOKENS tokens, but at least
    one for each GPU."""
    return wanted or max(BATCH_TOKENS // model.sequence_length, gpus)


def considered(model: Model) -> str:
    """Which layouts are tried, in words, and which are not."""
    experts = f"EP {_listed(_EXPERT)}, " if model.experts else ""
    return (
        f"TP {_listed(_TENSOR)} within a node, PP {_listed(_PIPELINES)}, virtual stages "
        f"{_listed(_CHUNKS)}, {experts}DP by the rest, ZeRO-{_listed(_SHARDINGS)}, micro-batches "
        f"of {_listed(_MICRO_BATCHES)}, recomputation {_listed(_RECOMPUTATIONS)}; all in bf16 by "
        "the torch backend, with overlap, if it can run them. Not ZeRO-0, context parallelism, "
        "zero-bubble schedules, fp8 or DeepSpeed"
    )


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))


def candidates(model: Model, machine: Machine, gpus: int, global_batch: int) -> Iterator[Candidate]:
    """Every layout of :func:`considered` that the torch backend can run, compiled, whether or not
    it fits into memory."""
    for degrees in _degrees(model, machine, gpus):
        for training in _trainings(degrees, global_batch, model):
            if capabilities.refusal(degrees, training, model) is None:
                layout = own_layout(model, degrees, training, machine)
                yield Candidate(model, degrees, training, layout)


def _degrees(model: Model, machine: Machine, gpus: int) -> Iterator[Degrees]:
    nodes = -(-gpus // machine.gpus_per_node)
    if gpus % nodes:
        return  # a job has as many ranks on each node
    for tp in _TENSOR:
        if gpus // nodes % tp or model.kv_heads % tp:
            continue
        for pp in _PIPELINES:
            if (gpus // tp) % pp or model.layers % pp:
                continue
            dp = gpus // (tp * pp)
            for chunks in _CHUNKS if pp > 1 else (1,):
                if model.layers % (pp * chunks):
                    continue
                for ep in _EXPERT if model.experts else (1,):
                    if dp % ep == 0 and max(model.experts, 1) % ep == 0:
                        yield Degrees(tp=tp, pp=pp, virtual_stages=chunks, dp=dp, ep=ep)


def _shardings(degrees: Degrees, micro_batches: int) -> Iterator[int]:
    """ZeRO's stages that differ: all are one without replicas, and stage 2 is stage 1 with a single
    micro-batch."""
    for stage in _SHARDINGS if degrees.dp > 1 else _SHARDINGS[:1]:
        if stage != 2 or micro_batches > 1:
            yield stage


def _trainings(degrees: Degrees, global_batch: int, model: Model) -> Iterator[Training]:
    for micro_batch in _MICRO_BATCHES:
        if global_batch % (degrees.dp * micro_batch):
            continue
        for stage in _shardings(degrees, global_batch // (degrees.dp * micro_batch)):
            for recomputation in _RECOMPUTATIONS:
                yield Training(
                    micro_batch_size=micro_batch,
                    global_batch_size=global_batch,
                    precision="bf16",
                    zero_stage=stage,
                    sequence_parallel=degrees.tp > 1,
                    recomputation=recomputation,  # type: ignore[arg-type]
                    overlap=degrees.dp > 1,
                    routing="dropless" if model.experts else None,
                    compile=True,
                    backend="torch",
                    learning_rate=1e-4,
                    seed=1,
                    warmup_steps=5,
                    measured_steps=20,
                )
