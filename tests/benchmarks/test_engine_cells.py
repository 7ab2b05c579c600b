"""The cells that the engine is measured with can be made for one to eight GPUs."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.measuring.engine_cells import make_cells, option_sets
from workflow_lib.training import capabilities

_SETS = [(name, gpus) for name in sorted(option_sets(4)) for gpus in (2, 4, 8)]


@pytest.mark.parametrize(("name", "gpus"), [*_SETS, ("peers", 1), ("llama3-8b-8l", 1)])
def test_every_set_has_cells_that_a_backend_runs(name: str, gpus: int) -> None:
    options = argparse.Namespace(platform="h200", sets=[name], warmup=1, steps=1)
    cells = list(make_cells(options, gpus))
    assert cells
    for cell in cells:
        assert cell.degrees.world_size == gpus
        assert capabilities.refusal(cell.degrees, cell.training, cell.model) is None
