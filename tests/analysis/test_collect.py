"""Every cell of a plan reaches the tables, whatever became of its runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from workflow_lib.analysis.__main__ import main
from workflow_lib.analysis.collect import collect
from workflow_lib.analysis.reduce import reduce_run
from workflow_lib.records.cell_axes import identity
from workflow_lib.records.measures import MEASURES
from workflow_lib.records.outcomes import Outcome
from workflow_lib.records.paths import RunPaths, SweepPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.records.reasons import SENTENCES
from workflow_lib.records.tables import GPUS, KERNELS, PLAN, TABLES, TRACES
from workflow_lib.records.whole_files import write_json
from workflow_lib.results import run_directory
from workflow_lib.table_files import read_table, schema, table, write_table

from .synthetic_run import Run, assert_holds, assert_null, cell, setting


def planned(name: str, repeats: int = 1, reason: str = "", **changes: Any) -> dict[str, Any]:
    """A row of the plan; ``reason`` makes it infeasible."""
    return {
        **identity(cell(id=f"made-up/tiny/tp1-pp1-dp2_{name}_0123456789")),
        "sweeps": "all",
        "repeats": repeats,
        "memory_per_gpu_bytes": 1e9,
        "memory_used_per_gpu_bytes": 1.1e9,
        "step_time_s": 1.0,
        "gpu_hours": 1.0,
        "time_limit_min": 10,
        "feasible": not reason,
        "reason": reason,
        **changes,
    }


def name_of(row: dict[str, Any]) -> str:
    """The name that planned() gave to the cell."""
    return str(row["cell"].split("_")[1])


def drawing(watts: float | None) -> Run:
    """A run whose two GPUs draw such power throughout, and have no counter."""
    return Run(edit=setting(power_w=watts, energy_j=None))


def write_run(results: Path, row: dict[str, Any], repeat: int, run: Run) -> RunPaths:
    """Write a run where its cell's plan has it, and reduce it."""
    run.cell = replace(run.cell, id=row["cell"])
    paths = run.write(run_directory(results, row["cell"], repeat))
    reduce_run(paths.directory)
    return paths


def write_profiled(
    results: Path,
    row: dict[str, Any],
    outcome: Outcome,
    kernels: list[dict[str, Any]] | None = None,
    traces: list[dict[str, Any]] | None = None,
) -> None:
    """A run of the cell, and its profiled one as far as its outcome tells of it; then such rows of
    that one's tables."""
    write_run(results, row, 1, Run())
    run = Run(outcome=outcome)
    run.cell = replace(run.cell, id=row["cell"])
    paths = run.write(run_directory(results, row["cell"], 0))
    of_run = {"cell": row["cell"], "run": 0}
    if kernels is not None and traces is not None:
        write_table(table([of_run | kernel for kernel in kernels], KERNELS), paths.kernels)
        write_table(table([of_run | trace for trace in traces], TRACES), paths.trace_times)


def edited(path: Path, **fields: Any) -> None:
    """Set fields of a JSON object; those of an object within it are set one by one."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    for name, value in fields.items():
        stored[name] = stored[name] | value if isinstance(value, dict) else value
    write_json(path, stored)


def tables(tmp_path: Path, *plan: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Collect a plan; returns each table's rows."""
    write_table(table(plan, PLAN), tmp_path / "plan.parquet")
    collect(tmp_path / "plan.parquet", tmp_path, tmp_path / "tables")
    return {
        name: read_table(SweepPaths(tmp_path / "tables").table(name), kind.columns).to_dicts()
        for name, kind in TABLES.items()
    }


def test_a_cells_figures_are_the_median_and_range_of_its_completed_runs(tmp_path):
    row = planned("a", repeats=3)
    for repeat, watts in ((1, 400), (2, 100), (3, 250)):
        write_run(tmp_path, row, repeat, drawing(watts))
    found = tables(tmp_path, row)
    (of_cell,) = found["cells"]
    # Two GPUs for 20 s each.
    energies = [of_cell[f"energy_j{end}"] for end in ("_low", "", "_high")]
    assert energies == [4000.0, 10_000.0, 16_000.0]
    assert (of_cell["interval"], of_cell["interval_coverage"]) == ("range", None)
    assert of_cell["completed"] == 3
    assert of_cell["outcomes"] == "completed 3"
    assert of_cell["gpu_name"] == "NVIDIA H200"
    assert [run["energy_j"] for run in found["runs"]] == [16_000.0, 4000.0, 10_000.0]
    assert [(gpu["run"], gpu["gpu"]) for gpu in found["gpus"]] == [
        (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1),
    ]  # fmt: skip


