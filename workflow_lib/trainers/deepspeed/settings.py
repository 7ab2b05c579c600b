"""DeepSpeed's configuration of a cell."""

from __future__ import annotations

from typing import Any

from torch import nn

from workflow_lib.memory.states import BUCKET_PARAMETERS
from workflow_lib.records import SUMS, Training
from workflow_lib.trainers.native.clipping import MAXIMUM_GRADIENT_NORM


def settings(training: Training, dp: int, hidden_size: int) -> dict[str, Any]:
    """DeepSpeed's configuration, without the sizes of buckets."""
    bf16 = training.precision == "bf16"
    # In bf16, ZeRO-0 is another optimiser path, which sums micro-batches in bf16. ZeRO-1 over one
    # replica cuts nothing and is equal to ZeRO-0. Over several replicas it would not be, so
    # capabilities.py refuses that.
    stage = 1 if bf16 and training.zero_stage == 0 else training.zero_stage
    return {
        "train_micro_batch_size_per_gpu": training.micro_batch_size,
        "gradient_accumulation_steps": training.micro_batches(dp),
        "gradient_clipping": MAXIMUM_GRADIENT_NORM,
        "steps_per_print": None,
        "bf16": {"enabled": bf16},
        "data_types": {"grad_accum_dtype": SUMS},
        # The precision in which gradients are reduced over replicas. By default DeepSpeed takes
        # bf16 for a bf16 model, even if the gradients are sums in fp32.
        "communication_data_type": SUMS,
        # With sequence parallelism these are off: a stage would send each tensor-parallel rank's
        # part of its output, as if the output were equal on all of them.
        "pipeline": dict.fromkeys(
            ("pipe_partitioned", "grad_partitioned"), not training.sequence_parallel
        ),
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": training.overlap,
            # Norms stay whole, matrices are cut: the threshold is ten vectors, as in Hugging Face's
            # integration.
            "stage3_param_persistence_threshold": 10 * hidden_size,
        },
    }


def buckets(module: nn.Module) -> dict[str, int]:
    """Bucket sizes in elements: DeepSpeed's own, but at most the trained elements of the rank."""
    trained = (p for p in module.parameters() if p.requires_grad)
    size = min(BUCKET_PARAMETERS, sum(int(getattr(p, "ds_numel", p.numel())) for p in trained))
    return {"reduce_bucket_size": size, "allgather_bucket_size": size}
