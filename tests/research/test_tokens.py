"""A launch of the engine's benchmark trains on new tokens in each step, ours and peers alike."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import torch

from research.measuring import tokens
from tests.training.cells import LLAMA, cell
from workflow_lib.records.degrees import Degrees


def test_each_step_has_new_tokens_and_peers_get_the_same():
    one = cell(LLAMA, Degrees(dp=2), micro_batch_size=2, global_batch_size=8)
    assert len(tokens.steps_of(one)) == 2 + one.training.warmup_steps + one.training.measured_steps

    place = SimpleNamespace(dp=1, cp=0)
    mesh = cast(Any, SimpleNamespace(degrees=one.degrees, place=place, device="cpu"))
    ours = tokens.on_device(one, mesh)
    theirs = tokens.on_host(one, replica=1, at_once=2)

    flat = [pair for step in ours for pair in step]
    assert len(theirs) == len(flat) == 2 * len(ours)
    for (ids, targets), (their_ids, their_targets) in zip(flat, theirs, strict=True):
        assert torch.equal(ids, their_ids)
        assert torch.equal(targets, their_targets)
        assert torch.equal(ids[:, 1:], targets[:, :-1])
    firsts = {tuple(step[0][0].flatten().tolist()) for step in ours}
    assert len(firsts) == len(ours)
