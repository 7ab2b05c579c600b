"""Bounds of the size, depth and number of everything that is read. Configuration, results and
archives may come from another user, and may be made to do harm.

Input beyond a bound is refused with one sentence, before it costs memory or time. Every bound lies
far above what the workflow itself writes. ``docs/reference/bounds.md`` is made from this module.
"""

from __future__ import annotations

from typing import NamedTuple


class Bound(NamedTuple):
    """The largest size, depth or number that is accepted."""

    most: int
    unit: str
    #: what the bound applies to, for ``docs/reference/bounds.md``
    what: str


#: bytes in a mebibyte
_MIB = 1 << 20

CONFIGURATION_BYTES = Bound(_MIB // 4, "B", "a file of the configuration")
CONFIGURATION_DEPTH = Bound(16, "levels", "lists and mappings within each other in such a file")
CONFIGURATION_VALUES = Bound(
    100_000, "values", "such a file, with every alias counted as what it stands for"
)
REPEATS = Bound(1_000, "runs", "measured runs of a cell: `repeats`")
STEPS = Bound(1_000_000, "steps", "steps of a run: `warmup_steps`, `measured_steps`")
CELLS = Bound(20_000, "cells", "a sweep's matrix, on one platform, before `exclude`")
RANKS = Bound(1_000_000, "ranks", "ranks of a cell: tp × pp × dp")
#: degrees of parallelism whose product is that number, in the order of sentences and of a matrix;
#: and all of them
FACTORS = ("tp", "cp", "pp", "dp")
PARALLEL = (*FACTORS, "ep")
GPUS_OF_NODE = Bound(1_024, "GPUs", "GPUs of a node")
POWER_LIMIT_W = Bound(10_000, "W", "the power limit that a job sets on a GPU")
CLOCK_LIMIT_MHZ = Bound(10_000, "MHz", "the clock that a job locks a GPU to at most")
LAYERS = Bound(100_000, "layers", "layers of a model")
DIMENSION = Bound(1 << 30, "", "every other dimension of a model, batch sizes and other counts")
QUANTITY = Bound(10**32, "", "every other number of the configuration")
PARAMETERS = Bound(10**16, "parameters", "parameters of a model")

RECORD_BYTES = Bound(
    8 * _MIB, "B", "a record of a run, such as `cell.json`, and `versions.json` of an archive"
)
SUMMARY_BYTES = Bound(256 * _MIB, "B", "`summary.json`, which has a row a GPU")
JSON_DEPTH = Bound(16, "levels", "objects and lists within each other in a record")
JSON_VALUES = Bound(4_000_000, "values", "a record")
TRACEBACK_LETTERS = Bound(65_536, "letters", "the end of a rank's traceback that is looked at")

LINE_BYTES = Bound(65_536, "B", "a line of a CSV file")
CSV_BYTES = Bound(16 << 30, "B", "a CSV file of a run")
WATCHED_BYTES = Bound(
    _MIB // 4, "B", "the end of a CSV file that `triptych watch` and `triptych metrics` look at"
)
LOG_LINE_BYTES = Bound(4_096, "B", "the part of a log's line that is searched for words")

COMMAND_BYTES = Bound(64 * _MIB, "B", "what a command of Slurm's prints, on each of two streams")

TABLE_ROWS = Bound(1, "rows/B", "rows of a parquet file by its size, beyond its first 100 000")
TABLE_ROWS_FREE = 100_000
PARQUET_CHECK_BYTES = Bound(8 << 30, "B", "address space in which another's parquet file is tried")
PARQUET_CHECK_S = Bound(300, "s", "the time that this may take")
FIGURE_BYTES = Bound(64 * _MIB, "B", "a figure that the page shows")

TRACE_BYTES = Bound(16 << 30, "B", "a trace, unpacked")
TRACE_BYTES_AT_ONCE = Bound(1 << 30, "B", "a trace, unpacked, that an archive may hold shortened")
TRACE_RATIO = Bound(100, "times", "how much larger a trace is unpacked, beyond its first 64 MiB")
TRACE_RATIO_FREE_BYTES = 64 * _MIB
TRACE_EVENT_BYTES = Bound(32 * _MIB, "B", "an event of a trace; a longer one is left out")
TRACE_DAMAGED_EVENTS = Bound(
    1_000, "events", "damaged events of a trace that are left out one by one"
)

ARCHIVE_FILES = Bound(1_000_000, "files", "an archive")
ARCHIVE_DIRECTORY_BYTES = Bound(256 * _MIB, "B", "the list of an archive's files")
ARCHIVE_DEPTH = Bound(32, "levels", "directories within each other in an archive")
ARCHIVE_TAG_BYTES = Bound(256 * _MIB, "B", "a file about an archive's payload, as its manifest")
ARCHIVE_RATIO = Bound(
    100, "times", "how much larger an archive is unpacked, beyond its first 64 MiB"
)
ARCHIVE_RATIO_FREE_BYTES = 64 * _MIB

MESSAGE_LETTERS = Bound(4_000, "letters", "a message on a terminal")
VALUE_LETTERS = Bound(120, "letters", "a wrong value that a message quotes")


def all_bounds() -> dict[str, Bound]:
    """Every bound by its name, in the order of this file."""
    return {name: bound for name, bound in globals().items() if isinstance(bound, Bound)}
