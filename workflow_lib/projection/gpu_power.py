"""Power of a GPU by what it does: computing, waiting or communicating.

``P = P_compute·(1 − w − c) + P_wait·w + P_comm·c`` for shares w of waiting (the pipeline's bubble,
and stages with less work than the slowest) and c of communicating. Levels are shares of the power
limit. Runs without a pipeline give the level of computing, and runs with one give that of waiting.
Exchanges of tensor parallelism count as computing: in TP2 of Llama 3 8B each takes 0.2 ms, and the
cap holds the mean of longer (docs/results/operators-h200-2026-11-30.md). The level of other
communication lies between the two and is not known better.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from workflow_lib.projection import timed_terms
from workflow_lib.projection.hierarchical_fit import Prediction
from workflow_lib.projection.layouts import Layout
from workflow_lib.projection.own_runs import OwnRun, read_own
from workflow_lib.projection.step_terms import products_of_ranks_s
from workflow_lib.records.reading import RecordError

_COMMUNICATING = (
    *("context", "expert", "gather", "send", "reduce", "constant"),
    *(part for part in timed_terms.EXCHANGES if not part.startswith("tensor")),
)
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


def levels(runs: Sequence[OwnRun], gpu: str, shipped: Sequence[OwnRun] | None = None) -> Levels:
    """The levels from runs on a model of GPU. A level that they do not give is that of the
    shipped evidence (or of ``shipped``), and if that has none either, of other models of GPU.

    Runs on one GPU alone do not give a level of waiting, because no GPU of theirs waits. If nothing
    does, waiting may take anything from nothing to what computing takes. Raises RecordError if
    nothing gives the level of computing.
    """
    known = _with_power(runs)
    others = _shipped() if shipped is None else _with_power(shipped)
    computing = functools.partial(_first, known, others, lambda run: run.pp == 1)
    of_compute = computing(gpu)
    of_wait = _first(known, others, lambda run: run.pp > 1, gpu)
    if not of_compute:
        raise RecordError(
            "no run without a pipeline has its power, and the level of computing GPUs is theirs"
        )
    compute = _computing(of_compute)
    compute_sd = _COMPUTE_SD if _is_of(of_compute, gpu) else _UNKNOWN_SD
    computes, waits = (_source(chosen, gpu) for chosen in (of_compute, of_wait))
    source = computes if computes == waits else f"computing {computes}; waiting {waits}"
    if not of_wait:
        return Levels(compute, compute_sd, compute / 2, compute / 12**0.5, source)
    compute_of = {name: _computing(computing(name)) for name in {run.gpu for run in of_wait}}
    return Levels(
        compute=compute,
        compute_sd=compute_sd,
        wait=median([_waiting(run, compute_of[run.gpu]) for run in of_wait]),
        wait_sd=_WAIT_SD if _is_of(of_wait, gpu) else _UNKNOWN_SD,
        source=source,
    )


def _first(
    known: Sequence[OwnRun], shipped: Sequence[OwnRun], wanted: Callable[[OwnRun], bool], gpu: str
) -> list[OwnRun]:
    """The wanted runs of the first source that has any: those given on this model of GPU, those
    shipped on it, those given on others, those shipped on others."""
    for is_of in (gpu.__eq__, gpu.__ne__):
        for source in (known, shipped):
            if chosen := [run for run in source if wanted(run) and is_of(run.gpu)]:
                return chosen
    return []


@functools.cache
def _shipped() -> tuple[OwnRun, ...]:
    return _with_power(read_own())


def _with_power(runs: Sequence[OwnRun]) -> tuple[OwnRun, ...]:
    return tuple(run for run in runs if run.power_per_gpu_w is not None)


def _is_of(chosen: Sequence[OwnRun], gpu: str) -> bool:
    return all(run.gpu == gpu for run in chosen)


def _source(chosen: Sequence[OwnRun], gpu: str) -> str:
    if not chosen:
        return "not measured"
    names = " and ".join(sorted({run.gpu for run in chosen}))
    if _is_of(chosen, gpu):
        return f"measured on {names}"
    return f"taken from {names}, as shares of the limit"


def _computing(chosen: Sequence[OwnRun]) -> float:
    return median([_level(run) for run in chosen])


def gpu_power(layout: Layout, prediction: Prediction, known: Levels) -> GpuPower:
    """The power of a GPU in a layout whose step is predicted."""
    waiting = waiting_share(layout)
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
    share = waiting_share(run.layout)
    return (_level(run) - (1 - share) * compute) / share


def waiting_share(layout: Layout) -> float:
    """The share of a step's passes in which a GPU waits, as a mean over pipeline ranks: in the
    bubble, and for the rank whose products take longest."""
    work = products_of_ranks_s(layout)
    return 1 - layout.micro_batches * fmean(work) / (layout.bubble * max(work))
