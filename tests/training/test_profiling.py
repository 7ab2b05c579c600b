"""A trace of some of a rank's steps."""

from __future__ import annotations

import shutil

import polars as pl
import pytest
import torch

from workflow_lib.analysis.traces.reading import read_trace
from workflow_lib.trainers.native import profiling

CPU = torch.device("cpu")


def recorded(warmup_steps, steps):
    """What was recorded of steps that multiply once each, and of one more of them than asked."""
    with profiling.recorder(CPU, warmup_steps, steps) as recorder:
        for _ in range(warmup_steps + steps + 1):
            torch.ones(8, 8) @ torch.ones(8, 8)
            recorder.step()
    return recorder


@pytest.mark.parametrize(("warmup_steps", "steps"), [(1, 1), (3, 2)])
def test_a_trace_holds_the_steps_after_the_warm_up_by_their_numbers(tmp_path, warmup_steps, steps):
    path = tmp_path / "traces" / "rank0.json.gz"
    profiling.write(recorded(warmup_steps, steps), path)
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
        profiling.write(recorded(1, 1), path)
    assert not path.exists()
    # Nor is what there is taken for one.
    assert list(path.parent.glob("rank*")) == []
