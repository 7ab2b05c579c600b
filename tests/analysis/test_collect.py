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
from workflow_lib.records import (
    GPUS,
    KERNELS,
    MEASURES,
    PLAN,
    TABLES,
    TRACES,
    Outcome,
    RecordError,
    RunPaths,
    SweepPaths,
    identity,
    write_json,
)
from workflow_lib.results import run_directory
from workflow_lib.table_files import read_table, schema, table, write_table

from .synthetic_run import Run, cell


def planned(name: str, repeats: int = 1, reason: str = "") -> dict[str, Any]:
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
    }


def name_of(row: dict[str, Any]) -> str:
    """The name that planned() gave to the cell."""
    return str(row["cell"].split("_")[1])


def write_run(results: Path, row: dict[str, Any], repeat: int, run: Run) -> RunPaths:
    """Write a run where its cell's plan has it, and reduce it."""
    run.cell = replace(run.cell, id=row["cell"])
    paths = run.write(run_directory(results, row["cell"], repeat))
    reduce_run(paths.directory)
    return paths


def tables(tmp_path: Path, plan: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
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
        write_run(
            tmp_path,
            row,
            repeat,
            Run(edit=lambda fields, w=watts: {**fields, "power_w": w, "energy_j": None}),
        )
    found = tables(tmp_path, [row])
    (of_cell,) = found["cells"]
    # Two GPUs for 20 s each.
    assert (of_cell["energy_j_low"], of_cell["energy_j"], of_cell["energy_j_high"]) == (
        4000.0,
        10_000.0,
        16_000.0,
    )
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
        watts = 100.0 * repeat
        write_run(
            tmp_path,
            row,
            repeat,
            Run(edit=lambda fields, w=watts: {**fields, "power_w": w, "energy_j": None}),
        )
    write_run(tmp_path, row, 10, Run(outcome=Outcome.TIMEOUT))
    (of_cell,) = tables(tmp_path, [row])["cells"]
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
    found = tables(tmp_path, [row])
    assert [(step["run"], step["step"]) for step in found["steps"]] == [
        (run, step) for run in (2, 3, 4) for step in range(3)
    ]
    assert {step["energy_j"] is None for step in found["steps"] if step["run"] == 4} == {True}
    assert {point["run"] for point in found["series"]} == {2}
    assert {point["gpu"] for point in found["series"]} == {0, 1}


def test_a_reduced_run_without_its_table_of_steps_is_no_run_without_steps(tmp_path):
    row = planned("a")
    paths = write_run(tmp_path, row, 1, Run())
    paths.step_times.unlink()
    with pytest.raises(FileNotFoundError, match=r"steps\.parquet: no such table"):
        tables(tmp_path, [row])


def profiled_run(tmp_path: Path, row: dict[str, Any], outcome: Outcome) -> RunPaths:
    """The profiled run of a planned cell, as far as its outcome tells of it."""
    run = Run(outcome=outcome)
    run.cell = replace(run.cell, id=row["cell"])
    return run.write(run_directory(tmp_path, row["cell"], 0))


def test_what_traces_became_is_gathered(tmp_path):
    row = {**planned("a"), "profiled_steps": 3}
    write_run(tmp_path, row, 1, Run())
    paths = profiled_run(tmp_path, row, Outcome.COMPLETED)
    of_rank = {"cell": row["cell"], "run": 0, "rank": 1}
    write_table(table([{**of_rank, "class": "gemm"}], KERNELS), paths.kernels)
    write_table(table([{**of_rank, "steps": 3}], TRACES), paths.trace_times)
    found = tables(tmp_path, [row])
    assert [(kernel["rank"], kernel["class"]) for kernel in found["kernels"]] == [(1, "gemm")]
    assert [(trace["run"], trace["steps"]) for trace in found["traces"]] == [(0, 3)]
    assert [run["run"] for run in found["runs"]] == [1]
    assert found["cells"][0]["profiled_outcome"] == "completed"


@pytest.mark.parametrize("ranks", [(0, 1), (1,)])
def test_shares_of_a_profiled_run_are_of_all_its_ranks(tmp_path, ranks):
    # Rank 0 computes throughout; rank 1 has nothing running for half of its time.
    row = {**planned("a"), "profiled_steps": 3}
    assert row["gpus"] == 2
    write_run(tmp_path, row, 1, Run())
    paths = profiled_run(tmp_path, row, Outcome.COMPLETED)
    traces = [
        {
            "cell": row["cell"],
            "run": 0,
            "rank": rank,
            "steps": 3,
            "span_s": 4.0,
            "idle_s": 2.0 * rank,
        }
        for rank in ranks
    ]
    write_table(table([], KERNELS), paths.kernels)
    write_table(table(traces, TRACES), paths.trace_times)
    (of_cell,) = tables(tmp_path, [row])["cells"]
    if len(ranks) == 2:
        assert of_cell["idle_share"] == 0.25
    else:
        assert of_cell["idle_share"] is None
        assert of_cell["profiled_cause"].startswith("1 of 2 ranks left a trace")


def test_the_share_of_kernel_time_that_communicates_counts_durations_and_no_copies(tmp_path):
    # Of rank 0: 3 s of 4 s of kernels communicate; of rank 1: 1 s of 4 s. The copy does not count.
    row = {**planned("a"), "profiled_steps": 3}
    write_run(tmp_path, row, 1, Run())
    paths = profiled_run(tmp_path, row, Outcome.COMPLETED)
    durations = (
        (0, "all_reduce", 2.0),
        (0, "send_receive", 1.0),
        (0, "gemm", 1.0),
        (0, "memory", 5.0),
        (1, "all_reduce", 1.0),
        (1, "gemm", 2.0),
        (1, "unknown", 1.0),
    )
    kernels = [
        {"cell": row["cell"], "run": 0, "rank": rank, "class": kind, "kernel_s": seconds}
        for rank, kind, seconds in durations
    ]
    traces = [{"cell": row["cell"], "run": 0, "rank": rank, "steps": 3} for rank in (0, 1)]
    write_table(table(kernels, KERNELS), paths.kernels)
    write_table(table(traces, TRACES), paths.trace_times)
    (of_cell,) = tables(tmp_path, [row])["cells"]
    assert of_cell["communication_kernel_share"] == pytest.approx((3 / 4 + 1 / 4) / 2)
    assert of_cell["unknown_kernel_share"] == pytest.approx((0 + 1 / 4) / 2)
    # A rank without kernels has no share, and so the cell has none.
    write_table(table(kernels[:4], KERNELS), paths.kernels)
    (of_cell,) = tables(tmp_path, [row])["cells"]
    assert of_cell["communication_kernel_share"] is None


@pytest.mark.parametrize(
    ("outcome", "said", "cause"),
    [
        (None, "not_run", "the run has not ended"),
        (Outcome.OUT_OF_MEMORY, "out_of_memory", "the run was out_of_memory"),
        (Outcome.COMPLETED, "completed", "its traces have not been analysed"),
    ],
)
def test_a_profiled_run_without_tables_says_why(tmp_path, outcome, said, cause):
    row = {**planned("a"), "profiled_steps": 3}
    write_run(tmp_path, row, 1, Run())
    if outcome is not None:
        profiled_run(tmp_path, row, outcome)
    found = tables(tmp_path, [row])
    (of_cell,) = found["cells"]
    assert of_cell["profiled_outcome"] == said
    assert cause in of_cell["profiled_cause"]
    assert found["kernels"] == []


def test_runs_that_failed_or_never_ran_keep_their_rows(tmp_path):
    mixed, failed, waiting = planned("mixed", 3), planned("failed", 3), planned("waiting", 2)
    write_run(tmp_path, mixed, 1, Run())
    write_run(tmp_path, mixed, 2, Run(outcome=Outcome.TIMEOUT))
    for repeat, outcome in ((1, "error"), (2, "node_failure"), (3, "node_failure")):
        write_run(tmp_path, failed, repeat, Run(outcome=Outcome(outcome)))
    found = tables(tmp_path, [waiting, mixed, failed])
    fates = [(name_of(row), row["outcome"], row["outcomes"]) for row in found["cells"]]
    assert fates == [
        ("failed", "node_failure", "error 1, node_failure 2"),
        ("mixed", "completed", "completed 1, not_run 1, timeout 1"),
        ("waiting", "not_run", "not_run 2"),
    ]
    assert [row["cause"] for row in found["cells"]] == [
        "the run was node_failure",
        "the run was completed",
        "the run has not ended",
    ]
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


def test_an_outcome_without_a_summary_is_still_told(tmp_path):
    row = planned("a")
    write_run(tmp_path, row, 1, Run(outcome=Outcome.OUT_OF_MEMORY)).summary.unlink()
    (of_run,) = tables(tmp_path, [row])["runs"]
    assert (of_run["outcome"], of_run["cause"]) == ("out_of_memory", "the run was out_of_memory")


def test_a_run_with_invalid_telemetry_is_told_though_the_workflow_did_not_reduce_it(tmp_path):
    row = planned("a")
    run = Run(outcome=Outcome.TELEMETRY_INVALID)
    write_run(tmp_path, row, 1, run).summary.unlink()
    found = tables(tmp_path, [row])
    (of_run,), (of_cell,) = found["runs"], found["cells"]
    assert of_run["outcome"] == "telemetry_invalid"
    assert of_run["tokens_per_s"] == pytest.approx(6.4)
    assert of_run["energy_j"] is None
    # It is no result, so that the cell has no figure of it.
    assert of_cell["completed"] == 0
    assert of_cell["tokens_per_s"] is None


def test_what_sampling_cost_has_a_row_a_rate(tmp_path):
    row = planned("a")
    paths = write_run(tmp_path, row, 1, Run())
    assert tables(tmp_path, [row])["overhead"] == []
    summary = json.loads(paths.summary.read_text(encoding="utf-8"))
    rates = [{"cell": row["cell"], "run": 1, "sample_rate_hz": rate} for rate in (10.0, 0.0)]
    write_json(paths.summary, {**summary, "overhead": rates})
    found = tables(tmp_path, [row])["overhead"]
    assert [rate["sample_rate_hz"] for rate in found] == [0.0, 10.0]


def test_a_summary_without_overhead_is_of_an_older_version(tmp_path):
    row = planned("a")
    paths = write_run(tmp_path, row, 1, Run())
    summary = json.loads(paths.summary.read_text(encoding="utf-8"))
    del summary["overhead"]
    write_json(paths.summary, summary)
    with pytest.raises(
        RecordError, match="expected an object of run, gpus, unused_gpus, nodes, overhead"
    ):
        tables(tmp_path, [row])


def test_a_completed_run_that_was_not_reduced_says_so(tmp_path):
    row = planned("a")
    write_run(tmp_path, row, 1, Run()).summary.unlink()
    found = tables(tmp_path, [row])
    assert found["runs"][0]["outcome"] == "completed"
    assert json.loads(found["runs"][0]["missing_codes"])["energy_j"] == "not_reduced"
    assert found["cells"][0]["energy_j"] is None


def test_the_summary_of_an_attempt_that_is_being_repeated_does_not_count(tmp_path):
    row = planned("a")
    write_run(tmp_path, row, 1, Run()).outcome.unlink()
    assert tables(tmp_path, [row])["runs"][0]["outcome"] == "not_run"


def test_the_summary_of_an_attempt_that_completed_before_does_not_count(tmp_path):
    row = planned("a")
    paths = write_run(tmp_path, row, 1, Run())
    outcome = json.loads(paths.outcome.read_text(encoding="utf-8"))
    outcome["started_unix_s"] += 3600
    write_json(paths.outcome, outcome)
    (run,) = tables(tmp_path, [row])["runs"]
    assert (run["outcome"], run["energy_j"]) == ("completed", None)
    assert "has not been reduced" in run["cause"]


def test_an_infeasible_cell_is_in_cells_alone_with_its_reason(tmp_path):
    found = tables(tmp_path, [planned("a", reason="needs 200 GB, a GPU has 141 GB")])
    assert found["runs"] == []
    (of_cell,) = found["cells"]
    assert of_cell["outcome"] == "infeasible"
    assert of_cell["cause"] == "needs 200 GB, a GPU has 141 GB"
    assert of_cell["tokens_per_s"] is None
    assert of_cell["simulated"] is False


def test_peaks_of_unlike_sensors_have_no_median(tmp_path):
    row = planned("a", repeats=2)
    for repeat, sensor in ((1, "samples of 20 ms"), (2, "means of 1 s")):
        paths = write_run(tmp_path, row, repeat, Run())
        summary = json.loads(paths.summary.read_text(encoding="utf-8"))
        summary["run"]["power_peak_sensor"] = sensor
        write_json(paths.summary, summary)
    (of_cell,) = tables(tmp_path, [row])["cells"]
    assert of_cell["power_peak_w"] is None
    assert of_cell["power_peak_sensor"] == "means of 1 s; samples of 20 ms"
    assert of_cell["power_mean_w"] is not None


def test_a_figure_that_one_completed_run_lacks_is_null_for_the_cell(tmp_path):
    row = planned("a", repeats=2)
    write_run(tmp_path, row, 1, Run())
    write_run(tmp_path, row, 2, Run(edit=lambda fields: {**fields, "power_w": None}))
    (of_cell,) = tables(tmp_path, [row])["cells"]
    assert of_cell["energy_j"] is None
    assert of_cell["energy_j_low"] is None
    assert of_cell["tokens_per_s"] == pytest.approx(6.4)


def test_one_simulated_run_marks_the_cell(tmp_path):
    row = planned("a", repeats=2)
    write_run(tmp_path, row, 1, Run())
    write_run(tmp_path, row, 2, Run(simulated=True))
    assert tables(tmp_path, [row])["cells"][0]["simulated"] is True


def test_tables_have_their_schema_even_when_empty(tmp_path):
    tables(tmp_path, [])
    frame = pl.read_parquet(tmp_path / "tables" / "gpus.parquet")
    assert dict(frame.schema) == schema(GPUS)
    assert frame.height == 0


def test_collecting_twice_gives_the_same_bytes_whatever_the_plans_order(tmp_path):
    plan = [planned("a"), planned("b")]
    for row in plan:
        write_run(tmp_path, row, 1, Run())
    tables(tmp_path, plan)
    names = ("runs", "cells", "gpus", "unused_gpus", "overhead", "steps", "series", "kernels")
    first = [(tmp_path / "tables" / f"{name}.parquet").read_bytes() for name in names]
    tables(tmp_path, plan[::-1])
    assert [(tmp_path / "tables" / f"{name}.parquet").read_bytes() for name in names] == first


def test_a_summary_of_another_cell_is_refused(tmp_path):
    row = planned("a")
    paths = write_run(tmp_path, row, 1, Run())
    summary = json.loads(paths.summary.read_text(encoding="utf-8"))
    write_json(paths.summary, {**summary, "run": {**summary["run"], "tp": 7}})
    with pytest.raises(RecordError, match="tp is 7, but the plan has 1"):
        tables(tmp_path, [row])


def test_no_plan_is_one_message(tmp_path, capsys):
    command = ["collect", "--plan", str(tmp_path / "plan.parquet")]
    assert main([*command, "--results", str(tmp_path), "--output", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"collect: {tmp_path}/plan.parquet: no such table; an earlier stage makes it: run the "
        "sweep first, as in `snakemake --profile profiles/local results/sweeps/demo/report.html`\n"
    )


def test_a_table_of_another_version_is_refused(tmp_path):
    path = tmp_path / "plan.parquet"
    pl.DataFrame({"cell": ["a"]}).write_parquet(path)
    with pytest.raises(RecordError, match="column 'platform' is None, expected String"):
        read_table(path, PLAN)


def test_a_value_of_another_type_is_refused():
    with pytest.raises(RecordError, match="cell is 3, expected str"):
        table([{"cell": 3}], PLAN)
    with pytest.raises(RecordError, match="tp is True, expected int"):
        table([{"tp": True}], PLAN)
    with pytest.raises(RecordError, match="'celll', which is not a column"):
        table([{"celll": "a"}], PLAN)


def test_what_a_platform_states_to_be_emulated_may_be_newer_than_a_run(tmp_path):
    row = planned("a", repeats=2)
    write_run(tmp_path, row, 1, Run())
    stated = tables(tmp_path, [row | {"emulated": "two daemons"}])
    assert stated["cells"][0]["emulated"] == "two daemons"
    assert [run["emulated"] for run in stated["runs"]] == [None, "two daemons"]


def test_a_cell_is_emulated_if_a_run_of_it_was(tmp_path):
    row, run = planned("a"), Run()
    run.cell = replace(run.cell, hardware=replace(run.cell.hardware, emulated="two daemons"))
    write_run(tmp_path, row, 1, run)
    assert tables(tmp_path, [row])["cells"][0]["emulated"] == "two daemons"
