"""Made-up nodes whose silicon, slots and drift are known, as a sweep over them would read."""

from dataclasses import replace

import numpy as np

from tests.made_cells import made_cell
from workflow_lib.placement.readings import Measured, Reading, Run, order_of
from workflow_lib.placement.stages import Pipeline
from workflow_lib.records.degrees import Degrees, coordinates


def pipeline_cell(gpus, *, pp=None, tp=1, layers=80, head=False, order=(), nodes=1, **training):
    """A pipeline over nodes of ``gpus`` GPUs, with layers of equal work; a head of no weight unless
    ``head``, when it has the work of about two and a half layers.
    """
    cell = made_cell()
    model = replace(
        cell.model,
        **{"layers": layers, "hidden_size": 1024, "ffn_hidden_size": 3584, "attention_heads": 8},
        **{"kv_heads": 8, "sequence_length": 2048, "vocabulary_size": 40_000 if head else 64},
    )
    order = () if tuple(order) == tuple(range(len(order))) else tuple(order)
    degrees = Degrees(tp=tp, pp=pp or gpus * nodes // tp, dp=1, gpu_order=order)
    name = degrees.name + ("-head" if head else "")
    return replace(
        cell,
        id=f"h200/tiny/{name}_mb1_01234567",
        model=model,
        degrees=degrees,
        training=replace(
            cell.training, **{"global_batch_size": 32, "micro_batch_size": 1} | training
        ),
        hardware=replace(cell.hardware, gpus_per_node=gpus),
        nodes=nodes,
    )


def rotations(ranks, stages):
    """The orders of a Latin square."""
    block = ranks // stages
    return [tuple((rank + turn * block) % ranks for rank in range(ranks)) for turn in range(stages)]


def square(gpus=4, tp=1, **fields):
    """A cell in each order of a Latin square."""
    return [
        pipeline_cell(gpus, tp=tp, order=order, **fields) for order in rotations(gpus, gpus // tp)
    ]


def node(*logs, name="n1"):
    """The logarithms of a node's clocks, or speeds, by place."""
    return {(name, gpu): log for gpu, log in enumerate(logs)}


#: two and four equal GPUs
TWO, FOUR = node(0.0, 0.0), node(0.0, 0.0, 0.0, 0.0)


def with_degrees(cell, **changes):
    return replace(cell, degrees=replace(cell.degrees, **changes))


def interleaved(cell):
    return with_degrees(cell, virtual_stages=2)


def heavier(cells):
    """The cells with a layer more on the first stage from each other stage."""
    found = []
    for cell in cells:
        even = cell.degrees.layers_of_stages(cell.model.layers)
        layers = (even[0] + len(even) - 1, *(each - 1 for each in even[1:]))
        changed = with_degrees(cell, stage_layers=layers)
        found.append(replace(changed, id=f"{cell.id}-heavier"))
    return found


def step_of(cell, effects, share=1.0, of_gain=1.0, nodes=("n1",)):
    """A step, over that of a layer on a mean GPU, if a share of the clocks' effects comes true, and
    of what passes gain from equal GPUs so much comes about in steps.
    """
    pipeline = Pipeline(cell)

    def step(share):
        logs = {place: np.array([share * log]) for place, log in effects.items()}
        speeds = pipeline.speeds([order_of(cell)], nodes, logs)[0]
        passes = pipeline.passes(np.array(pipeline.layers(cell.degrees)), speeds)
        return float(pipeline.step(passes)[0]) / pipeline.work.layer

    return step(share) + (1 / of_gain - 1) * step(0)


def reading(cell, number, started, place, stage, **values):
    """A reading of the GPU at a place, (node, index), in a run of a cell."""
    node, gpu = place
    uuid = f"GPU-{node}-{gpu}"
    return Reading(cell.id, number, started, node, gpu, uuid, stage, **values)


def measured(
    cells,
    effects,
    *,
    rounds=3,
    noise=0.002,
    stage=0.03,
    drift_per_h=0.0,
    nodes=("n1",),
    seed=1,
    share=1.0,
    of_gain=1.0,
):
    """The readings of runs of each cell, round by round.

    ``effects`` is the logarithm of each GPU's clock, by place; ``stage`` by how much the clock of
    each next stage is higher. Of steps see :func:`step_of`.
    """
    random, of_steps = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    steps = {cell.id: step_of(cell, effects, share, of_gain, nodes) for cell in cells}
    readings, runs = [], []
    hours = 0.0
    for number in range(1, rounds + 1):
        for cell in cells:
            common = random.normal(0, noise) + drift_per_h * hours
            started = 1e9 + 3600 * hours
            step_s = steps[cell.id] * float(np.exp(of_steps.normal(0, noise)))
            runs.append(Run(cell, number, started, step_s, False))
            order = order_of(cell)
            for rank in range(cell.degrees.world_size):
                node, local = divmod(rank, cell.ranks_per_node)
                place = nodes[node], order[local]
                its = coordinates(rank, cell.degrees).pp
                log = effects[place] + stage * its + common + random.normal(0, noise)
                readings.append(
                    reading(
                        *(cell, number, started, place, its),
                        sm_clock_mhz=1600 * float(np.exp(log)),
                        capped_clock_share=0.8 * float(np.exp(log)),
                        power_w=600 + 40 * its / cell.degrees.pp + random.normal(0, 2),
                        temperature_c=60 + place[1] + random.normal(0, 0.3),
                        inlet_c=25.0,
                    )
                )
            hours += 0.05
    return Measured("made", runs, readings, {})
