"""How a rank's steps vary, and how much longer the slowest of N ranks takes for it.

Ranks of one run wait for each other in every step, so the times that they record are nearly equal
and do not tell whose step was slow. Runs on one GPU wait for nobody. Their steps are taken for
those of a rank that nobody holds up, and N ranks for N independent draws of them. With all n
measured deviations in order, x₁ ≤ … ≤ xₙ, the largest of N draws is xᵢ with probability
(i/n)^N − ((i − 1)/n)^N, since N draws are all at most xᵢ with probability (i/n)^N (David and
Nagaraja, Order Statistics, section 2.1, for the empirical distribution).

Deviations are from each run's own straight line over its steps: GPUs warm up together, and nobody
waits for that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from research.grouping import grouped
from workflow_lib.records.reading import RecordError

Array = NDArray[np.float64]

#: fewer steps do not tell a run's line from its jitter
_LEAST_STEPS = 8
_RESAMPLES, _SEED = 1000, 0


@dataclass(frozen=True)
class Jitter:
    """Deviations of steps from their run's line, as shares of it: an array for each run."""

    of_runs: tuple[Array, ...]
    #: the UUID of each run's GPU
    gpus: tuple[str, ...]

    @property
    def steps(self) -> int:
        """The number of steps of all runs."""
        return sum(map(len, self.of_runs))

    @property
    def sd(self) -> float:
        """The standard deviation of a step, with two parameters of each run's line taken off."""
        squares = sum(float((run**2).sum()) for run in self.of_runs)
        return math.sqrt(squares / (self.steps - 2 * len(self.of_runs)))

    @property
    def autocorrelation(self) -> float:
        """The correlation of a step's deviation with that of the next, over all runs."""
        products = sum(float(run[:-1] @ run[1:]) for run in self.of_runs)
        first = sum(float(run[:-1] @ run[:-1]) for run in self.of_runs)
        second = sum(float(run[1:] @ run[1:]) for run in self.of_runs)
        return products / math.sqrt(first * second)

    def slowdown(self, ranks: int) -> float:
        """By what share a step of so many ranks is expected to take longer than a rank's mean one.

        Raises RecordError for more ranks than steps were measured: the largest deviation seen would
        be taken for the largest possible.
        """
        if ranks > self.steps:
            raise RecordError(f"{self.steps} steps say nothing of the slowest of {ranks} ranks")
        return expected_maximum(np.concatenate(self.of_runs), ranks)

    def growth(self, first: int, last: int) -> tuple[float, float, float]:
        """By what share steps take longer for each doubling of the ranks between two numbers; and
        the 90 % interval over GPUs drawn anew, each with all of its runs (bootstrap: Efron, Annals
        of Statistics 7(1), 1979).
        """
        self.slowdown(last)  # refuses too many
        doublings = math.log2(last / first)

        def of(runs: Sequence[Array]) -> float:
            drawn = np.concatenate(runs)
            return (expected_maximum(drawn, last) - expected_maximum(drawn, first)) / doublings

        random = np.random.default_rng(_SEED)
        both = zip(self.gpus, self.of_runs, strict=True)
        of_gpus = list(grouped(both, lambda each: each[0]).values())
        drawn_anew = random.integers(len(of_gpus), size=(_RESAMPLES, len(of_gpus)))
        again = [of([run for gpu in drawn for _, run in of_gpus[gpu]]) for drawn in drawn_anew]
        low, high = np.quantile(again, [0.05, 0.95]).tolist()
        return of(self.of_runs), low, high


def expected_maximum(deviations: Array, ranks: int) -> float:
    """The expected largest of so many draws from [n] measured deviations."""
    ordered, count = np.sort(deviations), len(deviations)
    below = (np.arange(count + 1) / count) ** ranks
    return float(np.diff(below) @ ordered)


def jitter(steps: pl.DataFrame, runs: pl.DataFrame, gpus: pl.DataFrame) -> Jitter:
    """The jitter of completed training runs on one GPU; of tables of steps, runs and GPUs as a
    sweep's.

    Raises RecordError if there are no such runs with enough counted steps.
    """
    found, of_gpus = [], []
    ended = (pl.col("outcome") == "completed") & (pl.col("gpus") == 1) & ~pl.col("simulated")
    alone = runs.filter(ended & (pl.col("workload") != "inference"))
    alone = alone.join(gpus, on=["cell", "run"]).select("cell", "run", "gpu_uuid")
    for *key, gpu in alone.iter_rows():
        of_run = (pl.col("cell") == key[0]) & (pl.col("run") == key[1]) & pl.col("counted")
        times = steps.filter(of_run).sort("step")["step_time_s"].to_numpy()
        if len(times) >= _LEAST_STEPS:
            found.append(_from_line(times))
            of_gpus.append(gpu)
    if not found:
        raise RecordError(
            f"no completed run on one GPU has {_LEAST_STEPS} counted steps: ranks that wait for "
            "each other do not show their own jitter"
        )
    return Jitter(tuple(found), tuple(of_gpus))


def _from_line(times: Array) -> Array:
    """Each time over the value of the least-squares line at its step, less 1."""
    place = np.arange(len(times), dtype=np.float64)
    line = np.polyval(np.polyfit(place, times, 1), place)
    deviations: Array = times / line - 1
    return deviations


def spread_of_ranks(steps: pl.DataFrame, runs: pl.DataFrame) -> pl.Series:
    """For each counted step of completed runs on several GPUs: how much longer its longest rank
    took than its shortest, as a share of the step.
    """
    chosen = runs.filter((pl.col("outcome") == "completed") & (pl.col("gpus") > 1))
    of_runs = steps.join(chosen.select("cell", "run"), on=["cell", "run"], how="semi")
    counted = of_runs.filter(pl.col("counted") & pl.col("rank_spread_s").is_not_null())
    return (counted["rank_spread_s"] / counted["step_time_s"]).rename("spread")
