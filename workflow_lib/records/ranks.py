"""The coordinates of ranks in a layout, and the groups of ranks that communicate.

Tensor parallelism varies fastest and pipeline parallelism slowest, as in Megatron. So the ranks of
one tensor-parallel group are neighbours, on one node, and the stages are far apart::

    rank = ((pp_rank · dp + dp_rank) · cp + cp_rank) · tp + tp_rank

Experts are spread over ``ep`` neighbouring data-parallel replicas: ``ep_rank = dp_rank mod ep``.
"""

from __future__ import annotations

from dataclasses import dataclass

from workflow_lib.records.degrees import Degrees


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
    within = degrees.tp * degrees.cp
    dp_rank = rank // within % degrees.dp
    return Coordinates(
        tp=rank % degrees.tp,
        pp=rank // (within * degrees.dp),
        dp=dp_rank,
        ep=dp_rank % degrees.ep,
        cp=rank // degrees.tp % degrees.cp,
    )


def group_members(degrees: Degrees, *varying: str) -> list[list[int]]:
    """The groups of ranks that differ only in the ``varying`` coordinates; ranks ascend in each.

    The coordinates are ``tp``, ``cp``, ``pp``, ``dp``; within ``dp`` also ``ep`` (the replicas that
    share one set of experts) and ``expert_dp`` (the replicas that hold copies of the same experts).
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(degrees.world_size):
        place = coordinates(rank, degrees)
        fixed = {
            "tp": (place.tp,),
            "cp": (place.cp,),
            "pp": (place.pp,),
            "dp": (place.dp,),
            "ep": (place.ep,),
            "expert_dp": (place.dp // degrees.ep,),
        }
        if "ep" in varying or "expert_dp" in varying:
            del fixed["dp"]
        else:
            del fixed["ep"], fixed["expert_dp"]
        key = tuple(value for axis, at in fixed.items() if axis not in varying for value in at)
        groups.setdefault(key, []).append(rank)
    return list(groups.values())
