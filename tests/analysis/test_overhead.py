"""What sampling costs, on runs whose answer was made by hand: rates alternate in blocks of 10 s."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.texts import edit
from workflow_lib.analysis.overhead import Pair, _Block, _pair, slowdown_interval
from workflow_lib.records.cell import Telemetry
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.records.tables import OVERHEAD
from workflow_lib.records.telemetry_columns import SAMPLER_BLOCKS
from workflow_lib.telemetry.schedule import rate_of_block

from .synthetic_run import START, Run, assert_null, cell, codes, summary, write_csv, write_steps

BLOCK_S = 10.0
#: START is a multiple of it
RATES = (0.0, 50.0, 10.0, 0.0, 10.0, 50.0)


def alternating(rounds: int) -> list[float]:
    """The rate of each block: 0, 50, 10, 0, 10, 50 Hz, and so on."""
    return [*RATES * rounds, 0.0]


def write_run(
    directory: Path,
    rates: list[float],
    step_s: Callable[[float, int], float],
    nodes: tuple[str, ...] = ("node1",),
    late_s: float = 0.0,
) -> RunPaths:
    """A run of one rank a node that is measured while ``rates`` alternate.

    ``step_s`` gives a step's time from the rate and number of the block that it begins in. The last
    node's blocks begin ``late_s`` after the others'.
    """
    steps, at = [], 0.0
    while at < BLOCK_S * len(rates) - 1:
        block = int(at // BLOCK_S)
        steps.append((at, at + step_s(rates[block], block)))
        at = steps[-1][1]
    ranks = len(nodes)
    alternating = cell(
        measured_steps=len(steps),
        warmup_steps=0,
        degrees=Degrees(dp=ranks),
        nodes=ranks,
        telemetry=Telemetry("nvidia", 10.0, 0.0, (0.0, 10.0, 50.0), BLOCK_S),
    )
    paths = Run(cell=alternating, nodes=nodes, gpus_per_node=1).write(directory / "run1")
    write_steps(paths, steps, ranks, tokens=64 // ranks)
    for node in nodes:
        shift_s = late_s if node == nodes[-1] else 0.0
        write_csv(
            paths.sampler_blocks(node),
            SAMPLER_BLOCKS,
            [
                {
                    "started_unix_s": START + BLOCK_S * block + shift_s,
                    "ended_unix_s": START + BLOCK_S * (block + 1) + shift_s,
                    "sample_rate_hz": rate,
                    "ticks": round(rate * BLOCK_S * 0.9),
                    "late_ticks": 3 if rate else 0,
                    "missed_ticks": round(rate * BLOCK_S * 0.1),
                    # A millisecond a tick, and twice as much on the last node.
                    "cpu_time_s": rate * BLOCK_S * 0.001 * (1 + (node == "b")),
                    "memory_bytes": 1000 + block,
                }
                for block, rate in enumerate(rates)
            ],
        )
    return paths


def rows_of(paths: RunPaths) -> dict[float, dict[str, Any]]:
    """The rows of OVERHEAD of a run, by their rate."""
    rows = summary(paths)["overhead"]
    for row in rows:
        assert row.keys() == {column.name for column in OVERHEAD}
        assert {name for name in row if row[name] is None} == codes(row).keys()
    return {row["sample_rate_hz"]: row for row in rows}


def one_percent_at_50_hz(rate: float, block: int) -> float:
    return 1.01 if rate == 50 else 1.0


def test_a_slowdown_of_exactly_one_percent_is_found_and_such_a_run_has_no_energy(tmp_path):
    paths = write_run(tmp_path, alternating(5), one_percent_at_50_hz)
    rows, run = rows_of(paths), summary(paths)["run"]
    for name in ("slowdown", "slowdown_low", "slowdown_high"):
        assert rows[50][name] == pytest.approx(0.01)
    assert rows[50]["step_time_s"] == pytest.approx(1.01)
    assert rows[50]["pairs"] == rows[50]["blocks"] == 10
    assert rows[10]["slowdown"] == pytest.approx(0, abs=1e-9)
    assert_null(rows[0], "slowdown", "compared_rate")
    assert rows[0]["blocks"] == 11
    # The first 50 Hz block begins with a step at 10 s, and its ninth ends at 19.09 s; the tenth
    # ends at 20.1 s, in the next block, and is left out.
    assert 80 <= rows[50]["steps"] <= 90
    assert run["tokens_per_s"] > 0
    assert run["step_time_drift"] is not None
    for name in ("energy_j", "power_mean_w", "temperature_mean_c", "steady", "sampler_cpu_share"):
        assert_null(run, name, "rates_alternate")


def test_slow_drift_is_in_both_blocks_of_a_pair(tmp_path):
    # Steps become 0.2 % longer with each block: over 31 blocks by 6 %, far more than sampling
    # costs. Each 50 Hz block lies one block after or before the nearest one without sampling.
    def drifting(rate: float, block: int) -> float:
        return (1.01 if rate == 50 else 1.0) * 1.002**block

    rows = rows_of(write_run(tmp_path, alternating(5), drifting))
    assert rows[50]["slowdown"] == pytest.approx(0.01, abs=3e-4)
    assert rows[10]["slowdown"] == pytest.approx(0, abs=3e-4)
    assert rows[50]["slowdown_low"] < 0.01 < rows[50]["slowdown_high"]


def test_two_blocks_that_are_equally_near_are_averaged(tmp_path):
    # 0, 10, 0 Hz: steps of 1.00, 1.02 and 1.04 s.
    def step_s(rate: float, block: int) -> float:
        return 1.0 + 0.02 * block

    rows = rows_of(write_run(tmp_path, [0.0, 10.0, 0.0], step_s))
    assert rows[10]["slowdown"] == pytest.approx(0, abs=1e-9)
    assert rows[10]["pairs"] == 1
    assert_null(rows[10], "slowdown_low", "too_few_pairs", "1")
    assert_null(rows[50], "slowdown", "no_step_in_block", "50 Hz")


def test_what_the_sampler_did_and_took(tmp_path):
    rows = rows_of(write_run(tmp_path, alternating(2), one_percent_at_50_hz))
    row = rows[50]
    assert row["achieved_rate_hz"] == pytest.approx(45)
    # Of 500 ticks that were due in a block 50 were missed and 3 late.
    assert row["late_share"] == pytest.approx(53 / 500)
    assert row["sampler_cpu_share"] == pytest.approx(0.05)
    # The last block at 50 Hz is the twelfth.
    assert row["sampler_memory_bytes"] == 1011
    assert row["simulated"] is False
    assert rows[0]["achieved_rate_hz"] == 0
    assert_null(rows[0], "late_share", "no_tick_due")


def test_only_steps_that_all_nodes_spend_at_one_rate_count(tmp_path):
    rates = alternating(2)
    one = rows_of(write_run(tmp_path, rates, lambda rate, block: 1.0))
    paths = write_run(tmp_path / "run2", rates, lambda rate, block: 1.0, ("a", "b"), late_s=0.5)
    two = rows_of(paths)
    # Each block's first step begins before node b has the rate; but in the last second of the run
    # there is no step.
    assert (one[50]["blocks"], one[50]["steps"]) == (4, 40)
    assert (two[50]["blocks"], two[50]["steps"]) == (4, 36)
    assert two[50]["sampler_cpu_share"] == pytest.approx(0.1)
    assert two[50]["achieved_rate_hz"] == pytest.approx(45)


def test_nodes_that_disagree_about_a_rate_are_an_error(tmp_path):
    paths = write_run(tmp_path, alternating(1), lambda rate, block: 1.0, ("a", "b"))
    edit(paths.sampler_blocks("b"), ",50.0,", ",10.0,")
    with pytest.raises(RecordError, match="10 Hz, 50 Hz"):
        rows_of(paths)


def test_steps_longer_than_a_block_compare_nothing(tmp_path):
    rows = rows_of(write_run(tmp_path, alternating(2), lambda rate, block: 15.0))
    assert rows[50]["blocks"] == 0
    assert_null(rows[50], "slowdown", "no_step_in_block")


def test_the_interval_is_that_of_the_mean():
    # Twenty pairs of mean 0: the deviation is √(20/19), its standard error 0.2294, t 2.093.
    pairs = [Pair((-1.0) ** number, (number,)) for number in range(20)]
    low, high = slowdown_interval(pairs)
    assert (low, high) == (pytest.approx(-0.4802, abs=1e-4), pytest.approx(0.4802, abs=1e-4))


def test_pairs_that_share_a_block_are_less_sure():
    # 0, 10, 10, 0, 10, 10, 0 Hz: four pairs against two blocks and a third. In variances of a
    # block their sum has 4 + 1² + 2² + 1² = 10, and each of them 2. So four pairs' squared
    # deviation expects (8 − 10/4) / 3 = 1.833, and the mean's error is s · √(10 / 1.833) / 4.
    pairs = [Pair(1.0, (0,)), Pair(-1.0, (3,)), Pair(1.0, (3,)), Pair(-1.0, (6,))]
    low, high = slowdown_interval(pairs)
    half = 3.1824 * math.sqrt(4 / 3) * math.sqrt(10 / (5.5 / 3)) / 4
    assert (low, high) == (pytest.approx(-half, rel=1e-4), pytest.approx(half, rel=1e-4))


@pytest.mark.parametrize("rates", [(0.0, 10.0), (0.0, 1.0, 10.0, 50.0)])
def test_nineteen_of_twenty_intervals_hold_the_truth(rates):
    """In the sampler's own order of blocks, with noise that each block has for itself."""
    telemetry = Telemetry("nvidia", 0.0, 0.0, rates, BLOCK_S)
    held, runs = 0, 2000
    for seed in range(runs):
        noise = random.Random(seed)
        blocks = [
            _Block(number, rate, (1 + 0.01 * (rate == 10) + noise.gauss(0, 0.003),), ())
            for number in range(10 * len(rates))
            for rate in [rate_of_block(telemetry, seed, number)]
        ]
        unsampled = [block for block in blocks if block.rate_hz == 0]
        low, high = slowdown_interval([_pair(b, unsampled) for b in blocks if b.rate_hz == 10])
        held += low <= 0.01 <= high
    # Without regard to what pairs share it is 0.93; the standard error is 0.005.
    assert 0.94 <= held / runs <= 0.96
