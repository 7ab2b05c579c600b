"""DeepSpeed's configuration of a cell."""

from __future__ import annotations

from typing import Any

from torch import nn

from workflow_lib.memory.states import BUCKET_PARAMETERS
from workflow_lib.records import SUMS, Training
from workflow_lib.training.clipping import MAXIMUM_GRADIENT_NORM


def settings(training: Training, dp: int, hidden_size: int) -> dict[str, Any]:
    """All of the configuration but the buckets."""
    bf16 = training.precision == "bf16"
    # In bf16, ZeRO-0 is another optimiser path, which sums micro-batches in bf16. ZeRO-1 over one
    # replica cuts nothing and is what the cell means; over several it would not be ZeRO-0, so
    # capabilities.py refuses that.
    stage = 1 if bf16 and training.zero_stage == 0 else training.zero_stage
    return {
        "train_micro_batch_size_per_gpu": training.micro_batch_size,
        "gradient_accumulation_steps": training.micro_batches(dp),
        "gradient_clipping": MAXIMUM_GRADIENT_NORM,
        "steps_per_print": None,
        "bf16": {"enabled": bf16},
        "data_types": {"grad_accum_dtype": SUMS},
        # In which gradients are reduced over replicas. By itself it takes bf16 for a bf16 model,
        # even where these are sums in fp32.
        "communication_data_type": SUMS,
        # Else a stage sends each tensor-parallel rank's part of what it takes to be equal on all.
        "pipeline": dict.fromkeys(
            ("pipe_partitioned", "grad_partitioned"), not training.sequence_parallel
        ),
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": training.overlap,
            # Norms stay whole, matrices are cut: ten vectors, as Hugging Face's integration has it.
            "stage3_param_persistence_threshold": 10 * hidden_size,
        },
    }


def buckets(module: nn.Module) -> dict[str, int]:
    """Bucket sizes in elements: DeepSpeed's own, but never more than the rank has that trains."""
    trained = (p for p in module.parameters() if p.requires_grad)
    size = min(BUCKET_PARAMETERS, sum(int(getattr(p, "ds_numel", p.numel())) for p in trained))
    return {"reduce_bucket_size": size, "allgather_bucket_size": size}
