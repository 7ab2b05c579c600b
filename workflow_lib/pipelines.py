"""Plans a pipeline before it runs: divides layers by their work, and estimates the bubble."""

from __future__ import annotations

from collections.abc import Sequence

from workflow_lib import formulas
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.model import Model
from workflow_lib.records.training import Training


def layers_by_work(model: Model, degrees: Degrees, training: Training) -> tuple[int, ...]:
    """How many layers each stage gets, first to last, so that the largest work of a pipeline rank
    is as small as possible; see :func:`workflow_lib.formulas.stage_work`.

    Layers are divided over the pipeline's ranks first, then those of a rank over its chunks. ()
    if there are fewer layers than stages; such a cell cannot run.
    """
    work, stages = formulas.stage_work(model, training), degrees.stages
    if model.layers < stages:
        return ()
    ends = [0.0] * stages
    ends[0] += work.embedding
    ends[-1] += work.head
    held = [degrees.stages_of(rank) for rank in range(degrees.pp)]
    of_ranks = _spread(
        model.layers,
        work.layer,
        [sum(ends[stage] for stage in mine) for mine in held],
        degrees.virtual_stages,
    )
    layers = [0] * stages
    for mine, count in zip(held, of_ranks, strict=True):
        spread = _spread(count, work.layer, [ends[stage] for stage in mine], 1)
        for stage, its in zip(mine, spread, strict=True):
            layers[stage] = its
    return tuple(layers)


def bubble(degrees: Degrees, micro_batches: int) -> float:
    """The time of a step in which a rank idles, over the time in which it computes.

    The estimate assumes that all passes of all stages take equally long, and communication no time.

    With 1F1B it is (p − 1) / (v · m) for p ranks with v chunks each and m micro-batches (arXiv
    2104.04473, sections 2.2.1 and 2.2.2). With 1F1B ranks idle for (p − 1) · (T_F + T_B + T_W),
    with the zero-bubble schedules for (p − 1) · (T_F + T_B − T_W) (arXiv 2401.10241, table 1). That
    is a third if the three passes take equally long. The paper calls it zero for the V schedule,
    because there the next step may begin while the last one ends; here all ranks end a step
    together.
    """
    idle = (degrees.pp - 1) / (degrees.virtual_stages * micro_batches)
    return idle if degrees.schedule == "1f1b" else idle / 3


def _spread(layers: int, work: float, ends: Sequence[float], least: int) -> list[int]:
    """Spread layers, each of ``work``, over places that already have the work ``ends``. Each place
    gets at least ``least`` layers.

    Each layer goes to the place that then has the least work. As all layers are alike, no other
    choice makes the largest work of a place smaller. Of equal places, one in the middle gets it.
    """
    spread = [least] * len(ends)
    last = len(ends) - 1
    order = [*range(1, last), *dict.fromkeys((0, last))]
    for _ in range(layers - least * len(ends)):
        place = min(order, key=lambda place: ends[place] + work * (spread[place] + 1))
        spread[place] += 1
    return spread
