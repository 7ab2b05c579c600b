"""Power of a GPU by what it does: computing, waiting or communicating.

``P = P_compute·(1 − w − c) + P_wait·w + P_comm·c`` for shares w of waiting (the pipeline's bubble)
and c of communicating. Levels are shares of the power limit. Runs without a pipeline give the level
of computing, and runs with one give that of waiting. The level of communicating lies between the
two and is not known better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from workflow_lib.projection.layouts import Layout
from workflow_lib.projection.mixed import Prediction
from workflow_lib.projection.own import OwnRun

_COMMUNICATING = ("tensor", "context", "expert", "gather", "send", "reduce", "constant")
#: standard deviations of levels: of computing, if runs gave it; of waiting, likewise; of both, if
#: no run on this GPU did
_COMPUTE_SD, _WAIT_SD, _UNKNOWN_SD = 0.015, 0.06, 0.10
#: standard deviation between GPUs of one model at one limit, which is as large as their sensors'
#: error
_SENSOR_SD = 0.03


@dataclass(frozen=True)
class Levels:
    """Levels of power as shares of the power limit, of GPUs that compute and that wait."""

    compute: float
    compute_sd: float
    wait: float
    wait_sd: float
    #: how the levels are known, in words
    source: str


@dataclass(frozen=True)
class GpuPower:
    """Mean power of one GPU, in W, and its standard deviation."""

    power_w: float
    sd_w: float


def levels(runs: Sequence[OwnRun], gpu: str) -> Levels:
    """The levels from runs on a model of GPU; if it has none, from runs on other models.

    Raises ValueError unless the runs with power include some with a pipeline and some without.
    """
    known = [run for run in runs if run.power_per_gpu_w is not None]
    own = [run for run in known if run.gpu == gpu]
    chosen, measured = (own, True) if own else (known, False)
    compute = median([_level(run) for run in chosen if run.pp == 1])
    wait = median([_waiting(run, compute) for run in chosen if run.pp > 1])
    names = " and ".join(sorted({run.gpu for run in chosen}))
    return Levels(
        compute=compute,
        compute_sd=_COMPUTE_SD if measured else _UNKNOWN_SD,
        wait=wait,
        wait_sd=_WAIT_SD if measured else _UNKNOWN_SD,
        source=f"measured on {names}"
        if measured
        else f"taken from {names}, as shares of the limit",
    )


def gpu_power(layout: Layout, prediction: Prediction, known: Levels) -> GpuPower:
    """The power of a GPU in a layout whose step is predicted."""
    waiting = _bubble_share(layout)
    communicating = (1 - waiting) * sum(prediction.shares.get(part, 0.0) for part in _COMMUNICATING)
    between = (known.compute + known.wait) / 2
    share = (
        known.compute * (1 - waiting - communicating)
        + known.wait * waiting
        + between * communicating
    )
    # The level of communicating is taken as uniform between the two others.
    comm_sd = (known.compute - known.wait) / 12**0.5
    variance = (
        ((1 - waiting) * known.compute_sd) ** 2
        + (waiting * known.wait_sd) ** 2
        + (communicating * comm_sd) ** 2
        + (_SENSOR_SD * share) ** 2
    )
    limit = layout.machine.power_limit_w
    return GpuPower(share * limit, variance**0.5 * limit)


def _level(run: OwnRun) -> float:
    assert run.power_per_gpu_w is not None
    return run.power_per_gpu_w / run.layout.machine.power_limit_w


def _waiting(run: OwnRun, compute: float) -> float:
    share = _bubble_share(run.layout)
    return (_level(run) - (1 - share) * compute) / share


def _bubble_share(layout: Layout) -> float:
    return 1 - layout.micro_batches / layout.bubble
