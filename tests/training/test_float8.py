"""fp8: what is in 8 bits, what a product comes to, and that every layout trains as one rank does.

On CPUs torchao simulates products of 8-bit operands: they are cast, and multiplied in fp32. The
tests marked "on a GPU" run them in 8 bits.
"""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training import gpus
from tests.training.cells import GPT, LLAMA, MODERN, NEOX, TRAINING, named
from tests.training.reference import reference
from workflow_lib.records.training import precisions_of
from workflow_lib.trainers.native.float8 import Float8Map, convert, precision_of_products
from workflow_lib.trainers.native.layers import ColumnParallelLinear, RowParallelLinear
from workflow_lib.trainers.native.mesh import single_process
from workflow_lib.trainers.native.model import Decoder, TransformerLayer, parts
from workflow_lib.trainers.native.tensor_parallel import TensorParallel
from workflow_lib.trainers.native.weights import Weights, marks_of

CPU = torch.device("cpu")
WEIGHTS = Weights(single_process(CPU), 7, torch.bfloat16)

NAMES = [
    "torch fp8",
    "torch fp8 gpt",
    "torch fp8 neox",
    "torch fp8 modern",
    "torch fp8 dp2 zero0 overlap",
    "torch fp8 dp2",
    "torch fp8 dp2 zero2 selective",
    "torch fp8 dp2 zero3 overlap",
    "torch fp8 dp2 zero3 gpt full",
    "torch fp8 pp2 neox overlap",
    "torch fp8 pp2x2 zero0 modern",
    "torch fp8 cp2 zero3",
    "torch fp8 dp2 zero3 compiled",
    "torch fp8 dp2 selective compiled",
    "torch fp8 cp2 compiled",
    "torch fp8 pp2 overlap compiled",
    "torch fp8 pp2 dp2 zero3 gpt",
    "torch fp8 tensorwise",
    "torch fp8 tensorwise dp2 zero0 overlap",
    "torch fp8 tensorwise dp2",
    "torch fp8 tensorwise dp2 zero2 selective",
    "torch fp8 tensorwise dp2 zero3 overlap",
    "torch fp8 tensorwise dp2 zero3 full",
    "torch fp8 tensorwise pp2 dp2 zero3",
    "torch fp8 tensorwise dp2 zero3 compiled",
    "torch fp8 gwhp",
    "torch fp8 gwhp dp2 zero2",
]
CELLS = {name: named(name) for name in NAMES}


def has_float8_units() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        # Four ranks, and compiled layers, take minutes: one of these is enough for most days.
        pytest.param(name, marks=pytest.mark.equality)
        if one.degrees.world_size > 2
        or (one.training.compile and name != "torch fp8 dp2 selective compiled")
        else name
        for name, one in CELLS.items()
    ],
)
def test_a_layout_in_fp8_trains_as_one_rank_does(name, on_ranks, tokens):
    one = CELLS[name]
    alone = {
        (each.model, each.training.fp8_recipe): name
        for name, each in CELLS.items()
        if each.degrees.world_size == 1
    }
    on_gpus = has_float8_units() and gpus.take(one.degrees.world_size)
    # Weights that are drawn on GPUs are others.
    where = {} if on_gpus else {"CUDA_VISIBLE_DEVICES": ""}
    (expected,) = on_ranks("losses", alone[one.model, one.training.fp8_recipe], tokens, **where)
    for rank in on_ranks("losses", name, tokens, **where):
        assert rank["precisions"] == asdict(precisions_of(one.training, one.degrees))
        assert rank["precisions_before"] == rank["precisions"] | {"moments": None}
        assert (rank["compiled_graphs"] > 0) == one.training.compile
        # Layers that are compiled round less often on their way.
        first = 1e-4 if one.training.compile or on_gpus else 1e-6
        assert rank["losses"][0] == pytest.approx(expected["losses"][0], rel=first)
        # What is reduced over ranks is summed in another order, so that later steps begin from
        # weights that differ in their last bit; with cp a weight's gradient has other scales, too.
        cut = one.degrees.cp > 1 or one.training.compile or on_gpus
        assert rank["losses"] == pytest.approx(expected["losses"], rel=2e-3 if cut else 5e-4)
        assert rank["norms"][0] == pytest.approx(expected["norms"][0], rel=2e-3 if cut else 1e-4)
        # The bounds of bf16.
        losses, norms = reference(one, tokens, "cuda" if on_gpus else "cpu")
        assert rank["losses"] == pytest.approx(losses, rel=2e-3)
        assert rank["norms"][0] == pytest.approx(norms[0], rel=1e-2)
        # But 8 bits they are.
        assert rank["norms"][0] != pytest.approx(norms[0], rel=1e-4)


