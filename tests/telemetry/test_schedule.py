"""Deadlines by made-up clocks; rates that alternate, and a sampler whose rate does."""

from __future__ import annotations

import dataclasses
import itertools
import math
import subprocess
import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.telemetry.cells import NODE, make_cell, read_rows, wait_for
from workflow_lib.records.cell import Telemetry
from workflow_lib.records.files import read_record
from workflow_lib.records.nodes import TelemetryEnd
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.telemetry_columns import SAMPLER_BLOCKS
from workflow_lib.telemetry.schedule import Block, Deadlines, block_at, check_rates, rate_of_block
from workflow_lib.telemetry.source import TelemetryError

Start = Callable[..., subprocess.Popen[str]]

RATES_HZ = (0.0, 1.0, 10.0, 50.0)
ALTERNATING = Telemetry("simulated", 10.0, 0.0, RATES_HZ, block_s=5.0)
#: some day of 2026
FIRST_BLOCK = 355_000_000 * 4


def test_every_round_has_each_rate_once():
    for first in range(FIRST_BLOCK, FIRST_BLOCK + 400, 4):
        rates_hz = [rate_of_block(ALTERNATING, 7, block) for block in range(first, first + 4)]
        assert sorted(rates_hz) == [0, 1, 10, 50]


def test_rounds_have_orders_of_their_own():
    # Of 24 orders, 240 rounds have each ten times on average: every rate is in every place, and
    # comes after every other, so that no drift of training favours one.
    rates_hz = [rate_of_block(ALTERNATING, 7, FIRST_BLOCK + place) for place in range(960)]
    orders = Counter(tuple(rates_hz[first : first + 4]) for first in range(0, 960, 4))
    assert len(orders) == 24
    followers = Counter(itertools.pairwise(rates_hz))
    for pair in itertools.permutations(RATES_HZ, 2):
        assert followers[pair] > 40


def test_the_order_is_of_the_seed_alone():
    def rates_hz(seed: int) -> list[float]:
        return [rate_of_block(ALTERNATING, seed, FIRST_BLOCK + place) for place in range(40)]

    assert rates_hz(7) == rates_hz(7)
    assert rates_hz(7) != rates_hz(8)
    # As random.Random("7/355000000") of Python 3.11 shuffles them. Nodes may have other versions,
    # and must agree.
    assert rates_hz(7)[:4] == [10.0, 1.0, 50.0, 0.0]


def test_a_block_is_a_span_of_the_wall_clock():
    for unix_time_s in (5000.0, 5004.999):
        block = block_at(ALTERNATING, 7, unix_time_s)
        assert (block.begin_unix_s, block.end_unix_s) == (5000.0, 5005.0)
        assert block.rate_hz == rate_of_block(ALTERNATING, 7, 1000)
    assert block.holds(5000.0)
    assert not block.holds(5005.0)
    # The clock was set back.
    assert not block.holds(4999.9)


def test_without_turns_there_is_one_block_for_ever():
    telemetry = Telemetry("simulated", 10.0, 0.0)
    assert block_at(telemetry, 7, 5000.0) == Block(10.0)
    assert Block(10.0).holds(0.0)
    assert Block(10.0).holds(1e12)


@pytest.mark.parametrize("rate_hz", [0.0, -1.0, 50.1, 1000.0, float("nan"), float("inf")])
def test_rates_that_no_sampler_can_have_are_refused(rate_hz):
    with pytest.raises(TelemetryError, match=r"sample_rate_hz"):
        check_rates(dataclasses.replace(ALTERNATING, sample_rate_hz=rate_hz))
    if rate_hz != 0:
        with pytest.raises(TelemetryError, match=r"interleaved_rates_hz"):
            check_rates(dataclasses.replace(ALTERNATING, interleaved_rates_hz=(0.0, rate_hz)))


@pytest.mark.parametrize("block_s", [0.0, 0.5, -5.0, float("nan"), float("inf")])
def test_turns_need_a_length(block_s):
    with pytest.raises(TelemetryError, match=r"block_s"):
        check_rates(dataclasses.replace(ALTERNATING, block_s=block_s))


def test_rates_within_bounds_are_taken():
    check_rates(ALTERNATING)
    check_rates(Telemetry("simulated", 0.05, 0.0))
    check_rates(Telemetry("simulated", 50.0, 0.0))


