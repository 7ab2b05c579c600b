"""The page of how far hosts of one kind differ.

It computes what :mod:`workflow_lib.intervals.hosts` holds, and raises an error where they differ.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import numpy as np
import polars as pl
from scipy.stats import chi2

from research.grouping import grouped
from research.pages import findings
from research.pages.tables import document, table
from research.projection.published import PublishedRun
from research.projection.reading import PUBLISHED, read_published
from workflow_lib.intervals import hosts
from workflow_lib.intervals.hosts import Group, Spread, connected
from workflow_lib.records.tables import GPUS, RUNS
from workflow_lib.report.figures.numbers import NOTHING, significant

NAME = "hosts.md"
_TRAINING, _EMULATED = pl.col("workload") != "inference", pl.col("emulated")
_DECODE = "decode_tokens_per_s_per_gpu", "decode_tokens_per_j"
_TRAIN = "tokens_per_s_per_gpu", "tokens_per_j"


@dataclass(frozen=True)
class _Kind:
    """Cells that are judged together."""

    what: str
    cells: pl.Expr
    speed: str
    efficiency: str
    waits: bool = False


_KINDS = (
    _Kind("training", _TRAINING & _EMULATED.is_null(), *_TRAIN),
    _Kind("decoding by CUDA graphs", ~_TRAINING & pl.col("cuda_graphs"), *_DECODE),
    _Kind("decoding without CUDA graphs", ~_TRAINING & ~pl.col("cuda_graphs"), *_DECODE, True),
    _Kind("training on emulated nodes", _TRAINING & ~_EMULATED.is_null(), *_TRAIN, True),
)


@dataclass(frozen=True)
class Measured:
    """A group, with what the page shows besides."""

    group: Group
    waits: bool
    cells: int
    #: of the hosts, as logarithms of speed, ascending
    effects: tuple[float, ...]
    #: of logarithms of tokens/J; None if the source has none
    efficiency_sd: float | None = None


def page(rebuilt: Path) -> str:
    """How far hosts of the evidence, and of published runs, differ."""
    return page_of([*of_runs(_runs(rebuilt)), *of_published(read_published(PUBLISHED)[0])])


def _runs(rebuilt: Path) -> pl.DataFrame:
    """The completed runs of the evidence, each once, with their host: its set of GPUs."""
    found = []
    for directory in findings.sweeps_of(rebuilt):
        runs, gpus = findings.tables_of(directory, runs=RUNS, gpus=GPUS)
        of_runs = gpus.group_by("cell", "run").agg(host=pl.col("gpu_uuid").sort().str.join(" "))
        done = runs.filter(pl.col("outcome") == "completed")
        found.append(done.join(of_runs, on=["cell", "run"]))
    # Sweeps that share a cell may show the same run.
    return pl.concat(found).unique(["cell", "run", "started_unix_s"], maintain_order=True)


def of_runs(runs: pl.DataFrame) -> Iterator[Measured]:
    """The groups of completed runs: rows of RUNS with the column ``host``."""
    for kind in _KINDS:
        own = runs.filter(kind.cells & pl.col(kind.speed).is_not_null())
        seen = Counter[str]()
        for of_hosts in effects(_values(own, kind.speed, math.log)):
            group = own.filter(pl.col("host").is_in([*of_hosts]))
            (warm,) = effects(_values(group, "temperature_mean_c", float))
            (efficiency,) = effects(_values(group, kind.efficiency, math.log))
            what = f"{kind.what}, {group['gpus'][0]} {group['gpu_model'][0]}"
            seen[what] += 1
            per_cell = group.group_by("cell").agg(pl.col("host").n_unique())
            yield Measured(
                Group(
                    what + (", other hosts" if seen[what] > 1 else ""),
                    len(of_hosts),
                    round(standard_deviation(of_hosts), 4),
                    round(standard_deviation(warm), 1),
                ),
                kind.waits,
                per_cell.filter(pl.col("host") > 1).height,
                tuple(sorted(of_hosts.values())),
                standard_deviation(efficiency),
            )


def effects(
    values: Sequence[tuple[Hashable, Hashable, float]],
) -> list[Mapping[Hashable, float]]:
    """The effect of each host, from its group's mean: a mapping for each group of two or more.

    ``values`` are those of runs: their cell, their host and the value.
    """
    groups: list[Mapping[Hashable, float]] = []
    for group in _groups(values):
        shared = [value for value in values if value[1] in group]
        cells = list(dict.fromkeys(cell for cell, _, _ in shared))
        columns = np.array(
            [
                [*(cell == other for other in cells), *(host == other for other in group)]
                for cell, host, _ in shared
            ],
            dtype=float,
        )
        # Of the equally good solutions the shortest; hosts' effects count from their mean.
        solved, *_ = np.linalg.lstsq(columns, np.array([value for *_, value in shared]))
        of_hosts = solved[len(cells) :] - solved[len(cells) :].mean()
        groups.append(dict(zip(group, of_hosts.tolist(), strict=True)))
    return groups


def standard_deviation(of_hosts: Mapping[Hashable, float]) -> float:
    """Between the hosts of a group, from their effects."""
    squares = sum(host**2 for host in of_hosts.values())
    return math.sqrt(squares / (len(of_hosts) - 1))


def _groups(values: Sequence[tuple[Hashable, Hashable, float]]) -> list[list[Hashable]]:
    """Hosts that share cells, directly or through others, in the order of the values."""
    of_cells: dict[Hashable, set[Hashable]] = {}
    for cell, host, _ in values:
        of_cells.setdefault(cell, set()).add(host)
    every = list(dict.fromkeys(host for _, host, _ in values))
    groups = connected(of_cells.values())
    return [[host for host in every if host in group] for group in groups if len(group) > 1]


def _values(
    runs: pl.DataFrame, name: str, scale: Callable[[float], float]
) -> list[tuple[str, str, float]]:
    """Cell, host and value of each run that has one."""
    rows = runs.select("cell", "host", name).drop_nulls().rows()
    return [(cell, host, scale(value)) for cell, host, value in rows]


#: what systems that are compared have in common
_STATED = attrgetter(
    *("source", "gpu", "gpus", "model", "global_batch", "tp", "cp", "pp", "micro_batches")
)


def of_published(rows: Iterable[PublishedRun]) -> Iterator[Measured]:
    """The groups of MLPerf's systems of one host that state one layout in one round."""
    of_one_host = [
        row
        for row in rows
        if row.source.startswith("MLPerf") and row.layout == "known"
        if row.gpus == row.gpus_per_node and row.step_time_s is not None
    ]
    for (source, gpu, gpus, model, *_), group in grouped(of_one_host, _STATED).items():
        if len(group) < 2:
            continue
        values = [("", row.address, -math.log(row.step_time_s or math.nan)) for row in group]
        (of_hosts,) = effects(values)
        sd = round(standard_deviation(of_hosts), 4)
        what = f"{source}, {model}, {gpus} {gpu}"
        yield Measured(
            Group(what, len(group), sd),
            waits=False,
            cells=1,
            effects=tuple(sorted(of_hosts.values())),
        )


