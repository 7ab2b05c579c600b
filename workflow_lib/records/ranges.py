"""The ranges of numbers in records and CSV files, and which names of nodes and cells are valid.

A field name means the same in all files, and names carry units. So the range of a number follows
from its name, unless :mod:`~workflow_lib.records.telemetry_columns` declares it for a reading. A
value outside its range is damaged or made up. It is refused, so that no mean includes it.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from workflow_lib.records import bounds
from workflow_lib.records.bounds import PARALLEL


class Range(NamedTuple):
    """The least and the most that a number can be, both included."""

    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.least:g} to {self.most:g}"


#: the range of every other count, size or time; sums and products of such numbers do not overflow
_ANY = Range(0, 1e18)
SIGNED = Range(-1e18, 1e18)
_COUNT = Range(1, bounds.DIMENSION.most)
_DEGREE = Range(1, bounds.RANKS.most)
#: field name → range
_NAMED = {
    **dict.fromkeys((*PARALLEL, "virtual_stages", "nodes"), _DEGREE),
    **dict.fromkeys((f"{degree}_rank" for degree in PARALLEL), Range(0, bounds.RANKS.most)),
    "rank": Range(0, bounds.RANKS.most),
    "layers": Range(1, bounds.LAYERS.most),
    "stage_layers": Range(0, bounds.LAYERS.most),
    **dict.fromkeys(
        (
            *("hidden_size", "ffn_hidden_size", "attention_heads", "kv_heads", "sequence_length"),
            *("head_dimension", "vocabulary_size", "vocabulary_multiple"),
            *("micro_batch_size", "global_batch_size"),
        ),
        _COUNT,
    ),
    "zero_stage": Range(0, 3),
    "warmup_steps": Range(0, bounds.STEPS.most),
    "measured_steps": Range(1, bounds.STEPS.most),
    "step": Range(0, bounds.STEPS.most),
    **dict.fromkeys(("gpus_per_node", "gpus_per_package"), Range(1, bounds.GPUS_OF_NODE.most)),
    **dict.fromkeys(("gpu", "gpu_order"), Range(0, bounds.GPUS_OF_NODE.most - 1)),
    # at rate 0 of alternating rates nothing is read
    "sample_rate_hz": Range(0, 1e6),
    "interleaved_rates_hz": Range(0, 1e6),
    "block_s": Range(0, 1e9),
    "loss": SIGNED,
    # intervals of gains or differences
    **dict.fromkeys(("estimate", "low", "high"), SIGNED),
    # one clock minus another
    "ahead_s": Range(-1e11, 1e11),
    "learning_rate": Range(0, 1e38),
    "power_limit_w": Range(1e-3, 1e9),
    "power_limits_w": Range(1, bounds.POWER_LIMIT_W.most),
    "clock_limits_mhz": Range(1, bounds.CLOCK_LIMIT_MHZ.most),
    # Python gives a signal as a negative exit code
    **dict.fromkeys(("exit_code", "training_exit_code", "telemetry_exit_code"), SIGNED),
}
#: end of a field name → range; the first that fits counts
_ENDINGS = (
    # until the year 5138
    ("unix_s", Range(0, 1e11)),
    ("unix_time_s", Range(0, 1e11)),
    ("_flops_per_s", Range(1e-3, 1e30)),
    ("bytes_per_s", Range(1e-3, 1e30)),
    ("margin_c", Range(-1000, 1000)),
    ("_c", Range(-273.15, 10_000)),
    ("_mhz", Range(0, 1e6)),
    ("power_w", Range(0, 1e9)),
    ("_instant_w", Range(0, 1e9)),
    ("_mw", Range(0, 1e12)),
)
#: fields with names of nodes, which are used as file names
_NODES = ("node", "nodes", "failed_nodes")
_LONGEST_NAME = 255


@functools.cache
def range_of(name: str) -> Range:
    """The range of a number in a field of this name."""
    if name in _NAMED:
        return _NAMED[name]
    return next((allowed for ending, allowed in _ENDINGS if name.endswith(ending)), _ANY)


def problem(name: str, value: object, allowed: Range | None = None) -> str:
    """What was expected instead of this value in a field of this name; "" if the value is valid.
    ``allowed`` is the range of a number, if another than its name tells."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        allowed = allowed or range_of(name)
        # Written so that NaN is in no range.
        return "" if allowed.least <= value <= allowed.most else f"{allowed}"
    if isinstance(value, str) and name in _NODES and not is_file_name(value):
        return "a node's name, which files are called after"
    return ""


def is_file_name(name: str) -> bool:
    """Whether this is a valid file name that does not lead to another directory."""
    return (
        0 < len(name.encode("utf-8", "replace")) <= _LONGEST_NAME
        and name not in (".", "..")
        and not re.search(r"[/\0]", name)
    )


def is_cell_id(name: str) -> bool:
    """Whether this is a valid id of a cell: three directory names, separated by slashes."""
    parts = name.split("/")
    return len(parts) == 3 and all(map(is_file_name, parts))
