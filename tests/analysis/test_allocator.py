"""What a run's rows tell of torch's allocator: counts of synthetic ranks with known growth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import polars as pl
import pytest

from workflow_lib.analysis.collect import cell_pressure, cell_settings
from workflow_lib.records.contract import STEPS

from .synthetic_run import Run, cell, codes, summary, write_csv

COLUMNS = ("allocator_retries", "allocator_frees", "memory_pressure", "allocator")
NOTHING = (None, None, None, None)
DEFAULT, EXPANDABLE = "native", "native, expandable_segments:True"
#: at the end of the warm-up step and of two measured ones
QUIET = (DEFAULT, [(2, 31), (2, 31), (2, 31)])
SHORT = (DEFAULT, [(2, 31), (3, 35), (5, 42)])
ASYNCHRONOUS = ("cudaMallocAsync", [(None, None)] * 3)


def values(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in COLUMNS)


def causes(row: Mapping[str, Any]) -> set[str]:
    """The codes of what is null."""
    return {code for name, code in codes(row).items() if name in COLUMNS}


@pytest.mark.parametrize(
    ("first", "second", "of_gpus", "expected"),
    [
        # Of rank 1: 5 − 2 retries, 42 − 31 segments.
        (QUIET, SHORT, [(0, 0), (3, 11)], (3, 11, True, DEFAULT)),
        (QUIET, (EXPANDABLE, QUIET[1]), [(0, 0), (0, 0)],
         (0, 0, False, f"{DEFAULT}; {EXPANDABLE}")),
        # A segment given back without a retry is pressure.
        (QUIET, (DEFAULT, [(0, 0), (0, 0), (0, 1)]), [(0, 0), (0, 1)], (0, 1, True, DEFAULT)),
        # Pressure is known where one rank shows it.
        (SHORT, ASYNCHRONOUS, [(3, 11), (None, None)],
         (None, None, True, f"{ASYNCHRONOUS[0]}; {DEFAULT}")),
        (QUIET, ASYNCHRONOUS, [(0, 0), (None, None)],
         (None, None, None, f"{ASYNCHRONOUS[0]}; {DEFAULT}")),
    ],
)  # fmt: skip
def test_counts_are_those_of_the_measured_steps_alone(tmp_path, first, second, of_gpus, expected):
    reduced = Run(allocators={0: first, 1: second}).reduced(tmp_path)
    counts = [(gpu["allocator_retries"], gpu["allocator_frees"]) for gpu in reduced["gpus"]]
    assert (counts, values(reduced["run"])) == (of_gpus, expected)
    assert causes(reduced["run"]) == ({"allocator_does_not_count"} if None in expected else set())


def test_runs_of_earlier_versions_say_why_nothing_is_known(tmp_path):
    paths = Run().write(tmp_path / "run1")
    # Files without the columns at all.
    for rank in range(2):
        rows = pl.read_csv(paths.rank_steps(rank)).to_dicts()
        columns = [each for each in STEPS if each.name not in COLUMNS]
        write_csv(paths.rank_steps(rank), columns, rows)
        record = json.loads(paths.rank(rank).read_text("utf-8"))
        del record["allocator"]
        paths.rank(rank).write_text(json.dumps(record), encoding="utf-8")
    row = summary(paths)["run"]
    assert (values(row), causes(row)) == (NOTHING, {"of_earlier_version"})


def test_without_a_warm_up_counts_of_before_are_not_known(tmp_path):
    one = cell(warmup_steps=0, measured_steps=3)
    paths = Run(cell=one, allocators={0: QUIET, 1: SHORT}).write(tmp_path / "run1")
    for rank in range(2):
        text = paths.rank_steps(rank).read_text("utf-8").replace("warmup", "measured")
        paths.rank_steps(rank).write_text(text, encoding="utf-8")
    row = summary(paths)["run"]
    assert (values(row), causes(row)) == ((None, None, None, DEFAULT), {"no_warmup"})


@pytest.mark.parametrize(
    ("runs", "pressure"),
    [([False, False], False), ([False, True], True), ([None, True], True), ([None, False], None),
     ([], None)],
)  # fmt: skip
def test_a_cell_is_under_pressure_if_a_run_is(runs, pressure):
    assert cell_pressure([{"memory_pressure": each} for each in runs]) is pressure


@pytest.mark.parametrize(
    ("runs", "settings"),
    [
        ([DEFAULT, DEFAULT], DEFAULT),
        ([EXPANDABLE, DEFAULT], f"{DEFAULT}; {EXPANDABLE}"),
        ([DEFAULT, None], None),
        ([], None),
    ],
)
def test_all_settings_of_a_cell_are_named(runs, settings):
    assert cell_settings([{"allocator": each} for each in runs]) == settings
