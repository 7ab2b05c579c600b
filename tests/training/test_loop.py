"""The loop over a run's steps, and the trace of some of them."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator

import polars as pl
import pytest
import torch

from tests.training.cells import cell
from tests.training.fakes import Fake, run_of
from workflow_lib.analysis.traces.reading import read_trace
from workflow_lib.records.training import Precisions
from workflow_lib.trainers.native import loop
from workflow_lib.trainers.native.loop import train


@pytest.fixture
def unfrozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("warmup_steps", [0, 2])
def test_measured_steps_wait_for_no_full_collection(tmp_path, unfrozen, warmup_steps):
    engine = Fake(Precisions("fp32", "fp32", None, None, "fp32", "fp32"))

    train(run_of(tmp_path, cell(warmup_steps=warmup_steps, measured_steps=3)), engine)

    warmup, measured = engine.frozen[:warmup_steps], engine.frozen[warmup_steps:]
    assert warmup == [0] * warmup_steps
    # All that torch's import made stays: hundreds of thousands of objects.
    assert min(measured) > 100_000
    # Once: what steps leave behind is collected as ever.
    assert max(measured) == measured[0]


CPU = torch.device("cpu")


def recorded(warmup_steps, steps):
    """What was recorded of steps that multiply once each, and of one more of them than asked."""
    with loop.trace_recorder(CPU, warmup_steps, steps) as recorder:
        for _ in range(warmup_steps + steps + 1):
            torch.ones(8, 8) @ torch.ones(8, 8)
            recorder.step()
    return recorder


@pytest.mark.parametrize(("warmup_steps", "steps"), [(1, 1), (3, 2)])
def test_a_trace_holds_the_steps_after_the_warm_up_by_their_numbers(tmp_path, warmup_steps, steps):
    path = tmp_path / "traces" / "rank0.json.gz"
    loop.write_trace(recorded(warmup_steps, steps), path)
    trace = read_trace(path)
    numbers = list(range(warmup_steps, warmup_steps + steps))
    assert trace.steps["step"].to_list() == numbers
    products = trace.kernels.filter(pl.col("class") == "gemm")
    assert products["step"].to_list() == numbers
    assert trace.notes == ()
    assert list(path.parent.iterdir()) == [path]


def test_a_trace_that_cannot_be_written_whole_is_not_there(tmp_path, monkeypatch):
    def fill_up(source, target, length):
        target.write(source.read(100))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", fill_up)
    path = tmp_path / "traces" / "rank0.json.gz"
    with pytest.raises(OSError, match="No space left"):
        loop.write_trace(recorded(1, 1), path)
    assert not path.exists()
    # Nor is what there is taken for one.
    assert list(path.parent.glob("rank*")) == []