def layer_of(model, precision="fp8", recipe="rowwise"):
    training = replace(TRAINING, precision=precision, fp8_recipe=recipe)
    decoder = Decoder(parts(model, WEIGHTS, training), None)
    return decoder, next(part for part in decoder.parts if isinstance(part, TransformerLayer))


@pytest.mark.parametrize(
    ("model", "maps"),
    [
        (LLAMA, {"attention.query_key_value", "attention.output", "gate_up", "down"}),
        (GPT, {"attention.query_key_value", "attention.output", "up", "down"}),
    ],
    ids=["llama", "gpt"],
)
def test_the_maps_of_layers_alone_are_in_8_bits(model, maps):
    decoder, layer = layer_of(model)
    converted = {
        name.removeprefix("feed_forward.")
        for name, module in layer.named_modules()
        if isinstance(module, Float8Map)
    }

    assert converted == maps
    assert sum(isinstance(module, Float8Map) for module in decoder.modules()) == 4 * model.layers
    assert precision_of_products([decoder], "bf16") == "fp8"


def test_products_that_are_not_all_in_8_bits_are_noticed():
    decoder, layer = layer_of(LLAMA)
    layer.attention.output.product = nn.Linear(64, 64)

    assert precision_of_products([decoder], "bf16") == "bf16 and fp8"
    assert precision_of_products([layer_of(LLAMA, "bf16")[0]], "bf16") == "bf16"


@pytest.mark.parametrize("recipe", ["rowwise", "tensorwise"])
@pytest.mark.parametrize("model", [GPT, LLAMA, MODERN, NEOX], ids=lambda model: model.name)
def test_the_weights_are_those_of_bf16(model, recipe):
    decoder, _ = layer_of(model, recipe=recipe)
    ours = {name.replace(".product.", "."): each for name, each in decoder.named_parameters()}
    plain = dict(layer_of(model, "bf16")[0].named_parameters())

    assert ours.keys() == plain.keys()
    for name, mine in ours.items():
        assert torch.equal(mine, plain[name])
        # Norms of gradients go by these.
        assert marks_of(mine) == marks_of(plain[name])


def in_8_bits(matrix, largest, power_of_two=True, kind=torch.float8_e4m3fn):
    """A matrix as it is in 8 bits: scaled so that what is ``largest`` becomes the largest number
    of the kind, or by the next smaller power of two, cast and cast back. By hand, in fp32.
    """
    # In fp64, as a last bit decides how a number between two in 8 bits is rounded.
    scale = (torch.finfo(kind).max / largest.double()).float()
    if power_of_two:
        scale = torch.exp2(torch.floor(torch.log2(scale)))
    return (matrix.float() * scale).to(kind).float() / scale


def rowwise(matrix):
    """Each row with a scale of its own."""
    return in_8_bits(matrix, matrix.float().abs().amax(dim=1, keepdim=True))


def whole(matrix, **how):
    """One scale for all."""
    return in_8_bits(matrix, matrix.float().abs().max(), **how)


def of_rows(x, weight, gradient):
    """The three products of a map, as torchao's recipe rowwise has them."""
    return (
        rowwise(x) @ rowwise(weight).T,
        rowwise(gradient) @ rowwise(weight.T).T,
        rowwise(gradient.T) @ rowwise(x.T).T,
    )


def of_tensors(x, weight, gradient):
    """The same by tensorwise."""
    x, weight = (whole(each, power_of_two=False) for each in (x, weight))
    gradient = whole(gradient, power_of_two=False, kind=torch.float8_e5m2)
    return x @ weight.T, gradient @ weight, gradient.T @ x


