"""What something costs a step: blocks of steps with it, each between two blocks without."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workflow_lib.intervals import students_t

#: who trains beside peers: this project's engine, as records call it
OURS = "triptych"
#: what records say of their steps' tokens; in records without it each step had the same ones
NEW_TOKENS = "new in each step"

#: the block in which nothing runs beside training
NOTHING = "nothing"


@dataclass(frozen=True)
class Block:
    """What ran beside training, between which wall-clock times (s)."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Interval:
    """A mean over pairs, with its 95 % interval by bootstrap and by Student's t."""

    mean: float
    low: float
    high: float
    t_low: float
    t_high: float
    pairs: int


def order_of_blocks(names: Sequence[str], rounds: int, seed: int) -> list[str]:
    """NOTHING, then each of the names followed by NOTHING, in an order that each round shuffles."""
    order = [NOTHING]
    for number in range(rounds):
        turn = list(names)
        random.Random(f"{seed}/{number}").shuffle(turn)
        for name in turn:
            order += [name, NOTHING]
    return order


def in_rounds(turn: Sequence[str], rounds: int) -> list[str]:
    """What is launched after what: rounds of all, each in the reverse order of the one before.
    After an even number of rounds an even drift of the GPUs is nobody's.
    """
    return [each for number in range(rounds) for each in turn[:: 1 if number % 2 == 0 else -1]]


def steps_of(block: Block, step_ends: Sequence[float]) -> list[float]:
    """Durations (s) of the steps within a block; a step begins where the one before it ended."""
    ends = step_ends[bisect_left(step_ends, block.start_s) : bisect_right(step_ends, block.end_s)]
    return [after - before for before, after in itertools.pairwise(ends)]


def slowdowns(
    blocks: Sequence[Block],
    step_ends: Sequence[float],
    name: str,
    of_block: Callable[[Sequence[float]], float] = statistics.fmean,
) -> list[float]:
    """For each block of that name, its step time over its two neighbours' mean, less 1.

    Neighbours are those without anything; of NOTHING itself, the nearest other blocks without
    anything, which shows what there is to see where there is nothing. Both neighbours together
    cancel a drift that is even. Blocks without steps, or without both neighbours, are left out.
    """
    quiet = [i for i, block in enumerate(blocks) if block.name == NOTHING]
    times = [steps_of(block, step_ends) for block in blocks]
    found = []
    for i, block in enumerate(blocks):
        before = [j for j in quiet if j < i]
        after = [j for j in quiet if j > i]
        if block.name != name or not before or not after:
            continue
        if times[i] and times[before[-1]] and times[after[0]]:
            beside = (of_block(times[before[-1]]) + of_block(times[after[0]])) / 2
            found.append(of_block(times[i]) / beside - 1)
    return found


def interval(values: Sequence[float], draws: int = 10_000, seed: int = 1) -> Interval:
    """The mean of pairs and its intervals. Raises ValueError for fewer than two pairs."""
    if len(values) < 2:
        raise ValueError(f"{len(values)} pairs are too few for an interval")
    generator = random.Random(seed)
    means = sorted(statistics.fmean(generator.choices(values, k=len(values))) for _ in range(draws))
    mean = statistics.fmean(values)
    error = statistics.stdev(values) / math.sqrt(len(values))
    reach = students_t.quantile(len(values) - 1) * error
    return Interval(
        mean,
        means[round(0.025 * (draws - 1))],
        means[round(0.975 * (draws - 1))],
        mean - reach,
        mean + reach,
        len(values),
    )


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """The geometric mean of the pairs' ratios, ours to theirs, with its intervals.

    Raises ValueError for fewer than two pairs.
    """
    logs = interval([math.log(our / their) for our, their in zip(ours, theirs, strict=True)])
    bounds = (logs.mean, logs.low, logs.high, logs.t_low, logs.t_high)
    return Interval(*map(math.exp, bounds), pairs=logs.pairs)


def ratio_in_words(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """The ratio over whole pairs of launches; a launch that has no partner counts for nothing."""
    pairs = min(len(ours), len(theirs))
    if pairs == 0:
        return "no pair"
    if pairs == 1:
        return f"{ours[0] / theirs[0]:.3f} (1 pair, no interval)"
    found = ratio(ours[:pairs], theirs[:pairs])
    return f"{found.mean:.3f} ({found.t_low:.3f} to {found.t_high:.3f}, {pairs} pairs)"
