"""What goes with the GPU, with its slot, with the stage and with time.

A reading's logarithm (or, of temperatures, the reading) is taken as a sum, fitted by least
squares::

    reading = run + GPU + stage + error

- *Run* takes whatever acts on all GPUs of a run alike, a drift of the room among it.
- *GPU* is what goes with the GPU where it sits: its silicon and the air of its slot. Effects of
  GPUs are differences from the mean over all GPUs. They can be told from those of stages only if
  GPUs changed stages between runs: ``gpu_order`` has to be rotated.
- *Stage* is what goes with the work. Layouts and models have stages of their own.

Of several nodes, GPUs' effects are divided once more::

    GPU = node + slot + silicon

with *slot* the mean over nodes of the GPUs at one index, and *silicon* what is left. Of one node no
arithmetic can tell them apart, because no GPU changes its slot.

Intervals hold 90 %, by Student's t. Errors are taken to be independent and normal.
``tests/placement/test_effects.py`` holds the coverage to that on made-up clusters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from workflow_lib.intervals.differences import Interval
from workflow_lib.placement.readings import Measured, Reading, without_order
from workflow_lib.records.reading import RecordError
from workflow_lib.words import counted

#: of every interval here
LEVEL = 0.9
_SECONDS_OF_AN_HOUR = 3600.0

#: a GPU's place: its node, and its index there
Place = tuple[str, int]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Effects:
    """What a quantity does, taken apart."""

    #: of each GPU, from the mean over all that ran together
    gpus: dict[Place, Interval]
    #: change an hour of what runs have in common; None for fewer than three runs
    drift_per_h: Interval | None
    #: standard deviation of what is left of one reading
    residual: float
    runs: int


def fit(
    measured: Measured, value: Callable[[Reading], float], *, logarithms: bool = True
) -> Effects:
    """Take a quantity apart, by its logarithm or as it is.

    Raises RecordError where GPUs cannot be told from stages, or where nothing is left to estimate
    the error by.
    """
    readings = measured.readings
    check(measured)
    values = np.array([value(reading) for reading in readings])
    observed = np.log(values) if logarithms else values
    columns = Columns(measured)
    model = _least_squares(columns.design, observed)
    if model.df_resid < 1:
        runs = counted(len({reading.key for reading in readings}), "run")
        raise RecordError(
            f"{measured.sweep} has {runs}, too few to estimate the error by: run each order of the "
            "GPUs three times"
        )
    gpus = {}
    for place in columns.places:
        gpus[place] = _effect(model.t_test(columns.of_gpu(place)))
    drift = _drift(model.params[: len(columns.runs)], columns.started)
    residual = math.sqrt(float(model.mse_resid))
    return Effects(gpus, drift, residual, len(columns.runs))


def as_share(effect: Interval) -> Interval:
    """An effect on a logarithm, as a share by which the quantity is above the mean."""
    return Interval(*(math.expm1(end) for end in (effect.estimate, effect.low, effect.high)))


class Columns:
    """The design: a column a run, one a GPU but the last, and one a stage but the last of each
    layout; GPUs and stages sum to nothing."""

    def __init__(self, measured: Measured) -> None:
        readings = measured.readings
        self.places: list[Place] = sorted({(reading.node, reading.gpu) for reading in readings})
        self.runs = sorted({reading.key for reading in readings})
        started = {reading.key: reading.started_unix_s for reading in readings}
        self.started = [started[run] for run in self.runs]
        layouts = _layouts(measured)
        stages: dict[int, set[int]] = {}
        for reading in readings:
            stages.setdefault(layouts[reading.cell], set()).add(reading.stage)
        blocks = [np.zeros((len(readings), len(self.runs)))]
        for row, reading in enumerate(readings):
            blocks[0][row, self.runs.index(reading.key)] = 1
        places = [self.places.index((reading.node, reading.gpu)) for reading in readings]
        blocks.append(_sum_to_nothing(places, len(self.places)))
        for layout, its in stages.items():
            ordered = sorted(its)
            at = [
                ordered.index(reading.stage) if layouts[reading.cell] == layout else None
                for reading in readings
            ]
            blocks.append(_sum_to_nothing(at, len(ordered)))
        self.design = np.hstack(blocks)
        if np.linalg.matrix_rank(self.design) < self.design.shape[1]:
            raise RecordError(
                f"{measured.sweep}: GPUs cannot be told from stages, {_why(readings)}"
            )

    def of_gpu(self, place: Place) -> Floats:
        """What of the parameters a GPU's effect is."""
        contrast = np.zeros(self.design.shape[1])
        first, number = len(self.runs), self.places.index(place)
        if number < len(self.places) - 1:
            contrast[first + number] = 1
        else:
            contrast[first : first + number] = -1
        return contrast


