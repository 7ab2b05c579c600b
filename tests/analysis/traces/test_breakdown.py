"""How a rank's time divides, against figures worked out by hand."""

from __future__ import annotations

import pytest

from tests.analysis.synthetic_run import assert_holds, assert_null
from workflow_lib.records.degrees import Degrees

from .kineto import ELEMENTWISE, GEMM, SEND_RECEIVE, analysed, collective, kernel, launch, step

#: µs   0        50       100      140  150  160        200  220
#:      gemm------------- |        elementwise|         copy-|
#:               all-reduce-------------|
ONE_RANK = [
    kernel(GEMM, 0, 100),
    collective(50, 150, [0, 1]),
    kernel(ELEMENTWISE, 140, 160),
    kernel("Memcpy HtoD (Pinned -> Device)", 200, 220, cat="gpu_memcpy"),
    # None of these is a kernel.
    kernel("aten::mm", 0, 1000, cat="cpu_op"),
    kernel("Stream Sync", 160, 1000, cat="cuda_sync"),
    {"ph": "f", "id": 3, "pid": 0, "tid": 7, "ts": 5000, "cat": "ac2g", "name": "ac2g"},
    {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 0, "args": {"name": "python"}},
]


def test_a_ranks_time_divides_as_worked_out_by_hand(tmp_path):
    (row,) = analysed(tmp_path, ONE_RANK).ranks.rows(named=True)
    seconds = {name: value for name, value in row.items() if name.endswith("_s")}
    assert seconds == pytest.approx(
        {
            "span_s": 220e-6,
            "computation_s": 120e-6,
            "unknown_s": 0.0,
            "memory_s": 20e-6,
            "communication_s": 100e-6,
            # With the GEMM from 50 to 100 and the element-wise kernel from 140 to 150.
            "overlapped_communication_s": 60e-6,
            "exposed_communication_s": 40e-6,
            "idle_s": 40e-6,
            "bubble_s": None,
            "waiting_s": None,
            "transfer_s": None,
            "late_s": None,
        }
    )
    assert row["overlap_share"] == pytest.approx(0.6)
    assert row["idle_share"] == pytest.approx(40 / 220)
    assert_null(row, "bubble_s", "layout_unknown")
    assert_null(row, "waiting_s", "no_collective_matched")


def test_each_class_has_its_time_and_its_share(tmp_path):
    rows = analysed(tmp_path, ONE_RANK).kernels.rows(named=True)
    assert [(row["class"], row["kernels"]) for row in rows] == [
        ("gemm", 1),
        ("normalisation_elementwise", 1),
        ("memory", 1),
        ("all_reduce", 1),
    ]
    assert [row["covered_s"] for row in rows] == pytest.approx([100e-6, 20e-6, 20e-6, 100e-6])
    assert rows[0]["share_of_span"] == pytest.approx(100 / 220)
    assert rows[3]["exposed_s"] == pytest.approx(40e-6)
    assert rows[3]["overlapped_s"] == pytest.approx(60e-6)
    assert rows[0]["exposed_s"] is None


def pipeline_of_two(rank: int, late_us: float = 0.0) -> list[dict[str, object]]:
    """Two stages, three micro-batches, 10 µs forward and 20 µs backward each, all forward first.

    Rank 0 works from 0 to 30 and from 60 to 120, rank 1 from 10 to 100; while a stage waits for
    its neighbour, its receive runs.
    """
    work = {0: [(0, 30), (60, 120)], 1: [(10, 40), (40, 100)]}[rank]
    waits = {0: (30, 60), 1: (0, 10)}[rank]
    events: list[dict[str, object]] = [step(3, -10 + late_us, 130 + late_us)]
    for i, (start, end) in enumerate(work):
        events += [
            launch(late_us + i, 100 + i),
            kernel(GEMM, start + late_us, end + late_us, correlation=100 + i),
        ]
    return [
        *events,
        launch(late_us + 5, 200),
        collective(
            waits[0] + late_us,
            waits[1] + late_us,
            [0, 1],
            kind="recv",
            name=SEND_RECEIVE,
            correlation=200,
            **{"Src Rank": 1 - rank},
        ),
    ]


PIPELINE = {"degrees": Degrees(pp=2), "ranks_per_node": 2}