def test_from_five_completed_runs_on_the_range_is_an_interval_of_the_median(tmp_path):
    row = planned("a", repeats=10)
    for repeat in range(1, 10):
        write_run(tmp_path, row, repeat, drawing(100.0 * repeat))
    write_run(tmp_path, row, 10, Run(outcome=Outcome.TIMEOUT))
    (of_cell,) = tables(tmp_path, row)["cells"]
    assert of_cell["completed"] == 9
    # Two GPUs. Of nine runs the second lowest and the second highest: 1 − 2·(1 + 9)/512.
    power = [of_cell[f"power_mean_w{end}"] for end in ("_low", "", "_high")]
    assert power == pytest.approx([400.0, 1000.0, 1600.0])
    assert (of_cell["interval"], of_cell["interval_coverage"]) == ("order_statistics", 0.9609375)


def test_steps_are_of_every_run_and_series_of_the_first_that_completed(tmp_path):
    row = planned("a", repeats=4)
    write_run(tmp_path, row, 1, Run(outcome=Outcome.OUT_OF_MEMORY))
    write_run(tmp_path, row, 2, Run())
    write_run(tmp_path, row, 3, Run())
    write_run(tmp_path, row, 4, Run(outcome=Outcome.TELEMETRY_INVALID)).summary.unlink()
    found = tables(tmp_path, row)
    assert [(step["run"], step["step"]) for step in found["steps"]] == [
        (run, step) for run in (2, 3, 4) for step in range(3)
    ]
    assert {step["energy_j"] is None for step in found["steps"] if step["run"] == 4} == {True}
    assert {point["run"] for point in found["series"]} == {2}
    assert {point["gpu"] for point in found["series"]} == {0, 1}


def test_a_reduced_run_without_its_table_of_steps_is_no_run_without_steps(tmp_path):
    row = planned("a")
    write_run(tmp_path, row, 1, Run()).step_times.unlink()
    with pytest.raises(FileNotFoundError, match=r"steps\.parquet"):
        tables(tmp_path, row)


PROFILED = planned("a", profiled_steps=3)


@pytest.mark.parametrize("ranks", [(0, 1), (1,)])
def test_shares_of_a_profiled_run_are_of_all_its_ranks(tmp_path, ranks):
    # Rank 0 computes throughout; rank 1 has nothing running for half of its time.
    assert PROFILED["gpus"] == 2
    traces = [{"rank": rank, "steps": 3, "span_s": 4.0, "idle_s": 2.0 * rank} for rank in ranks]
    write_profiled(tmp_path, PROFILED, Outcome.COMPLETED, [], traces)
    found = tables(tmp_path, PROFILED)
    assert [run["run"] for run in found["runs"]] == [1]
    assert [(trace["run"], trace["rank"]) for trace in found["traces"]] == [(0, r) for r in ranks]
    (of_cell,) = found["cells"]
    assert of_cell["profiled_outcome"] == "completed"
    if len(ranks) == 2:
        assert of_cell["idle_share"] == 0.25
    else:
        assert of_cell["idle_share"] is None
        assert_holds(of_cell["profiled_cause"], "1 of 2")


def test_the_share_of_kernel_time_that_communicates_counts_durations_and_no_copies(tmp_path):
    # Of rank 0: 3 s of 4 s of kernels communicate; of rank 1: 1 s of 4 s. The copy does not count.
    kernels = [
        {"rank": rank, "class": kind, "kernel_s": seconds}
        for rank, kind, seconds in (
            (0, "all_reduce", 2.0),
            (0, "send_receive", 1.0),
            (0, "gemm", 1.0),
            (0, "memory", 5.0),
            (1, "all_reduce", 1.0),
            (1, "gemm", 2.0),
            (1, "unknown", 1.0),
        )
    ]
    traces = [{"rank": rank, "steps": 3} for rank in (0, 1)]
    write_profiled(tmp_path, PROFILED, Outcome.COMPLETED, kernels, traces)
    found = tables(tmp_path, PROFILED)
    stored = [(kernel["rank"], kernel["class"], kernel["kernel_s"]) for kernel in found["kernels"]]
    assert stored == [tuple(kernel.values()) for kernel in kernels]
    (of_cell,) = found["cells"]
    assert of_cell["communication_kernel_share"] == pytest.approx((3 / 4 + 1 / 4) / 2)
    assert of_cell["unknown_kernel_share"] == pytest.approx((0 + 1 / 4) / 2)
    # A rank without kernels has no share, and so the cell has none.
    write_profiled(tmp_path, PROFILED, Outcome.COMPLETED, kernels[:4], traces)
    (of_cell,) = tables(tmp_path, PROFILED)["cells"]
    assert of_cell["communication_kernel_share"] is None


