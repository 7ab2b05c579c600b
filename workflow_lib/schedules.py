"""The passes of a pipeline's ranks in their order, and how long a step of them takes.

Orders are those of torch.distributed.pipelining, which runs them: interleaved 1F1B (arXiv
2104.04473, section 2.2.2), and the schedules of arXiv 2401.10241 that delay gradients of weights:
the plain one and its V form.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from workflow_lib.records.degrees import Degrees
from workflow_lib.records.training import Training

Floats = npt.NDArray[np.float64]
Kind = Literal["F", "B", "W"]


class Pass(NamedTuple):
    """A forward pass, a backward pass, or one for the gradients of weights alone."""

    kind: Kind
    stage: int
    micro_batch: int


def orders(degrees: Degrees, micro_batches: int) -> tuple[tuple[Pass, ...], ...]:
    """The passes of each pipeline rank, for layouts that ``trainers.capabilities`` allows.

    1F1B has no passes for weights alone: its backward passes compute both gradients. Its order is
    that of interleaved 1F1B, which has several chunks a rank.
    """
    return _orders(degrees.pp, degrees.virtual_stages, degrees.schedule, micro_batches)


@functools.lru_cache(maxsize=16)
def _orders(
    ranks: int, chunks: int, schedule: str, micro_batches: int
) -> tuple[tuple[Pass, ...], ...]:
    if schedule == "zero-bubble-v":
        return tuple(tuple(_zero_bubble_v(rank, ranks, micro_batches)) for rank in range(ranks))
    splits = schedule == "zero-bubble"
    return tuple(
        tuple(_in_rounds(rank, ranks, chunks, micro_batches, splits)) for rank in range(ranks)
    )


def _in_rounds(
    rank: int, ranks: int, chunks: int, micro_batches: int, splits: bool
) -> Iterator[Pass]:
    """A round of micro-batches through one chunk, and then through the next. With ``splits``
    gradients of weights come later, by as many passes as there are ranks before this one."""
    size = micro_batches // max(1, micro_batches // ranks)
    total = chunks * micro_batches
    ahead = (chunks - 1) * size + (1 if splits else 2) * (ranks - 1 - rank)
    warm_up = min(ahead, total)
    counts: Counter[tuple[Kind, int]] = Counter()

    def next_of(kind: Kind, number: int) -> Pass:
        chunk = number // size % chunks
        stage = rank + ranks * (chunk if kind == "F" else chunks - 1 - chunk)
        counts[kind, stage] += 1
        return Pass(kind, stage, counts[kind, stage] - 1)

    for number in range(warm_up):
        yield next_of("F", number)
    for number in range(total):
        if warm_up + number < total:
            yield next_of("F", warm_up + number)
        yield next_of("B", number)
        if splits and number >= rank:
            yield next_of("W", number - rank)
    for number in range(total - rank, total) if splits else ():
        yield next_of("W", number)


def _zero_bubble_v(rank: int, ranks: int, micro_batches: int) -> Iterator[Pass]:
    """Down through the ranks' first chunks, and up through their second ones."""
    down, up = rank, 2 * ranks - 1 - rank
    counts: Counter[tuple[Kind, int]] = Counter()
    passes: list[Pass] = []

    def add(stage: int, *kinds: Kind) -> None:
        for kind in kinds:
            passes.append(Pass(kind, stage, counts[kind, stage]))
            counts[kind, stage] += 1

    # With fewer micro-batches the order is that of as many as fill the ranks, without the others.
    full = max(2 * ranks - 1, micro_batches)
    for _ in range(2 * (ranks - rank) - 1):
        add(down, "F")
    for _ in range(rank):
        add(up, "F")
        add(down, "F")
    for _ in range(ranks - rank):
        add(up, "F", "B", "W")
    while counts["F", up] < full:
        if counts["F", down] < full:
            add(down, "F")
        add(down, "B", "W")
        add(up, "F", "B", "W")
    for _ in range(rank):
        add(down, "B")
        add(up, "B")
    for _ in range(ranks - rank):
        add(down, "B", "W")
    for stage in (up, down):
        while counts["W", stage] < full:
            add(stage, "W")
    return (one_pass for one_pass in passes if one_pass.micro_batch < micro_batches)


def forward_share(training: Training) -> float:
    """What the forward pass takes of a micro-batch's time on a rank. A backward pass has two
    products for each of a forward pass, and with full recomputation it repeats that one, too."""
    return 1 / 4 if training.recomputation == "full" else 1 / 3


def step(
    degrees: Degrees,
    micro_batches: int,
    passes: Floats,
    shares: Sequence[float] = (),
    forward: float = 1 / 3,
) -> Floats:
    """How long a step takes, (…), of the time of a micro-batch on each rank, (…, pp).

    ``shares`` has the share of its rank's time that each stage takes; without it all chunks of a
    rank take equally long. ``forward`` is what :func:`forward_share` says. Where gradients of
    weights come later, they take half of the rest. Sending takes no time. A pass begins when its
    rank is free and the passes that it follows have ended. Raises ValueError if passes wait for one
    another.
    """
    queues = [list(reversed(order)) for order in orders(degrees, micro_batches)]
    splits, last = degrees.schedule != "1f1b", degrees.stages - 1
    backward = (1 - forward) / (2 if splits else 1)
    takes = {"F": forward, "B": backward, "W": backward}
    shares = shares or [1 / degrees.virtual_stages] * degrees.stages
    unit = [np.zeros(())] * degrees.stages
    for rank in range(degrees.pp):
        for stage in degrees.stages_of(rank):
            unit[stage] = passes[..., rank] * shares[stage]
    free = [np.zeros(passes.shape[:-1])] * degrees.pp
    #: of passes that others still wait for
    ends: dict[tuple[Kind, int, int], Floats] = {}
    while any(queues):
        before = sum(map(len, queues))
        for rank, queue in enumerate(queues):
            while queue:
                kind, stage, number = queue[-1]
                awaited = _awaited(kind, stage, number, last)
                if awaited is not None and awaited not in ends:
                    break
                queue.pop()
                begins = free[rank] if awaited is None else np.maximum(free[rank], ends[awaited])
                free[rank] = begins + unit[stage] * takes[kind]
                if kind == "F" or (kind == "B" and stage > 0):
                    ends[kind, stage, number] = free[rank]
                if kind == "B":
                    ends.pop(("F", stage, number))
                    ends.pop(("B", stage + 1, number), None)
        if sum(map(len, queues)) == before:
            raise ValueError(f"the passes of {degrees.name} wait for one another")
    return np.asarray(np.max(free, axis=0))


def _awaited(kind: Kind, stage: int, number: int, last: int) -> tuple[Kind, int, int] | None:
    """The pass of another rank that one follows; those of its own rank are before it anyway."""
    if kind == "F" and stage > 0:
        return "F", stage - 1, number
    if kind == "B" and stage < last:
        return "B", stage + 1, number
    return None
