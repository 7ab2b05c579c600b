"""Which combinations the training backend can run, and why it cannot run the others.

The planner reads this before anything is submitted, so only the standard library is used. Each
claim is held to by a run in tests/training/test_equality.py.
"""

from __future__ import annotations

from workflow_lib.records import Degrees, Model, Training


def refusal(degrees: Degrees, training: Training, model: Model) -> str | None:
    """Say why no backend here can run the combination, and what to change; None where one can."""
    for reason in (
        _unsupported_zero(degrees, training),
        _inert_overlap(degrees, training),
        _indivisible(degrees, model),
        _experts(degrees, training, model),
    ):
        if reason is not None:
            return reason
    return None


def _unsupported_zero(degrees: Degrees, training: Training) -> str | None:
    stage = training.zero_stage
    if stage not in (0, 1, 2, 3):
        return f"ZeRO-{stage}: the stages are 0 to 3; use one of them"
    if degrees.pp > 1 and stage > 1:
        return (
            f"PP {degrees.pp} with ZeRO-{stage}: DeepSpeed's pipeline engine takes ZeRO-0 and 1 "
            "only; use zero_stage 0 or 1"
        )
    if training.precision == "bf16" and stage == 0 and degrees.dp > 1:
        return (
            f"bf16 with ZeRO-0 and DP {degrees.dp}: DeepSpeed sums bf16 gradients in bf16 there, "
            "which changes the training; use zero_stage 1, or precision fp32"
        )
    return None


def _inert_overlap(degrees: Degrees, training: Training) -> str | None:
    if not training.overlap:
        return None
    remedy = "it would run as a silent copy of the cell without overlap; use overlap: false"
    if degrees.pp > 1:
        return f"overlap with PP {degrees.pp}: DeepSpeed turns it off in a pipeline; {remedy}"
    if degrees.dp == 1:
        return f"overlap with DP 1: there is no gradient reduction to overlap; {remedy}"
    if training.zero_stage == 0:
        return (
            "overlap with ZeRO-0: DeepSpeed reduces its gradients after the backward pass; "
            f"{remedy}, or zero_stage 2 or 3"
        )
    if training.zero_stage == 1 and training.precision == "bf16":
        return (
            "overlap with ZeRO-1 in bf16: DeepSpeed reduces its fp32 gradient sums after the "
            f"backward pass; {remedy}, or zero_stage 2 or 3"
        )
    return None


def _indivisible(degrees: Degrees, model: Model) -> str | None:
    if model.layers % degrees.pp:
        return (
            f"PP {degrees.pp}: {model.name} has {model.layers} layers, and {model.layers} / "
            f"{degrees.pp} = {model.layers / degrees.pp:.4g}; use a PP that divides them"
        )
    for count, what in (
        (model.kv_heads, "key and value heads"),
        (model.attention_heads, "attention heads"),
        (model.ffn_hidden_size, "feed-forward columns"),
        (model.padded_vocabulary_size, "vocabulary rows"),
    ):
        if count % degrees.tp:
            return (
                f"TP {degrees.tp}: {model.name} has {count} {what}, which {degrees.tp} does not "
                "divide; use a TP that does"
                + (", or another vocabulary_multiple" if what.startswith("vocabulary") else "")
            )
    return None


def _experts(degrees: Degrees, training: Training, model: Model) -> str | None:
    ep = degrees.ep
    if ep == 1:
        return None
    if model.experts == 0:
        return f"EP {ep}: {model.name} has no experts; use ep 1"
    if model.experts % ep:
        return f"EP {ep}: {model.name} has {model.experts} experts; use an EP that divides them"
    if degrees.dp % ep:
        return f"EP {ep} with DP {degrees.dp}: experts are spread over replicas; EP must divide DP"
    if training.zero_stage == 3:
        return f"EP {ep} with ZeRO-3: DeepSpeed refuses it; use zero_stage 1 or 2"
    return None