@pytest.mark.parametrize(
    ("outcome", "told", "cause"),
    [
        (None, "not_run", SENTENCES["not_ended"]),
        (Outcome.OUT_OF_MEMORY, "out_of_memory", "the run was out_of_memory"),
        (Outcome.COMPLETED, "completed", SENTENCES["traces_not_analysed"]),
    ],
)
def test_a_profiled_run_without_tables_says_why(tmp_path, outcome, told, cause):
    if outcome is None:
        write_run(tmp_path, PROFILED, 1, Run())
    else:
        write_profiled(tmp_path, PROFILED, outcome)
    found = tables(tmp_path, PROFILED)
    (of_cell,) = found["cells"]
    assert (of_cell["profiled_outcome"], of_cell["profiled_cause"]) == (told, cause)
    assert found["kernels"] == []


def test_runs_that_failed_or_never_ran_keep_their_rows(tmp_path):
    mixed, failed, waiting = planned("mixed", 3), planned("failed", 3), planned("waiting", 2)
    write_run(tmp_path, mixed, 1, Run())
    write_run(tmp_path, mixed, 2, Run(outcome=Outcome.TIMEOUT))
    for repeat, outcome in ((1, "error"), (2, "node_failure"), (3, "node_failure")):
        write_run(tmp_path, failed, repeat, Run(outcome=Outcome(outcome)))
    found = tables(tmp_path, waiting, mixed, failed)
    fates = [(name_of(row), row["outcome"], row["outcomes"]) for row in found["cells"]]
    assert fates == [
        ("failed", "node_failure", "error 1, node_failure 2"),
        ("mixed", "completed", "completed 1, not_run 1, timeout 1"),
        ("waiting", "not_run", "not_run 2"),
    ]
    causes = ["the run was node_failure", "the run was completed", SENTENCES["not_ended"]]
    assert [row["cause"] for row in found["cells"]] == causes
    assert [(name_of(row), row["run"], row["outcome"]) for row in found["runs"]] == [
        ("failed", 1, "error"),
        ("failed", 2, "node_failure"),
        ("failed", 3, "node_failure"),
        ("mixed", 1, "completed"),
        ("mixed", 2, "timeout"),
        ("mixed", 3, "not_run"),
        ("waiting", 1, "not_run"),
        ("waiting", 2, "not_run"),
    ]
    for row in found["runs"]:
        lacking = {name for name in MEASURES if row[name] is None}
        assert lacking <= json.loads(row["missing_reasons"]).keys()
        # A run that trains lacks what only inference has.
        assert ("energy_j" in lacking) == (row["outcome"] != "completed")


@pytest.mark.parametrize(
    ("outcome", "code", "tokens_per_s"),
    [
        (Outcome.OUT_OF_MEMORY, "not_completed", None),
        (Outcome.COMPLETED, "not_reduced", None),
        # The workflow does not reduce such a run, whose steps count all the same. It is no result.
        (Outcome.TELEMETRY_INVALID, "telemetry_invalid", 6.4),
    ],
)
def test_an_outcome_without_a_summary_is_still_told(tmp_path, outcome, code, tokens_per_s):
    row = planned("a")
    write_run(tmp_path, row, 1, Run(outcome=outcome)).summary.unlink()
    found = tables(tmp_path, row)
    (of_run,), (of_cell,) = found["runs"], found["cells"]
    assert of_run["outcome"] == outcome.value
    expected = SENTENCES[code] if code == "not_reduced" else f"the run was {outcome.value}"
    assert of_run["cause"] == expected
    assert_null(of_run, "energy_j", code)
    assert of_run["tokens_per_s"] == pytest.approx(tokens_per_s)
    assert of_cell["completed"] == (outcome is Outcome.COMPLETED)
    assert (of_cell["tokens_per_s"], of_cell["energy_j"]) == (None, None)


def test_the_summary_of_an_attempt_that_is_being_repeated_does_not_count(tmp_path):
    row = planned("a")
    paths = write_run(tmp_path, row, 1, Run())
    ended = json.loads(paths.outcome.read_text(encoding="utf-8"))
    paths.outcome.unlink()
    assert tables(tmp_path, row)["runs"][0]["outcome"] == "not_run"
    # An hour later the repeated one has completed.
    write_json(paths.outcome, ended | {"started_unix_s": ended["started_unix_s"] + 3600})
    (run,) = tables(tmp_path, row)["runs"]
    assert (run["outcome"], run["cause"]) == ("completed", SENTENCES["not_reduced"])
    assert_null(run, "energy_j", "not_reduced")


def test_what_sampling_cost_has_a_row_a_rate(tmp_path):
    row = planned("a")
    paths = write_run(tmp_path, row, 1, Run())
    assert tables(tmp_path, row)["overhead"] == []
    rates = [{"cell": row["cell"], "run": 1, "sample_rate_hz": rate} for rate in (10.0, 0.0)]
    edited(paths.summary, overhead=rates)
    found = tables(tmp_path, row)["overhead"]
    assert [rate["sample_rate_hz"] for rate in found] == [0.0, 10.0]