def _why(readings: Sequence[Reading]) -> str:
    """Why GPUs cannot be told from stages, and what to do."""
    stages: dict[str, set[int]] = {}
    for reading in readings:
        stages.setdefault(reading.node, set()).add(reading.stage)
    if any(one.isdisjoint(other) for one, other in itertools.combinations(stages.values(), 2)):
        return (
            "because nodes had no stage in common, and gpu_order stays within a node: use a "
            "pipeline that fits into one node"
        )
    return "because they did not change stages between runs: rotate gpu_order, as in sweep slots"


def _sum_to_nothing(levels: Sequence[int | None], count: int) -> Floats:
    """Columns of all levels but the last, whose effect is what makes the sum nothing."""
    columns = np.zeros((len(levels), count - 1))
    for row, level in enumerate(levels):
        if level is not None and level < count - 1:
            columns[row, level] = 1
        elif level is not None:
            columns[row] = -1
    return columns


def _layouts(measured: Measured) -> dict[str, int]:
    """A number for each cell, the same for those that differ in the order of GPUs alone."""
    alike = [without_order(run.cell) for run in measured.runs]
    return {run.cell.id: alike.index(cell) for run, cell in zip(measured.runs, alike, strict=True)}


def check(measured: Measured) -> None:
    """Raises RecordError where readings cannot be compared: none, or other GPUs in some runs."""
    if not measured.readings:
        why = next(iter(measured.left_out.values()), "no run has completed")
        raise RecordError(f"{measured.sweep} has no readings of GPUs: {why}")
    measured.uuids  # noqa: B018  # raises where GPUs changed
    of_runs: dict[tuple[str, int], set[Place]] = {}
    for reading in measured.readings:
        of_runs.setdefault(reading.key, set()).add((reading.node, reading.gpu))
    if len(set(map(frozenset, of_runs.values()))) > 1:
        nodes = ", ".join(sorted({reading.node for reading in measured.readings}))
        raise RecordError(
            f"{measured.sweep}: runs used different GPUs of {nodes}: give "
            "every cell all GPUs of its nodes"
        )
    if len(next(iter(of_runs.values()))) < 2:
        raise RecordError(f"{measured.sweep} has one GPU a run, and nothing to compare it with")


def _least_squares(design: Any, observed: Any) -> Any:
    import statsmodels.api as sm

    return sm.OLS(observed, design).fit()


def _effect(test: Any) -> Interval:
    low, high = test.conf_int(alpha=1 - LEVEL)[0]
    return Interval(float(test.effect[0]), float(low), float(high))


@dataclass(frozen=True)
class Apart:
    """GPUs' effects as what goes with the index in the node, and what is left."""

    slots: Mapping[int, Interval]
    silicon: Mapping[Place, Interval]
    #: why they are not told apart; "" where they are
    why_not: str = ""


def apart(gpus: Mapping[Place, Interval]) -> Apart:
    """Divide GPUs' effects into those of slots and of silicon."""
    from scipy import stats

    nodes = sorted({node for node, _ in gpus})
    indices = sorted({gpu for _, gpu in gpus})
    if len(nodes) < 2:
        return Apart({}, {}, "there is one node, where no GPU changes its slot")
    if len(gpus) < len(nodes) * len(indices):
        return Apart({}, {}, "nodes have GPUs at different indices")
    degrees = (len(nodes) - 1) * (len(indices) - 1)
    if degrees < 1:
        return Apart({}, {}, "each node has one GPU")
    values = np.array([[gpus[node, gpu].estimate for gpu in indices] for node in nodes])
    within = values - values.mean(axis=1, keepdims=True)
    slot = within.mean(axis=0)
    silicon = within - slot
    variance = float(np.square(silicon).sum()) / degrees
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, degrees))
    # Of a mean over nodes; the other indices take away their share.
    half = quantile * math.sqrt(variance / len(nodes) * (1 - 1 / len(indices)))
    slots = {
        gpu: Interval(float(mean), float(mean) - half, float(mean) + half)
        for gpu, mean in zip(indices, slot, strict=True)
    }
    chips = {}
    for row, node in enumerate(nodes):
        for column, gpu in enumerate(indices):
            own, estimate = gpus[node, gpu], float(silicon[row, column])
            # Silicon is the GPU's effect less the slot's: the errors of both.
            its_half = math.hypot(half, (own.high - own.low) / 2)
            chips[node, gpu] = Interval(estimate, estimate - its_half, estimate + its_half)
    return Apart(slots, chips)


def _drift(levels: Any, started: Sequence[float]) -> Interval | None:
    """The change of runs' levels an hour, by a straight line through them."""
    if len(started) < 3 or len(set(started)) < 2:
        return None
    hours = (np.array(started) - min(started)) / _SECONDS_OF_AN_HOUR
    line = _least_squares(np.column_stack([np.ones_like(hours), hours]), np.asarray(levels))
    return _effect(line.t_test(np.array([0.0, 1.0])))
