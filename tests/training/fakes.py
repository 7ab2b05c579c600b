"""A rank's run on a CPU, and an engine that computes nothing in it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch

from workflow_lib.records.cell import Cell
from workflow_lib.records.contract import RankRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.training import Precisions
from workflow_lib.trainers.native.data import SyntheticTokens
from workflow_lib.trainers.native.device import Device
from workflow_lib.trainers.native.loop import Run
from workflow_lib.trainers.native.mesh import single_process


class Fake:
    """An engine that has the precisions it is given, before its first step and after it, and notes
    in each step how many objects the garbage collector leaves alone.
    """

    def __init__(self, *found: Precisions) -> None:
        self.found = found
        self.frozen: list[int] = []

    def modules(self) -> tuple[torch.nn.Module, ...]:
        return ()

    def precisions(self) -> Precisions:
        return self.found[-1] if self.frozen else self.found[0]

    def train_step(self, batches: Any) -> float:
        self.frozen.append(gc.get_freeze_count())
        return 1.0


def run_of(directory: Path, cell: Cell) -> Run:
    """The run of a cell with one replica."""
    record = RankRecord(0, "here", None, "CPU", 0, 0, 0, 0, 1, pid=1, started_unix_s=0.0)
    device = Device(torch.device("cpu"), "CPU", None, "gloo")
    source = SyntheticTokens(cell.model.vocabulary_size)
    mesh, paths = single_process(device.torch), RunPaths(directory)
    return Run(cell, mesh, device, source, paths, record, lambda phase: None)
