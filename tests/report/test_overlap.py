"""Cells that overlap made slower are named, with where the time of their steps went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from workflow_lib.records.degrees import Degrees
from workflow_lib.records.tables import KERNELS, TRACES
from workflow_lib.report.figures.tables import Tables
from workflow_lib.report.overlap import slower_with_overlap
from workflow_lib.table_files import table

from .full_matrix import cell_row, identity, run_row

Three = tuple[float, float, float]
OFF: Three = (1000.0, 990.0, 1010.0)
ON: Three = (900.0, 895.0, 905.0)


def cell(name: str, overlap: bool, rate: Three, runs: int = 3, **values: Any) -> dict[str, Any]:
    known = identity("h200", "gpt3", Degrees(tp=4)) | {"cell": name, "overlap": overlap}
    row = cell_row(known, "completed", tokens_per_s_per_gpu=rate)
    return row | {"simulated": False, "completed": runs, **values}


def trace(name: str, rank: int, steps: int, span: float, computed: float, exposed: float) -> Any:
    return {
        **{"cell": name, "run": 0, "rank": rank, "steps": steps, "on_gpu": True, "span_s": span},
        **{"computation_s": computed, "exposed_communication_s": exposed},
        "idle_s": span - computed - exposed,
    }


def kernel(name: str, rank: int, kind: str, covered: float, exposed: float | None = None) -> Any:
    return {
        **{"cell": name, "run": 0, "rank": rank, "class": kind, "kernels": 1},
        **{"covered_s": covered, "exposed_s": exposed},
    }


def runs_of(cells: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Runs of the lowest, the median and the highest rate, all of one cell after all of another."""
    rate = "tokens_per_s_per_gpu"
    return tuple(
        run_row(each, number + 1, **{rate: each[rate + ("_low", "", "_high")[number]]})
        for each in cells
        for number in range(each["completed"])
    )


def sentences(*cells: dict[str, Any], kernels: Any = (), traces: Any = ()) -> tuple[str, ...]:
    tables = Tables(
        cells,
        runs_of(cells),
        (),
        kernels=table(list(kernels), KERNELS),
        traces=table(list(traces), TRACES),
    )
    return slower_with_overlap(tables, {each["cell"]: each["cell"] for each in cells})


def test_the_time_goes_where_the_tables_say():
    # Two ranks of two steps each, so 4 rank-steps in all. Off: a step is 100 ms on the mean rank.
    traces = [
        trace("off", 0, 2, span=0.200, computed=0.160, exposed=0.030),
        trace("off", 1, 2, span=0.200, computed=0.140, exposed=0.050),
        trace("on", 0, 2, span=0.220, computed=0.200, exposed=0.014),
        trace("on", 1, 2, span=0.220, computed=0.180, exposed=0.026),
    ]
    kernels = [
        *(kernel("off", rank, "gemm", 0.120) for rank in (0, 1)),
        *(kernel("on", rank, "gemm", 0.164) for rank in (0, 1)),
        *(kernel(name, rank, "attention", 0.020) for name in ("off", "on") for rank in (0, 1)),
        # In two rows of different groups; and one that a single rank has.
        kernel("off", 0, "all_gather", 0.02, 0.020),
        kernel("off", 0, "all_gather", 0.01, 0.010),
        kernel("off", 1, "all_gather", 0.05, 0.050),
        kernel("on", 0, "all_gather", 0.05, 0.010),
        kernel("on", 1, "all_gather", 0.05, 0.010),
        kernel("on", 1, "send_receive", 0.02, 0.020),
    ]
    # Computation 0.300 / 4 and 0.380 / 4; GEMM 0.088 / 4 more; exposed 0.080 / 4 and 0.040 / 4:
    # all-gather 0.060 / 4 less, sends 0.020 / 4 more; nothing running 0.020 / 4 in both.
    (told,) = sentences(
        cell("off", False, OFF), cell("on", True, ON), kernels=kernels, traces=traces
    )
    for part in (
        "on is 10 % slower",
        ": 900 tokens/s/GPU (895–905) ",
        " 1,000 tokens/s/GPU (990–1,010)",
        " 100 → 110 ms: ",
        "computation 75.0 → 95.0 (GEMM +22.0)",
        "nothing running 5.00 → 5.00",
        "communication 20.0 → 10.0 (all-gather −15.0, send/receive +5.00)",
    ):
        assert told.count(part) == 1, part


def test_cells_whose_intervals_meet_or_that_are_faster_are_not_named():
    # Ranges that do not overlap tell nothing apart where runs spread so.
    for on in ((900.0, 880.0, 989.0), (1100.0, 1090.0, 1110.0)):
        assert sentences(cell("off", False, OFF), cell("on", True, on)) == ()


def test_how_much_slower_is_what_the_comparison_says_also_where_medians_mix_hosts():
    # One host is 2 % faster, and overlap costs 3.5 % on each. Two runs without overlap were on the
    # slow host, and two with overlap on the fast one: medians differ by 1.6 %.
    off = cell("off", False, (1000.5, 999.5, 1020.0))
    on = cell("on", True, (984.0, 965.0, 984.5))
    hosts = {"off": (0, 0, 1), "on": (0, 1, 1)}
    rates = {"off": (999.5, 1000.5, 1020.0), "on": (965.0, 984.0, 984.5)}
    starts = {"off": (0.0, 300.0, 1e6), "on": (100.0, 1e6 + 100, 1e6 - 100)}
    runs, gpus = [], []
    for each in (off, on):
        name = each["cell"]
        for run, (host, rate, start) in enumerate(
            zip(hosts[name], rates[name], starts[name], strict=True), start=1
        ):
            runs.append(run_row(each, run, tokens_per_s_per_gpu=rate, started_unix_s=1e9 + start))
            powers = dict.fromkeys(("power_limit_w", "power_mean_w", "power_peak_w"))
            gpus.append({"cell": name, "run": run, "gpu_uuid": f"GPU-{host}", **powers})
    tables = Tables((off, on), tuple(runs), tuple(gpus))
    (sentence,) = slower_with_overlap(tables, {"on": "on", "off": "off"})
    assert sentence.startswith("on is 3.5 % slower ")
    assert "984 tokens/s/GPU (965–984)" in sentence
    assert "−1.6 %" in sentence


@pytest.mark.parametrize("changes", [{"micro_batch_size": 7}, {"simulated": True}, {"runs": 1}])
def test_only_cells_that_differ_in_overlap_alone_are_compared(changes):
    """One run has no interval either."""
    assert sentences(cell("off", False, OFF), cell("on", True, ON, **changes)) == ()


def test_without_traces_the_page_says_that_it_does_not_know():
    off, on = cell("off", False, OFF), cell("on", True, ON)
    of_off = trace("off", 0, 2, span=0.2, computed=0.1, exposed=0.1)

    (neither,) = sentences(off, on)
    (one,) = sentences(off, on, traces=[of_off])
    (uncounted,) = sentences(off, on, traces=[of_off, of_off | {"cell": "on", "steps": 0}])
    labels = {"on": "on", "off": "off"}
    (no_tables,) = slower_with_overlap(Tables((off, on), runs_of((off, on)), ()), labels)

    assert neither.endswith("of either cell.")
    assert one.endswith("with overlap.")
    assert uncounted == one
    assert no_tables == neither
