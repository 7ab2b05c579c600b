"""Who comes last, how long others wait, and how fast data moves, against figures by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.analysis.synthetic_run import assert_holds, assert_null
from workflow_lib.records.degrees import Degrees

from .kineto import GEMM, SEND_RECEIVE, analysed, collective, kernel


def pair(*spans: tuple[float, float], ahead: float = 0.0) -> list[dict[str, Any]]:
    """Collectives of ranks 0 and 1 on one of them, whose clock is ahead."""
    return [collective(start + ahead, end + ahead, [0, 1]) for start, end in spans]


def test_waiting_ends_and_transfer_begins_with_the_last_rank(tmp_path):
    found = analysed(
        tmp_path,
        pair((0, 100), (200, 250)),
        pair((60, 100), (190, 250)),
        ranks_per_node=2,
        degrees=Degrees(tp=2),
        link_peaks_bytes_per_s={"intra_node": 100e9},
    )
    assert found.ranks["waiting_s"].to_list() == pytest.approx([60e-6, 10e-6])
    assert found.ranks["transfer_s"].to_list() == pytest.approx([90e-6, 90e-6])
    assert found.ranks["late_collectives"].to_list() == [1, 1]
    assert found.ranks["late_s"].to_list() == pytest.approx([10e-6, 60e-6])
    first = found.kernels.row(0, named=True)
    assert (first["group"], first["fabric"]) == ("TP", "intra_node")
    # Two all-reduces of 2 MB between 2 ranks: the factor is 2 · (2 − 1) / 2 = 1.
    assert first["message_bytes"] == 4_000_000
    assert first["bus_bytes"] == 4e6
    assert first["bus_bandwidth_bytes_per_s"] == pytest.approx(4e6 / 150e-6)
    assert first["transfer_bandwidth_bytes_per_s"] == pytest.approx(4e6 / 90e-6)
    assert first["link_share"] == pytest.approx(4e6 / 90e-6 / 100e9)
    assert first["missing_reasons"] == "{}"


@pytest.mark.parametrize("drift", [0.0, 50e-6, -50e-6])
def test_who_is_late_is_told_right_though_clocks_drift(tmp_path, drift):
    # A collective every 10 ms for 6 s, to which rank 0 comes 40 µs after rank 1, and which ends
    # together. In 6 s the clock of node 1, 0.3 s ahead, gains or loses 300 µs.
    def late(shown: Callable[[float], float], start: float) -> list[dict[str, Any]]:
        times = [10_000.0 * number for number in range(600)]
        return pair(*((shown(at + start), shown(at + 200)) for at in times))

    drifting = late(lambda at: at + 300_000 + drift * at, 0)
    found = analysed(tmp_path, late(lambda at: at, 40), drifting, ranks_per_node=1)
    assert found.ranks["late_collectives"].to_list() == [600, 0]
    assert found.ranks["late_s"].to_list() == pytest.approx([600 * 40e-6, 0], rel=0.01)
    assert found.ranks["waiting_s"].to_list() == pytest.approx([0, 600 * 40e-6], rel=0.01)


GROUP = [0, 1, 2, 3]
SEND = {"kind": "send", "name": SEND_RECEIVE, "Dst Rank": 1}
RECEIVE = {"kind": "recv", "name": SEND_RECEIVE, "Src Rank": 0}


@pytest.mark.parametrize(
    ("traces", "options", "ranks", "kernels", "remark"),
    [
        # A late rank answers only for what it adds.
        ([[collective(start, 80, GROUP)] for start in (0, 10, 50, 20)], {},
         {"late_s": [0, 0, 30e-6, 0], "late_collectives": [0, 0, 1, 0],
          "waiting_s": [50e-6, 40e-6, 0, 30e-6]}, {}, None),
        # Clocks of nodes are aligned by where collectives end: node 1's is 5 ms ahead.
        ([pair((0, 100), (200, 300), (400, 500)),
          pair((60, 100), (200, 300), (470, 500), ahead=5000.0)], {"ranks_per_node": 1},
         {"waiting_s": [130e-6, 0], "late_s": [0, 130e-6]},
         {"fabric": ["inter_node", "inter_node"]}, "clocks"),
        # Not on all of its ranks, and not as often on each.
        ([pair((0, 100))], {}, {}, {"waiting_s": [None],
         "bus_bandwidth_bytes_per_s": [pytest.approx(2e6 / 100e-6)]}, "not traced"),
        ([pair((0, 100), (200, 300)), pair((0, 100))], {}, {}, {"waiting_s": [None, None]},
         "different numbers"),
        ([[kernel(GEMM, 0, 1)]], {"expected": range(2)}, {"rank": [0]}, {}, "rank 1"),
        # A send and its receive: the pair is on one node, although the group is not.
        ([[collective(0, 50, GROUP, **SEND)], [collective(20, 50, GROUP, **RECEIVE)]],
         {"degrees": Degrees(pp=4), "ranks_per_node": 2}, {"waiting_s": [20e-6, 0]},
         {"fabric": ["intra_node", "intra_node"], "group": ["PP", "PP"]}, None),
    ],
)  # fmt: skip
def test_who_waits_and_who_is_late(tmp_path, traces, options, ranks, kernels, remark):
    found = analysed(tmp_path, *traces, **options)
    for name, values in ranks.items():
        assert found.ranks[name].to_list() == pytest.approx(values), name
    for name, values in kernels.items():
        assert found.kernels[name].to_list() == values, name
    for row in found.kernels.rows(named=True) if "waiting_s" in kernels else ():
        for name in ("waiting_s", "transfer_bandwidth_bytes_per_s"):
            assert_null(row, name, "collectives_unmatched")
    assert len(found.remarks) == (remark is not None)
    assert_holds(" ".join(found.remarks), remark or "")


@pytest.mark.parametrize(
    ("kind", "elements", "message_bytes", "factor"),
    [
        ("allreduce", (1000, 1000), 2000, 1.5),
        ("_allgather_base", (1000, 4000), 8000, 0.75),
        ("_reduce_scatter_base", (4000, 1000), 8000, 0.75),
        ("all_to_all", (4000, 4000), 8000, 0.75),
        ("broadcast", (1000, 1000), 2000, 1.0),
    ],
)
def test_bytes_are_as_nccl_tests_counts_them(tmp_path, kind, elements, message_bytes, factor):
    # bf16, four ranks; nccl-tests: 2(n−1)/n of an all-reduce, (n−1)/n of what gathers or scatters.
    found = analysed(tmp_path, [collective(0, 100, range(4), kind=kind, elements=elements)])
    row = found.kernels.row(0, named=True)
    assert row["message_bytes"] == message_bytes
    assert row["bus_bytes"] == message_bytes * factor


def test_what_a_kernel_lacks_is_taken_from_the_operator_that_announced_it(tmp_path):
    said = collective(0, 1, [0, 1], kind="alltoall_base", **{"External id": 9})["args"]
    events = [
        kernel("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage)", 0, 10, **{"External id": 9}),
        {**kernel("record_param_comms", 0, 1, cat="cpu_op"), "args": said},
    ]
    row = analysed(tmp_path, events, ranks_per_node=2).kernels.row(0, named=True)
    assert (row["class"], row["fabric"]) == ("all_to_all", "intra_node")
