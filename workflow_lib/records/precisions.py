"""In which precision a rank holds, adds up and exchanges what it trains."""

from __future__ import annotations

from dataclasses import dataclass

from workflow_lib.records.cell import Degrees, Precision, Training

#: whatever a cell's precision: gradients as they are added up and reduced, and the optimiser's
SUMS: Precision = "fp32"


@dataclass(frozen=True)
class Precisions:
    """A name for each, such as "bf16" or "fp32"; null where a cell has no such thing."""

    #: that layers compute with; activations and a micro-batch's gradients have it, too
    weights: str | None
    #: as they are summed over micro-batches and reach the optimiser
    gradients: str | None = None
    #: of gradients over replicas
    reduction: str | None = None
    #: of weights over replicas
    gathering: str | None = None
    #: weights as the optimiser changes them
    master_weights: str | None = None
    #: both of Adam's
    moments: str | None = None
    #: of the operands of decoder layers' matrix products, where it is not that of weights
    products: str | None = None


def precisions_of(training: Training, degrees: Degrees) -> Precisions:
    """What a cell has, whatever its backend. Without a second replica nothing is reduced or
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
