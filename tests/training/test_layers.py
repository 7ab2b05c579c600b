"""Layers cut over four ranks compute what they do on one, however their ranks communicate."""

import pytest

from tests.training.cells import named

#: all of four ranks, so that one launch serves them all
NAMES = [
    "tp4 gpt",
    "tp4 gpt sequence",
    "tp4 gpt sequence overlap",
    "tp2 dp2 full",
    "tp2 dp2 sequence",
    "tp2 dp2 sequence overlap",
    "tp2 dp2 sequence selective",
    "tp2 dp2 sequence selective overlap",
    "tp2 dp2 sequence full overlap",
    "tp2 dp2 micro1 sequence overlap",
    "tp2 dp2 modern",
    "tp2 dp2 modern selective",
    "tp2 dp2 modern sequence full",
    "tp2 dp2 modern sequence overlap",
    "tp2 dp2 mixtral",
    "tp2 dp2 mixtral balanced",
    "tp2 dp2 mixtral sequence",
    "tp2 dp2 mixtral sequence balanced overlap",
    "ep4",
    "dp4 ep2 balanced",
    "ep4 selective",
    "dp4 ep2 overlap",
    "ep4 full overlap",
    "dp4 ep2 balanced overlap",
    "dp4 ep2 selective overlap",
    "tp2 ep2 sequence balanced selective overlap",
    "tp2 ep2 sequence full",
]
OPTIONS = {"backend": "torch", "micro_batch_size": 2, "global_batch_size": 8, "balancing_loss": 0.5}
CELLS = {name: named(name, **OPTIONS) for name in NAMES}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", CELLS)
def test_loss_and_gradients_are_those_of_one_process(name, on_ranks):
    for loss_error, gradient_error in on_ranks("layouts", name, CUDA_VISIBLE_DEVICES=""):
        assert loss_error < 1e-6
        assert gradient_error < 3e-6
