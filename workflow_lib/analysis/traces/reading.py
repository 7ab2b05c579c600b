"""Reads a rank's trace into a frame of what ran, with the step in which it was launched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from workflow_lib.analysis.traces.batches import LONGEST_NS, Batches, Collective
from workflow_lib.analysis.traces.decoding import (
    WHOLE_BYTES,
    Event,
    Notes,
    ThreadEvent,
    TraceFile,
)
from workflow_lib.analysis.traces.names import (
    COMMUNICATION,
    NORMALISATION_ELEMENTWISE,
    OPTIMISER,
    OTHER_COMPUTATION,
    UNKNOWN,
    class_of_collective,
)

_TIMES = ("start_ns", "end_ns")


@dataclass(frozen=True)
class Trace:
    """One rank's trace.

    ``kernels`` has a row for each kernel, sorted by start. Its columns are ``start_ns`` and
    ``end_ns`` (since the epoch if the trace gives its base time), ``class``, ``step`` (the step in
    which it was launched, null outside of the profiler's steps), ``collective`` (an index of
    ``collectives``, null if the trace says nothing of it), ``device`` (the GPU's index, null on a
    CPU) and ``launched_ns`` (null if no launch is known). ``steps`` has ``step``, ``start_ns`` and
    ``end_ns`` of the profiler's steps on the host.
    """

    kernels: pl.DataFrame
    steps: pl.DataFrame
    collectives: tuple[Collective, ...]
    #: process group → its ranks, as the trace's header lists them
    groups: dict[str, tuple[int, ...]]
    #: whether ``kernels`` ran on a GPU; otherwise they are a CPU's operators
    on_gpu: bool
    #: bytes of the JSON text, of the whole where it was shortened
    bytes_read: int
    notes: tuple[str, ...]


def read_trace(path: Path) -> Trace:
    """Read a trace, ``.json`` or ``.json.gz``, up to where it can be read; ``notes`` say what was
    wrong.

    Raises OSError where the file cannot be opened.
    """
    # Most of a GPU's trace are operators of the CPU, so they are only kept if there are no kernels.
    trace = _read(path, with_operators=False)
    return trace if trace.on_gpu else _read(path, with_operators=True)


def _read(path: Path, with_operators: bool) -> Trace:
    notes = Notes()
    file = TraceFile(path, notes, ThreadEvent if with_operators else Event)
    batches = Batches(notes, with_operators)
    for events in file:
        batches.take(events)
    kernels = _kernels(batches, notes) if batches.kernels else _operators(batches)
    kernels = _without_strays(kernels, notes)
    annotations = batches.annotations.frame()
    number = pl.col("name").str.extract(r"^ProfilerStep#(\d{1,9})$").cast(pl.Int64)
    steps = annotations.select(number.alias("step"), *_TIMES).drop_nulls("step")
    optimiser = annotations.filter(pl.col("name").str.starts_with("Optimizer.step"))
    kernels = _with_steps(kernels, steps, optimiser)
    if with_operators and kernels.is_empty():
        notes.add("the trace holds no kernels and no operators")
    whole = file.header.get(WHOLE_BYTES)
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
        whole if isinstance(whole, int) and 0 <= whole < 2**62 else file.bytes_read,
        notes.sentences(),
    )


def _kernels(batches: Batches, notes: Notes) -> pl.DataFrame:
    """Kernels with their collectives, as operators announced them, and the times of
    their launches.

    Dropped is what the GPU still had to do of the step before the profiler was turned on. It was
    launched before the first launch in the trace, and numbers of launches rise.
    """
    announced = pl.DataFrame(
        batches.announced, {"external": pl.Int64, "announced": pl.Int32}, orient="row"
    )
    described = pl.DataFrame(
        [(i, class_of_collective(c.name or "")) for i, c in enumerate(batches.collectives)],
        {"collective": pl.Int32, "described": pl.String},
        orient="row",
    )
    launches, kernels = batches.launches.frame(), batches.kernels.frame()
    if not launches.is_empty() and not launches["correlation"].has_nulls():
        number = pl.col("correlation")
        earlier = (number < launches["correlation"].min()) & (number > 0)
        kept = kernels.filter(earlier.not_().fill_null(value=True))
        if count := kernels.height - kept.height:
            notes.add("a kernel was launched before the profiler was on, and was left out", count)
        kernels = kept
    launches = launches.drop_nulls("correlation")
    launches = launches.select("correlation", pl.col("start_ns").alias("launched_ns"))
    kernels = _with_operators(kernels, batches.launched_classes())
    communicates = pl.col("class").is_in(COMMUNICATION)
    return (
        kernels.join(announced.unique("external", keep="first"), on="external", how="left")
        .with_columns(pl.coalesce("collective", pl.when(communicates).then("announced")))
        .join(described, on="collective", how="left")
        .join(launches.unique("correlation", keep="first"), on="correlation", how="left")
        .with_columns(pl.coalesce("described", "class").alias("class"))
        .select(*_TIMES, "class", "collective", "device", "launched_ns")
    )


def _with_operators(kernels: pl.DataFrame, launched: pl.DataFrame) -> pl.DataFrame:
    """The kernels with the class of the operator that launched them, where their names do not
    tell."""
    # Before PyTorch 2.1, Kineto repeated the correlation where it had no operator.
    unknown = (pl.col("class") == UNKNOWN) & pl.col("external").ne_missing(pl.col("correlation"))
    asking = kernels.filter(unknown).select("external").unique()
    of_operators = launched.join(asking, on="external").unique("external", keep="first")
    of_operators = of_operators.rename({"class": "of_operator"})
    return kernels.join(of_operators, on="external", how="left").with_columns(
        pl.when(unknown).then(pl.coalesce("of_operator", "class")).otherwise("class").alias("class")
    )


def _operators(batches: Batches) -> pl.DataFrame:
    """The outermost of ATen's operators and of gloo's work on each thread, and other operators that
    contain no operator."""
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
            pl.lit(None, pl.Int64).alias("device"),
            pl.col("start_ns").alias("launched_ns"),
        )
    )


def _without_strays(kernels: pl.DataFrame, notes: Notes) -> pl.DataFrame:
    """Drop what lies a day or more from the median, such as an event with a timestamp of 0."""
    near = (pl.col("start_ns") - pl.col("start_ns").median()).abs() < LONGEST_NS
    kept = kernels.filter(near)
    if strays := kernels.height - kept.height:
        notes.add("an event lies a day or more from the others, and was left out", strays)
    return kept


def _with_steps(
    kernels: pl.DataFrame, steps: pl.DataFrame, optimiser: pl.DataFrame
) -> pl.DataFrame:
    """Add the step in which each was launched. What the optimiser launched gets the optimiser's
    class."""
    launched = kernels.sort("launched_ns")
    launched = launched.with_columns(
        _within(launched, steps, "step"),
        _within(launched, optimiser.with_columns(optimiser=pl.lit(1, pl.Int64)), "optimiser"),
    )
    rest = pl.col("class").is_in([NORMALISATION_ELEMENTWISE, OTHER_COMPUTATION, UNKNOWN])
    optimises = rest & pl.col("optimiser").is_not_null()
    kind = pl.when(optimises).then(pl.lit(OPTIMISER)).otherwise("class")
    return launched.with_columns(kind.alias("class")).drop("optimiser")


def _within(launched: pl.DataFrame, spans: pl.DataFrame, name: str) -> pl.Series:
    """Column ``name`` of the span that each launch lies in, null if it lies in none."""
    begun = spans.select(
        pl.col("start_ns").alias("launched_ns"), pl.col("end_ns").alias("until_ns"), name
    ).sort("launched_ns")
    inside = pl.col("launched_ns") < pl.col("until_ns")
    enclosing = launched.select("launched_ns").join_asof(begun, on="launched_ns")
    return enclosing.select(pl.when(inside).then(name).alias(name)).to_series()


def _groups(header: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The ranks of each process group that a trace's header lists."""
    distributed = header.get("distributedInfo")
    listed = distributed.get("pg_config") if isinstance(distributed, dict) else None
    groups = {}
    for group in listed if isinstance(listed, list) else []:
        name = group.get("pg_name") if isinstance(group, dict) else None
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(ranks, list) and ranks and all(type(rank) is int for rank in ranks):
            groups[str(name)] = tuple(ranks)
    return groups
