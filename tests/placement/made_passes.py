"""A pipeline's step by its passes one after the other, and nodes whose GPUs follow from physics.

Nothing here is from ``workflow_lib.placement``: what that predicts is held against it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.placement.made import reading
from workflow_lib import formulas
from workflow_lib.placement.readings import Measured, Run
from workflow_lib.records.degrees import coordinates

CAP_W = 700.0
HIGHEST_MHZ = 1980.0
ROOM_C = 25.0


def one_f_one_b(forward, backward, hop=0.0):
    """When the last of 1F1B's passes ends. Both are of (stages, micro-batches), and what a stage
    sends arrives ``hop`` later.
    """
    stages, micro_batches = forward.shape
    queues = [_queue(stages - stage - 1, micro_batches) for stage in range(stages)]
    ends: dict[tuple[str, int, int], float] = {}
    free = [0.0] * stages
    while any(queues):
        for stage, queue in enumerate(queues):
            while queue:
                kind, number = queue[0]
                before = _awaited(kind, stage, number, stages)
                if before is not None and before not in ends:
                    break
                arrives = 0.0
                if before is not None:
                    arrives = ends[before] + hop * (before[1] != stage)
                takes = (forward if kind == "F" else backward)[stage, number]
                free[stage] = max(free[stage], arrives) + takes
                ends[kind, stage, number] = free[stage]
                queue.pop(0)
    return max(free)


def _queue(stages_after, micro_batches):
    """A stage's passes: as many forward passes first as there are stages after it."""
    first = min(micro_batches, stages_after)
    queue = [("F", number) for number in range(first)]
    for number in range(micro_batches):
        if first + number < micro_batches:
            queue.append(("F", first + number))
        queue.append(("B", number))
    return queue


def _awaited(kind, stage, number, stages):
    if kind == "F":
        return ("F", stage - 1, number) if stage > 0 else None
    return ("B", stage + 1, number) if stage < stages - 1 else ("F", stage, number)


class Node:
    """GPUs at their power cap. They differ in how much power a clock takes, in leakage, which grows
    with temperature, and in cooling.

    A layer follows the clock for a share of its time within ``follows``, and so does the head. That
    takes 0.8 to 1.2 of what its FLOPs say where it is not ``known``. Passes differ a little, what
    they send takes time, and up to a fifth of a step is neither. In that fifth a GPU is anything
    from idle to as busy as in a pass.
    """

    def __init__(self, seed, gpus, spread=0.02, known=False, noise=0.002, follows=(0.5, 1)):
        random = self.random = np.random.default_rng([seed, 77])
        self.switching = 1 + random.normal(0, 1.6 * spread, gpus)
        self.leakage_w = 60 * np.exp(random.normal(0, 0.25, gpus))
        self.slot_c = random.normal(0, 4, gpus)
        self.c_per_w = 0.045 * np.exp(random.normal(0, 0.05, gpus))
        self.of_layer, self.of_head = random.uniform(*follows, 2)
        self.head = 1.0 if known else random.uniform(0.8, 1.2)
        self.besides = random.uniform(0, 0.2)
        self.busy_besides = random.uniform(0, 1)
        self.hop = random.uniform(0, 0.005)
        self.uneven = random.uniform(0, 0.01)
        self.waiting_w = random.uniform(200, 450)
        self.noise = noise

    def gpu(self, gpu, duty, room_c):
        """Clock at the cap over 1600 MHz, W and °C of a GPU that computes for a share of time."""
        watts = duty * CAP_W + (1 - duty) * self.waiting_w
        celsius = room_c + self.slot_c[gpu] + self.c_per_w[gpu] * watts
        leaked_w = self.leakage_w[gpu] * np.exp(0.012 * (celsius - 60))
        # Voltage follows the clock, and so power takes more than its square.
        clock = ((CAP_W - leaked_w) / (640 * self.switching[gpu])) ** (1 / 2.6)
        return clock, watts, celsius

    def run(self, cell, room_c=ROOM_C):
        """A step, and of each rank its stage, GPU, clock, W and °C, without noise."""
        degrees, layers = cell.degrees, cell.degrees.layers_of_stages(cell.model.layers)
        stages, count = degrees.pp, cell.training.global_batch_size
        order = degrees.gpu_order or tuple(range(cell.ranks_per_node))
        stage_of = [coordinates(rank, degrees).pp for rank in range(degrees.world_size)]
        work = formulas.stage_work(cell.model, cell.training)
        head, usual = work.head / work.layer, cell.model.layers / stages
        random = np.random.default_rng(5)
        uneven = np.exp(random.normal(0, self.uneven, (2, stages, count)))
        besides = self.besides / (1 - self.besides) * (count + stages - 1) * (1 + head / usual)
        duty = np.full(stages, 0.85)
        # What GPUs compute makes them warm, and that makes them slower: this settles at once.
        for _ in range(3):
            gpus = [
                self.gpu(gpu, duty[stage], room_c)
                for gpu, stage in zip(order, stage_of, strict=True)
            ]
            clock = np.ones(stages) * np.inf
            for stage, (its, _, _) in zip(stage_of, gpus, strict=True):
                clock[stage] = min(clock[stage], its)
            passes = np.array(layers) * (self.of_layer / clock + 1 - self.of_layer)
            passes[-1] += self.head * head * (self.of_head / clock[-1] + 1 - self.of_head)
            passes /= usual
            each = passes[:, None] / 3 * uneven * np.array([1, 2])[:, None, None]
            step = one_f_one_b(each[0], each[1], self.hop) + besides
            duty = (count * passes + self.busy_besides * besides) / step
        return step, [
            (stage, gpu, *its) for stage, gpu, its in zip(stage_of, order, gpus, strict=True)
        ]

    def measured(self, cells, rounds=3, warmer_c_per_h=0.5):
        """Runs of each cell, round by round, in a room that gets warmer."""
        random, runs, readings = self.random, [], []
        for number in range(1, rounds + 1):
            for cell in cells:
                hours = 0.05 * len(runs)
                room_c = ROOM_C + warmer_c_per_h * hours
                step, ranks = self.run(cell, room_c)
                common, started = random.normal(0, self.noise), 1e9 + 3600 * hours
                step_s = step * float(np.exp(random.normal(0, self.noise)))
                runs.append(Run(cell, number, started, step_s, False))
                for stage, gpu, clock, watts, celsius in ranks:
                    mhz = 1600 * clock * np.exp(common + random.normal(0, self.noise))
                    readings.append(
                        reading(
                            *(cell, number, started, ("n1", gpu), stage),
                            sm_clock_mhz=float(mhz),
                            capped_clock_share=float(mhz / HIGHEST_MHZ),
                            power_w=watts + random.normal(0, 2),
                            temperature_c=celsius + random.normal(0, 0.3),
                            inlet_c=room_c,
                            power_limit_w=CAP_W,
                        )
                    )
        return Measured("made", runs, readings, {})

    def gains(self, cell, order, layers):
        """What a placement truly gains of time and of energy, and °C of the warmest GPU."""
        order = () if order == tuple(range(len(order))) else order
        degrees = replace(cell.degrees, gpu_order=order, stage_layers=layers)
        (before, was), (after, then) = (
            self.run(each) for each in (cell, replace(cell, degrees=degrees))
        )
        (was_w, was_c), (then_w, then_c) = (
            np.array([(watts, celsius) for *_, watts, celsius in each]).T for each in (was, then)
        )
        energy_gain = 1 - after * then_w.sum() / (before * was_w.sum())
        return 1 - after / before, energy_gain, then_c.max() - was_c.max()
