"""The layout of a cell: its parallelism degrees, which rank and layer lies where, and which ranks
communicate. The annotation of each field is its axis: see :mod:`workflow_lib.records.axes`.

Tensor parallelism varies fastest and pipeline parallelism slowest, as in Megatron. So the ranks of
one tensor-parallel group are neighbours, on one node, and the stages are far apart::

    rank = ((pp_rank · dp + dp_rank) · cp + cp_rank) · tp + tp_rank

Experts are spread over ``ep`` neighbouring data-parallel replicas: ``ep_rank = dp_rank mod ep``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from workflow_lib.records import axes
from workflow_lib.records.axes import Axis, in_runs
from workflow_lib.records.bounds import FACTORS, PARALLEL

Schedule = Literal["1f1b", "zero-bubble", "zero-bubble-v"]

#: the degrees whose product is the number of ranks, innermost first: see the formula above
NESTED = ("tp", "cp", "dp", "pp")


@dataclass(frozen=True, kw_only=True)
class Degrees:
    """Parallelism degrees, and how ranks and layers are laid out.

    Ranks are ordered with TP innermost and PP outermost, as in Megatron.
    """

    # fmt: off
    tp: Annotated[int, Axis("tensor-parallel degree", "layout", label="TP", word="tp{}".format)] = 1
    pp: Annotated[int, Axis(
        "pipeline-parallel degree", "layout", label="PP", word="pp{}".format)] = 1
    #: above 1 the schedule is interleaved, and chunk c of pipeline rank p is stage c · pp + p
    virtual_stages: Annotated[int, Axis(
        "chunks of the model on each pipeline rank", "layout",
        word=lambda chunks: f"x{chunks}" if chunks > 1 else "", joins=True)] = 1
    #: with "zero-bubble-v" ranks have two chunks, and pipeline rank p of pp has stages p and
    #: 2 · pp − 1 − p, so that the first rank has both ends of the model
    schedule: Annotated[Schedule, Axis(
        "order of a pipeline's passes: 1f1b (interleaved where ranks have several chunks), or "
        "zero-bubble or zero-bubble-v, which compute gradients of weights while they would wait",
        "layout", word={"1f1b": "", "zero-bubble": "zb", "zero-bubble-v": "zbv"}.__getitem__,
        joins=True, since=5)] = "1f1b"
    #: each sequence is cut over cp ranks, which hold the same weights, as replicas do
    cp: Annotated[int, Axis(
        "context-parallel degree", "layout", label="CP",
        word=lambda cp: f"cp{cp}" if cp > 1 else "", since=5)] = 1
    dp: Annotated[int, Axis("data-parallel degree", "layout", label="DP", word="dp{}".format)] = 1
    #: experts are spread over ep of the dp replicas, so ep divides dp
    ep: Annotated[int, Axis(
        "expert-parallel degree", "layout", label="EP",
        word=lambda ep: f"ep{ep}" if ep > 1 else "")] = 1
    stage_layers: Annotated[tuple[int, ...], Axis(
        "layers of each stage, first to last; null where they are spread evenly", "layout",
        word=in_runs("l"))] = ()
    gpu_order: Annotated[tuple[int, ...], Axis(
        "the node's GPU of each local rank; null where local rank i uses GPU i", "layout",
        word=lambda order: "g" + ".".join(map(str, order)) if order else "")] = ()
    #: each node's GPUs in order of their indices, one node after the other
    gpu_uuids: Annotated[tuple[str, ...], Axis(
        "UUIDs of the GPUs that the cell was placed on, without which it does not train; null "
        "where any GPUs will do", "layout", since=8)] = ()
    # fmt: on

    @property
    def world_size(self) -> int:
        """The number of ranks, one GPU each."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def product(self) -> str:
        """The number of ranks as a product: ``tp × pp × dp = 2 × 1 × 4 = 8``. A degree of 1 that
        the name leaves out is left out here, too."""
        words = axes.words_of(self)
        factors = {name: str(getattr(self, name)) for name in FACTORS if words[name]}
        return f"{' × '.join(factors)} = {' × '.join(factors.values())} = {self.world_size}"

    @property
    def copies(self) -> int:
        """How many ranks hold the same weights and average their gradients. Experts are not
        counted: they have fewer copies if ``ep`` is above 1."""
        return self.cp * self.dp

    @property
    def expert_span(self) -> int:
        """How many neighbouring ranks hold one set of experts."""
        return self.tp * self.cp * self.ep

    def length_of_rank(self, sequence_length: int) -> int:
        """The tokens of each sequence that a rank has, and its tensor-parallel group with it."""
        return sequence_length // self.cp

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


#: the fields that a matrix multiplies out, in this order; the lists of GPUs and layers are not
DEGREES = (
    *PARALLEL,
    *(f.name for f in axes.fields(Degrees) if not f.is_nested and f.name not in PARALLEL),
)


@dataclass(frozen=True)
class Coordinates:
    """A rank's index in each parallel dimension."""

    tp: int
    pp: int
    dp: int
    ep: int
    cp: int = 0


def coordinates(rank: int, degrees: Degrees) -> Coordinates:
    """The coordinates of a rank. Raises ValueError for a rank outside of the layout."""
    if not 0 <= rank < degrees.world_size:
        raise ValueError(f"rank {rank} is outside of a layout of {degrees.world_size} ranks")
    place = {}
    for axis in NESTED:
        rank, place[axis] = divmod(rank, getattr(degrees, axis))
    return Coordinates(**place, ep=place["dp"] % degrees.ep)


def group_members(degrees: Degrees, *varying: str) -> list[list[int]]:
    """The groups of ranks that differ only in the ``varying`` coordinates; ranks ascend in each.

    The coordinates are ``tp``, ``cp``, ``pp``, ``dp``; within ``dp`` also ``ep`` (the replicas that
    share one set of experts) and ``expert_dp`` (the replicas that hold copies of the same experts).
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(degrees.world_size):
        place = coordinates(rank, degrees)
        fixed = {axis: getattr(place, axis) for axis in PARALLEL}
        fixed["expert_dp"] = place.dp // degrees.ep
        if "ep" in varying or "expert_dp" in varying:
            del fixed["dp"]
        else:
            del fixed["ep"], fixed["expert_dp"]
        key = tuple(at for axis, at in fixed.items() if axis not in varying)
        groups.setdefault(key, []).append(rank)
    return list(groups.values())
