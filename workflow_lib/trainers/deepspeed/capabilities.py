"""What DeepSpeed cannot run of the layouts and options that the model has.

The planner uses this module before anything is submitted, so it imports only the standard library.
tests/training/test_equality.py checks each claim by a run.
"""

from __future__ import annotations

from collections.abc import Iterator

from workflow_lib.records.degrees import Degrees
from workflow_lib.records.model import Model
from workflow_lib.records.training import Training


def refusals(degrees: Degrees, training: Training, model: Model) -> Iterator[str]:
    """Why DeepSpeed cannot run the cell, and what to change."""
    pp, dp, stage = degrees.pp, degrees.dp, training.zero_stage
    torch = "use backend: torch"
    if training.workload == "inference":
        yield f"workload inference: DeepSpeed's training engine does not generate; {torch}"
    if training.compile:
        yield f"compile: DeepSpeed's hooks on parameters break up compiled layers; {torch}"
    if degrees.virtual_stages > 1:
        yield f"virtual stages: DeepSpeed's pipeline has no interleaved schedule; {torch}"
    if degrees.cp > 1:
        yield f"CP {degrees.cp}: DeepSpeed's engine does not split sequences; {torch}"
    if degrees.schedule != "1f1b":
        yield f"schedule {degrees.schedule}: DeepSpeed's pipeline runs only 1F1B; {torch}"
    if pp > 1 and stage > 1:
        yield (
            f"PP {pp} with ZeRO-{stage}: DeepSpeed's pipeline engine takes ZeRO-0 and 1 only; "
            f"use zero_stage 0 or 1, or {torch.removeprefix('use ')}"
        )
    if training.precision == "bf16" and stage == 0 and dp > 1:
        yield (
            f"bf16 with ZeRO-0 and DP {dp}: DeepSpeed sums bf16 gradients in bf16 there, which "
            "changes the training; use zero_stage 1, precision fp32, or backend: torch"
        )
    if degrees.ep > 1 and stage == 3:
        yield (
            f"EP {degrees.ep} with ZeRO-3: DeepSpeed refuses it; use zero_stage 1 or 2, or "
            "backend: torch"
        )
    if training.overlap:
        yield from _overlap(degrees, training)


def _overlap(degrees: Degrees, training: Training) -> Iterator[str]:
    remedy = "use overlap: false, or backend: torch"
    if degrees.pp > 1:
        yield (
            f"overlap with PP {degrees.pp}: DeepSpeed turns it off in a pipeline; the cell would "
            f"run exactly as without overlap; {remedy}"
        )
    elif degrees.dp > 1 and training.zero_stage == 0:
        yield (
            "overlap with ZeRO-0: DeepSpeed reduces its gradients after the backward pass, exactly "
            f"as without overlap; {remedy}, or zero_stage 2 or 3"
        )
    elif degrees.dp > 1 and training.zero_stage == 1 and training.precision == "bf16":
        yield (
            "overlap with ZeRO-1 in bf16: DeepSpeed reduces its fp32 gradient sums after the "
            f"backward pass, exactly as without overlap; {remedy}, or zero_stage 2 or 3"
        )
