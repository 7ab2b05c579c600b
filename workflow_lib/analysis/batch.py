"""Reduces many runs in a few processes, because to start one takes longer than to reduce a run."""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from workflow_lib.analysis.reduce import reduce_run
from workflow_lib.analysis.samples import in_full
from workflow_lib.records.reading import RecordError

#: runs that a process takes at once
_CHUNK = 8
_THREADS = "POLARS_MAX_THREADS"


def reduce_runs(directories: Sequence[Path], processes: int) -> list[str]:
    """Reduce each run; return a message for each run that could not be reduced, in order.

    A damaged run does not stop the others. At most one process starts for every eight runs.
    """
    processes = min(processes, math.ceil(len(directories) / _CHUNK))
    if processes <= 1:
        problems = [_problem(directory) for directory in directories]
    else:
        # polars must not be forked: its threads' locks would stay held in the child.
        context = multiprocessing.get_context("spawn")
        with (
            _single_threaded_children(),
            ProcessPoolExecutor(processes, context) as pool,
        ):
            problems = list(pool.map(_problem, directories, chunksize=_CHUNK))
    return [problem for problem in problems if problem]


@contextmanager
def _single_threaded_children() -> Iterator[None]:
    """Give child processes one thread of polars each: they already share the cores. Polars reads
    this setting when it is imported."""
    before = os.environ.get(_THREADS)
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[_THREADS]
        if before is not None:
            os.environ[_THREADS] = before


def _problem(directory: Path) -> str:
    try:
        reduce_run(directory)
    except (RecordError, OSError) as error:
        return in_full(error)
    return ""
