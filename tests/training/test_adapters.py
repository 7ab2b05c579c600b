"""Low-rank adapters: what they compute, what trains, and that every layout trains the same."""

from __future__ import annotations

import functools
import shutil
from dataclasses import replace

import pytest
import torch

from tests.training import gpus
from tests.training.cells import GPT, LLAMA, MIXTRAL, MODERN, NEOX, TRAINING, cell
from tests.training.ranks import launch
from tests.training.reference import reference
from workflow_lib import formulas
from workflow_lib.records import Degrees
from workflow_lib.trainers.native.layers import ColumnParallelLinear, RowParallelLinear
from workflow_lib.trainers.native.mesh import single_process
from workflow_lib.trainers.native.model import AdaptedLinear, Decoder, parts
from workflow_lib.trainers.native.tensor_parallel import TensorParallel
from workflow_lib.trainers.native.weights import Weights

WEIGHTS = Weights(single_process(torch.device("cpu")), 7, torch.float32, torch.float32)
LORA = {"workload": "lora", "lora_rank": 4, "learning_rate": 1e-3}
FULL = {"recomputation": "full"}
BF16 = {"precision": "bf16"}

SP = {"sequence_parallel": True}
TORCH = {"backend": "torch"}
DROPLESS = {"routing": "dropless"}
COMPILED = {"compile": True}

CELLS = {
    "dp2 zero0": cell(GPT, Degrees(dp=2), zero_stage=0, **LORA),
    "dp2 zero1 bf16": cell(LLAMA, Degrees(dp=2), zero_stage=1, **LORA, **BF16),
    "dp2 zero2 recompute": cell(LLAMA, Degrees(dp=2), zero_stage=2, **LORA, **FULL),
    "dp2 zero3 tied": cell(GPT, Degrees(dp=2), zero_stage=3, **LORA),
    "tp2 zero1": cell(GPT, Degrees(tp=2), zero_stage=1, **LORA),
    "tp2 sp zero1 recompute": cell(GPT, Degrees(tp=2), zero_stage=1, **LORA, **SP, **FULL),
    "tp2 sp zero1 experts": cell(MIXTRAL, Degrees(tp=2), zero_stage=1, **LORA, **SP),
    "pp2 modern": cell(MODERN, Degrees(pp=2), zero_stage=1, **LORA),
    "tp2 modern sp": cell(MODERN, Degrees(tp=2), zero_stage=1, **LORA, **SP),
    "pp2 zero0 tied": cell(GPT, Degrees(pp=2), zero_stage=0, **LORA),
    "pp2 zero1 tied bf16": cell(GPT, Degrees(pp=2), zero_stage=1, **LORA, **BF16, **FULL),
    "ep2 zero1": cell(MIXTRAL, Degrees(dp=2, ep=2), zero_stage=1, **LORA),
    "ep2 zero2 bf16": cell(MIXTRAL, Degrees(dp=2, ep=2), zero_stage=2, **LORA, **BF16),
    "torch dp2 zero0": cell(GPT, Degrees(dp=2), zero_stage=0, **LORA, **TORCH),
    "torch dp2 zero1": cell(LLAMA, Degrees(dp=2), zero_stage=1, **LORA, **TORCH),
    "torch dp2 zero3 bf16": cell(LLAMA, Degrees(dp=2), zero_stage=3, **LORA, **TORCH, **BF16),
    "torch tp2 sp overlap": cell(
        LLAMA, Degrees(tp=2), zero_stage=1, overlap=True, **LORA, **TORCH, **SP
    ),
    "torch cp2 zero3 tied": cell(GPT, Degrees(cp=2), zero_stage=3, **LORA, **TORCH),
    "torch pp2 tied": cell(GPT, Degrees(pp=2), zero_stage=1, **LORA, **TORCH, **FULL),
    "torch ep2 zero3": cell(MIXTRAL, Degrees(dp=2, ep=2), zero_stage=3, **LORA, **TORCH),
    "ep2 zero2 overlap": cell(
        MIXTRAL, Degrees(dp=2, ep=2), zero_stage=2, overlap=True, **LORA, **DROPLESS
    ),
    "torch ep2 zero3 overlap": cell(
        MIXTRAL, Degrees(dp=2, ep=2), zero_stage=3, overlap=True, **LORA, **DROPLESS, **TORCH
    ),
    "torch ep2 overlap selective": cell(
        MIXTRAL,
        Degrees(dp=2, ep=2),
        overlap=True,
        recomputation="selective",
        **LORA,
        **DROPLESS,
        **TORCH,
    ),
    "tp2 pp2 sp zero1": cell(LLAMA, Degrees(tp=2, pp=2), zero_stage=1, **LORA, **SP),
    "tp2 dp2 sp zero3": cell(LLAMA, Degrees(tp=2, dp=2), zero_stage=3, **LORA, **SP),
    "pp2 ep2 zero1": cell(MIXTRAL, Degrees(pp=2, dp=2, ep=2), zero_stage=1, **LORA),
    "torch tp2 dp2 sp zero3": cell(
        LLAMA, Degrees(tp=2, dp=2), zero_stage=3, **LORA, **TORCH, **SP, **BF16
    ),
    "torch dp2 compiled": cell(LLAMA, Degrees(dp=2), zero_stage=1, **LORA, **TORCH, **COMPILED),
    "torch tp2 sp compiled": cell(
        GPT, Degrees(tp=2), zero_stage=1, **LORA, **TORCH, **SP, **COMPILED
    ),
    "torch pp2 compiled": cell(LLAMA, Degrees(pp=2), zero_stage=1, **LORA, **TORCH, **COMPILED),
    "torch cp2 recompute compiled": cell(
        LLAMA, Degrees(cp=2), zero_stage=1, **LORA, **TORCH, **FULL, **COMPILED
    ),
    "torch pp2 dp2 zero3": cell(GPT, Degrees(pp=2, dp=2), zero_stage=3, **LORA, **TORCH),
}


