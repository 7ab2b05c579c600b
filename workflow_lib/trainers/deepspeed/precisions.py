"""The precisions in which DeepSpeed holds and exchanges a model, read from its optimisers.

Each optimiser has names of its own: ``BF16_Optimizer`` (ZeRO-1 in bf16), ``DeepSpeedZeroOptimizer``
(ZeRO-1 in fp32, ZeRO-2), ``DeepSpeedZeroOptimizer_Stage3``. Without ZeRO there is only AdamW.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workflow_lib.records.training import Precisions
from workflow_lib.trainers.native.precisions import MOMENTS, named

#: attributes by optimiser, in the order of the list above
_MASTER_WEIGHTS = (
    "fp32_groups_flat_partition",
    "single_partition_of_fp32_groups",
    "fp32_partitioned_groups_flat",
)
_GATHERED = ("bf16_groups_flat", "bit16_groups_flat", "fp16_partitioned_groups_flat")
#: the second optimiser makes its sums within a step, and only gives their precision
_SUMS = ("fp32_groups_gradients_flat", "gradient_accumulation_dtype", "grad_partitions_flat_buffer")


def deepspeed_precisions(engine: Any, adamw: torch.optim.AdamW) -> Precisions:
    """The precisions of an engine and its AdamW; moments are null before the first step."""
    optimizer = engine.optimizer
    weights = list(engine.module.parameters())
    trained = [weight.dtype for weight in weights if weight.requires_grad]
    moments = (state[name] for state in adamw.state.values() for name in MOMENTS)
    return Precisions(
        # In ZeRO-3 the part of a weight that a rank keeps is an attribute of it.
        weights=named(each.dtype for w in weights for each in (w, getattr(w, "ds_tensor", w))),
        gradients=named(_precisions(optimizer, _SUMS) or trained),
        # The engine reduces without ZeRO, in pipelines and for BF16_Optimizer; otherwise the
        # buckets do.
        reduction=named([engine.communication_data_type, *getattr(optimizer, "ipg_buckets", ())]),
        gathering=named(_precisions(optimizer, _GATHERED)),
        master_weights=named(_precisions(optimizer, _MASTER_WEIGHTS) or trained),
        moments=named(moment.dtype for moment in moments),
    )


def _precisions(optimizer: object, names: tuple[str, ...]) -> list[torch.dtype]:
    """The precisions of an optimiser's attributes with these names: tensors, or precisions
    themselves."""
    found = []
    for value in (getattr(optimizer, name) for name in names if hasattr(optimizer, name)):
        several = [value] if isinstance(value, Tensor | torch.dtype) else value
        found += [each if isinstance(each, torch.dtype) else each.dtype for each in several]
    return found
