"""Which combinations each backend can run, and why it cannot run the others.

The planner uses this module before anything is submitted, so it imports only the standard library.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from workflow_lib.records.degrees import Degrees
from workflow_lib.records.model import Model
from workflow_lib.records.training import Backend, Training
from workflow_lib.trainers.deepspeed import capabilities as deepspeed
from workflow_lib.trainers.native import capabilities as native

#: backends in the order in which ``auto`` tries them, with what each cannot run
_REFUSALS = {"deepspeed": deepspeed.refusals, "torch": native.of_torch}
BACKENDS: tuple[Backend, ...] = ("deepspeed", "torch")


def with_backend(
    degrees: Degrees, training: Training, model: Model, wanted: Backend | Literal["auto"]
) -> Training:
    """The training with its backend settled: the wanted one, or for ``auto`` the first that can run
    it.

    If none can, it is the last backend, whose refusal gives the reason that is hardest to avoid.
    """
    backends = BACKENDS if wanted == "auto" else (wanted,)
    candidates = [dataclasses.replace(training, backend=backend) for backend in backends]
    able = (candidate for candidate in candidates if refusal(degrees, candidate, model) is None)
    return next(able, candidates[-1])


def refusal(degrees: Degrees, training: Training, model: Model) -> str | None:
    """Say why the cell's backend cannot run it, and what to change; None if it can run it."""
    for refusals in (native.of_model, _REFUSALS[training.backend]):
        for reason in refusals(degrees, training, model):
            return reason
    return None