def test_a_summary_without_overhead_is_of_an_older_version(tmp_path):
    row = planned("a")
    paths = write_run(tmp_path, row, 1, Run())
    summary = json.loads(paths.summary.read_text(encoding="utf-8"))
    del summary["overhead"]
    write_json(paths.summary, summary)
    with pytest.raises(RecordError, match=r"run, gpus, unused_gpus, nodes, overhead"):
        tables(tmp_path, row)


def test_a_summary_of_another_cell_is_refused(tmp_path):
    row = planned("a")
    edited(write_run(tmp_path, row, 1, Run()).summary, run={"tp": 7})
    with pytest.raises(RecordError, match=r"\btp\b.*\b7\b.*\b1\b"):
        tables(tmp_path, row)


def test_an_infeasible_cell_is_in_cells_alone_with_its_reason(tmp_path):
    found = tables(tmp_path, planned("a", reason="needs 200 GB"))
    assert found["runs"] == []
    (of_cell,) = found["cells"]
    assert (of_cell["outcome"], of_cell["cause"]) == ("infeasible", "needs 200 GB")
    assert of_cell["tokens_per_s"] is None
    assert of_cell["simulated"] is False


A100 = "NVIDIA A100-SXM4-80GB"
EMULATED = cell(emulated="two daemons")


@pytest.mark.parametrize(
    ("runs", "stated", "expected"),
    [
        # A figure that one run lacks.
        ((Run(), drawing(None)), {}, {"energy_j": None, "energy_j_low": None, "tokens_per_s": 6.4}),
        # Peaks of unlike sensors, of which one reports means of 1 s and the other of 0.025 s.
        ((Run(), Run(gpu_name=A100)), {}, {"power_peak_w": None, "power_mean_w": 1000.0}),
        ((Run(), Run(simulated=True)), {}, {"simulated": True}),
        ((Run(cell=EMULATED),), {}, {"emulated": "two daemons"}),
        # What a platform states to be emulated may be newer than a run; another has not run.
        ((Run(),), {"emulated": "two daemons"}, {"emulated": "two daemons"}),
    ],
)
def test_a_cell_is_told_of_all_its_completed_runs(tmp_path, runs, stated, expected):
    row = planned("a", len(runs) + len(stated), **stated)
    for repeat, run in enumerate(runs, start=1):
        write_run(tmp_path, row, repeat, replace(run))
    found = tables(tmp_path, row)
    (of_cell,) = found["cells"]
    assert {name: of_cell[name] for name in expected} == pytest.approx(expected)
    sensors = [run["power_peak_sensor"] for run in found["runs"] if run["power_peak_sensor"]]
    assert sorted(set(sensors)) == (of_cell["power_peak_sensor"] or "").split("; ")
    if stated:
        assert [run["emulated"] for run in found["runs"]] == [None, "two daemons"]


def test_tables_have_their_schema_even_when_empty(tmp_path):
    tables(tmp_path)
    frame = pl.read_parquet(tmp_path / "tables" / "gpus.parquet")
    assert dict(frame.schema) == schema(GPUS)
    assert frame.height == 0


def test_collecting_twice_gives_the_same_bytes_whatever_the_plans_order(tmp_path):
    plan = [planned("a"), planned("b")]
    for row in plan:
        write_run(tmp_path, row, 1, Run())
    names = ("runs", "cells", "gpus", "unused_gpus", "overhead", "steps", "series", "kernels")
    written = []
    for rows in (plan, plan[::-1]):
        tables(tmp_path, *rows)
        written.append([(tmp_path / "tables" / f"{name}.parquet").read_bytes() for name in names])
    assert written[0] == written[1]


def test_no_plan_is_one_message(tmp_path, capsys):
    command = ["collect", "--plan", str(tmp_path / "plan.parquet")]
    assert main([*command, "--results", str(tmp_path), "--output", str(tmp_path)]) == 1
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith(f"collect: {tmp_path}/plan.parquet: ")
    assert_holds(message, "snakemake --profile profiles/local results/sweeps/demo/report.html")


def test_a_table_of_another_version_is_refused(tmp_path):
    path = tmp_path / "plan.parquet"
    pl.DataFrame({"cell": ["a"]}).write_parquet(path)
    with pytest.raises(RecordError, match=r"'platform'.*None.*String"):
        read_table(path, PLAN)


@pytest.mark.parametrize(
    ("row", "values"),
    [
        ({"cell": 3}, r"\bcell\b.*\b3\b.*\bstr\b"),
        ({"tp": True}, r"\btp\b.*\bTrue\b.*\bint\b"),
        ({"celll": "a"}, "'celll'"),
    ],
)
def test_a_value_of_another_type_is_refused(row, values):
    with pytest.raises(RecordError, match=values):
        table([row], PLAN)
