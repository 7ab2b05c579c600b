"""Made-up nodes whose answers to limits are known, as a sweep over several levels would read."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from tests.placement.made import reading, square
from workflow_lib.placement.levels import CLOCK, POWER
from workflow_lib.placement.readings import Measured, Run, order_of
from workflow_lib.placement.stages import Pipeline
from workflow_lib.records.degrees import coordinates

FULL_W = 700.0
#: at the full power, on the node's mean GPU
FULL_MHZ = 1600.0


@dataclass
class Node:
    """GPUs that draw their limit while they compute, and less while they wait."""

    #: logarithm of each GPU's clock; of its speed this times ``of_clocks`` comes true
    logs: list[float]
    of_clocks: float = 1.0
    #: a power limit of u W makes a GPU (u / 700)**exponent times as fast
    exponent: float = 0.35
    #: clocks at which a GPU runs at 1/f of the time draw f**this of the power
    steepness: float = 2.5
    #: of the power of a GPU that computes, what a lower clock does not change
    still: float = 0.0
    #: what the head takes, of what its FLOPs say
    head: float = 1.0
    waiting_w: float = 300.0
    #: of what a limit takes from a GPU that computes, a share goes from one that waits
    of_waiting: float = 0.0
    #: of a step with equal GPUs: what neither limits nor orders of GPUs change
    overhead: float = 0.1
    noise: float = 0.002
    lever: object = POWER
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def gpu(self, gpu: int, limit: float | None) -> tuple[float, float, float]:
        """Speed, W while it computes, and log clock of a GPU with a limit."""
        log = self.logs[gpu]
        if self.lever is POWER:
            limited = self.exponent * np.log((limit or FULL_W) / FULL_W)
            return np.exp(self.of_clocks * log + limited), limit or FULL_W, log + limited
        lowered = min(0.0, np.log((limit or 1e9) / FULL_MHZ) - log)
        watts = FULL_W * (self.still + (1 - self.still) * np.exp(self.steepness * lowered))
        return np.exp(self.of_clocks * (log + lowered)), watts, log + lowered

    def run(self, cell, limits=None):
        """A step's seconds, and of each rank W and °C, without noise."""
        pipeline, order = Pipeline(cell), order_of(cell)
        given = limits or self.lever.of(cell)

        work = pipeline.work_of(pipeline.layers(cell.degrees))
        work = work + (self.head - 1) * (pipeline.ends() - pipeline.ends(0.0))
        work = work / sum(work)

        def passes(its):
            speeds = [
                min(
                    self.gpu(order[local], its[order[local]] if its else None)[0] for _, local in at
                )
                for at in pipeline.places(["n1"])
            ]
            return work / np.array(speeds)

        fixed = self.overhead / (1 - self.overhead) * pipeline.step(work)
        step = pipeline.step(passes(given)) + fixed
        duty = pipeline.micro_batches * passes(given) / step
        watts = []
        for rank in range(cell.degrees.world_size):
            gpu = order[rank]
            busy_w = self.gpu(gpu, given[gpu] if given else None)[1]
            stage = coordinates(rank, cell.degrees).pp
            waiting_w = self.waiting_w * (1 - self.of_waiting * (1 - busy_w / FULL_W))
            watts.append(waiting_w + (busy_w - waiting_w) * duty[stage])
        return float(step), np.array(watts), 30 + 0.05 * np.array(watts)

    def gains(self, cell, before, after):
        """True gains of time and energy of limits against others."""
        step, watts, _ = self.run(cell, before)
        then, drawn, _ = self.run(cell, after)
        return 1 - then / step, 1 - then * drawn.sum() / (step * watts.sum())

    def readings(self, cell, number, started):
        step, watts, heat = self.run(cell)
        common = self.random.normal(0, self.noise)
        order, limits = order_of(cell), self.lever.of(cell)
        for rank in range(cell.degrees.world_size):
            gpu, its = order[rank], coordinates(rank, cell.degrees).pp
            log = self.gpu(gpu, limits[gpu] if limits else None)[2]
            if not (limits and self.lever is CLOCK):
                log += 0.01 * its + common + self.random.normal(0, self.noise)
            yield reading(
                *(cell, number, started, ("n1", gpu), its),
                sm_clock_mhz=FULL_MHZ * float(np.exp(log)),
                capped_clock_share=0.8 * float(np.exp(log)),
                power_w=watts[rank] + self.random.normal(0, 2),
                temperature_c=heat[rank] + self.random.normal(0, 0.3),
                inlet_c=None,
                power_limit_w=float(limits[gpu]) if limits and self.lever is POWER else FULL_W,
            )
        self.step_s = step * float(np.exp(self.random.normal(0, self.noise)))
        self.step_j = self.step_s * float(watts.sum())

    def measured(self, cells, rounds=3):
        """Runs of each cell, round by round."""
        runs, readings = [], []
        #: cell → joules of a step of each of its runs
        self.steps_j = {cell.id: [] for cell in cells}
        for number in range(1, rounds + 1):
            for cell in cells:
                started = 1e9 + 180 * len(runs)
                readings += self.readings(cell, number, started)
                self.steps_j[cell.id].append(self.step_j)
                runs.append(Run(cell, number, started, self.step_s, False))
        return Measured("made", runs, readings, {})


def limited(cell, lever, limit):
    """The cell with one limit for all GPUs."""
    limits = (limit,) * cell.ranks_per_node
    name = f"{cell.id}-{limit}{lever.unit.lower()}"
    return replace(lever.set_on(cell, limits), id=name)


def cells(levels=(400, 500, 600), lever=POWER, gpus=4, **fields):
    """A cell in each order of a Latin square, and in the plain order at other levels."""
    of_square = square(gpus, **fields)
    return of_square + [limited(of_square[0], lever, level) for level in levels]


def clock_cells(levels=(1300, 1450, 1600, 1980), **fields):
    return cells(levels, CLOCK, **fields)