def page_of(found: Sequence[Measured]) -> str:
    """How far hosts differ. Raises ValueError where the product holds another figure."""
    for waits, groups in ((False, hosts.BUSY), (True, hosts.WAITING)):
        own = tuple(each.group for each in found if each.waits == waits)
        if own != groups:
            raise ValueError(f"workflow_lib/intervals/hosts.py has {groups}, but there are {own}")
    busy = [each for each in found if not each.waits and each.efficiency_sd is not None]
    energy = hosts.pooled([(each.group.hosts, each.efficiency_sd or 0.0) for each in busy])
    heads = ("hosts with the same cells", "GPUs wait for a CPU", "hosts", "cells")
    of_speed = ("speed of each, %", "SD of speed, %", "SD of tokens/J, %", "SD of temperature, °C")
    pooled = [
        _pooled("speed, GPUs busy", hosts.BUSY_SPREAD, 100, "%"),
        _pooled("tokens/J, GPUs busy (not used)", energy, 100, "%"),
        _pooled("temperature, GPUs busy", hosts.BUSY_SPREAD_C, 1, "°C"),
        _pooled("speed, GPUs wait", hosts.WAITING_SPREAD, 100, "%"),
        _pooled("temperature, GPUs wait", hosts.WAITING_SPREAD_C, 1, "°C"),
    ]
    return document(
        findings.NOTICE,
        "# How far do hosts of one kind differ?",
        "The same cells ran on several sets of GPUs, each in a host of its own. This page says "
        "how far these differ, which [comparisons](../explanation/comparison.md) and "
        "[projections](../explanation/projection.md) allow for. Speeds are logarithms of "
        "tokens/s. `workflow_lib/intervals/hosts.py` has the method.",
        table((*heads, *of_speed), map(_line, found)),
        table(("", "SD", "95 % interval", "degrees of freedom", "two hosts, 95 %"), pooled),
        "The last column is by how much two hosts differ at most in 95 % of cases, the faster one "
        "above the slower, the warmer above the cooler: by Student's t, which includes how "
        "uncertain the SD is. The groups differ "
        "among themselves by more than chance: hosts of one H200 were nearly alike, and others "
        "were not. Published systems differ in their hosts and in how their owners set them up. No "
        "set of GPUs came again on another date.",
    )


def _line(each: Measured) -> tuple[str, ...]:
    group = each.group
    efficiency = NOTHING if each.efficiency_sd is None else f"{100 * each.efficiency_sd:.2f}"
    warm = NOTHING if group.temperature_sd_c is None else f"{group.temperature_sd_c:.1f}"
    effects = ", ".join(f"{100 * effect:+.2f}".replace("-", "−") for effect in each.effects)
    counts = ("yes" if each.waits else "no", str(group.hosts), str(each.cells))
    return (group.what, *counts, effects, f"{100 * group.speed_sd:.2f}", efficiency, warm)


def _pooled(name: str, of: Spread, factor: float, unit: str) -> tuple[str, ...]:
    low, high = (
        of.sd * math.sqrt(of.degrees / chi2.ppf(share, of.degrees)) for share in (0.975, 0.025)
    )
    sd, low, high = (significant(factor * each, 2) for each in (of.sd, low, high))
    two = of.of_two(0.95)
    # A logarithm, as speeds are here: by so much the faster is above the slower.
    apart = significant(factor * (math.expm1(two) if unit == "%" else two), 2)
    return (name, f"{sd} {unit}", f"{low} to {high} {unit}", str(of.degrees), f"{apart} {unit}")
