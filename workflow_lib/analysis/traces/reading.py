"""A rank's trace as a frame of what ran, with the steps that it was launched in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from workflow_lib.analysis.traces.batches import LONGEST_NS, Batches, Collective
from workflow_lib.analysis.traces.decoding import Event, ThreadEvent, TraceFile
from workflow_lib.analysis.traces.names import (
    COMMUNICATION,
    NORMALISATION_ELEMENTWISE,
    OPTIMISER,
    OTHER_COMPUTATION,
    class_of_collective,
)
from workflow_lib.analysis.traces.notes import Notes

_TIMES = ("start_ns", "end_ns")


@dataclass(frozen=True)
class Trace:
    """One rank's trace.

    ``kernels`` has a row a kernel, by start: ``start_ns`` and ``end_ns`` since the epoch where the
    trace says when that was, ``class``, ``step`` (that it was launched in, null outside of the
    profiler's steps), ``collective`` (an index of ``collectives``, null where nothing is said) and
    ``launched_ns`` (null where no launch is known). ``steps`` has ``step``, ``start_ns`` and
    ``end_ns`` of the profiler's steps on the host.
    """

    kernels: pl.DataFrame
    steps: pl.DataFrame
    collectives: tuple[Collective, ...]
    #: process groups by name, as the trace's header lists them: their ranks
    groups: dict[str, tuple[int, ...]]
    #: whether these are kernels; otherwise a CPU's operators stand for them
    on_gpu: bool
    #: of the JSON text
    bytes_read: int
    notes: tuple[str, ...]


def read_trace(path: Path) -> Trace:
    """Read a trace, ``.json`` or ``.json.gz``, as far as it goes; what was wrong is in ``notes``.

    Raises OSError where the file cannot be opened.
    """
    # A CPU's operators are most of a GPU's trace, so they are kept only where nothing else is.
    trace = _read(path, with_operators=False)
    return trace if trace.on_gpu else _read(path, with_operators=True)


def _read(path: Path, with_operators: bool) -> Trace:
    notes = Notes()
    file = TraceFile(path, notes, ThreadEvent if with_operators else Event)
    batches = Batches(notes, with_operators)
    for events in file:
        batches.take(events)
    kernels = _kernels(batches) if batches.kernels else _operators(batches)
    kernels = _without_strays(kernels, notes)
    annotations = batches.annotations.frame()
    number = pl.col("name").str.extract(r"^ProfilerStep#(\d{1,9})$").cast(pl.Int64)
    steps = annotations.select(number.alias("step"), *_TIMES).drop_nulls("step")
    optimiser = annotations.filter(pl.col("name").str.starts_with("Optimizer.step"))
    kernels = _with_steps(kernels, steps, optimiser)
    if with_operators and kernels.is_empty():
        notes.add("the trace holds no kernels and no operators")
    base = file.header.get("baseTimeNanoseconds")
    if isinstance(base, int) and abs(base) < 2**62:
        kernels = kernels.with_columns(pl.col(*_TIMES, "launched_ns") + base)
        steps = steps.with_columns(pl.col(*_TIMES) + base)
    return Trace(
        kernels.sort(_TIMES),
        steps.sort(_TIMES),
        batches.collectives,
        _groups(file.header),
        bool(batches.kernels),
        file.bytes_read,
        notes.sentences(),
    )


def _kernels(batches: Batches) -> pl.DataFrame:
    """Kernels with what was announced of them, and when they were launched."""
    announced = pl.DataFrame(
        batches.announced, {"external": pl.Int64, "announced": pl.Int32}, orient="row"
    )
    said = pl.DataFrame(
        [(i, class_of_collective(c.name or "")) for i, c in enumerate(batches.collectives)],
        {"collective": pl.Int32, "said": pl.String},
        orient="row",
    )
    launches = batches.launches.frame().drop_nulls("correlation")
    launches = launches.select("correlation", pl.col("start_ns").alias("launched_ns"))
    kernels = batches.kernels.frame()
    communicates = pl.col("class").is_in(COMMUNICATION)
    return (
        kernels.join(announced.unique("external", keep="first"), on="external", how="left")
        .with_columns(pl.coalesce("collective", pl.when(communicates).then("announced")))
        .join(said, on="collective", how="left")
        .join(launches.unique("correlation", keep="first"), on="correlation", how="left")
        .with_columns(pl.coalesce("said", "class").alias("class"))
        .select(*_TIMES, "class", "collective", "launched_ns")
    )


def _operators(batches: Batches) -> pl.DataFrame:
    """ATen's outermost operators and gloo's work on each thread, and what else holds no other."""
    operators = batches.operators.frame()
    following = pl.col("start_ns").shift(-1).over("thread")
    whole_until = pl.when("whole").then("end_ns").cum_max().forward_fill().shift(1)
    return (
        operators.sort("thread", "start_ns", "end_ns", descending=[False, False, True])
        .with_columns(whole_until.over("thread").alias("until"))
        .filter(pl.col("until").is_null() | (pl.col("end_ns") > pl.col("until")))
        .filter(following.is_null() | (following >= pl.col("end_ns")))
        .select(
            *_TIMES,
            "class",
            pl.lit(None, pl.Int32).alias("collective"),
            pl.col("start_ns").alias("launched_ns"),
        )
    )


def _without_strays(kernels: pl.DataFrame, notes: Notes) -> pl.DataFrame:
    """Without what lies a day or more from the rest, as a timestamp of 0 does."""
    near = (pl.col("start_ns") - pl.col("start_ns").median()).abs() < LONGEST_NS
    kept = kernels.filter(near)
    if strays := kernels.height - kept.height:
        notes.add("an event lies a day or more from the others, and was left out", strays)
    return kept


def _with_steps(
    kernels: pl.DataFrame, steps: pl.DataFrame, optimiser: pl.DataFrame
) -> pl.DataFrame:
    """With the step that each was launched in; what the optimiser launched is of its class."""
    launched = kernels.sort("launched_ns")
    launched = launched.with_columns(
        _within(launched, steps, "step"),
        _within(launched, optimiser.with_columns(optimiser=pl.lit(1, pl.Int64)), "optimiser"),
    )
    rest = pl.col("class").is_in([NORMALISATION_ELEMENTWISE, OTHER_COMPUTATION])
    optimises = rest & pl.col("optimiser").is_not_null()
    kind = pl.when(optimises).then(pl.lit(OPTIMISER)).otherwise("class")
    return launched.select(*_TIMES, kind.alias("class"), "step", "collective", "launched_ns")


def _within(launched: pl.DataFrame, spans: pl.DataFrame, name: str) -> pl.Series:
    """What column ``name`` is of the span that each launch lies in, null outside of all."""
    begun = spans.select(
        pl.col("start_ns").alias("launched_ns"), pl.col("end_ns").alias("until_ns"), name
    ).sort("launched_ns")
    inside = pl.col("launched_ns") < pl.col("until_ns")
    found = launched.select("launched_ns").join_asof(begun, on="launched_ns")
    return found.select(pl.when(inside).then(name).alias(name)).to_series()


def _groups(header: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The ranks of each process group that a trace's header lists."""
    distributed = header.get("distributedInfo")
    listed = distributed.get("pg_config") if isinstance(distributed, dict) else None
    groups = {}
    for each in listed if isinstance(listed, list) else []:
        name = each.get("pg_name") if isinstance(each, dict) else None
        ranks = each.get("ranks") if isinstance(each, dict) else None
        if isinstance(ranks, list) and ranks and all(type(rank) is int for rank in ranks):
            groups[str(name)] = tuple(ranks)
    return groups
