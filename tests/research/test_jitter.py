"""Jitter: the slowest of N ranks by order statistics, and whose steps count."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from research.projection.jitter import Jitter, expected_maximum, jitter, spread_of_ranks
from workflow_lib.records.reading import RecordError


def test_the_slowest_of_two_draws_from_two_values():
    # Of (0, 0), (0, 1), (1, 0) and (1, 1) three have a 1.
    assert expected_maximum(np.array([1.0, 0.0]), 2) == pytest.approx(0.75)
    assert expected_maximum(np.array([1.0, 0.0]), 1) == pytest.approx(0.5)


def test_the_slowest_of_uniform_draws():
    # The largest of N uniform draws is N / (N + 1) on average.
    even = (np.arange(100_000) + 0.5) / 100_000
    for ranks in (2, 8, 64):
        assert expected_maximum(even, ranks) == pytest.approx(ranks / (ranks + 1), abs=1e-4)


def test_the_slowest_of_normal_draws_and_the_growth_of_each_doubling():
    random = np.random.default_rng(1)
    of_runs = tuple(random.normal(0, 0.002, 50) for _ in range(400))
    found = Jitter(of_runs, tuple(map(str, range(400))))
    # Expected largest of 8 and of 16 standard normal draws: 1.4236 and 1.7660 (Harter 1961).
    assert found.slowdown(8) == pytest.approx(0.002 * 1.4236, rel=0.03)
    growth, low, high = found.growth(8, 16)
    assert growth == pytest.approx(0.002 * 0.3424, rel=0.1)
    assert low < growth < high
    assert high - low < growth


def test_runs_of_one_gpu_are_drawn_together():
    # Four GPUs, of which one has twice the jitter; forty runs of each say no more than one.
    random = np.random.default_rng(2)
    of_runs = tuple(
        random.normal(0, 0.004 if gpu == 0 else 0.002, 50) for gpu in range(4) for _ in range(40)
    )
    gpus = tuple(f"GPU-{gpu}" for gpu in range(4) for _ in range(40))
    together = Jitter(of_runs, gpus).growth(8, 16)
    alone = Jitter(of_runs, tuple(map(str, range(160)))).growth(8, 16)
    assert together[0] == alone[0]
    assert together[2] - together[1] > 3 * (alone[2] - alone[1])


def test_more_ranks_than_steps_are_refused():
    few = Jitter((np.array([0.0, 0.01, -0.01, 0.0]),), ("GPU-1",))
    assert few.slowdown(4) > 0
    with pytest.raises(RecordError, match=r"\b4 steps.*\b5 ranks"):
        few.slowdown(5)
    with pytest.raises(RecordError, match="4 steps"):
        few.growth(2, 8)


def _runs(**of: list[object]) -> pl.DataFrame:
    count = len(of["cell"])
    usual = {"outcome": "completed", "workload": "pretrain", "simulated": False, "gpus": 1}
    return pl.DataFrame({name: [value] * count for name, value in usual.items()} | of)


def _gpus(runs: pl.DataFrame) -> pl.DataFrame:
    return runs.select("cell", "run", gpu_uuid=pl.lit("GPU-1"))


def _steps(cell: str, run: int, times: list[float], spread: float = 0.0) -> pl.DataFrame:
    return pl.DataFrame({"step_time_s": times}).with_columns(
        cell=pl.lit(cell),
        run=pl.lit(run, pl.Int64),
        step=pl.int_range(pl.len()),
        counted=pl.int_range(pl.len()) > 0,  # the first step is a warm-up
        rank_spread_s=pl.lit(spread),
    )


def test_only_steps_of_runs_on_one_gpu_count_and_a_drift_is_no_jitter():
    drifting = [9.0, *(2.0 + 0.01 * number for number in range(10))]
    jumping = [9.0, *(2.0, 2.02) * 5]
    runs = _runs(
        cell=["one", "two", "failed"], run=[1, 1, 1], gpus=[1, 2, 1],
        outcome=["completed", "completed", "failed"],
    )  # fmt: skip
    steps = pl.concat([
        _steps("one", 1, drifting), _steps("two", 1, jumping), _steps("failed", 1, jumping)
    ])  # fmt: skip
    found = jitter(steps, runs, _gpus(runs))
    assert (len(found.of_runs), found.steps) == (1, 10)
    assert found.sd == pytest.approx(0, abs=1e-12)

    jumps = jitter(_steps("one", 1, jumping), runs, _gpus(runs))
    # A line through 2.00, 2.02, 2.00, … leaves 0.01 of about 2.01 on either side of it.
    assert jumps.sd == pytest.approx(0.005 * (10 / 8) ** 0.5, rel=0.05)
    assert jumps.autocorrelation < -0.8

    with pytest.raises(RecordError, match="wait"):
        jitter(steps, runs.filter(pl.col("gpus") == 2), _gpus(runs))


def test_the_spread_of_ranks_is_of_runs_on_several_gpus():
    runs = _runs(cell=["one", "two"], run=[1, 1], gpus=[1, 2])
    steps = pl.concat([_steps("one", 1, [9.0, 2.0]), _steps("two", 1, [9.0, 2.0, 4.0], 0.002)])
    assert spread_of_ranks(steps, runs).to_list() == [0.001, 0.0005]
