"""Tables of the pages in docs/results."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import pytest

from research.pages import parts, projecting, readings, sweeps, verdicts
from research.projection.own_validation import JudgedRun, OwnValidation, Quantity
from tests.made_cells import made_cell
from tests.report.sweep import Planned, write_sweep
from workflow_lib.comparison.sides import read_side
from workflow_lib.formulas import parameters
from workflow_lib.projection.kinds import Widths
from workflow_lib.projection.own_runs import read_own
from workflow_lib.projection.own_stack import Residual
from workflow_lib.records import CELLS, KERNELS, OVERHEAD, TRACES, SweepPaths
from workflow_lib.table_files import read_table, table, write_table

MFU = {
    "bf16": {"mfu_causal": 0.5, "mfu_causal_bf16_peak": 0.5},
    "fp8": {"mfu_causal": 0.3, "mfu_causal_bf16_peak": 0.6},
}


def test_a_page_with_fp8_names_the_peak_of_each_mfu(tmp_path: Path) -> None:
    cells = [
        Planned("tp1", options=each, training={"precision": each}, measures=MFU[each])
        for each in ("bf16", "fp8")
    ]
    side = read_side(write_sweep(tmp_path, cells), "made-up")

    both = parts.table_of(side, side.cells)
    assert "| MFU, causal, of the precision's peak, % | MFU, causal, of the bf16 peak, % |" in both
    assert "| 30.00 | 60.00 |" in both
    of_bf16 = parts.table_of(side, [cell for cell in side.cells if cell["precision"] == "bf16"])
    assert "| MFU, causal, % | runs |" in of_bf16
    assert "of the bf16 peak" not in of_bf16


def test_the_page_of_own_runs_has_each_error_with_both_rates() -> None:
    run = read_own()[-1]
    ends = {0.5: (-0.05, 0.05), 0.9: (-math.log(1.1), math.log(1.1))}
    widths = Widths("own", ends, rows=3, groups=3)

    def validated(median_s: float) -> OwnValidation:
        time = Quantity(run.step_time_s, median_s * run.step_time_s, 1.0, widths)
        judged = (JudgedRun(run, time, None, "yes"),)
        return OwnValidation(3, 1, judged, {"mape": 0.03, "energy_mape": 0.05})

    page = projecting.page(
        *(validated(0.8), validated(0.95)),
        [Residual(run, -0.021, 1.0)],
        [Residual(run, 0.011, 1.0)],
    )
    time_s = f"{run.step_time_s:.3f}"
    assert f"| `{run.cell}` | {run.layout.gpus} | {time_s} | −20.0 % | −5.0 % | – | – |" in page
    assert "| mean of all | | | 20.0 % | 5.0 % | – | – |" in page
    # 0.95 times 1.1 reaches the measured time, and 0.8 times 1.1 does not.
    assert "90 % intervals hold 1 of 1 times" in page
    assert f"| `{run.cell}` | {time_s} | −2.1 % | +1.1 % |" in page
    assert "| largest | | 2.1 % | 1.1 % |\n" in page


def test_a_cell_without_a_completed_run_has_no_memory_at_all(tmp_path: Path) -> None:
    planned = Planned("tp1", outcomes=(None,))
    side = read_side(write_sweep(tmp_path, [planned]), "made-up")
    assert "at least" not in parts.table_of(side, side.cells)


@pytest.mark.parametrize(
    ("commits", "changed", "said"),
    [
        ("a" * 40, "False", "The commit that runs recorded is aaaaaaaaaaaa."),
        (
            "a" * 40,
            "–",  # not known
            "The commit that runs recorded is aaaaaaaaaaaa, perhaps with uncommitted changes, so "
            "it does not identify the code.",
        ),
        (
            "a" * 40,
            "True",
            "The commit that runs recorded is aaaaaaaaaaaa, with uncommitted changes, so it does "
            "not identify the code.",
        ),
        (
            f"{'a' * 40}, {'b' * 40}",
            "True, False",
            "The commits that runs recorded are aaaaaaaaaaaa, bbbbbbbbbbbb, in some with "
            "uncommitted changes, so they do not identify the code of these.",
        ),
    ],
)
def test_a_page_names_every_commit_that_its_runs_recorded(commits, changed, said) -> None:
    assert parts.code_in_words({"commit": commits, "uncommitted_changes": changed}) == said


def test_runs_of_two_days_begin_and_end_with_their_dates() -> None:
    run = {"outcome": "completed", "started_unix_s": 1_700_000_000.0}
    late = run | {"started_unix_s": 1_700_010_000.0}
    other = run | {"started_unix_s": 1_700_100_000.0}
    first = "2023-11-14 22:13"
    assert parts.runs_in_words([run]).endswith(f"(1 completed, begun {first} UTC)")
    assert parts.runs_in_words([run, run | {"started_unix_s": 1_700_000_100.0}]).endswith(
        f"{first} to 22:15 UTC)"
    )
    assert parts.runs_in_words([late, run]).endswith(f"{first} to 2023-11-15 01:00 UTC)")
    assert parts.runs_in_words([other, run]).endswith(f"{first} to 2023-11-16 02:00 UTC)")


@pytest.mark.parametrize(
    ("agree", "others", "said"),
    [(1, 0, "1 contrast"), (4, 0, "4 contrasts"), (6, 2, "6 of 8 contrasts")],
)
def test_a_finding_counts_the_contrasts_that_have_its_verdict(agree, others, said):
    row = {"claim_verdict": "contradicted", "gpu_sets": None}
    rows = [{**row, "verdict": "contradicted"}] * agree + [{**row, "verdict": "supported"}] * others
    assert verdicts.decided_by(rows) == said
    one = {**row, "verdict": "contradicted", "gpu_sets": 4}
    assert verdicts.decided_by([one]) == "1 contrast over 4 sets of GPUs"


def test_a_finding_has_the_range_of_all_its_contrasts() -> None:
    claim = {"claim": "T4", "says": "It is so.", "gpu_sets": None, "claim_verdict": "contradicted"}
    rows = [
        claim | {"verdict": verdict, "wide_low": low, "wide_high": high}
        for verdict, low, high in [
            ("contradicted", 0.97, 0.98),
            ("contradicted", 0.975, 0.983),
            ("undecided", 0.94, 1.002),
        ]
    ]
    assert verdicts.of_claim(rows, "T4") == (
        "“It is so.” is our claim: contradicted by 2 of 3 contrasts, Mean SM clock within −6.0 % "
        "to +0.20 %."
    )


def test_a_finding_of_two_pairs_has_each_part() -> None:
    claim = {"claim": "R2", "says": "It is so.", "claim_verdict": "contradicted"}
    pair = {"model": "short", "beside_model": "whole", "coverage": 0.95}
    rows = [
        claim | pair | {"test": 1, "part": "TP", "estimate": 0.99, "verdict": "supported"},
        claim | pair | {"test": 2, "part": "PP", "estimate": 0.893, "verdict": "contradicted"},
        claim | {"test": 3, "part": "ZeRO-3", "coverage": None, "verdict": "not_testable"},
    ]
    asked = "“It is so.” was asked by the study's reviewers: contradicted"
    assert verdicts.of_pairs(rows, "R2") == (
        f"{asked}. Throughput per GPU, what each changes in `short` over what it changes in "
        "`whole`: TP −1.0 % (supported), PP −11 % (contradicted)."
    )
    assert verdicts.of_pairs(rows[2:], "R2") == f"{asked}."


@pytest.mark.parametrize(
    ("drifts", "steady", "others", "span"),
    [
        ([-0.006], "0 of 1 completed run was", "it", "−0.60"),
        ([None, 0.004], "1 of 2 completed runs were", "the other", "0.40"),
        ([0.004, -0.006], "0 of 2 completed runs were", "the others", "−0.60 to 0.40"),
    ],
)
def test_a_page_says_in_which_runs_step_time_drifted(drifts, steady, others, span, tmp_path):
    side = read_side(write_sweep(tmp_path, [Planned("tp1")]), "made-up")
    runs = [
        side.runs[0] | {"steady": drift is None, "step_time_drift": drift, "run": number}
        for number, drift in enumerate(drifts, start=1)
    ]
    assert (
        f"{steady} steady. In {others} step time drifted within the measured steps, by {span} %."
    ) in parts.note(dataclasses.replace(side, runs=tuple(runs)))


def test_a_page_says_how_long_runs_waited_and_not_that_their_gpus_got_cool(tmp_path: Path) -> None:
    asked = {"cool_down_to_c": 37.0, "cool_down_limit_s": 90.0}
    cells = [
        Planned("tp1", telemetry=asked, measures={"cool_down_s": 90.2}),
        Planned("tp2", telemetry=asked, measures={"cool_down_s": 1.9}),
        Planned("tp4", measures={"cool_down_s": None}),
    ]
    said = parts.note(read_side(write_sweep(tmp_path, cells), "made-up"))
    assert said.endswith(" Runs with a cool-down waited 2, 90 s for cool GPUs.")
    plain = parts.note(read_side(write_sweep(tmp_path / "plain", cells[2:]), "made-up"))
    assert "cool-down" not in plain


def test_bytes_of_a_step_by_arithmetic() -> None:
    cell = made_cell()
    # 8 GPUs send 7/8 of what is scattered in fp32 and gathered in bf16.
    count = parameters(cell.model).total
    training = dataclasses.replace(cell.training, zero_stage=1, backend="torch", precision="bf16")
    found = readings.arithmetic(dataclasses.replace(cell, training=training))
    assert found is not None
    assert found[0] == pytest.approx(7 / 8 * 6 * count)
    # Of each micro-batch the weights are gathered twice, those of the head once.
    training = dataclasses.replace(training, zero_stage=3, micro_batch_size=1, global_batch_size=16)
    found = readings.arithmetic(dataclasses.replace(cell, training=training))
    head = parameters(cell.model).output_head
    assert found is not None
    assert found[0] == pytest.approx(2 * 7 / 8 * (8 * count - 2 * head))
    # A GPU of two stages sends a micro-batch's activations, or their gradients.
    degrees = dataclasses.replace(cell.degrees, dp=1, pp=2)
    training = dataclasses.replace(training, global_batch_size=4)
    pipeline = dataclasses.replace(cell, degrees=degrees, training=training, nodes=1)
    found = readings.arithmetic(pipeline)
    assert found is not None
    sent = cell.model.sequence_length * cell.model.hidden_size
    assert found[0] == pytest.approx(2 * 4 * sent)
    tensor = dataclasses.replace(cell, degrees=dataclasses.replace(cell.degrees, dp=4, tp=2))
    assert readings.arithmetic(tensor) is None


def test_the_page_of_readings_counts_a_run_of_two_sweeps_once(tmp_path: Path) -> None:
    memory = dict.fromkeys(
        ("memory_peak_bytes", "memory_reserved_peak_bytes", "memory_used_peak_bytes"), 1e9
    )
    cells = [
        Planned(
            "tp1",
            measures={"sampler_cpu_share": 0.004, **memory},
            of_gpus={"energy_difference": -0.001},
        )
    ]
    sweep = write_sweep(tmp_path, cells)
    whole = readings.energy([sweep])
    assert re.match(r"The integral .* Of 8 GPU-runs", whole)
    assert readings.energy([sweep, sweep]) == whole
    memory_lines = list(readings.memory(sweep))
    # The plan expects 107.7 GB; what ranks asked too late is a bound.
    assert "| 1.0 | 1.0 | at least 1.0 | below +10670.0 % | 1 |" in memory_lines[2]
    assert list(readings.sampler([sweep]))[2].endswith("| 1 | 0.40 % | 0.40 % | 0.40 % |")


def test_the_page_of_readings_has_each_rate_that_alternated(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, [Planned("tp1")])
    (cell,) = read_table(SweepPaths(sweep).table("cells"), CELLS)["cell"]
    assert readings.costs([sweep]) == "The rates alternate in no run of the archives."
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
    lines = readings.costs([sweep]).splitlines()[4:]
    assert lines == [
        f"| 2 of `dp1` in `{sweep.name}` | 0.1548 | 10 | +0.07 % | {ends} | 12 | 0.35 % | 96 % |"
        for ends in ("−0.11 % to +0.25 %", "–")
    ]


def test_the_page_of_a_sweep_has_what_ranks_communicated_in_a_step(tmp_path: Path) -> None:
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
    assert lines.splitlines()[2:] == [
        "| `dp1` | all-gather | TP | 100–150 | 20.0–70.0 | 80.0 | 30.0 | 50.0 |"
    ]