def build(model):
    training = replace(TRAINING, **LORA)
    return Decoder(parts(model, WEIGHTS, training), None)


PARALLEL = TensorParallel(None)


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


@pytest.mark.parametrize("model", [GPT, NEOX, LLAMA, MIXTRAL, MODERN], ids=lambda model: model.name)
def test_only_the_adapters_train_and_the_formulas_count_them(model):
    decoder = build(model)
    trained = {name: p for name, p in decoder.named_parameters() if p.requires_grad}

    assert sum(p.numel() for p in trained.values()) == formulas.adapter_parameters(model, 4)
    assert {name.rsplit(".", 1)[1] for name in trained} == {"narrow", "widen"}


def test_the_adapters_of_a_mixtral_layer_counted_by_hand():
    # query-key-value 64 → 128, output 64 → 64, at rank 4; nothing beside the experts
    layer = build(MIXTRAL).parts[1]

    assert sum(p.numel() for p in layer.parameters() if p.requires_grad) == 4 * (192 + 128)


def test_a_weight_that_has_an_adapter_is_drawn_as_without():
    plain = Decoder(parts(LLAMA, replace(WEIGHTS, adapters=None), TRAINING), None)

    torch.testing.assert_close(
        build(LLAMA).parts[1].feed_forward.down.base.weight,
        plain.parts[1].feed_forward.down.weight,
        rtol=0,
        atol=0,
    )


@pytest.fixture(scope="module")
def trained(tokens, tmp_path_factory):
    """Train the cells of a world size together, once, compiled ones apart; return what each of its
    ranks saw."""

    @functools.cache
    def train(world_size, compiled):
        cells = {
            name: one
            for name, one in CELLS.items()
            if (one.degrees.world_size, one.training.compile) == (world_size, compiled)
        }
        return launch("losses", cells, tmp_path_factory.mktemp(f"world{world_size}"), tokens)

    return train


@functools.cache
def expected(model, tokens, device="cpu"):
    return reference(cell(model, **LORA), tokens, device)


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        # Four ranks take half a minute, compiled layers more.
        pytest.param(name, marks=pytest.mark.equality)
        if one.degrees.world_size > 2 or one.training.compile
        else name
        for name, one in CELLS.items()
    ],
)
def test_a_layout_trains_adapters_as_one_process_does(name, trained, tokens):
    one = CELLS[name]
    bf16 = one.training.precision == "bf16"
    # The ranks train on GPUs where there are enough; see test_equality.
    on_gpus = gpus.take(one.degrees.world_size)
    losses, norms = expected(one.model, tokens, "cuda" if on_gpus else "cpu")

    if one.training.compile and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("torch compiles for CPUs with a C++ compiler, and this machine has none")
    results = trained(one.degrees.world_size, one.training.compile)
    assert isinstance(results, dict), results
    ranks = results[name]

    for rank in ranks:
        assert "error" not in rank, rank["error"]
        assert rank["losses"] == pytest.approx(losses, rel=2e-3 if bf16 else 5e-6)
        assert (rank["compiled_graphs"] > 0) == one.training.compile
    steps = 1 if bf16 else len(norms)
    close = 2e-2 if bf16 else 1e-3 if on_gpus else 1e-5
    assert ranks[0]["norms"][:steps] == pytest.approx(norms[:steps], rel=close)


@pytest.mark.parametrize("model", [GPT, LLAMA, MIXTRAL], ids=lambda model: model.family)
def test_the_comparison_would_notice_adapters_that_do_not_learn_or_clip(model, tokens):
    losses, norms = expected(model, tokens)

    assert max(norms) > 1.0
    assert min(norms) > 0.0
    assert losses[-1] < losses[0] - 0.1