def of_rows_but_one(x, weight, gradient):
    """The same by rowwise_with_gw_hp."""
    return (
        rowwise(x) @ rowwise(weight).T,
        rowwise(gradient) @ whole(weight),
        gradient.float().T @ x.float(),
    )


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("narrowing", [False, True])
@pytest.mark.parametrize(
    ("recipe", "by_hand"),
    [
        ("rowwise", of_rows),
        ("tensorwise", of_tensors),
        ("rowwise_with_gw_hp", of_rows_but_one),
    ],
)
def test_the_three_products_are_those_of_the_recipe(recipe, by_hand, narrowing, bias):
    parallel = TensorParallel(None)
    base = (
        RowParallelLinear(WEIGHTS, parallel, "base", 32, 48, bias, 0.02)
        if narrowing
        else ColumnParallelLinear(WEIGHTS, parallel, ["base"], 32, [48], bias)
    )
    layer = nn.ModuleDict({"map": base})
    convert(layer, CPU, recipe)
    random = torch.Generator().manual_seed(0)
    x = torch.randn(2, 16, 32, generator=random).bfloat16().requires_grad_()
    # One that is gathered in 8 bits is another parameter, with the same marks.
    weight = layer["map"].product.weight
    assert marks_of(weight) == marks_of(base.weight) != {}
    gradient = torch.randn(2, 16, 48, generator=random).bfloat16()

    y = layer["map"](x)
    y.backward(gradient)

    rows, gradients = x.detach().flatten(0, 1), gradient.flatten(0, 1)
    close = {"rtol": 2**-7, "atol": 1e-3}  # a bit of bf16
    made = (y.flatten(0, 1), x.grad.flatten(0, 1), weight.grad)
    for mine, expected in zip(made, by_hand(rows, base.weight.detach(), gradients), strict=True):
        torch.testing.assert_close(mine.float(), expected, **close)
    if bias:
        torch.testing.assert_close(base.bias.grad.float(), gradients.float().sum(0), **close)


class Products(TorchDispatchMode):
    """Counts products of two matrices."""

    count = 0

    def __torch_dispatch__(self, operator, types, arguments=(), named=None):
        self.count += operator is torch.ops.aten.mm.default
        return operator(*arguments, **(named or {}))


@pytest.mark.parametrize(
    ("recomputation", "count"),
    # Four maps with three products each; full recomputation repeats the first of them.
    [("none", 12), ("selective", 12), ("full", 16)],
)
def test_selective_recomputation_repeats_no_product_in_8_bits(recomputation, count):
    training = replace(TRAINING, precision="fp8", recomputation=recomputation)
    layer = parts(LLAMA, WEIGHTS, training)[1].build()
    x = torch.randn(1, 64, 64, generator=torch.Generator().manual_seed(0)).bfloat16()

    with Products() as products:
        layer(x.requires_grad_()).sum().backward()

    assert products.count == count


@pytest.mark.skipif(not has_float8_units(), reason="no GPU with fp8")
@pytest.mark.parametrize("compiled", [False, True])
def test_products_run_in_8_bits_on_a_gpu(compiled):
    device = torch.device("cuda", 0)
    model = replace(LLAMA, hidden_size=1024, ffn_hidden_size=4096, attention_heads=8, kv_heads=8)
    counted, results = {}, {}
    for precision in ("bf16", "fp8"):
        weights = Weights(single_process(device), 7, torch.bfloat16)
        training = replace(TRAINING, precision=precision)
        layer = parts(model, weights, training)[1].build()
        if compiled:
            torch._dynamo.reset()
            layer.compile(dynamic=False)
        random = torch.Generator(device).manual_seed(1)
        x = torch.randn(1, 64, 1024, generator=random, device=device).bfloat16().requires_grad_()
        layer(x).float().square().mean().backward()
        x.grad = None
        with torch.profiler.profile() as profile:
            y = layer(x)
            y.float().square().mean().backward()
        events = {each.key: each.count for each in profile.key_averages()}
        scaled = [count for key, count in events.items() if key.startswith("aten::_scaled_mm")]
        counted[precision] = max(scaled, default=0)
        results[precision] = (y.detach().float(), x.grad.float())
    # Four maps, and for each its result, its input's gradient and its weight's.
    assert counted == {"bf16": 0, "fp8": 12}
    for eight, sixteen in zip(results["fp8"], results["bf16"], strict=True):
        error = (eight - sixteen).norm() / sixteen.norm()
        assert 0 < error < 0.05
