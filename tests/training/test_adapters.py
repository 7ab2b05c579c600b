"""Low-rank adapters: what they compute, and what trains; test_equality.py trains layouts."""

from dataclasses import replace

import pytest
import torch

from tests.training.cells import LLAMA, MODELS, TRAINING
from workflow_lib import formulas
from workflow_lib.trainers.native.layers import ColumnParallelLinear, RowParallelLinear
from workflow_lib.trainers.native.mesh import single_process
from workflow_lib.trainers.native.model import AdaptedLinear, Decoder, parts
from workflow_lib.trainers.native.tensor_parallel import TensorParallel
from workflow_lib.trainers.native.weights import Weights

WEIGHTS = Weights(single_process(torch.device("cpu")), 7, torch.float32, torch.float32)
PARALLEL = TensorParallel(None)


def build(model):
    training = replace(TRAINING, workload="lora", lora_rank=4)
    return Decoder(parts(model, WEIGHTS, training), None)


@pytest.mark.parametrize(
    "base",
    [
        lambda: ColumnParallelLinear(WEIGHTS, PARALLEL, ["base"], 6, [10], bias=True),
        lambda: RowParallelLinear(WEIGHTS, PARALLEL, "base", 6, 10, True, 0.02),
    ],
    ids=["column", "row"],
)
def test_an_adapted_map_adds_the_scaled_low_rank_product(base):
    layer = AdaptedLinear(base(), WEIGHTS, "adapter", (10, 6), rank=4)
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    before = layer(x)
    torch.testing.assert_close(before, x @ layer.base.weight.T + layer.base.bias)

    with torch.no_grad():
        layer.widen.normal_(generator=torch.Generator().manual_seed(1))

    # alpha / rank = 32 / 4
    torch.testing.assert_close(layer(x) - before, 8.0 * (x @ layer.narrow.T @ layer.widen.T))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_only_the_adapters_train_and_the_formulas_count_them(model):
    decoder = build(model)
    trained = {name: p for name, p in decoder.named_parameters() if p.requires_grad}

    assert sum(p.numel() for p in trained.values()) == formulas.adapter_parameters(model, 4)
    assert {name.rsplit(".", 1)[1] for name in trained} == {"narrow", "widen"}


def test_a_weight_that_has_an_adapter_is_drawn_as_without():
    plain = Decoder(parts(LLAMA, replace(WEIGHTS, adapters=None), TRAINING), None)

    torch.testing.assert_close(
        build(LLAMA).parts[1].feed_forward.down.base.weight,
        plain.parts[1].feed_forward.down.weight,
        rtol=0,
        atol=0,
    )
