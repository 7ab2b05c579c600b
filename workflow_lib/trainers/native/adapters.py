"""Low-rank adapters (LoRA, arXiv 2106.09685): two thin trained matrices beside a frozen one.

If the base computes W·x, the adapted layer computes W·x + (alpha / rank)·B·(A·x). B starts at zero,
so that the first step is that of the base model. Adapters are added to attention's query-key-value
and output, and to the matrices of a dense feed-forward part. Matrices that share a product (query,
key and value; gate and up) share an A. Experts, router, embedding, norms and head are frozen and
have none.

Tensor-parallel ranks exchange only A·x, which is ``rank`` wide. With sequence parallelism, the
matrix of a pair that is whole on each rank meets only a slice of the sequence there, so its
gradient is summed over the ranks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workflow_lib.records import Model, Training
from workflow_lib.trainers.native.layers import ColumnParallelLinear, RowParallelLinear
from workflow_lib.trainers.native.weights import Weights

#: numerator of the scaling, for any rank of adapters: the default of NVIDIA NeMo's LoRA
ALPHA = 32.0


class AdaptedLinear(nn.Module):
    """A frozen map and its adapter: A is ``narrow``, B is ``widen``.

    If the base's outputs are cut over the group, so are B's rows, and A is whole. If its inputs are
    cut, so are A's columns, and B is whole.
    """

    def __init__(
        self,
        base: ColumnParallelLinear | RowParallelLinear,
        weights: Weights,
        name: str,
        shape: tuple[int, int],
        rank: int,
    ) -> None:
        """``shape`` is that of the whole map: [outputs, inputs]."""
        super().__init__()
        trained, (outputs, inputs) = weights.for_adapters(), shape
        self.base, self.parallel = base, base.parallel
        self.scale = ALPHA / rank
        self.rows_cut = isinstance(base, ColumnParallelLinear)
        self.narrow = trained.normal(
            f"{name}.narrow", (rank, inputs), inputs**-0.5, split=None if self.rows_cut else 1
        )
        self.widen = trained.zeros((outputs, rank), split=0 if self.rows_cut else None)

    def forward(self, x: Tensor) -> Tensor:
        parallel = self.parallel
        if self.rows_cut:
            thin = parallel.enter(F.linear(x, parallel.whole(self.narrow)))
            wide = F.linear(thin, self.widen)
        else:
            thin = parallel.leave(F.linear(x, self.narrow))
            wide = F.linear(thin, parallel.whole(self.widen))
        return torch.add(self.base(x), wide, alpha=self.scale)


def adapt(layer: nn.Module, weights: Weights, name: str, model: Model, training: Training) -> None:
    """Add adapters to the matrices of a transformer layer of the model."""
    hidden, ffn = model.hidden_size, model.ffn_hidden_size
    shapes = {
        "attention.query_key_value": (model.query_size + 2 * model.key_value_size, hidden),
        "attention.output": (hidden, model.query_size),
    }
    if model.is_plain:
        shapes |= {"feed_forward.up": (ffn, hidden), "feed_forward.down": (hidden, ffn)}
    elif model.experts == 0:
        shapes |= {"feed_forward.gate_up": (2 * ffn, hidden), "feed_forward.down": (hidden, ffn)}
    for path, shape in shapes.items():
        base = layer.get_submodule(path)
        assert isinstance(base, (ColumnParallelLinear, RowParallelLinear))
        adapted = AdaptedLinear(base, weights, f"{name}.{path}", shape, training.lora_rank)
        layer.set_submodule(path, adapted)
