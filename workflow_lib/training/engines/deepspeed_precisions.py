"""In which precision DeepSpeed holds and exchanges a model, read from its optimisers.

Each of them has names of its own: ``BF16_Optimizer`` (ZeRO-1 in bf16), ``DeepSpeedZeroOptimizer``
(ZeRO-1 in fp32, ZeRO-2), ``DeepSpeedZeroOptimizer_Stage3``. Without ZeRO there is AdamW alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workflow_lib.records import Precisions
from workflow_lib.training.precisions import MOMENTS, named

#: by optimiser, in the order of above
_MASTER_WEIGHTS = (
    "fp32_groups_flat_partition",
    "single_partition_of_fp32_groups",
    "fp32_partitioned_groups_flat",
)
_GATHERED = ("bf16_groups_flat", "bit16_groups_flat", "fp16_partitioned_groups_flat")
#: the second optimiser makes its sums within a step, and tells of them only
_SUMS = ("fp32_groups_gradients_flat", "gradient_accumulation_dtype", "grad_partitions_flat_buffer")


def deepspeed_precisions(engine: Any, adamw: torch.optim.AdamW) -> Precisions:
    """What an engine and the AdamW that it was given have; no moments before the first step."""
    optimizer = engine.optimizer
    weights = list(engine.module.parameters())
    trained = [weight.dtype for weight in weights if weight.requires_grad]
    moments = (state[name] for state in adamw.state.values() for name in MOMENTS)
    return Precisions(
        # In ZeRO-3 what a rank keeps of a weight lies beside it.
        weights=named(each.dtype for w in weights for each in (w, getattr(w, "ds_tensor", w))),
        gradients=named(_precisions(optimizer, _SUMS) or trained),
        # The engine reduces without ZeRO, in pipelines and for BF16_Optimizer, else the buckets.
        reduction=named([engine.communication_data_type, *getattr(optimizer, "ipg_buckets", ())]),
        gathering=named(_precisions(optimizer, _GATHERED)),
        master_weights=named(_precisions(optimizer, _MASTER_WEIGHTS) or trained),
        moments=named(each.dtype for each in moments),
    )


def _precisions(optimizer: object, names: tuple[str, ...]) -> list[torch.dtype]:
    """Those of what an optimiser has under any of some names: tensors, or a precision itself."""
    found = []
    for value in (getattr(optimizer, name) for name in names if hasattr(optimizer, name)):
        several = [value] if isinstance(value, Tensor | torch.dtype) else value
        found += [each if isinstance(each, torch.dtype) else each.dtype for each in several]
    return found
