"""The page of jitter: how steps of one rank vary, and what the slowest of many ranks costs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from research.pages import findings
from research.pages.tables import NOTICE, document, table
from research.projection.jitter import Jitter, jitter, spread_of_ranks
from workflow_lib.projection.own_stack import own_stack
from workflow_lib.records.tables import GPUS, RUNS, STEP_TIMES

NAME = "jitter.md"
#: a step that takes so many times the median stalled
_STALLED = 1.5
#: what tells a run from every other
_RUN = ("cell", "run", "started_unix_s")
_CORRELATION = "correlation of a step with the next"
_RANKS = (2, 8, 64, 512, 1024)
#: ranks of a node, and the most for which the steps are enough
_FIRST, _LAST = 8, 1024


def page(rebuilt: Path) -> str:
    """What the steps of the evidence say of jitter."""
    alone: dict[str, Jitter] = {}
    together: dict[str, pl.Series] = {}
    alternating: list[str] = []
    once = set[tuple[object, ...]]()
    of_runs: list[NDArray[np.float64]] = []
    of_gpus: list[str] = []
    for directory in findings.sweeps_of(rebuilt):
        runs, steps, gpus = findings.tables_of(directory, runs=RUNS, steps=STEP_TIMES, gpus=GPUS)
        if (runs["workload"] == "inference").all():
            continue
        if runs["interleaved_rates_hz"].is_not_null().any():
            alternating.append(_stalls(directory.name, steps, runs))
        elif (runs["gpus"] > 1).any():
            together[directory.name] = spread_of_ranks(steps, runs)
        else:
            alone[directory.name] = jitter(steps, runs, gpus)
            # Sweeps that share a cell may show the same run.
            new = runs.filter([row not in once for row in runs.select(_RUN).rows()])
            once |= set(runs.select(_RUN).rows())
            if not new.is_empty():
                again = jitter(steps, new, gpus)
                of_runs += again.of_runs
                of_gpus += again.gpus
    every = Jitter(tuple(of_runs), tuple(of_gpus))
    growth = every.growth(_FIRST, _LAST)
    fitted, sd = own_stack().fit.parameter("growth", "BF16")
    spreads = [
        (f"`{name}`", str(len(spread)), _percent(spread.median()), _percent(spread.max()))
        for name, spread in together.items()
    ]
    slower = [(str(ranks), f"{100 * every.slowdown(ranks):.2f}") for ranks in _RANKS]
    return document(
        NOTICE,
        "# How much do steps of one rank vary?",
        "A step ends when its slowest rank ends. This page says how much that costs as far as the "
        "evidence shows it, and what it cannot show. `research/projection/jitter.py` has the "
        "formula.",
        "## Ranks of one run do not show it",
        "Ranks wait for each other within each step, so all record nearly the same time. This is "
        "by how much the times of two ranks differ in a step:",
        table(("sweep", "steps", "median, % of a step", "largest, %"), spreads),
        "## Runs on one GPU show it",
        "Their steps wait for nobody. Deviations are from the straight line of each run.",
        table(
            ("sweep", "runs", "steps", "standard deviation, %", _CORRELATION),
            [*(_row(f"`{name}`", each) for name, each in alone.items()), _row("all", every)],
        ),
        *alternating,
        "If ranks were independent and waited once a step, steps would take longer than a rank's "
        "mean step by:",
        table(("ranks", "slower, %"), slower),
        f"From {_FIRST} to {_LAST} ranks that is {_percent(growth[0])} % for each doubling "
        f"(90 % interval {_percent(growth[1])} to {_percent(growth[2])}, over GPUs drawn anew). "
        f"The projection's fit to published runs has {_percent(fitted)} ± {_percent(sd)} % for "
        f"each doubling beyond a node, from a prior of 0.5 ± 1 %. So this jitter explains "
        f"{100 * growth[0] / fitted:.0f} % of the fitted growth. It is no prior for the whole, and "
        "the projection keeps its own, for these reasons:",
        "- It is a lower bound. Ranks wait many times within a step, and each wait has a slowest "
        "rank of its own. And no draw is above the largest deviation that was seen.\n"
        "- GPUs [differ for good](hosts.md) as well, and a few do not say how the slowest of a "
        "thousand does.\n"
        "- Networks have tails, and no run here had a network between nodes.",
    )


def _stalls(sweep: str, steps: pl.DataFrame, runs: pl.DataFrame) -> str:
    """Why runs whose sampling alternates are left out, and how many of their steps stalled."""
    done = runs.filter(pl.col("outcome") == "completed").select("cell", "run", "step_time_s")
    shares = (
        steps.filter(pl.col("counted"))
        .join(done, on=("cell", "run"), suffix="_median")
        .select(pl.col("step_time_s") / pl.col("step_time_s_median"))
        .to_series()
    )
    long = shares.filter(shares > _STALLED)
    told = f"{len(long)} of its {len(shares)} steps took more than {_STALLED:g} times the median"
    if len(long):
        told += f", up to {long.max():.1f} times"
    return f"`{sweep}` is left out, because its sampling rates alternate. {told}."


def _row(name: str, of: Jitter) -> tuple[str, ...]:
    runs, steps = str(len(of.of_runs)), str(of.steps)
    return (name, runs, steps, _percent(of.sd), f"{of.autocorrelation:.2f}")


def _percent(share: object) -> str:
    assert isinstance(share, float)
    return f"{100 * share:.2g}"
