"""Reduces many runs with few processes: starting one takes longer than reducing a run."""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from workflow_lib.analysis.raw_files import in_full
from workflow_lib.analysis.reduce import reduce_run
from workflow_lib.records import RecordError

#: runs that a process takes at once
_CHUNK = 8
_THREADS = "POLARS_MAX_THREADS"


def reduce_runs(directories: Sequence[Path], processes: int) -> list[str]:
    """Reduce each run, and return what was wrong with those that could not be, in order.

    One damaged run keeps no other from being reduced. No more processes start than have runs
    to reduce.
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
    """Processes that share the cores already gain nothing by threads; polars reads how many to
    start as it is imported."""
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