def test_the_bubble_of_an_ideal_pipeline_is_one_in_four(tmp_path):
    ranks = analysed(tmp_path, *map(pipeline_of_two, (0, 1)), **PIPELINE).ranks
    # (p − 1) / (m + p − 1) = 1 / 4 of 120 µs, on either rank.
    assert ranks["bubble_s"].to_list() == pytest.approx([30e-6, 30e-6])
    assert ranks["steps"].to_list() == [1, 1]


def test_a_pipeline_that_was_not_traced_whole_has_no_bubble(tmp_path):
    (row,) = analysed(tmp_path, pipeline_of_two(0), **PIPELINE).ranks.rows(named=True)
    assert_null(row, "bubble_s", "pipeline_rank_untraced", "rank 1")


def test_stages_whose_clocks_nothing_compares_have_no_bubble(tmp_path):
    apart = [pipeline_of_two(rank, 7.0 * rank) for rank in (0, 1)]
    ranks = analysed(tmp_path, *apart, degrees=Degrees(pp=2), ranks_per_node=1).ranks
    for row in ranks.rows(named=True):
        assert_null(row, "bubble_s", "pipeline_clock_unaligned", "rank 1")


def test_an_empty_trace_is_a_row_without_figures(tmp_path):
    found = analysed(tmp_path, [], ONE_RANK, degrees=Degrees(tp=2), ranks_per_node=2)
    row = found.ranks.row(0, named=True)
    times = ("span_s", "computation_s", "communication_s", "idle_s", "overlap_share")
    assert [row[name] for name in times] == [None] * 5
    assert [len(found.notes[rank]) for rank in (0, 1)] == [1, 0]
    assert_holds(found.notes[0][0], "no kernels")
    assert set(found.kernels["rank"]) == {1}


@pytest.mark.parametrize(
    ("events", "kernel_s", "rank", "covered"),
    [
        # Kernels that run at once count once in covered time.
        ([kernel(GEMM, 0, 10), kernel(GEMM, 2, 5), kernel(GEMM, 5, 12), kernel(GEMM, 20, 21)],
         (10 + 3 + 7 + 1) * 1e-6, {"computation_s": 13e-6, "span_s": 21e-6}, {"gemm": 13e-6}),
        # What the optimiser launches is its own.
        ([launch(0, 1), launch(20, 2), launch(21, 3),
          kernel("Optimizer.step#AdamW.step", 15, 30, cat="user_annotation"),
          kernel(ELEMENTWISE, 40, 41, correlation=1), kernel(ELEMENTWISE, 41, 44, correlation=2),
          kernel(GEMM, 44, 45, correlation=3)],
         5e-6, {"computation_s": 5e-6},
         {"gemm": 1e-6, "normalisation_elementwise": 1e-6, "optimiser": 3e-6}),
        # µs     0         40   60        100
        # GPU 0  gemm-------    all-reduce
        # GPU 1  gemm----------------------, which hides nothing of the other GPU
        ([kernel(GEMM, 0, 40, device=0), collective(60, 100, [0, 1], device=0),
          kernel(GEMM, 0, 100, device=1)],
         180e-6,
         {"gpus": 2, "span_s": 200e-6, "computation_s": 140e-6, "exposed_communication_s": 40e-6,
          "overlapped_communication_s": 0, "idle_s": 20e-6},
         {"gemm": 140e-6, "all_reduce": 40e-6}),
        # An unknown kernel is neither computation nor idle.
        ([kernel(GEMM, 0, 40), kernel("mine", 50, 90), collective(80, 100, [0, 1])],
         100e-6,
         {"computation_s": 40e-6, "unknown_s": 40e-6, "idle_s": 10e-6,
          "exposed_communication_s": 20e-6},
         {"gemm": 40e-6, "unknown": 40e-6, "all_reduce": 20e-6}),
    ],
)  # fmt: skip
def test_time_is_covered_by_what_runs(tmp_path, events, kernel_s, rank, covered):
    found = analysed(tmp_path, events)
    (row,) = found.ranks.rows(named=True)
    assert {name: row[name] for name in rank} == pytest.approx(rank)
    of_class = {row["class"]: row["covered_s"] for row in found.kernels.rows(named=True)}
    assert of_class == pytest.approx(covered)
    if row["gpus"] == 2:
        assert_null(row, "bubble_s", "trace_of_several_gpus")
    assert found.kernels["kernel_s"].sum() == pytest.approx(kernel_s)
