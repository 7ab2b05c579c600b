"""The loop over a run's steps."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from tests.training.cells import LLAMA, cell
from workflow_lib.records import Precisions, RankRecord, RunPaths
from workflow_lib.trainers.native.data import SyntheticTokens
from workflow_lib.trainers.native.device import Device
from workflow_lib.trainers.native.loop import Run, train
from workflow_lib.trainers.native.mesh import single_process


class Watched:
    """An engine that notes in each step how many objects the garbage collector leaves alone."""

    def __init__(self) -> None:
        self.frozen: list[int] = []

    def modules(self) -> tuple[torch.nn.Module, ...]:
        return ()

    def precisions(self) -> Precisions:
        return Precisions("fp32", "fp32", None, None, "fp32", "fp32")

    def train_step(self, batches) -> float:
        self.frozen.append(gc.get_freeze_count())
        return 1.0


@pytest.fixture
def unfrozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("warmup_steps", [0, 2])
def test_measured_steps_wait_for_no_full_collection(tmp_path, unfrozen, warmup_steps):
    device = Device(torch.device("cpu"), "CPU", None, "gloo")
    record = RankRecord(0, "here", None, "CPU", 0, 0, 0, 0, 1, pid=1, started_unix_s=0.0)
    source = SyntheticTokens(LLAMA.vocabulary_size)
    short = cell(warmup_steps=warmup_steps, measured_steps=3)
    mesh, paths = single_process(device.torch), RunPaths(tmp_path)
    engine = Watched()

    train(Run(short, mesh, device, source, paths, record, lambda phase: None), engine)

    warmup, measured = engine.frozen[:warmup_steps], engine.frozen[warmup_steps:]
    assert warmup == [0] * warmup_steps
    # All that torch's import made stays: hundreds of thousands of objects.
    assert min(measured) > 100_000
    # Once: what steps leave behind is collected as ever.
    assert max(measured) == measured[0]
