"""What a run's rows tell of torch's allocator: counts of synthetic ranks with known growth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from workflow_lib.analysis.collect import cell_pressure, cell_settings
from workflow_lib.analysis.reduce import reduce_run
from workflow_lib.records import STEPS

from .synthetic_run import Run, cell, write_csv

COLUMNS = ("allocator_retries", "allocator_frees", "memory_pressure", "allocator")
DEFAULT, EXPANDABLE = "native", "native, expandable_segments:True"
#: at the end of the warm-up step and of two measured ones
QUIET = [(2, 31), (2, 31), (2, 31)]
SHORT = [(2, 31), (3, 35), (5, 42)]


def reduced(directory: Path, run: Run) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    paths = run.write(directory)
    reduce_run(paths.directory)
    summary = json.loads(paths.summary.read_text(encoding="utf-8"))
    return summary["run"], summary["gpus"]


def values(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in COLUMNS)


def reasons(row: Mapping[str, Any]) -> set[str]:
    missing = json.loads(row["missing_reasons"])
    return {missing[name] for name in COLUMNS if row[name] is None}


def test_counts_are_those_of_the_measured_steps_alone(tmp_path):
    allocators = {0: (DEFAULT, QUIET), 1: (DEFAULT, SHORT)}
    row, gpus = reduced(tmp_path / "short" / "run1", Run(allocators=allocators))
    # Of rank 1: 5 − 2 retries, 42 − 31 segments.
    assert values(row) == (3, 11, True, DEFAULT)
    assert [(gpu["allocator_retries"], gpu["allocator_frees"]) for gpu in gpus] == [(0, 0), (3, 11)]
    quiet = {0: (DEFAULT, QUIET), 1: (EXPANDABLE, QUIET)}
    row, _ = reduced(tmp_path / "quiet" / "run1", Run(allocators=quiet))
    assert values(row) == (0, 0, False, f"{DEFAULT}; {EXPANDABLE}")


def test_a_segment_given_back_without_a_retry_is_pressure(tmp_path):
    allocators = {0: (DEFAULT, QUIET), 1: (DEFAULT, [(0, 0), (0, 0), (0, 1)])}
    row, _ = reduced(tmp_path / "run1", Run(allocators=allocators))
    assert values(row) == (0, 1, True, DEFAULT)


def test_pressure_is_known_where_one_rank_shows_it(tmp_path):
    asynchronous = ("cudaMallocAsync", [(None, None)] * 3)
    row, _ = reduced(
        tmp_path / "one" / "run1", Run(allocators={0: (DEFAULT, SHORT), 1: asynchronous})
    )
    assert values(row)[:3] == (None, None, True)
    row, _ = reduced(
        tmp_path / "none" / "run1", Run(allocators={0: (DEFAULT, QUIET), 1: asynchronous})
    )
    assert values(row)[:3] == (None, None, None)
    assert reasons(row) == {"torch's allocator does not count them (cudaMallocAsync)"}


def test_runs_of_earlier_versions_and_of_cpus_say_why_nothing_is_known(tmp_path):
    run = Run()
    paths = run.write(tmp_path / "earlier" / "run1")
    # Files without the columns at all.
    for rank in range(2):
        rows = pl.read_csv(paths.rank_steps(rank)).to_dicts()
        columns = [each for each in STEPS if each.name not in COLUMNS]
        write_csv(paths.rank_steps(rank), columns, rows)
        record = json.loads(paths.rank(rank).read_text("utf-8"))
        del record["allocator"]
        paths.rank(rank).write_text(json.dumps(record), encoding="utf-8")
    reduce_run(paths.directory)
    row = json.loads(paths.summary.read_text(encoding="utf-8"))["run"]
    assert values(row) == (None, None, None, None)
    assert reasons(row) == {
        "an earlier version made the run, and its ranks did not record their allocator"
    }
    on_cpu = Run(on_cpu=True, simulated=True, device_name="CPU")
    row, _ = reduced(tmp_path / "cpu" / "run1", on_cpu)
    assert values(row) == (None, None, None, None)
    assert reasons(row) == {
        "trained on a CPU, whose memory torch's allocator of GPU memory does not hold"
    }


def test_without_a_warm_up_counts_of_before_are_not_known(tmp_path):
    one = cell(training=replace(cell().training, warmup_steps=0, measured_steps=3))
    allocators = {0: (DEFAULT, QUIET), 1: (DEFAULT, SHORT)}
    paths = Run(cell=one, allocators=allocators).write(tmp_path / "run1")
    for rank in range(2):
        text = paths.rank_steps(rank).read_text("utf-8").replace("warmup", "measured")
        paths.rank_steps(rank).write_text(text, encoding="utf-8")
    reduce_run(paths.directory)
    row = json.loads(paths.summary.read_text(encoding="utf-8"))["run"]
    assert values(row) == (None, None, None, DEFAULT)
    assert reasons(row) == {"without a warm-up, counts of before the measured steps are not known"}


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
