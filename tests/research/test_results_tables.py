"""Tables of the pages in docs/results."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from research.pages import parts, projecting, readings, sweeps, verdicts
from research.projection.metrics import Quantity
from research.projection.own_validation import JudgedRun, OwnValidation
from tests.comparison.sides import known
from tests.made_cells import made_cell
from tests.report.sweep import Planned, write_sweep
from tests.texts import lacking, numbers, rows_of
from workflow_lib.comparison.sides import Side, read_side
from workflow_lib.formulas import parameters
from workflow_lib.projection.kinds import Widths
from workflow_lib.projection.own_runs import read_own
from workflow_lib.projection.own_stack import Residual
from workflow_lib.records.cell import Cell
from workflow_lib.records.measures import MEASURES
from workflow_lib.records.paths import SweepPaths
from workflow_lib.records.tables import CELLS, KERNELS, OVERHEAD, STEP_TIMES, TRACES
from workflow_lib.table_files import read_table, table, write_table

MFU = {
    "bf16": {"mfu_causal": 0.5, "mfu_causal_bf16_peak": 0.5},
    "fp8": {"mfu_causal": 0.3, "mfu_causal_bf16_peak": 0.6},
}


def side_of(directory: Path, *cells: Planned) -> Side:
    return read_side(write_sweep(directory, cells or [Planned("tp1")]), "made-up")


def test_a_page_with_fp8_has_the_mfu_of_each_peak(tmp_path):
    cells = [
        Planned("tp1", options=each, training={"precision": each}, measures=MFU[each])
        for each in MFU
    ]
    side = side_of(tmp_path, *cells)

    heads, _, *both = rows_of(parts.table_of(side, side.cells))
    assert ["bf16 peak" in head for head in heads if "MFU" in head] == [False, True]
    assert sorted(row[-3:-1] for row in both) == [["30.00", "60.00"], ["50.00", "50.00"]]
    of_bf16 = [cell for cell in side.cells if cell["precision"] == "bf16"]
    heads, *_ = rows_of(parts.table_of(side, of_bf16))
    assert sum("MFU" in head for head in heads) == 1


def test_the_page_of_own_runs_has_each_error_with_both_rates():
    run = read_own()[-1]
    ends = {0.5: (-0.05, 0.05), 0.9: (-math.log(1.1), math.log(1.1))}
    widths = Widths("own", ends, rows=3, groups=3)

    def validated(median_s: float) -> OwnValidation:
        time = Quantity(run.step_time_s, median_s * run.step_time_s, 1.0, widths)
        judged = (JudgedRun(run, time, None, "yes"),)
        return OwnValidation(3, 1, judged, {"mape": 0.03, "energy_mape": 0.05})

    residuals = [[Residual(run, error, 1.0)] for error in (-0.021, 0.011)]
    page = projecting.page_of(validated(0.8), validated(0.95), *residuals)
    time_s, cell, rows = f"{run.step_time_s:.3f}", f"`{run.cell}`", rows_of(page)
    assert [cell, str(run.layout.gpus), time_s, "−20.0 %", "−5.0 %", "–", "–"] in rows
    assert [cell, time_s, "−2.1 %", "+1.1 %"] in rows
    assert ["mean of all", "", "", "20.0 %", "5.0 %", "–", "–"] in rows
    assert ["largest", "", "2.1 %", "1.1 %"] in rows
    # 0.95 times 1.1 reaches the measured time, and 0.8 times 1.1 does not.
    assert "hold 1 of 1 " in page


def test_a_cell_without_a_completed_run_has_no_memory_at_all(tmp_path):
    side = side_of(tmp_path, Planned("tp1", outcomes=(None,)))
    assert "at least" not in parts.table_of(side, side.cells)


def test_runs_of_two_days_begin_and_end_with_their_dates():
    run = {"outcome": "completed", "started_unix_s": 1_700_000_000.0}
    late = run | {"started_unix_s": 1_700_010_000.0}
    other = run | {"started_unix_s": 1_700_100_000.0}
    soon = run | {"started_unix_s": 1_700_000_100.0}
    for runs, last in (
        ([run], ""),
        ([run, soon], " to 22:15"),
        ([late, run], " to 2023-11-15 01:00"),
        ([other, run], " to 2023-11-16 02:00"),
    ):
        assert parts.runs_in_words(runs).endswith(f" 2023-11-14 22:13{last} UTC)")


@pytest.mark.parametrize(
    ("agree", "others", "sets", "said"),
    [(1, 0, None, [1]), (4, 0, None, [4]), (6, 2, None, [6, 8]), (1, 0, 4, [1, 4])],
)
def test_a_finding_counts_the_contrasts_that_have_its_verdict(agree, others, sets, said):
    row = {"claim_verdict": "contradicted", "gpu_sets": sets, "verdict": "contradicted"}
    rows = [row] * agree + [{**row, "verdict": "supported"}] * others
    assert numbers(verdicts.decided_by(rows)) == said


def test_a_finding_has_the_range_of_all_its_contrasts():
    claim = {"claim": "T4", "says": "It is so.", "gpu_sets": None, "claim_verdict": "contradicted"}
    claim |= {"label_a": "dp2", "label_b": None}
    rows = [
        claim | {"verdict": verdict, "wide_low": low, "wide_high": high}
        for verdict, low, high in [
            ("contradicted", 0.97, 0.98),
            ("contradicted", 0.975, 0.983),
            ("undecided", 0.94, 1.002),
        ]
    ]
    said = verdicts.of_claim(rows, "T4")
    heading = MEASURES["sm_clock_mean_mhz"].heading
    assert said.startswith("“It is so.” ")
    assert lacking(said, "contradicted by 2 of 3 ", heading, "−6.0 % to +0.20 %.") == []


def test_a_finding_of_two_pairs_has_each_part():
    claim = {"claim": "R2", "says": "It is so.", "claim_verdict": "contradicted"}
    pair = {"model": "short", "beside_model": "whole", "coverage": 0.95}
    rows = [
        claim | pair | {"test": 1, "part": "TP", "estimate": 0.99, "verdict": "supported"},
        claim | pair | {"test": 2, "part": "PP", "estimate": 0.893, "verdict": "contradicted"},
        claim | {"test": 3, "part": "ZeRO-3", "coverage": None, "verdict": "not_testable"},
    ]
    said, asked = verdicts.of_pairs(rows, "R2"), verdicts.of_pairs(rows[2:], "R2")
    assert asked.startswith("“It is so.” ")
    assert asked.endswith(": contradicted.")
    heading = MEASURES["tokens_per_s_per_gpu"].heading
    assert said.startswith(asked)
    assert said.endswith("TP −1.0 % (supported), PP −11 % (contradicted).")
    assert lacking(said, heading, "`short`", "`whole`") == []


@pytest.mark.parametrize(
    ("drifts", "steady", "span"),
    [
        ([-0.006], "0 of 1", "by −0.60 %"),
        ([None, 0.004], "1 of 2", "by 0.40 %"),
        ([0.004, -0.006], "0 of 2", "by −0.60 to 0.40 %"),
    ],
)
def test_a_page_says_in_which_runs_step_time_drifted(drifts, steady, span, tmp_path):
    side = side_of(tmp_path)
    runs = [
        side.runs[0] | {"steady": drift is None, "step_time_drift": drift, "run": number}
        for number, drift in enumerate(drifts, start=1)
    ]
    note = parts.note(replace(side, runs=tuple(runs)))
    assert lacking(note, f"{steady} completed", span) == []


def test_a_page_says_how_long_runs_waited_and_not_that_their_gpus_got_cool(tmp_path):
    asked = {"cool_down_to_c": 37.0, "cool_down_limit_s": 90.0}
    cells = [
        Planned("tp1", telemetry=asked, measures={"cool_down_s": 90.2}),
        Planned("tp2", telemetry=asked, measures={"cool_down_s": 1.9}),
        Planned("tp4", measures={"cool_down_s": None}),
    ]
    assert " 2, 90 s " in parts.note(side_of(tmp_path, *cells)).split("cool-down")[1]
    assert "cool-down" not in parts.note(side_of(tmp_path / "plain", cells[2]))


def test_bytes_of_a_step_by_arithmetic():
    cell = made_cell()
    counts = parameters(cell.model)

    def found(of: Cell, **training: object) -> float:
        changed = replace(of.training, backend="torch", precision="bf16", **training)
        by_hand = readings.arithmetic(replace(of, training=changed))
        assert by_hand is not None
        return by_hand[0]

    # 8 GPUs send 7/8 of what is scattered in fp32 and gathered in bf16.
    assert found(cell, zero_stage=1) == pytest.approx(7 / 8 * 6 * counts.total)
    # Of each micro-batch the weights are gathered twice, those of the head once.
    gathered = 2 * 7 / 8 * (8 * counts.total - 2 * counts.output_head)
    batches = {"micro_batch_size": 1, "global_batch_size": 16}
    assert found(cell, zero_stage=3, **batches) == pytest.approx(gathered)
    # A GPU of two stages sends a micro-batch's activations, or their gradients.
    degrees = replace(cell.degrees, dp=1, pp=2)
    pipeline = replace(cell, degrees=degrees, nodes=1)
    sent = cell.model.sequence_length * cell.model.hidden_size
    batches["global_batch_size"] = 4
    assert found(pipeline, zero_stage=3, **batches) == pytest.approx(2 * 4 * sent)
    tensor = replace(cell, degrees=replace(cell.degrees, dp=4, tp=2))
    assert readings.arithmetic(tensor) is None


def test_the_page_of_readings_counts_a_run_of_two_sweeps_once(tmp_path):
    kinds = ("memory_peak_bytes", "memory_reserved_peak_bytes", "memory_used_peak_bytes")
    measures = {"sampler_cpu_share": 0.004, **dict.fromkeys(kinds, 1e9)}
    planned = Planned("tp1", measures=measures, of_gpus={"energy_difference": -0.001})
    sweep = write_sweep(tmp_path, [planned])
    whole = readings.energy([sweep])
    assert " 8 GPU-runs" in whole
    assert readings.energy([sweep, sweep]) == whole
    _, _, memory = rows_of("\n".join(readings.memory(sweep)))
    # The plan expects 107.7 GB; what ranks asked too late is a bound.
    assert memory[-5:] == ["1.0", "1.0", "at least 1.0", "below +10670.0 %", "1"]
    _, _, sampler = rows_of("\n".join(readings.sampler([sweep])))
    assert sampler[-4:] == ["1", *["0.40 %"] * 3]


def test_the_page_of_readings_has_each_rate_that_alternated(tmp_path):
    sweep = write_sweep(tmp_path, [Planned("tp1")])
    (cell,) = read_table(SweepPaths(sweep).table("cells"), CELLS)["cell"]
    assert rows_of(readings.costs([sweep])) == []
    known = {"cell": cell, "run": 2, "simulated": False, "step_time_s": 0.15478, "pairs": 12}
    of_10 = {"sample_rate_hz": 10.0, "achieved_rate_hz": 9.6, "sampler_cpu_share": 0.00346}
    interval = {"slowdown": 0.00067, "slowdown_low": -0.00114, "slowdown_high": 0.0025}
    rows = [
        known | {"sample_rate_hz": 0.0},
        known | of_10 | interval,
        known | of_10 | {"slowdown": 0.00067},
        known | of_10 | interval | {"simulated": True},
    ]
    write_table(table(rows, OVERHEAD), SweepPaths(sweep).table("overhead"))
    assert rows_of(readings.costs([sweep]))[2:] == [
        [f"2 of `dp1` in `{sweep.name}`", "0.1548", "10", "+0.07 %", ends, "12", "0.35 %", "96 %"]
        for ends in ("−0.11 % to +0.25 %", "–")
    ]


def test_the_page_of_a_sweep_has_what_ranks_communicated_in_a_step(tmp_path):
    sweep = write_sweep(tmp_path, [Planned("tp1")])
    cells = read_table(SweepPaths(sweep).table("cells"), CELLS).to_dicts()
    assert sweeps.communication(sweep, cells) == []
    run = {"cell": cells[0]["cell"], "run": 0}
    kernel = run | {"class": "all_gather", "group": "TP", "overlapped_s": 0.0}
    kernels = [
        # Of two steps.
        kernel | {"rank": 0, "kernel_s": 0.2, "waiting_s": 0.04, "transfer_s": 0.16},
        kernel | {"rank": 1, "kernel_s": 0.3, "waiting_s": 0.14, "transfer_s": 0.16},
        kernel | {"rank": 0, "class": "broadcast", "kernel_s": 0.0018},
        run | {"class": "gemm", "rank": 0, "kernel_s": 3.0},
    ]
    for row in kernels[:2]:
        row |= {"exposed_s": 0.06, "link_share": 0.5}
    traces = [run | {"rank": rank, "steps": 2} for rank in (0, 1)]
    write_table(table(kernels, KERNELS), SweepPaths(sweep).table("kernels"))
    write_table(table(traces, TRACES), SweepPaths(sweep).table("traces"))
    *_, lines = sweeps.communication(sweep, cells)
    values = ["100–150", "20.0–70.0", "80.0", "30.0", "50.0"]
    assert rows_of(lines)[2:] == [["`dp1`", "all-gather", "TP", *values]]


def test_the_page_of_a_long_run_has_the_mean_of_its_last_losses(tmp_path):
    sweep = write_sweep(tmp_path, [Planned("tp1")])
    cells = read_table(SweepPaths(sweep).table("cells"), CELLS).to_dicts()
    row = {"cell": cells[0]["cell"], "phase": "measure", "counted": True}
    # Of the first run too few steps have a loss; of the second the last 50 are 2 and 4 by turns.
    short = [row | {"run": 1, "step": step, "loss": 3.0} for step in range(199)]
    whole = [
        row | {"run": 2, "step": step, "loss": 12.0 if step < 150 else 2.0 + 2 * (step % 2)}
        for step in range(200)
    ]
    write_table(table([*short, *whole], STEP_TIMES), SweepPaths(sweep).table("steps"))
    *_, lines = sweeps.losses(sweep, cells)
    # The deviation is √(50/49).
    assert rows_of(lines)[2:] == [["`dp1`", "2", "200", "12.000", "3.000", "1.010"]]
    write_table(table(short, STEP_TIMES), SweepPaths(sweep).table("steps"))
    assert sweeps.losses(sweep, cells) == []


def test_a_recipe_of_fp8_follows_from_its_precision_but_not_between_two_in_fp8():
    bf16, rowwise, tensorwise = (
        known() | {"precision": precision, "fp8_recipe": recipe}
        for precision, recipe in (("bf16", "rowwise"), ("fp8", "rowwise"), ("fp8", "tensorwise"))
    )
    assert sweeps._differing(bf16, tensorwise) == {"precision"}
    assert sweeps._differing(rowwise, tensorwise) == {"fp8_recipe"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "**+10 to +20 %**"),
        ({"verdict": "not_told_apart", "wide_low": 0.95}, "−5.0 to +20 % (+12 to +18 %)"),
        ({"verdict": "not_told_apart", "wide_low": 0.95, "low": 0.98}, "−5.0 to +20 %"),
        ({"verdict": "no_verdict", "wide_low": None}, "*unknown* (+12 to +18 %)"),
        ({"verdict": "no_verdict", "coverage": None}, "*range* +12 to +18 %"),
        ({"coverage": None, "runs_a": 1, "runs_b": 1}, "one run each, +15 %"),
        ({"low": None, "in_words": "no value"}, "no value"),
    ],
)
def test_a_difference_in_short_says_whether_it_is_one(changes, told):
    row = {
        **{"measure": "tokens_per_s_per_gpu", "verdict": "a_more", "coverage": 0.95},
        **{"low": 1.12, "high": 1.18, "wide_low": 1.1, "wide_high": 1.2, "estimate": 1.15},
        **{"runs_a": 3, "runs_b": 3},
    }
    assert parts._in_short(row | changes) == told
