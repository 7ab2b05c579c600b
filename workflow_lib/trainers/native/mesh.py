"""A rank's place in the layout, on its device, with the process groups that follow from it."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from workflow_lib.records.degrees import Coordinates, Degrees, coordinates, group_members
from workflow_lib.words import counted


def limit_waiting(timeout: datetime.timedelta) -> None:
    """Set the timeout of every process group that exists to ``timeout``.

    Groups do not inherit it from the default group, and DeepSpeed creates some of its own.
    """
    for group in list(distributed_c10d._world.pg_map):
        distributed_c10d._set_pg_timeout(timeout, group)


@dataclass(frozen=True)
class Mesh:
    """A rank's place and its process groups; every group is None in a single process."""

    degrees: Degrees
    rank: int
    place: Coordinates
    device: torch.device
    tp_group: dist.ProcessGroup | None = None
    #: the ranks that hold the same weights: those of all replicas, and those that share a sequence
    dp_group: dist.ProcessGroup | None = None
    cp_group: dist.ProcessGroup | None = None
    #: the ranks that pass activations and gradients on, from the first stage to the last
    pp_group: dist.ProcessGroup | None = None
    #: the ranks of one replica: all stages and tensor-parallel ranks
    replica_group: dist.ProcessGroup | None = None
    expert_group: dist.ProcessGroup | None = None
    expert_dp_group: dist.ProcessGroup | None = None


def single_process(device: torch.device) -> Mesh:
    """The mesh of one process that needs no process groups."""
    return Mesh(Degrees(), 0, coordinates(0, Degrees()), device)


def create(degrees: Degrees, device: torch.device) -> Mesh:
    """Create the process groups. Every rank of the default group must call this.

    Raises ValueError if the number of ranks is not what the degrees ask for.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size != degrees.world_size:
        raise ValueError(
            f"the process group has {counted(world_size, 'rank')}, but {degrees.product}"
        )

    def group(*varying: str) -> dist.ProcessGroup:
        mine = _own_group(group_members(degrees, *varying), "_".join(varying))
        assert mine is not None
        return mine

    return Mesh(
        degrees,
        rank,
        coordinates(rank, degrees),
        device,
        tp_group=group("tp"),
        dp_group=group("cp", "dp") if degrees.cp > 1 else group("dp"),
        cp_group=group("cp") if degrees.cp > 1 else None,
        pp_group=group("pp"),
        replica_group=group("tp", "pp"),
        expert_group=group("ep") if degrees.ep > 1 else None,
        expert_dp_group=group("expert_dp") if degrees.ep > 1 else None,
    )


def end_stages_group(degrees: Degrees) -> dist.ProcessGroup | None:
    """Create groups of a first-stage rank and its counterpart on the last; return this rank's.

    Every rank of the default group must call this. The result is None on ranks of the other stages.
    """
    ends = [[ranks[0], ranks[-1]] for ranks in group_members(degrees, "pp")]
    return _own_group(ends, "pp_ends")


def lone_group(degrees: Degrees) -> dist.ProcessGroup:
    """Create a group of one rank for each rank; return this rank's. Every rank must call this."""
    mine = _own_group([[rank] for rank in range(degrees.world_size)], "alone")
    assert mine is not None
    return mine


def _own_group(groups: list[list[int]], description: str) -> dist.ProcessGroup | None:
    """Create all of the groups; return this rank's, None if it is in none. Traces name each group
    by its ``description``."""
    rank, mine = dist.get_rank(), None
    # Creating a group is collective: every rank creates all of them, in the same order.
    for members in groups:
        created = dist.new_group(members, group_desc=description)
        if rank in members:
            mine = created
    return mine
