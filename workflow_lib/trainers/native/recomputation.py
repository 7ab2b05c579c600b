"""What a layer keeps of its forward pass, and what the backward pass computes again.

Full recomputation keeps only the layer's input. Selective recomputation also keeps the results of
products, attention and collectives, which are expensive. It computes the rest again: norms, rotary
positions, activation functions, the routing and the order of the experts' rows.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from workflow_lib.records.training import Recomputation
from workflow_lib.trainers.native import (
    collectives,
    expert_exchange,
    experts,
    tensor_parallel,
)

_aten = torch.ops.aten
#: operators whose results selective recomputation keeps
KEPT = [
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    # every kernel behind scaled_dot_product_attention
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
    _aten._scaled_dot_product_fused_attention_overrideable.default,
    *collectives.OPERATORS,
    *tensor_parallel.OPERATORS,
    *experts.OPERATORS,
    *expert_exchange.OPERATORS,
]


def run(
    layer: Callable[[Tensor], Tensor],
    x: Tensor,
    recomputation: Recomputation,
    spread_experts: bool = False,
) -> Tensor:
    """Call a layer so that it keeps what ``recomputation`` says for the backward pass.

    ``spread_experts`` says that FSDP2 gathers weights inside of the layer, where a compiler breaks
    it up.
    """
    if recomputation == "none" or not torch.is_grad_enabled():
        return layer(x)
    # No layer draws random numbers, so there is no generator state to put back.
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    in_one_graph = torch.compiler.is_compiling() and not spread_experts
    if recomputation == "selective" and in_one_graph:
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, KEPT)
    elif recomputation == "selective":
        options["context_fn"] = _keep_and_reuse
    result: Tensor = checkpoint(layer, x, **options)
    return result


def _keep_and_reuse() -> tuple[TorchDispatchMode, TorchDispatchMode]:
    """The contexts of a forward pass and of its recomputation.

    torch's own contexts, which its compiler needs, require both passes to run the same operators.
    This fails if FSDP2 gathers experts' weights inside of the layer.
    """
    kept: dict[object, deque[Any]] = {operator: deque() for operator in KEPT}
    return _Keep(kept), _Reuse(kept)


class _Keep(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, kept: dict[object, deque[Any]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept = kept

    def __torch_dispatch__(
        self, operator: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        results = operator(*arguments, **(named or {}))
        if operator in self._kept:
            # Detached, because the results will refer to the graph, and the graph refers to this.
            self._kept[operator].append(tree_map_only(Tensor, Tensor.detach, results))
        return results


class _Reuse(_Keep):  # type: ignore[no-untyped-call]
    def __init__(self, kept: dict[object, deque[Any]]) -> None:
        super().__init__(kept)
        #: the kept result that was returned last
        self._last: Any = None

    def __torch_dispatch__(
        self, operator: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        if operator in self._kept:
            self._last = self._kept[operator].popleft()
            return self._last
        if operator._schema.is_mutable and _share(arguments[0], self._last):
            # The forward pass has changed the kept result itself: DeepSpeed's ZeRO-3 adds the bias
            # of a product in place.
            return arguments[0]
        return operator(*arguments, **(named or {}))


def _share(x: object, y: object) -> bool:
    """Whether two tensors lie in one storage."""
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        return False
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
