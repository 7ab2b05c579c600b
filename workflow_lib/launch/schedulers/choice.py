"""Chooses the scheduler that a platform uses."""

from __future__ import annotations

import functools

from workflow_lib.launch.schedulers.local import Local
from workflow_lib.launch.schedulers.scheduler import Scheduler
from workflow_lib.launch.schedulers.slurm import Slurm


@functools.cache
def choose(name: str) -> Scheduler:
    """The scheduler that a platform's file names, ``slurm`` or ``local``: one object for all runs
    of this process.
    """
    return Slurm() if name == "slurm" else Local()
