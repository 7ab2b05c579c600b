"""The matrix products of a decoder layer in 8 bits, by torchao.

Attention's query-key-value and output, and the matrices of a dense feed-forward part, are computed
in float8: weights, activations and gradients are cast just before a product. The recipes are
torchao's. In all of them a product is of two matrices in 8 bits, whose scales are found anew each
time, and sums are not in 8 bits:

rowwise               each row or column along the summed dimension has a scale of its own, a power
                      of two; all is cast to e4m3; all three products of a map are in 8 bits: its
                      result, its input's gradient and its weight's gradient
tensorwise            a matrix has one scale; gradients are cast to e5m2, all else to e4m3; all
                      three products are in 8 bits
rowwise_with_gw_hp    as rowwise, but weights' gradients are products in bf16, and weights have one
                      scale where an input's gradient is made

Embedding, norms, attention itself, residual path, head, loss and held weights are not in 8 bits.
Communication is not either, but for tensorwise: replicas find the scales of all weights together
once a step, and gather the weights of layers in 8 bits, cast from fp32.

On a CPU torchao simulates it: operands are cast to 8 bits and back, and multiplied in fp32.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from workflow_lib.records.training import Float8Recipe
from workflow_lib.trainers.native.device import on_gpu
from workflow_lib.trainers.native.layers import ColumnParallelLinear, OutputHead, RowParallelLinear
from workflow_lib.trainers.native.weights import marks_of


class Float8Map(nn.Module):
    """A linear map of a layer in 8 bits, cut over the tensor-parallel group as ``base`` is."""

    def __init__(self, base: ColumnParallelLinear | RowParallelLinear) -> None:
        super().__init__()
        self.parallel = base.parallel
        self.rows_cut = isinstance(base, ColumnParallelLinear)
        outputs, inputs = base.weight.shape
        # torchao replaces this one with its own.
        self.product: nn.Module = nn.Linear(inputs, outputs, bias=False, device="meta")
        self.product.weight = base.weight
        self.bias = base.bias

    def forward(self, x: Tensor) -> Tensor:
        parallel = self.parallel
        if self.rows_cut:
            x = self.product(parallel.enter(x))
            return x if self.bias is None else x + self.bias
        x = parallel.leave(self.product(x))
        return x if self.bias is None else x + parallel.whole(self.bias)


def convert(layer: nn.Module, device: torch.device, recipe: Float8Recipe) -> None:
    """Make the linear maps of a layer compute in 8 bits; the weights stay the same parameters."""
    # None of torchao's C++ extensions is needed here, and each warns if it cannot be loaded.
    os.environ.setdefault("TORCHAO_FORCE_SKIP_LOADING_SO_FILES", "1")
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = replace(
        Float8LinearConfig.from_recipe_name(recipe),
        emulate=not on_gpu(device),
        enable_fsdp_float8_all_gather=recipe == "tensorwise",
    )
    converted = []
    for name, module in list(layer.named_modules()):
        if isinstance(module, (ColumnParallelLinear, RowParallelLinear)):
            layer.set_submodule(name, linear := Float8Map(module))
            converted.append((linear, marks_of(module.weight)))
    convert_to_float8_training(layer, config=config)
    # A weight that is gathered in 8 bits is another parameter than before.
    for linear, marks in converted:
        vars(linear.product.weight).update(marks)


def gathered_dtype(parameter: nn.Parameter) -> torch.dtype | None:
    """The type to which torchao casts a cut weight before it is gathered; None if it casts none."""
    local = getattr(parameter, "_local_tensor", parameter)
    # What FSDP2 asks a tensor for that is gathered in another form than its own.
    return getattr(local, "_dtype", None) if hasattr(local, "fsdp_pre_all_gather") else None


def find_scales(roots: Sequence[nn.Module]) -> None:
    """Find the scales of weights that are gathered in 8 bits, after these have changed: over all
    replicas, in one collective for each root."""
    from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

    for root in roots:
        precompute_float8_dynamic_scale_for_fsdp(root)


def precision_of_products(roots: Iterable[nn.Module], held: str) -> str:
    """The precision in which the maps of layers compute: fp8, ``held`` if they are not converted,
    or both."""
    modules = (module for root in roots for module in root.modules())
    precisions = {_precision(module, held) for module in modules}
    return " and ".join(sorted(filter(None, precisions))) or held


def _precision(module: nn.Module, held: str) -> str | None:
    """The precision of a module's product; None if it is not a map of a layer."""
    if isinstance(module, Float8Map):
        # Only torchao's linear maps have casts.
        return held if getattr(module.product, "config", None) is None else "fp8"
    is_map = isinstance(module, (ColumnParallelLinear, RowParallelLinear))
    return held if is_map and not isinstance(module, OutputHead) else None
