"""Looks for the placement of a cell with the surest gain, and says what one should gain.

Orders and divisions of layers are looked for with the GPUs' speeds as measured. Their gain is drawn
as often as :data:`workflow_lib.placement.draws.DRAWS`, each time

- with GPUs' effects of another sample of runs;
- with 0.5 to 1 of these effects: measured gains were half of what clocks had promised
  (arXiv 2511.09861: 1.06 → 1.03, 1.10 → 1.04);
- with 0.8 to 1.2 times the work of the head and the loss: a FLOP of theirs need not take as long as
  one of a layer's;
- with 0.75 to 1 of the whole gain: communication, the optimiser, and stages that wait for each
  other by chance take time that the formula does not have. Without this, the gain of one more layer
  on the first of two stages was predicted as 4.4 % (4.0 to 4.4), and 3.8 % was measured;
- with 0 to 1 of what limits save taken from the power of computing alone, so that a GPU that
  computes for more of a step saves more, and the rest from all of a GPU's power.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workflow_lib import memory
from workflow_lib.placement.draws import Weights, by_gpu_and_duty, solved, within_runs
from workflow_lib.placement.effects import Columns, Place
from workflow_lib.placement.predictions import Change, Held, Move, Prediction, interval
from workflow_lib.placement.readings import Measured, Run, order_of
from workflow_lib.placement.stages import Order, Pipeline
from workflow_lib.records import Cell, RecordError
from workflow_lib.words import counted

Floats = npt.NDArray[np.float64]

#: samples of fewer runs are too alike to tell how far GPUs' effects can be trusted
_FEWEST_RUNS = 4
_OF_CLOCKS = 0.5, 1.0
_OF_HEAD = 0.8, 1.2
_OF_GAIN = 0.75, 1.0
_OF_COMPUTING = 0.0, 1.0
#: of each share of the GPUs' effects (1: the estimate) so many placements are drawn
_MOST_TRIED = 12
_TRIED_SHARES = 0.67, 1.0, 1.33


class Search:
    """The draws, and what they say of a placement."""

    def __init__(self, measured: Measured, cell: Cell) -> None:
        self.cell = cell
        self.pipeline = Pipeline(cell)
        self.nodes = sorted({each.node for each in measured.readings})
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
        clocks = np.log([measured.clock(each) for each in measured.readings])
        observed = within_runs(measured, clocks[:, None])[:, 0]
        count = len(self.places)
        found = solved(measured, self.weights, design, observed, range(count - 1))
        effects = np.column_stack([found, -found.sum(axis=1)])
        generator = self.weights.generator
        draws = len(found)
        #: of each GPU, (draws): the logarithm of its clock, less the mean of all
        self.clocks = dict(zip(self.places, effects.T, strict=True))
        share = generator.uniform(*_OF_CLOCKS, draws)
        self.head = generator.uniform(*_OF_HEAD, draws)
        self.share_of_gain = generator.uniform(*_OF_GAIN, draws)
        self.of_computing = generator.uniform(*_OF_COMPUTING, draws)
        self.of_computing[0] = np.mean(_OF_COMPUTING)
        share[0], self.head[0], self.share_of_gain[0] = np.mean(_OF_CLOCKS), 1.0, np.mean(_OF_GAIN)
        #: likewise of its speed; the first draw is the estimate
        self.logs = dict(zip(self.places, (share[:, None] * effects).T, strict=True))
        self._watts_and_degrees(measured)

    def _watts_and_degrees(self, measured: Measured) -> None:
        duty = self._duties(measured)
        self.usual_duty = float(np.mean(duty))
        readings = measured, self.weights, self.places, duty
        self.power, self.power_slope = by_gpu_and_duty(*readings, lambda each: each.power_w)
        self.heat, self.heat_slope = by_gpu_and_duty(*readings, lambda each: each.temperature_c)

    def _duties(self, measured: Measured) -> list[float]:
        """Of each reading, by its cell's layers and order: for how much of a step it computes."""
        of_cells: dict[str, Floats] = {}
        for run in measured.runs:
            if run.cell.id not in of_cells:
                of_cells[run.cell.id] = self._duty(run)
        return [float(of_cells[each.cell][each.stage]) for each in measured.readings]

    def _duty(self, run: Run) -> Floats:
        its = Pipeline(run.cell)
        order = order_of(run.cell)
        first = {place: values[:1] for place, values in self.logs.items()}
        speeds = its.speeds([order], self.nodes, first)[0, 0]
        passes = its.passes(its.layers(run.cell.degrees), speeds)
        return np.asarray(its.micro_batches * passes / its.step(passes))

    def _usual_w(self, place: Place) -> Floats:
        return self.power[place] + self.power_slope * self.usual_duty

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
        own = order_of(self.cell), pipeline.layers(degrees)
        found = {own: None}
        for share in _TRIED_SHARES:
            first = {place: share * values[:1] for place, values in self.logs.items()}
            speeds = pipeline.speeds(orders, self.nodes, first)[:, 0]
            layers = np.broadcast_to(given, speeds.shape)
            if pipeline.layers_can_move:
                layers = pipeline.divided(speeds)
            steps = pipeline.step(pipeline.passes(layers, speeds))
            for number in np.argsort(np.round(steps / steps.min(), 9), kind="stable")[:_MOST_TRIED]:
                chosen = tuple(int(each) for each in layers[number])
                if self._fits(chosen):
                    found[orders[number], chosen] = None
        surest = {each: self.prediction(*each).time_gain.low for each in found}
        # Of equal ones the first, which is the cell as it is.
        return max(surest, key=lambda each: round(surest[each], 6))

    def _fits(self, layers: tuple[int, ...]) -> bool:
        capacity = self.cell.hardware.gpu_memory_bytes
        if capacity is None or not self.pipeline.layers_can_move:
            return True
        degrees = dataclasses.replace(self.cell.degrees, stage_layers=layers)
        needed = memory.estimate(self.cell.model, degrees, self.cell.training)
        return needed.total <= capacity * (1 + memory.UNCERTAINTY)

    def prediction(
        self, order: Order, layers: tuple[int, ...], held: Held | None = None
    ) -> Prediction:
        """What a placement changes, and limits with it, against the cell as it is."""
        change = self.change(order, layers)
        if held is not None:
            change = change.then(self.change_by(held, order, layers))
        return Prediction(
            order=order,
            layers=layers,
            time_gain=interval(change.time_gain),
            energy_gain=interval(change.energy_gain),
            temperature_change_c=interval(change.warmest_c),
            limits=None if held is None else held.limits,
        )

    def change(self, order: Order, layers: tuple[int, ...]) -> Change:
        """What a placement changes, against the cell as it is."""
        return self._between(self._as_it_is, self._runs(order, layers))

    def change_by(self, held: Held, order: Order, layers: tuple[int, ...]) -> Change:
        """What limits change, against the same placement without them."""
        return self._between(self._runs(order, layers), self._runs(order, layers, held))

    def _between(self, before: _Drawn, after: _Drawn) -> Change:
        gain = self.share_of_gain * (1 - after.step / before.step)
        energy_gain = 1 - (1 - gain) * after.power_w / before.power_w
        return Change(gain, energy_gain, after.warmest_c - before.warmest_c)

    @functools.cached_property
    def _as_it_is(self) -> _Drawn:
        return self._runs(order_of(self.cell), self.pipeline.layers(self.cell.degrees))

    def work(self, layers: Sequence[int]) -> Floats:
        """Of each of the pipeline's ranks, (draws, pp)."""
        head = self.pipeline.ends() - self.pipeline.ends(0.0)
        return self.pipeline.work_of(layers) + np.outer(self.head - 1, head)

    def _runs(self, order: Order, layers: Sequence[int], held: Held | None = None) -> _Drawn:
        pipeline = self.pipeline
        logs = self.logs if held is None else held.logs
        passes = self.work(layers) / pipeline.speeds([order], self.nodes, logs)[0]
        step = pipeline.step(passes)
        duty = pipeline.micro_batches * passes / step[:, None]
        watts, degrees_c = [], []
        for stage, members in enumerate(pipeline.places(self.nodes)):
            more = duty[:, stage] / self.usual_duty
            for node, local in members:
                place = node, order[local]
                power_w = self.power[place] + self.power_slope * duty[:, stage]
                heat_c = self.heat[place] + self.heat_slope * duty[:, stage]
                if held is not None:
                    saved_w = power_w + self.of_computing * (self._usual_w(place) * more - power_w)
                    power_w = power_w - held.saved[place] * saved_w
                    heat_c = heat_c + held.warmth_c[place]
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
