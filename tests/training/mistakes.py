"""Trains cells with a library that was told, or does, what it should not; returns what is said.

A cell's seed is the number of its mistake in MISTAKES, since cells travel as files.
"""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from tests.training.ranks import on_every_rank
from workflow_lib.records.cell import Cell
from workflow_lib.trainers import engines
from workflow_lib.trainers.deepspeed import engine as with_deepspeed
from workflow_lib.trainers.native import device as devices
from workflow_lib.trainers.native import mesh as meshes
from workflow_lib.trainers.native import sharding
from workflow_lib.trainers.native.data import SyntheticTokens, step_batches
from workflow_lib.trainers.native.precisions import MOMENTS, WrongPrecision, checked


def told(**changes: object) -> Callable[[], object]:
    """DeepSpeed gets other settings than the cell's."""
    own = with_deepspeed.settings

    def settings(*arguments: object) -> dict[str, object]:
        return own(*arguments) | changes  # type: ignore[arg-type]

    return lambda: patch.object(with_deepspeed, "settings", settings)


def given(policy: MixedPrecisionPolicy) -> Callable[[], object]:
    """FSDP2 gets another policy than the cell's."""
    return lambda: patch.object(sharding, "MixedPrecisionPolicy", lambda *_: policy)


def halving(step: Callable[..., None]) -> Callable[..., None]:
    """A step of AdamW that leaves its moments in bf16."""

    def stepping(optimizer: torch.optim.Optimizer, *arguments: object) -> None:
        step(optimizer, *arguments)
        for state in optimizer.state.values():
            state.update((name, state[name].bfloat16()) for name in MOMENTS)

    return stepping


BF16 = torch.bfloat16
MISTAKES: dict[str, Callable[[], object]] = {
    "weights": told(bf16={"enabled": True}),
    "reduction": told(communication_data_type="bf16"),
    "sums": told(data_types={"grad_accum_dtype": "bf16"}),
    "computing in fp32": given(MixedPrecisionPolicy()),
    "all in bf16": given(MixedPrecisionPolicy(param_dtype=BF16)),
    "moments": lambda: patch.object(torch.optim.AdamW, "step", halving(torch.optim.AdamW.step)),
}


def said(cell: Cell, device: devices.Device) -> list[object]:
    """What is wrong, and whether the rank had stepped before that was said."""
    mesh = meshes.create(cell.degrees, device.torch)
    stepped = False
    with list(MISTAKES.values())[cell.training.seed]():  # type: ignore[attr-defined]
        engine = engines.create(cell, mesh)
        try:
            checked(cell, engine.precisions(), stepped)
            source = SyntheticTokens(cell.model.vocabulary_size)
            engine.train_step(step_batches(source, cell, mesh, 0))
            stepped = True
            checked(cell, engine.precisions(), stepped)
        except WrongPrecision as error:
            return [str(error), stepped]
    raise AssertionError("nothing was said")


if __name__ == "__main__":
    on_every_rank(said)
