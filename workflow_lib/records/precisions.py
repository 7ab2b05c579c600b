"""The precisions in which a rank holds, sums and exchanges weights and gradients."""

from __future__ import annotations

from dataclasses import dataclass

from workflow_lib.records.degrees import Degrees
from workflow_lib.records.training import Precision, Training

#: precision of gradient sums, of their reduction, and of the optimiser, in every cell
SUMS: Precision = "fp32"


@dataclass(frozen=True)
class Precisions:
    """The names of precisions, such as "bf16" or "fp32"; null if a cell has no such tensors."""

    #: weights that layers compute with, activations, and gradients of a micro-batch
    weights: str | None
    #: gradients summed over micro-batches, as the optimiser gets them
    gradients: str | None = None
    #: reduction of gradients over replicas
    reduction: str | None = None
    #: gathering of weights over replicas
    gathering: str | None = None
    #: weights that the optimiser updates
    master_weights: str | None = None
    #: both moments of Adam
    moments: str | None = None
    #: operands of the matrix products in decoder layers; null if they have that of weights
    products: str | None = None


def precisions_of(training: Training, degrees: Degrees) -> Precisions:
    """The precisions of a cell; both backends use the same. With one replica nothing is reduced or
    gathered, and ZeRO-0 gathers nothing.
    """
    if training.workload == "inference":
        return Precisions(training.held_precision)
    replicated = degrees.copies > 1
    return Precisions(
        weights=training.held_precision,
        gradients=SUMS,
        reduction=SUMS if replicated else None,
        gathering=training.held_precision if replicated and training.zero_stage > 0 else None,
        master_weights=SUMS,
        moments=SUMS,
        products="fp8" if training.precision == "fp8" else None,
    )
