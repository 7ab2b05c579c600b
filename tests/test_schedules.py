"""The passes of pipelines' ranks against torch's own schedules, and steps by hand."""

import numpy as np
import pytest
from torch.distributed.pipelining import schedules as torchs

from workflow_lib import pipelines, schedules
from workflow_lib.records.degrees import Degrees

_KINDS = {
    torchs._ComputationType.FORWARD: "F",
    torchs._ComputationType.FULL_BACKWARD: "B",
    torchs._ComputationType.BACKWARD_INPUT: "B",
    torchs._ComputationType.BACKWARD_WEIGHT: "W",
}


def degrees(schedule, pp, chunks):
    return Degrees(pp=pp, virtual_stages=chunks, schedule=schedule)


def torchs_orders(schedule, pp, chunks, micro_batches):
    """What torch's schedule would run, without the stages that it is usually given."""
    kind = {
        "1f1b": torchs.ScheduleInterleaved1F1B,
        "zero-bubble": torchs.ScheduleInterleavedZeroBubble,
        "zero-bubble-v": torchs.ScheduleZBVZeroBubble,
    }[schedule]
    its = object.__new__(kind)
    its.pp_group_size, its.n_local_stages, its.num_stages = pp, chunks, pp * chunks
    its._n_microbatches, its.rank = micro_batches, 0
    its.number_of_rounds = max(1, micro_batches // pp)
    its.microbatches_per_round = micro_batches // its.number_of_rounds
    return tuple(
        tuple(
            schedules.Pass(_KINDS[each.computation_type], each.stage_index, each.microbatch_index)
            for each in its._calculate_single_rank_operations(rank)
            if each is not None
        )
        for rank in range(pp)
    )


LAYOUTS = [
    *(("1f1b", pp, chunks, m) for pp in (2, 4) for chunks in (2, 3) for m in (4, 8, 12)),
    *(("zero-bubble", pp, chunks, m) for pp in (2, 4) for chunks in (1, 2) for m in (4, 8)),
    ("zero-bubble", 4, 1, 6),
    ("zero-bubble", 4, 1, 3),
    *(("zero-bubble-v", pp, 2, m) for pp in (2, 4, 8) for m in (4, 8, 16)),
]


@pytest.mark.parametrize(("schedule", "pp", "chunks", "micro_batches"), LAYOUTS)
def test_ranks_have_the_passes_that_torch_runs(schedule, pp, chunks, micro_batches):
    ours = schedules.orders(degrees(schedule, pp, chunks), micro_batches)

    assert ours == torchs_orders(schedule, pp, chunks, micro_batches)


@pytest.mark.parametrize("pp", [2, 4, 8])
@pytest.mark.parametrize(
    ("schedule", "chunks", "fewest"),
    [("1f1b", 2, 1), ("1f1b", 4, 1), ("zero-bubble", 1, 1), ("zero-bubble-v", 2, 2)],
)
def test_equal_ranks_idle_for_what_the_plan_says(schedule, chunks, fewest, pp):
    its = degrees(schedule, pp, chunks)
    for micro_batches in (fewest * pp, 4 * pp):
        step = schedules.step(its, micro_batches, np.ones(pp))

        assert step / micro_batches - 1 == pytest.approx(pipelines.bubble(its, micro_batches))


def test_a_step_by_hand():
    # Two ranks of two chunks, two micro-batches, all times in sixths. A rank of speed one takes 1
    # for a forward pass of a chunk and 2 for a backward one, the slow first rank twice as long.
    # Rank 0: F00 0-2, F01 2-4, F20 4-6, F21 6-8; rank 1: F10 2-3, F11 4-5, F30 6-7, B30 7-9,
    # F31 9-10, B31 10-12; rank 0: B20 9-13, B21 13-17; rank 1: B10 13-15, B11 17-19;
    # rank 0: B00 17-21, B01 21-25.
    step = schedules.step(degrees("1f1b", 2, 2), 2, np.array([2.0, 1.0]))

    assert step == pytest.approx(25 / 6)


def test_a_chunk_may_take_more_of_its_ranks_time():
    # Rank 1 has a head: of its 2, its second chunk takes 1.5. One micro-batch goes through all
    # four stages and back: every stage's whole time once, on its own.
    its = degrees("1f1b", 2, 2)
    alone = schedules.step(its, 1, np.array([1.0, 2.0]), [0.5, 0.25, 0.5, 0.75])
    assert alone == pytest.approx(3.0)

    # Of two micro-batches, in eighteenths: rank 0 has chunks of 1 and 1, rank 1 of 1 and 3.
    # F00 0-1, F10 1-2, F20 2-3, F30 3-6; F01 1-2, F11 2-3, F21 3-4; B30 6-12, F31 12-15, B31 15-21;
    # B20 12-14, B10 21-23, B21 21-23, B11 23-25, B00 23-25, B01 25-27.
    two = schedules.step(its, 2, np.array([1 / 3, 2 / 3]), [0.5, 0.25, 0.5, 0.75])
    assert two == pytest.approx(27 / 18)


def test_backward_passes_are_longer_where_they_recompute():
    # As the first step by hand, in eighths: a forward pass of the fast rank takes 1, a backward one
    # 3. Rank 0: F00 0-2, F01 2-4, F20 4-6, F21 6-8; rank 1: F10 2-3, F11 4-5, F30 6-7, B30 7-10,
    # F31 10-11, B31 11-14; rank 0: B20 10-16, B21 16-22; rank 1: B10 16-19, B11 22-25; rank 0:
    # B00 22-28, B01 28-34.
    step = schedules.step(degrees("1f1b", 2, 2), 2, np.array([2.0, 1.0]), forward=1 / 4)

    assert step == pytest.approx(34 / 8)


def test_steps_of_many_draws_are_those_of_each():
    draws = 1 + np.random.default_rng(1).uniform(-0.1, 0.1, (3, 5, 4))
    for each in (degrees("1f1b", 4, 2), degrees("zero-bubble", 4, 1)):
        together = schedules.step(each, 8, draws)
        assert together.shape == (3, 5)
        assert together[2, 4] == schedules.step(each, 8, draws[2, 4])


def test_a_slow_rank_costs_less_the_earlier_it_is():
    first, last = np.array([1.05, 1, 1, 1]), np.array([1, 1, 1, 1.05])
    its = degrees("1f1b", 4, 2)

    assert schedules.step(its, 16, first) < schedules.step(its, 16, last)
