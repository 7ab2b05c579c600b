"""The orders of passes that schedules make, run on a clock where all passes take equally long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.distributed.pipelining.schedules import (
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
    _ComputationType,
)

from workflow_lib.records.degrees import Degrees
from workflow_lib.trainers.native.pipeline import one_forward_one_backward

SCHEDULES = {"zero-bubble": ScheduleInterleavedZeroBubble, "zero-bubble-v": ScheduleZBVZeroBubble}
KINDS = {
    _ComputationType.FORWARD: "F",
    _ComputationType.BACKWARD_INPUT: "I",
    _ComputationType.BACKWARD_WEIGHT: "W",
    _ComputationType.FULL_BACKWARD: "B",
}
#: forward, and gradients of inputs and of weights, one unit each
UNITS = {"F": 1, "I": 1, "W": 1, "B": 2}


class _Stage:
    """What a schedule asks of a stage while it makes its order."""

    submod = None
    has_backward = True

    def __init__(self, index: int, degrees: Degrees) -> None:
        self.stage_index, self.num_stages = index, degrees.stages
        self.group_rank, self.group_size = 0, degrees.pp
        self.is_first, self.is_last = index == 0, index == degrees.stages - 1


@dataclass
class Run:
    """What became of an order."""

    #: until the last rank ended
    units: int
    #: for each rank and each of its chunks, the most micro-batches that were kept at once
    kept: list[list[int]]
    #: for each rank, over its chunks
    kept_at_once: list[int]
    #: for each rank, the most passes whose weights' gradients waited for another pass
    deferred: list[int]


def order(degrees: Degrees, micro_batches: int) -> list[list[tuple[str, int, int]]]:
    """For each rank, its passes: F, I, W or B, the stage, and the micro-batch."""
    if degrees.schedule == "1f1b":
        return [
            [(each[0], rank, each[1]) for each in slots if each is not None]
            for rank, slots in enumerate(one_forward_one_backward(degrees.pp, micro_batches))
        ]
    stages: list[Any] = [_Stage(index, degrees) for index in degrees.stages_of(0)]
    schedule = SCHEDULES[degrees.schedule](stages, micro_batches, loss_fn=lambda *_: None)
    return [
        [
            (KINDS[each.computation_type], each.stage_index, each.microbatch_index)
            for each in schedule.pipeline_order[rank]
            if each is not None
        ]
        for rank in range(degrees.pp)
    ]


def run(degrees: Degrees, micro_batches: int) -> Run:
    """Run each pass as soon as its rank is free and what it needs is there."""
    waiting = order(degrees, micro_batches)
    ends: dict[tuple[str, int, int], int] = {}
    clocks = [0] * degrees.pp
    kept = [dict.fromkeys(degrees.stages_of(rank), 0) for rank in range(degrees.pp)]
    most = [dict(each) for each in kept]
    at_once, put_off, deferred = [0] * degrees.pp, [0] * degrees.pp, [0] * degrees.pp

    def needed(kind: str, stage: int, index: int) -> tuple[str, int, int] | None:
        if kind == "F":
            return ("F", stage - 1, index) if stage else None
        if kind == "W":
            return ("B", stage, index)
        last = stage == degrees.stages - 1
        return ("F", stage, index) if last else ("B", stage + 1, index)

    while any(waiting):
        before = sum(map(len, waiting))
        for rank, passes in enumerate(waiting):
            while passes:
                kind, stage, index = passes[0]
                source = needed(kind, stage, index)
                if source is not None and source not in ends:
                    break
                passes.pop(0)
                begins = max(clocks[rank], 0 if source is None else ends[source])
                clocks[rank] = begins + UNITS[kind]
                if kind != "W":
                    ends["F" if kind == "F" else "B", stage, index] = clocks[rank]
                put_off[rank] += (kind == "I") - (kind == "W")
                if kind != "W":
                    # The pass that has just ended is not put off by another one.
                    deferred[rank] = max(deferred[rank], put_off[rank] - (kind == "I"))
                kept[rank][stage] += (kind == "F") - (kind in ("W", "B"))
                most[rank][stage] = max(most[rank][stage], kept[rank][stage])
                at_once[rank] = max(at_once[rank], sum(kept[rank].values()))
        assert sum(map(len, waiting)) < before, "ranks wait for each other"
    return Run(max(clocks), [list(each.values()) for each in most], at_once, deferred)
