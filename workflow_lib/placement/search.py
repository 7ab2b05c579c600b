"""Looks for the placement of a cell with the surest gain, and says what one should gain.

Orders and divisions of layers are looked for with the GPUs' speeds as measured. Their gain is drawn
as often as :data:`workflow_lib.placement.draws.DRAWS`, each time

- with GPUs' effects of another sample of runs;
- with the share of these effects that comes true in the steps of the runs
  (:mod:`workflow_lib.placement.elasticity`). Published gains were half of what clocks had promised
  (arXiv 2511.09861: 1.06 → 1.03, 1.10 → 1.04);
- with 0.8 to 1.2 times the work of the head and the loss: a FLOP of theirs need not take as long as
  one of a layer's;
- with 0.75 to 1 of the whole gain: communication and the optimiser take time that the formula does
  not have. Without this, the gain of one more layer on the first of two stages was predicted as
  4.4 % (4.0 to 4.4), and 3.8 % was measured;
- with 0.3 % of the step more or less where the placement is another. Passes of one stage differ,
  what they send takes time, and stages wait for each other by chance: steps of single passes were
  so far from the formula;
- with the power and the temperature that go with a GPU's share of computing in this very draw. They
  were measured, and that share was not: it hangs on the head's work, and on the rest of the step.
  In that rest a GPU is for 0 to 1 of the time as busy as in a pass;
- with 0.85 to 1.15 times the warmth that computing adds to a mean GPU, as GPUs are cooled
  differently;
- with 0 to 1 of what limits save taken from the power of computing alone, so that a GPU that
  computes for more of a step saves more, and the rest from all of a GPU's power.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from workflow_lib import memory
from workflow_lib.intervals.differences import Interval
from workflow_lib.placement import elasticity
from workflow_lib.placement.draws import Weights, by_gpu_and_duty, solved, within_runs
from workflow_lib.placement.effects import LEVEL, Columns, Floats, Place
from workflow_lib.placement.levels import Lever
from workflow_lib.placement.readings import Measured, order_of
from workflow_lib.placement.stages import Order, Pipeline
from workflow_lib.records.cell import Cell
from workflow_lib.records.reading import RecordError
from workflow_lib.words import counted


@dataclass(frozen=True)
class Prediction:
    """What a placement should change, each with a 90 % interval."""

    order: Order
    #: of each of the pipeline's ranks; as the cell has them where they cannot move
    layers: tuple[int, ...]
    #: 1 less the ratio of step times; likewise of the GPUs' energy
    time_gain: Interval
    energy_gain: Interval
    #: of the warmest GPU's mean, °C
    temperature_change_c: Interval
    #: of each GPU of a node; None where they are as the cell has them
    limits: Limits | None = None


@dataclass(frozen=True)
class Limits:
    """A limit for each GPU of a node, by its index."""

    lever: Lever
    values: tuple[int, ...]


@dataclass(frozen=True)
class GpusAtLimits:
    """GPUs under limits, in each draw."""

    limits: Limits
    #: logarithm of each GPU's speed
    logs: Mapping[Place, Floats]
    #: what share of a GPU's power is saved, and by how many °C it changes
    saved: Mapping[Place, Floats]
    warmth_c: Mapping[Place, Floats]


@dataclass(frozen=True)
class Change:
    """What one placement changes against another, (draws)."""

    time_gain: Floats
    energy_gain: Floats
    warmest_c: Floats

    def then(self, other: Change) -> Change:
        """This change, and another after it."""
        return Change(
            1 - (1 - self.time_gain) * (1 - other.time_gain),
            1 - (1 - self.energy_gain) * (1 - other.energy_gain),
            self.warmest_c + other.warmest_c,
        )


@dataclass(frozen=True)
class Move:
    """The one layer that is nearest to paying, with the order as it is."""

    from_stage: int
    to_stage: int
    #: how much faster the other stage's GPUs have to be for that: 1 + P / L between equal stages
    needed_ratio: float
    #: how much faster they are
    ratio: Interval


def interval(draws: Floats) -> Interval:
    """The first draw, which is the estimate, and the ends of what holds 90 % of all."""
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(draws[0]), float(min(low, draws[0])), float(max(high, draws[0])))


#: samples of fewer runs are too alike to tell how far GPUs' effects can be trusted
_FEWEST_RUNS = 4
_OF_HEAD = 0.8, 1.2
_OF_GAIN = 0.75, 1.0
_OF_COMPUTING = 0.0, 1.0
_OF_UNKNOWN = 0.0, 1.0
_OF_BESIDES = 0.0, 1.0
_LEFT_OUT = -0.003, 0.003
_OF_WARMTH = 0.85, 1.15
#: of each share of the GPUs' effects (1: the estimate) so many placements are drawn
_MOST_TRIED = 12
_TRIED_SHARES = 0.67, 1.0, 1.33


class Search:
    """The draws, and what they say of a placement."""

    def __init__(self, measured: Measured, cell: Cell) -> None:
        self.cell = cell
        self.pipeline = Pipeline(cell)
        self.nodes = sorted({reading.node for reading in measured.readings})
        if len(self.nodes) != cell.nodes:
            raise RecordError(
                f"{measured.sweep} has readings of {len(self.nodes)} nodes, and the cell has "
                f"{cell.nodes}: characterise the nodes that it is to run on, all at once"
            )
        columns = Columns(measured)
        if len(columns.runs) < _FEWEST_RUNS:
            raise RecordError(
                f"{measured.sweep} has readings of {counted(len(columns.runs), 'run')}, and a "
                f"placement needs {_FEWEST_RUNS} or more: run each order of the GPUs three times"
            )
        self.places = columns.places
        self.weights = Weights(measured)
        design = within_runs(measured, columns.design[:, len(columns.runs) :])
        clocks = np.log([measured.clock(reading) for reading in measured.readings])
        observed = within_runs(measured, clocks[:, None])[:, 0]
        count = len(self.places)
        parameters = solved(measured, self.weights, design, observed, range(count - 1))
        effects = np.column_stack([parameters, -parameters.sum(axis=1)])
        #: of each GPU, (draws): the logarithm of its clock, less the mean of all
        self.clocks = dict(zip(self.places, effects.T, strict=True))
        self.head, self.share_of_gain = self._uniform(_OF_HEAD), self._uniform(_OF_GAIN)
        self.of_computing = self._uniform(_OF_COMPUTING)
        #: what is added to the gain of another placement
        self.left_out = self._uniform(_LEFT_OUT)
        #: of the most that computing can add to power and temperature, where runs do not tell
        self.unknown = self._uniform(_OF_UNKNOWN)
        #: for how much of what a step takes besides its passes a GPU is as busy as in a pass
        self.of_besides = self._uniform(_OF_BESIDES)
        #: of each GPU: what computing adds to its temperature, over what it adds in the mean
        self.warmth = {place: self._uniform(_OF_WARMTH) for place in self.places}
        #: how much of the clocks' effects comes true
        self.share = elasticity.drawn(
            measured, cell, self._log_steps, self.weights.generator, len(self.weights.of_runs)
        )
        #: likewise of its speed; the first draw is the estimate
        self.logs = dict(zip(self.places, (self.share[:, None] * effects).T, strict=True))
        self._watts_and_degrees(measured)

    def _uniform(self, ends: tuple[float, float]) -> Floats:
        """Between ends, (draws); the first draw is the mean."""
        values = self.weights.generator.uniform(*ends, len(self.weights.of_runs))
        values[0] = np.mean(ends)
        return values

    def _watts_and_degrees(self, measured: Measured) -> None:
        duty = {run.cell.id: self._duty(run.cell) for run in measured.runs}
        of_readings = [duty[reading.cell][:, reading.stage] for reading in measured.readings]
        self.usual_duty: Floats = np.mean(of_readings, axis=0)
        readings = measured, self.weights, self.places, duty
        self.power, self.power_slope = by_gpu_and_duty(
            *readings, lambda reading: reading.power_w, self.unknown
        )
        self.heat, self.heat_slope = by_gpu_and_duty(
            *readings, lambda reading: reading.temperature_c, self.unknown
        )

    def _log_steps(self, cells: Sequence[Cell], share: float) -> Floats:
        """Of cells, (draws, cells), if this share of the clocks' effects comes true."""
        logs = {place: share * values for place, values in self.clocks.items()}

        def step(cell: Cell) -> Floats:
            its = Pipeline(cell)
            return its.step(self._passes(its, order_of(cell), its.layers(cell.degrees), logs))

        rest = self._rest(step(self.cell))
        return np.asarray(np.log(np.stack([step(cell) + rest for cell in cells], axis=-1)))

    def _duty(self, cell: Cell) -> Floats:
        """For how much of a step of a measured cell each of its stages computes, (draws, pp)."""
        its = Pipeline(cell)
        passes = self._passes(its, order_of(cell), its.layers(cell.degrees), self.logs)
        return self._step_and_duty(its, passes, self._rest(its.step(passes)))[1]

    def _rest(self, step: Floats) -> Floats:
        """What a cell's step takes besides its passes, (draws). No placement changes it, so the
        share of a gain that comes about is the one that was drawn."""
        return (1 / self.share_of_gain - 1) * step

    def _step_and_duty(
        self, pipeline: Pipeline, passes: Floats, rest: Floats
    ) -> tuple[Floats, Floats]:
        """A whole step, (draws), and for how much of it each stage computes, (draws, pp)."""
        step = pipeline.step(passes) + rest
        busy = pipeline.micro_batches * passes + (self.of_besides * rest)[:, None]
        return step, busy / step[:, None]

    def best(self) -> tuple[Order, tuple[int, ...]]:
        """The placement with the surest gain that fits into memory.

        Of every order the best division of layers is known for each of a few shares of the GPUs'
        effects. Those with the shortest steps are drawn, and the one whose gain has the highest
        lower end is taken: what is best by the estimate alone may move a layer too many.
        """
        pipeline, degrees = self.pipeline, self.cell.degrees
        estimates = {place: float(values[0]) for place, values in self.logs.items()}
        orders = pipeline.orders(self.nodes, estimates)
        given = np.array(pipeline.layers(degrees))
        candidates = {self._own: None}
        for share in _TRIED_SHARES:
            first = {place: share * values[:1] for place, values in self.logs.items()}
            speeds = pipeline.speeds(orders, self.nodes, first)[:, 0]
            layers = np.broadcast_to(given, speeds.shape)
            if pipeline.layers_can_move:
                layers = pipeline.divided(speeds)
            steps = pipeline.step(pipeline.passes(layers, speeds))
            for number in np.argsort(np.round(steps / steps.min(), 9), kind="stable")[:_MOST_TRIED]:
                chosen = tuple(int(count) for count in layers[number])
                if self._fits(chosen):
                    candidates[orders[number], chosen] = None
        surest = {placement: self.prediction(*placement).time_gain.low for placement in candidates}
        # Of equal ones the first, which is the cell as it is.
        return max(surest, key=lambda placement: round(surest[placement], 6))

    def _fits(self, layers: tuple[int, ...]) -> bool:
        """Whether a division surely fits into memory: the one that was measured did. True if the
        GPUs' memory is not known."""
        capacity = self.cell.hardware.gpu_memory_bytes
        if capacity is None or layers == self.pipeline.layers(self.cell.degrees):
            return True
        degrees = dataclasses.replace(self.cell.degrees, stage_layers=layers)
        needed = memory.estimate(self.cell.model, degrees, self.cell.training)
        return needed.fits(capacity) == "yes"

    def prediction(
        self, order: Order, layers: tuple[int, ...], gpus: GpusAtLimits | None = None
    ) -> Prediction:
        """What a placement changes, and limits with it, against the cell as it is."""
        change = self.change(order, layers)
        if gpus is not None:
            change = change.then(self.change_by(gpus, order, layers))
        return Prediction(
            order=order,
            layers=layers,
            time_gain=interval(change.time_gain),
            energy_gain=interval(change.energy_gain),
            temperature_change_c=interval(change.warmest_c),
            limits=None if gpus is None else gpus.limits,
        )

    def change(self, order: Order, layers: tuple[int, ...]) -> Change:
        """What a placement changes, against the cell as it is."""
        is_own = (order, tuple(layers)) == self._own
        return self._between(
            self._as_it_is, self._runs(order, layers), 0.0 if is_own else self.left_out
        )

    def change_by(self, gpus: GpusAtLimits, order: Order, layers: tuple[int, ...]) -> Change:
        """What limits change, against the same placement without them."""
        return self._between(self._runs(order, layers), self._runs(order, layers, gpus))

    def _between(self, before: _Drawn, after: _Drawn, more: Floats | float = 0.0) -> Change:
        gain = 1 - after.step / before.step + more
        energy_gain = 1 - (1 - gain) * after.power_w / before.power_w
        return Change(gain, energy_gain, after.warmest_c - before.warmest_c)

    @functools.cached_property
    def _own(self) -> tuple[Order, tuple[int, ...]]:
        return order_of(self.cell), self.pipeline.layers(self.cell.degrees)

    @functools.cached_property
    def _as_it_is(self) -> _Drawn:
        return self._runs(*self._own)

    def work(self, layers: Sequence[int]) -> Floats:
        """Of each of the pipeline's ranks, (draws, pp)."""
        return self._work(self.pipeline, layers)

    def _work(self, pipeline: Pipeline, layers: Sequence[int]) -> Floats:
        head = pipeline.ends() - pipeline.ends(0.0)
        return pipeline.work_of(layers) + np.outer(self.head - 1, head)

    def _passes(
        self,
        pipeline: Pipeline,
        order: Order,
        layers: Sequence[int],
        logs: Mapping[Place, Floats],
    ) -> Floats:
        speeds = pipeline.speeds([order], self.nodes, logs)[0]
        return np.asarray(self._work(pipeline, layers) / speeds)

    @functools.cached_property
    def _besides(self) -> Floats:
        """What a step takes besides its passes, (draws)."""
        return self._rest(self.pipeline.step(self._passes(self.pipeline, *self._own, self.logs)))

    def _runs(
        self, order: Order, layers: Sequence[int], gpus: GpusAtLimits | None = None
    ) -> _Drawn:
        pipeline = self.pipeline
        logs = self.logs if gpus is None else gpus.logs
        passes = self._passes(pipeline, order, layers, logs)
        step, duty = self._step_and_duty(pipeline, passes, self._besides)
        watts, degrees_c = [], []
        for stage, members in enumerate(pipeline.places(self.nodes)):
            more = duty[:, stage] / self.usual_duty
            for node, local in members:
                place = node, order[local]
                power_w = self.power[place] + self.power_slope * duty[:, stage]
                more_c = self.warmth[place] * (duty[:, stage] - self.usual_duty)
                heat_c = self.heat[place] + self.heat_slope * (self.usual_duty + more_c)
                if gpus is not None:
                    usual_w = self.power[place] + self.power_slope * self.usual_duty
                    saved_w = power_w + self.of_computing * (usual_w * more - power_w)
                    power_w = power_w - gpus.saved[place] * saved_w
                    heat_c = heat_c + gpus.warmth_c[place]
                watts.append(power_w)
                degrees_c.append(heat_c)
        return _Drawn(step, np.sum(watts, axis=0), np.max(degrees_c, axis=0))

    def move(self, order: Order, layers: tuple[int, ...]) -> Move:
        """The layer that is nearest to paying where it is moved off the slowest stage."""
        pipeline = self.pipeline
        speeds = pipeline.speeds([order], self.nodes, self.logs)[0]
        work = pipeline.work_of(layers)
        slowest = int((work / speeds[0]).argmax())
        after = (work + pipeline.work.layer) / speeds[0]
        after[slowest] = np.inf
        to = int(after.argmin())
        return Move(
            slowest,
            to,
            float((work[to] + pipeline.work.layer) / work[slowest]),
            interval(speeds[:, to] / speeds[:, slowest]),
        )


@dataclass(frozen=True)
class _Drawn:
    """A placement in each draw: of the step relative, W of all GPUs, °C of the warmest."""

    step: Floats
    power_w: Floats
    warmest_c: Floats
