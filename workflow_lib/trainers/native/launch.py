"""Finds which rank this process is: by Slurm, by torch.distributed.run, or as the only one."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from workflow_lib.records.degrees import Degrees
from workflow_lib.words import counted


@dataclass(frozen=True)
class Launch:
    """A process's rank and local rank, and the address where rank 0 listens."""

    rank: int
    world_size: int
    local_rank: int
    #: ranks on this node
    local_world_size: int
    master_address: str
    master_port: int


#: Linux gives ports from 32768 on to outgoing connections (net.ipv4.ip_local_port_range), of which
#: any may hold the one that rank 0 is to listen on. So its port is below.
_PORTS = range(20000, 32768)


def detect() -> Launch:
    """Read the environment; a process without a launcher is the only rank.

    ``MASTER_ADDR`` and ``MASTER_PORT`` take precedence over the values from Slurm: the job's first
    node, and a port derived from the job's id, so that two jobs on one host use different ports.

    Raises ValueError if a launcher set some variables but not all.
    """
    environment = os.environ
    if "RANK" in environment:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        if absent := [name for name in names if name not in environment]:
            raise ValueError(
                f"RANK is set, but {absent[0]} is not: start with srun or torch.distributed.run, "
                "which set them all"
            )
        world_size = int(environment["WORLD_SIZE"])
        return Launch(
            rank=int(environment["RANK"]),
            world_size=world_size,
            local_rank=int(environment["LOCAL_RANK"]),
            local_world_size=int(environment.get("LOCAL_WORLD_SIZE", world_size)),
            master_address=environment["MASTER_ADDR"],
            master_port=int(environment["MASTER_PORT"]),
        )
    if "SLURM_PROCID" in environment and "SLURM_JOB_ID" in environment:
        return _from_slurm()
    return Launch(0, 1, 0, 1, "127.0.0.1", int(environment.get("MASTER_PORT", "0")))


def _from_slurm() -> Launch:
    # submitit recognises Slurm by this variable, which the job sets but srun by hand does not.
    os.environ.setdefault("SUBMITIT_EXECUTOR", "slurm")
    from submitit.helpers import TorchDistributedEnvironment

    slurm = TorchDistributedEnvironment()
    return Launch(
        rank=slurm.rank,
        world_size=slurm.world_size,
        local_rank=slurm.local_rank,
        local_world_size=slurm.local_world_size,
        master_address=os.environ.get("MASTER_ADDR", slurm.master_addr),
        master_port=int(os.environ.get("MASTER_PORT", _port(os.environ["SLURM_JOB_ID"]))),
    )


def _port(job_id: str) -> int:
    """The port on which a job's rank 0 listens; those of jobs that follow each other differ."""
    return _PORTS[int(job_id) % len(_PORTS)]


def check(launch: Launch, degrees: Degrees) -> None:
    """Raise ValueError if the number of ranks is not the cell's, or if this node does not know
    where rank 0 listens: ranks would try to reach it until the time limit, without a word.
    """
    try:
        socket.getaddrinfo(launch.master_address, launch.master_port)
    except OSError as error:
        raise ValueError(
            f"this node has no address for {launch.master_address}, where rank 0 listens "
            f"({error}): check its /etc/hosts and its name server"
        ) from None
    if launch.world_size != degrees.world_size:
        raise ValueError(
            f"the launcher started {counted(launch.world_size, 'rank')}, but the cell's "
            f"{degrees.product}: start that many"
        )
