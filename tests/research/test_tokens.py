"""A launch of the engine's benchmark trains on new tokens in each step."""

from types import SimpleNamespace
from typing import Any, cast

import torch

from research.measuring import tokens
from tests.training.cells import LLAMA, cell
from workflow_lib.records.degrees import Degrees


def test_each_step_has_new_tokens():
    one = cell(LLAMA, Degrees(dp=2), micro_batch_size=2, global_batch_size=8)
    assert len(tokens.steps_of(one)) == 2 + one.training.warmup_steps + one.training.measured_steps

    place = SimpleNamespace(dp=1, cp=0)
    mesh = cast(Any, SimpleNamespace(degrees=one.degrees, place=place, device="cpu"))
    ours = tokens.on_device(one, mesh)
    for ids, targets in (pair for step in ours for pair in step):
        assert torch.equal(ids[:, 1:], targets[:, :-1])
    firsts = {tuple(step[0][0].flatten().tolist()) for step in ours}
    assert len(firsts) == len(ours)