def test_a_samplers_rate_alternates(tmp_path, sampler):
    paths = RunPaths(tmp_path)
    cell = make_cell(interleaved_rates_hz=(0.0, 20.0), block_s=1.0)
    process = sampler(tmp_path, cell)
    wait_for(paths.telemetry_ready(NODE), process)
    time.sleep(5.5)
    paths.telemetry_stop.touch()
    # Also where the last block reads nothing.
    assert process.wait() == 0

    blocks = read_rows(paths.sampler_blocks(NODE))
    assert list(blocks[0]) == [column.name for column in SAMPLER_BLOCKS]
    times = [float(row["unix_time_s"]) for row in read_rows(paths.gpu_samples(NODE))]
    # The first and the last reading belong to no block.
    times = times[2:-2]
    assert len(blocks) >= 5
    # Of two GPUs, the second one's counters are read half a second after the first one's.
    counted = [
        float(row["unix_time_s"])
        for row in read_rows(paths.gpu_counters(NODE))[2:-2]
        if row["gpu"] == "1"
    ]
    assert counted
    for row in blocks:
        started_s, ended_s = float(row["started_unix_s"]), float(row["ended_unix_s"])
        number = int(started_s)
        rate_hz = rate_of_block(cell.telemetry, cell.training.seed, number)
        assert float(row["sample_rate_hz"]) == rate_hz
        inside = [at for at in times if started_s <= at < ended_s]
        assert len(inside) == 2 * int(row["ticks"])
        if rate_hz == 0:
            assert inside == []
        assert all(at >= started_s + 0.4 for at in counted if started_s <= at < ended_s)
        if row is not blocks[-1]:
            assert ended_s >= number + 1
        deadlines = int(row["ticks"]) + int(row["missed_ticks"])
        assert deadlines == pytest.approx(rate_hz * (ended_s - started_s), abs=1.5)
        assert 0 < float(row["cpu_time_s"]) < 0.5
        assert 5e6 < int(row["memory_bytes"]) < 100e6
    # Blocks leave no time out but what it takes to go from one to the next.
    for before, after in itertools.pairwise(blocks):
        assert 0 <= float(after["started_unix_s"]) - float(before["ended_unix_s"]) < 0.5
    ended = read_record(paths.telemetry_end(NODE), TelemetryEnd)
    assert ended.samples == 2 + sum(int(row["ticks"]) for row in blocks)


def test_deadlines_do_not_drift_with_what_ticks_take():
    deadlines = Deadlines(100.0, 0.25)
    lateness_s = []
    for number in range(8):
        assert deadlines.next_s == 100.0 + number * 0.25
        lateness_s.append(deadlines.begin(deadlines.next_s + 0.0625))
    assert lateness_s == [0.0625] * 8
    assert (deadlines.begun, deadlines.late, deadlines.missed) == (8, 0, 0)


def test_over_half_a_period_is_late():
    deadlines = Deadlines(100.0, 0.25)
    assert deadlines.begin(100.125) == 0.125
    assert deadlines.late == 0
    assert deadlines.begin(100.375 + 1e-6) == pytest.approx(0.125, abs=2e-6)
    assert (deadlines.begun, deadlines.late, deadlines.missed) == (2, 1, 0)


def test_deadlines_that_passed_are_missed_and_not_made_up_for():
    deadlines = Deadlines(100.0, 0.25)
    deadlines.begin(100.0)
    # The one of 100.25 begins at 100.8: those of 100.5 and 100.75 have passed.
    assert deadlines.begin(100.8) == pytest.approx(0.55)
    assert deadlines.next_s == 101.0
    assert (deadlines.begun, deadlines.late, deadlines.missed) == (2, 1, 2)
    assert deadlines.begin(101.0) == 0.0
    assert (deadlines.begun, deadlines.late, deadlines.missed) == (3, 1, 2)


def test_what_was_due_at_the_end_is_missed():
    deadlines = Deadlines(100.0, 0.25)
    deadlines.begin(100.0)
    deadlines.end(100.2)
    assert deadlines.missed == 0
    # 100.25, 100.5 and 100.75
    deadlines.end(100.75)
    assert (deadlines.begun, deadlines.missed) == (1, 3)


def test_a_start_that_never_comes_has_no_deadline():
    deadlines = Deadlines(math.inf, 1.0)
    assert deadlines.next_s == math.inf
    deadlines.end(1e9)
    assert deadlines.missed == 0
