"""Whether a published layout fits its GPUs' memory, by the estimate that plans of sweeps use."""

from __future__ import annotations

from workflow_lib import memory
from workflow_lib.projection.layouts import Layout
from workflow_lib.records import Degrees, Model, Training


def fits(layout: Layout) -> memory.Fit:
    """Whether a layout is predicted to run, by the rule of plans.

    Context-parallel ranks are counted as replicas with a shorter sequence: they hold the same
    weights and their part of the activations. FP8 is counted as bf16, because its master weights
    are kept.
    """
    shape = layout.shape
    family = "mixtral" if shape.experts else "llama" if shape.gated else "gpt"
    model = Model(
        name=shape.name,
        family=family,  # type: ignore[arg-type]
        layers=layout.layers,
        hidden_size=shape.hidden,
        ffn_hidden_size=shape.ffn,
        attention_heads=shape.heads,
        kv_heads=shape.kv_heads,
        sequence_length=layout.sequence_length // layout.cp,
        vocabulary_size=shape.vocabulary,
        experts=shape.experts,
        experts_per_token=shape.experts_per_token,
        tied_embeddings=shape.tied and family != "gpt",
        head_dimension=shape.head_size,
    )
    replicas = layout.dp * layout.cp
    degrees = Degrees(
        tp=layout.tp,
        pp=layout.pp,
        virtual_stages=layout.virtual_stages,
        dp=replicas,
        ep=layout.ep if replicas % layout.ep == 0 else 1,
    )
    training = Training(
        micro_batch_size=layout.micro_batch,
        global_batch_size=round(layout.micro_batches) * replicas * layout.micro_batch,
        precision="bf16",
        zero_stage=layout.sharding,
        sequence_parallel=layout.tp > 1 and layout.sequence_parallel,
        recomputation=layout.recomputation,  # type: ignore[arg-type]
        overlap=True,
        routing="dropless" if shape.experts else None,
        # These have no effect on memory.
        learning_rate=1e-4,
        seed=0,
        warmup_steps=0,
        measured_steps=1,
    )
    return memory.estimate(model, degrees, training).fits(layout.machine.memory_bytes)
