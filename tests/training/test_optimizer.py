"""AdamW as a cell has it, on numbers worked out by hand."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.training.cells import TRAINING
from workflow_lib.trainers.native.optimizer import adamw


@pytest.mark.parametrize(
    ("weight_decay", "after"),
    [
        # The first step of Adam goes a learning rate against the gradient's sign, whatever its
        # size; the decay takes the learning rate times itself off the weight before.
        (0.0, 2.0 - 0.1),
        (0.01, 2.0 * (1 - 0.1 * 0.01) - 0.1),
        (0.5, 2.0 * (1 - 0.1 * 0.5) - 0.1),
    ],
)
def test_a_step_decays_weights_by_what_the_cell_says(weight_decay, after):
    weight = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    training = replace(TRAINING, learning_rate=0.1, weight_decay=weight_decay)
    optimizer = adamw([weight], training, torch.device("cpu"))

    weight.grad = torch.tensor([1000.0], dtype=torch.float64)
    optimizer.step()

    assert weight.item() == pytest.approx(after, rel=1e-9)
