"""When telemetry counts as covering a run: each way in which it can fall short, by hand.

The run of ``paths``: two ranks on node01, measured from 100 to 103 s; power at 10 Hz and energy
counters every second, from 98 to 105 s. That of ``long_run`` is measured from 100 to 130 s.
"""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.synthetic_run import write_csv
from tests.telemetry.cells import NODE, make_cell
from tests.texts import edit, lacking
from workflow_lib.launch import gpu_faults
from workflow_lib.records.cell import Cell, Telemetry
from workflow_lib.records.contract import STEPS, RankRecord
from workflow_lib.records.files import read_record
from workflow_lib.records.nodes import ClockReading, NodeClock, TelemetryStart, pci_address
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.telemetry_columns import (
    GPU_COUNTERS,
    GPU_EVENTS,
    GPU_SAMPLES,
    HOST_SAMPLES,
    POWER_SAMPLES,
    SAMPLER_BLOCKS,
)
from workflow_lib.records.training import Precisions
from workflow_lib.records.whole_files import write_json
from workflow_lib.telemetry.validity.coverage import invalid_reason

CELL = make_cell(ranks=2, rate_hz=10.0, source="nvidia", warmup_steps=1, measured_steps=3)
Sample = dict[str, Any]


def sample(time_s: float, gpu: int, **values: Any) -> Sample:
    """A GPU sample at 500 W, as the sampler would write it."""
    return {"unix_time_s": time_s, "gpu": gpu, "power_w": 500.0, **values}


def samples(start_s: float = 98.0, end_s: float = 105.0, gpus: int = 2) -> list[Sample]:
    """10 Hz of samples."""
    ticks = round((end_s - start_s) * 10) + 1
    return [
        sample(round(start_s + tick / 10, 3), gpu) for tick in range(ticks) for gpu in range(gpus)
    ]


def counters(start_s: float = 98.0, end_s: float = 105.0, gpus: int = 2) -> list[Sample]:
    """Energy counters read once a second, of GPUs at 500 W."""
    return [
        {"unix_time_s": start_s + second, "gpu": gpu, "energy_j": 1e6 + 500.0 * second}
        for second in range(round(end_s - start_s) + 1)
        for gpu in range(gpus)
    ]


def write_steps(paths: RunPaths, rank: int, offset_s: float = 0.0, steps: int = 4) -> None:
    """A warm-up step from 99 s and measured ones from 100 s, a second each."""
    rows = [
        {
            "step": step,
            "phase": "warmup" if step == 0 else "measured",
            "started_unix_s": 99.0 + step + offset_s,
            "ended_unix_s": 100.0 + step + offset_s,
            "tokens": 64,
            "memory_allocated_bytes": 1,
            "memory_peak_bytes": 1,
        }
        for step in range(steps)
    ]
    write_csv(paths.rank_steps(rank), STEPS, rows)


def write_rank(
    paths: RunPaths,
    rank: int,
    node: str = NODE,
    gpu: int | None = 0,
    uuid: str | None = None,
    address: str | None = None,
) -> None:
    """A rank's record and steps."""
    place = (rank, node, gpu, "NVIDIA H200", 0, 0, rank, 0, 1000)
    record = RankRecord(*place, pid=1, started_unix_s=90.0, gpu_uuid=uuid, pci_address=address)
    write_json(paths.rank(rank), record)
    write_steps(paths, rank)


def write_telemetry(
    paths: RunPaths,
    rows: list[Sample],
    node: str = NODE,
    name: str = "NVIDIA H200",
    gpus: int = 2,
    counted: list[Sample] | None = None,
    gpus_told: tuple[dict[str, Any], ...] | None = None,
    **changes: Any,
) -> None:
    """A node's telemetry; unless told otherwise, with counters over the short run."""
    start = TelemetryStart(
        node=node,
        source="nvidia",
        simulated=False,
        started_unix_s=98.0,
        sample_rate_hz=10.0,
        gpus=gpus_told or tuple({"name": name} for _ in range(gpus)),
        missing={},
    )
    write_json(paths.telemetry_start(node), dataclasses.replace(start, **changes))
    write_csv(paths.gpu_samples(node), GPU_SAMPLES, rows)
    counted = counters(gpus=gpus) if counted is None else counted
    write_csv(paths.gpu_counters(node), GPU_COUNTERS, counted)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A run that is covered."""
    paths = RunPaths(tmp_path)
    for rank in range(2):
        write_rank(paths, rank, gpu=rank)
    write_telemetry(paths, samples())
    return paths


def reason(paths: RunPaths, cell: Cell = CELL) -> str:
    """Why the run is invalid, which it must be: one sentence."""
    found = invalid_reason(paths, cell)
    assert found is not None
    assert found.endswith(".")
    assert "\n" not in found
    return found


def judge(paths: RunPaths, cell: Cell, *parts: str) -> None:
    """The run is covered, or else invalid for a reason that has these parts."""
    if parts:
        assert lacking(reason(paths, cell), *parts) == []
    else:
        assert invalid_reason(paths, cell) is None


#: what changes nothing for a run that is covered
COVERED: dict[str, Callable[[RunPaths], object]] = {
    "as it is": lambda p: None,
    "torn last line": lambda p: p.gpu_samples(NODE).open("a").write("105.1,0,50"),
    "just to the edges": lambda p: write_telemetry(p, samples(100.0, 103.0)),
    # Under 10 s power and counter are not compared, and no sensor is known to be frozen.
    "energy apart": lambda p: write_telemetry(p, [r | {"power_w": 300.0} for r in samples()]),
    "one power throughout": lambda p: write_telemetry(p, frozen(samples())),
    "survived errors": lambda p: write_events(p, (101.0, "xid"), (101.0, "ecc_uncorrected")),
    "lost after the steps": lambda p: write_events(p, (103.5, "lost")),
    "clocks less than a step apart": lambda p: write_steps(p, 1, offset_s=0.9),
}


@pytest.mark.parametrize("case", COVERED)
def test_a_covered_run_has_no_reason(paths, case):
    COVERED[case](paths)
    assert invalid_reason(paths, CELL) is None


def changed(rows: list[Sample], place: int, **values: Any) -> list[Sample]:
    """Rows of which one has other values."""
    rows[place] |= values
    return rows


def of_gpu_1(rows: list[Sample], **values: Any) -> list[Sample]:
    """Rows in which GPU 1 has other values."""
    return [row | values if row["gpu"] else row for row in rows]


def fail_late(paths: RunPaths) -> None:
    """The slowest rank ends its steps 0.5 s after the telemetry."""
    write_steps(paths, 1, offset_s=0.9)
    write_telemetry(paths, samples(end_s=103.4))


def lose_power(paths: RunPaths) -> None:
    """GPU 0's power is empty from 100.6 to 101.9 s."""
    rows = samples()
    for row in rows:
        if row["gpu"] == 0 and 100.5 < row["unix_time_s"] < 102.0:
            row["power_w"] = None
    write_telemetry(paths, rows)


FAULTS: dict[str, tuple[Callable[[RunPaths], object], tuple[str, ...]]] = {
    "begins late": (lambda p: write_telemetry(p, samples(100.4)), ("first power", " 0.4 s after")),
    "ends early": (lambda p: write_telemetry(p, samples(98.0, 102.5)), ("GPU 0 is 0.5 s before",)),
    "before the slowest rank": (fail_late, ("GPU 0 is 0.5 s before",)),
    "empty power": (lose_power, ("GPU 0: no power", "for 1.5 s")),
    "no power": (
        lambda p: write_telemetry(p, of_gpu_1(samples(), power_w=None)),
        ("GPU 1 has no",),
    ),
    "no telemetry": (lambda p: p.telemetry_start(NODE).unlink(), ("node01 has no",)),
    "other nodes": (
        lambda p: write_rank(p, 1, node="node02"),
        ("on 2 nodes (node01, node02), not on 1",),
    ),
    "fewer GPUs": (
        lambda p: write_telemetry(p, samples(gpus=1), gpus=1),
        ("of 2 GPUs", "1 had samples"),
    ),
    "GPU not sampled": (lambda p: write_rank(p, 1, gpu=5), ("GPU 5 trained", "only 2 were")),
    "another model": (
        lambda p: write_telemetry(p, samples(), name="NVIDIA H100 80GB HBM3"),
        ("GPU 0: 'NVIDIA H100 80GB HBM3'", "is not H200"),
    ),
    "simulated": (
        lambda p: write_telemetry(p, samples(), source="simulated", simulated=True),
        ("'simulated', not from 'nvidia'",),
    ),
    "steps missing": (lambda p: write_steps(p, 1, steps=3), ("rank1.csv holds 2 of 3",)),
    "rank missing": (lambda p: p.rank(1).unlink(), ("rank1.json is missing",)),
    "step skipped": (
        lambda p: edit(p.rank_steps(0), "\n2,measured", "\n7,measured"),
        ("rank0.csv, line 4:", "step 7, expected 2"),
    ),
    "clock of steps": (
        lambda p: edit(p.rank_steps(0), "measured,101.0", "measured,99.5"),
        ("rank0.csv, line 4:", "went backwards"),
    ),
    "clock of samples": (
        lambda p: write_telemetry(p, changed(samples(), 41, unix_time_s=99.0)),
        ("node01.csv, line 43: GPU 1:", "went backwards"),
    ),
    "energy backwards": (  # at 101 s
        lambda p: write_telemetry(p, samples(), counted=changed(counters(), 6, energy_j=12.0)),
        ("GPU 0 ran backwards",),
    ),
    "energy still": (  # read at 100, 101, 102 and 103 s
        lambda p: write_telemetry(p, samples(), counted=of_gpu_1(counters(), energy_j=1e6)),
        ("GPU 1 stood still", "3.0 s"),
    ),
    "trained on a CPU": (lambda p: write_rank(p, 1, gpu=None), ("node01 trained", " CPU")),
    "GPU lost": (lambda p: write_events(p, (102.5, "lost")), ("GPU 1 was lost", "0.5 s before")),
    # Steps take 1 s; by a clock that is 1.3 s ahead, rank 1 begins each 0.3 s after its end.
    "steps without each other": (lambda p: write_steps(p, 1, offset_s=1.3), ("step 1 0.300 s",)),
    "clock ahead from the middle on": (
        lambda p: edit(p.rank_steps(1), "102.0,,103.0", "103.01,,104.01"),
        ("step 3 0.010 s", "rank 1"),
    ),
    "not JSON": (
        lambda p: p.telemetry_start(NODE).write_text("{", encoding="utf-8"),
        ("node01.json:", "as JSON"),
    ),
    "empty": (lambda p: p.gpu_samples(NODE).write_text(""), ("node01.csv is empty",)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_its_place_and_size(paths, fault):
    do, parts = FAULTS[fault]
    do(paths)
    judge(paths, CELL, *parts)


@pytest.mark.parametrize(
    ("before", "after", "line", "part"),
    [
        ("100.0,1,500.0", "100.0,1,5xx", 43, "power_w is '5xx'"),
        ("100.0,1,500.0", "100.0,1,nan", 43, "power_w is 'nan'"),
        ("100.0,1,500.0", "100.0,1", 43, "9 fields, expected 10"),
        ("100.0,1,", "100.0,9,", 43, "no GPU 9"),
        ("100.0,1,", ",1,", 43, "no unix_time_s"),
        ("power_w", "watts", 1, "column names"),
    ],
)
def test_corruption_is_named_by_file_and_line(paths, before, after, line, part):
    edit(paths.gpu_samples(NODE), before, after)
    assert f"line {line}: " in reason(paths)
    assert part in reason(paths)


@pytest.mark.parametrize(
    ("first_s", "last_s", "covered"),
    [
        (101.0, 102.0, True),  # 1.0 s is allowed at 10 Hz
        (101.0, 102.2, False),
        (99.5, 100.7, False),  # over the start of the window
        (102.5, 103.6, False),  # over its end
        (98.2, 99.8, True),  # before it
        (103.1, 104.9, True),  # after it
    ],
)
def test_gaps(paths, first_s, last_s, covered):
    rows = [r for r in samples() if not (r["gpu"] == 1 and first_s < r["unix_time_s"] < last_s)]
    write_telemetry(paths, rows)
    gap = ("GPU 1: no power", f" for {last_s - first_s:.1f} s")
    judge(paths, CELL, *(() if covered else gap))


def test_a_clock_that_was_set_ahead_is_named(paths):
    """The sampler's deadlines go by the monotonic clock: by it no tick was late."""
    for rank in range(2):
        edit(paths.rank_steps(rank), ",103.0,", ",3703.0,")

    def ahead(rows: list[Sample]) -> list[Sample]:
        times = [row["unix_time_s"] for row in rows]
        return [
            row | {"lateness_s": 0.0, "unix_time_s": time_s + 3600.0 * (time_s > 102.0)}
            for row, time_s in zip(rows, times, strict=True)
        ]

    rows = ahead(samples())
    write_telemetry(paths, rows, counted=ahead(counters()))
    assert "for 3600.1 s" in reason(paths)
    assert reason(paths).endswith("set ahead by 3600.1 s.")
    # One that was stopped for as long was late.
    late = [row | {"lateness_s": 3600.0 * (row["unix_time_s"] > 3600)} for row in rows]
    write_csv(paths.gpu_samples(NODE), GPU_SAMPLES, late)
    assert reason(paths).endswith("1.0 s is allowed.")


@pytest.mark.parametrize(("first_s", "bridged"), [(100.5, True), (101.7, False)])
def test_the_drivers_own_samples_bridge_a_gap(paths, first_s, bridged):
    # Neither GPU is read between 100.5 and 102.3 s, but the driver sampled every 20 ms.
    write_telemetry(paths, [r for r in samples() if not 100.55 < r["unix_time_s"] < 102.25])
    rows = [
        {"driver_time_us": round((first_s + tick / 50) * 1e6), "gpu": gpu, "power_mw": 500_000}
        for gpu in range(2)
        for tick in range(round((102.3 - first_s) * 50))
    ]
    write_csv(paths.power_samples(NODE), POWER_SAMPLES, rows)
    judge(paths, CELL, *(() if bridged else ("GPU 0: no power", "for 1.2 s within")))


def test_at_low_rates_five_periods_are_allowed(paths):
    rows = [r for r in samples() if r["unix_time_s"] in (98.0, 100.4, 102.9, 105.0)]
    write_telemetry(paths, rows, sample_rate_hz=2.0)
    assert invalid_reason(paths, CELL) is None
    write_telemetry(paths, rows, sample_rate_hz=2.1)
    assert "for 2.4 s" in reason(paths)


def test_only_the_even_die_of_a_package_need_report_power(paths):
    cell = make_cell(
        source="nvidia", rate_hz=10.0, measured_steps=3, gpus_per_package=2, gpu="H200"
    )
    rows = [r | {"power_w": None} if r["gpu"] else r for r in samples()]
    # Nor is it expected to count energy, or to count it sensibly.
    counted = [r | {"energy_j": 7.0} if r["gpu"] else r for r in counters()]
    write_telemetry(paths, rows, counted=counted)
    assert invalid_reason(paths, cell) is None
    write_telemetry(paths, rows)
    assert "GPU 1 has no" in reason(paths)


def test_every_node_where_ranks_ran_must_be_covered(paths):
    cell = make_cell(ranks=2, nodes=2, source="nvidia", rate_hz=10.0, measured_steps=3)
    write_rank(paths, 1, node="node02")
    assert "node02 has no" in reason(paths, cell)
    write_telemetry(paths, samples(98.0, 101.0), node="node02")
    assert "node02.csv: " in reason(paths, cell)
    assert "GPU 0 is 2.0 s" in reason(paths, cell)
    write_telemetry(paths, samples(), node="node02")
    assert invalid_reason(paths, cell) is None


def test_the_gpu_of_a_rank_is_found_by_its_uuid(paths):
    gpus = tuple({"name": "NVIDIA H200", "uuid": f"GPU-{place}"} for place in "ab")
    write_telemetry(paths, samples(), gpus_told=gpus)
    write_rank(paths, 0, gpu=0, uuid="GPU-b")
    write_rank(paths, 1, gpu=1, uuid="GPU-A")  # of either case
    assert invalid_reason(paths, CELL) is None
    write_rank(paths, 1, gpu=1, uuid="GPU-B")
    assert "ranks 0 and 1" in reason(paths)
    assert "the same GPU, 1" in reason(paths)
    write_rank(paths, 1, gpu=1, uuid="GPU-c")
    assert "on GPU-c, " in reason(paths)


def test_without_uuids_the_gpu_of_a_rank_is_found_by_its_pci_address(paths):
    # AMD SMI lists GPUs in another order than HIP, which numbered the ranks' GPUs.
    listed = ("0000:c1:00.0", "0000:32:00.0")
    gpus = tuple({"name": "NVIDIA H200", "pci_bus_id": each} for each in listed)
    write_telemetry(paths, samples(), gpus_told=gpus)
    start = read_record(paths.telemetry_start(NODE), TelemetryStart)
    for rank, address in enumerate(("0000:32:00", "0000:c1:00")):
        write_rank(paths, rank, gpu=rank, address=address)
        record = read_record(paths.rank(rank), RankRecord)
        assert start.number_of(record) == 1 - rank
    assert invalid_reason(paths, CELL) is None
    write_rank(paths, 1, gpu=1, address="0000:32:00")
    assert "ranks 0 and 1" in reason(paths)
    assert "the same GPU, 1" in reason(paths)
    write_rank(paths, 1, gpu=1, address="0000:05:00")
    assert "at 0000:05:00, which is" in reason(paths)


@pytest.mark.parametrize("bus_id", [None, "", "N/A", "c1:00.0", "0000:c1:zz.0"])
def test_a_bus_id_of_another_form_is_no_address(bus_id):
    assert pci_address(bus_id) is None


def test_partitions_of_one_gpu_share_an_address_and_are_taken_in_order(paths):
    gpus = tuple({"name": "NVIDIA H200", "pci_bus_id": f"0000:c1:00.{i}"} for i in range(2))
    write_telemetry(paths, samples(), gpus_told=gpus)
    for rank in range(2):
        write_rank(paths, rank, gpu=rank, address="0000:c1:00")
    assert invalid_reason(paths, CELL) is None


def test_two_nodes_with_one_gpu_are_refused(tmp_path):
    # So Slurm gave them out on two emulated nodes, whose energy would have been counted twice.
    paths, cell = on_two_nodes(tmp_path)
    for rank, node in enumerate((NODE, "node02")):
        gpus = tuple({"name": "NVIDIA H200", "uuid": f"GPU-{place}"} for place in "ab")
        write_telemetry(paths, samples(), node=node, gpus_told=gpus)
        write_rank(paths, rank, node=node, uuid="GPU-a" if rank == 0 else "GPU-b")
    assert invalid_reason(paths, cell) is None
    write_rank(paths, 1, node="node02", uuid="GPU-A")  # of either case
    assert reason(paths, cell).startswith("Ranks 0 on node01 and 1")
    assert "GPU-A: " in reason(paths, cell)


def test_simulated_gpus_are_not_asked_for_their_name_and_say_nothing_of_real_ones(paths):
    cell = dataclasses.replace(CELL, telemetry=Telemetry("auto", 10.0, 0.0))
    write_telemetry(paths, samples(), name="simulated GPU", source="simulated", simulated=True)
    assert "node01 trained on GPUs" in reason(paths, cell)
    for rank in (0, 1):
        write_rank(paths, rank, gpu=None)
    assert invalid_reason(paths, cell) is None


@pytest.mark.parametrize("restarts_s", [98.5, 99.5, 103.5, 104.5])
def test_a_counter_that_restarts_outside_of_the_measured_steps_is_no_fault(paths, restarts_s):
    counted = counters()
    for row in counted:
        if row["unix_time_s"] > restarts_s:
            row["energy_j"] -= 1e6
    write_telemetry(paths, samples(), counted=counted)
    assert invalid_reason(paths, CELL) is None


@pytest.fixture
def long_run(paths: RunPaths) -> RunPaths:
    """A covered run of 30 measured seconds, telemetry from 98 to 135 s."""
    for rank in range(2):
        write_steps(paths, rank, steps=31)
    write_telemetry(paths, samples(end_s=135.0), counted=counters(end_s=135.0))
    return paths


LONG = make_cell(ranks=2, rate_hz=10.0, source="nvidia", warmup_steps=1, measured_steps=30)


@pytest.mark.parametrize(
    ("watts", "agrees"), [(500.0, True), (520.0, True), (530.0, False), (470.0, False)]
)
def test_power_and_counter_must_agree_within_5_percent(long_run, watts, agrees):
    rows = [r | {"power_w": watts} if r["gpu"] else r for r in samples(end_s=135.0)]
    write_telemetry(long_run, rows, counted=counters(end_s=135.0))
    apart = ("GPU 1 ", " 15000 J in 30.0 s", f" {watts * 30:.0f} J")
    judge(long_run, LONG, *(() if agrees else apart))


def test_counters_read_only_before_and_after_are_compared_over_that_span(long_run):
    counted = [r for r in counters(end_s=135.0) if r["unix_time_s"] in (98.0, 135.0)]
    write_telemetry(long_run, samples(end_s=135.0), counted=counted)
    assert invalid_reason(long_run, LONG) is None
    counted[2]["energy_j"] += 1000.0
    # 98 to 135 s are 37 s: 18.5 kJ, of which 1 kJ is 5.4 %.
    write_telemetry(long_run, samples(end_s=135.0), counted=counted)
    assert " 19500 J in 37.0 s" in reason(long_run, LONG)


def test_readings_that_lag_behind_a_step_of_power_are_no_fault(paths):
    # Idle at 80 W until 100 s, then 700 W. Readings are half a second late, as a mean over 1 s is.
    # The counter is read at 92 and 103 s alone: 8·80 + 3·700 = 2740 J, of which the readings lack
    # 0.5·620 = 310 J, 11 %.
    rows = [
        r | {"power_w": 80.0 if r["unix_time_s"] < 100.5 else 700.0} for r in samples(start_s=91.0)
    ]
    counted = [
        r | {"energy_j": 1e6 + (2740.0 if r["unix_time_s"] > 92 else 0.0)}
        for r in counters(start_s=92.0)
        if r["unix_time_s"] in (92.0, 103.0)
    ]
    write_telemetry(paths, rows, counted=counted)
    assert invalid_reason(paths, CELL) is None
    # 310 + 400 J are more than 5 % and the 0.6·620 = 372 J that a lag can explain.
    for row in counted:
        row["energy_j"] += 400.0 * (row["unix_time_s"] > 92)
    write_telemetry(paths, rows, counted=counted)
    assert "(372 J)" in reason(paths)


H200 = ({"name": "NVIDIA H200", "power_limit_w": 700.0, "power_limit_max_w": 700.0},) * 2


@pytest.mark.parametrize(("count", "covered"), [(8, True), (11, False)])
def test_a_reading_above_what_the_gpu_can_draw_is_no_reading(long_run, count, covered):
    # At 10 Hz, 8 readings that are none leave a gap of 0.9 s, 11 one of 1.2 s. All are of 3,700 W:
    # 11 of them add 11·0.1·3200 = 3520 J to 15 kJ.
    rows = samples(end_s=135.0)
    spikes = [row for row in rows if row["gpu"] and row["unix_time_s"] >= 110.0][:count]
    for row in spikes:
        row["power_w"] = 3700.0
    write_telemetry(long_run, rows, counted=counters(end_s=135.0), gpus_told=H200)
    judge(long_run, LONG, *(() if covered else ("GPU 1: no power", "for 1.2 s")))


def test_a_high_reading_does_not_excuse_itself(long_run):
    # 5 readings of 1,390 W, which such a GPU might draw for a moment, add 5·0.1·890 = 445 J. 530 W
    # elsewhere add 6 %, 900 J. A lag explains no more than 0.6·700 = 420 J, beside 5 % or 750 J.
    rows = [r | {"power_w": 530.0} if r["gpu"] else r for r in samples(end_s=135.0)]
    for row in [row for row in rows if row["gpu"] and row["unix_time_s"] >= 110.0][:5]:
        row["power_w"] = 1390.0
    write_telemetry(long_run, rows, counted=counters(end_s=135.0), gpus_told=H200)
    assert "(420 J)" in reason(long_run, LONG)


def test_energy_counters_that_are_not_read_must_be_known_not_to_be(long_run):
    write_telemetry(long_run, samples(end_s=135.0), counted=[])
    assert "GPU 0's energy counter" in reason(long_run, LONG)
    write_telemetry(long_run, samples(end_s=135.0), counted=[], missing={"energy_j": "too old"})
    assert invalid_reason(long_run, LONG) is None


def frozen(rows: list[Sample], power_w: float = 499.987, from_s: float = 0.0) -> list[Sample]:
    """GPU 1 with one and the same power from a time on, while its temperature goes on rising."""
    return [
        r | {"power_w": power_w, "temperature_c": 50.0 + int(r["unix_time_s"] - 98) // 10}
        if r["gpu"] and r["unix_time_s"] >= from_s
        else r
        for r in rows
    ]


@pytest.mark.parametrize(
    ("rows", "is_frozen"),
    [
        (frozen(samples(end_s=135.0)), True),
        (frozen(samples(end_s=135.0), from_s=101.0), False),  # it changed once
        (frozen(samples(end_s=135.0), power_w=500.0), False),  # whole watts, as at a power limit
        # Nothing else changes either.
        ([r | {"power_w": 499.987, "temperature_c": 35.0} for r in samples(end_s=135.0)], False),
    ],
    ids=["frozen", "changed once", "whole watts", "all still"],
)
def test_a_sensor_that_shows_one_value_throughout_is_frozen(long_run, rows, is_frozen):
    write_telemetry(long_run, rows, counted=counters(end_s=135.0))
    judge(long_run, LONG, *(("GPU 1 is 499.987 W", " 301 ") if is_frozen else ()))


def write_events(paths: RunPaths, *rows: tuple[float, str]) -> None:
    """Events of GPU 1."""
    events = [{"unix_time_s": t, "gpu": 1, "event": e, "code": 48} for t, e in rows]
    write_csv(paths.gpu_events(NODE), GPU_EVENTS, events)


TURNS = dataclasses.replace(
    CELL,
    telemetry=Telemetry("nvidia", 10.0, 0.0, interleaved_rates_hz=(0.0, 10.0), block_s=2.0),
)


def write_blocks(paths: RunPaths, *edges: tuple[float, float]) -> None:
    """Turns of rates, from one time to another."""
    rows = [{"started_unix_s": a, "ended_unix_s": b, "sample_rate_hz": 0.0} for a, b in edges]
    write_csv(paths.sampler_blocks(NODE), SAMPLER_BLOCKS, rows)


def test_where_rates_alternate_only_the_blocks_need_cover(paths):
    write_telemetry(paths, [], counted=[])
    write_blocks(paths, (99.0, 100.0), (100.0, 102.0), (102.0, 103.5))
    assert invalid_reason(paths, TURNS) is None


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([(100.5, 102.0), (102.0, 104.0)], "begins 0.5 s after"),
        ([(98.0, 100.0), (100.0, 102.0)], "ends 1.0 s before"),
        ([(98.0, 100.0), (101.2, 104.0)], "line 3: no sampling block for 1.2 s"),
        ([(98.0, 102.0), (101.0, 104.0)], "line 3: the clock"),
        ([], "no sampling block"),
    ],
)
def test_blocks_that_do_not_cover(paths, edges, message):
    write_blocks(paths, *edges)
    assert message in reason(paths, TURNS)


def test_blocks_must_cover_on_every_node(paths):
    write_blocks(paths, (98.0, 104.0))
    write_rank(paths, 1, node="node02")
    write_telemetry(paths, [], node="node02")
    cell = dataclasses.replace(TURNS, nodes=2)
    assert paths.sampler_blocks("node02").name in reason(paths, cell)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["99000000,0,1", "100000000,0,x1"], "line 3: power_mw is 'x1'"),
        (["99000000,0,1", "100000000,0,"], "line 3: the row has no power_mw"),
        (["99000000,0,1", "99000000,1,1", "98000000,0,1"], "line 4: GPU 0: "),
        (["99000000,0"], "line 2: 2 fields"),
        (["99000000,0,1", "torn"], None),
    ],
)
def test_damage_of_the_drivers_samples_is_found_although_no_gap_needs_them(paths, lines, expected):
    path = paths.power_samples(NODE)
    end = "" if expected is None else "\n"
    path.write_text("\n".join(["driver_time_us,gpu,power_mw", *lines]) + end, encoding="utf-8")
    if expected is None:
        assert invalid_reason(paths, CELL) is None
    else:
        assert reason(paths).startswith(f"{path}, {expected}")


def test_damage_of_the_hosts_samples_is_found(paths):
    path = paths.host_samples(NODE)
    empty = "," * (len(HOST_SAMPLES) - 1)
    header = ",".join(column.name for column in HOST_SAMPLES)
    path.write_text(f"{header}\n99.0{empty}\n98.0{empty}\n", encoding="utf-8")
    assert reason(paths).startswith(f"{path}, line 3: ")
    path.write_text(f"{header}\n{empty}\n", encoding="utf-8")
    assert reason(paths).startswith(f"{path}, line 2: ")
    path.write_text(f"{header}\n98.0{empty}\n99.0{empty}\n", encoding="utf-8")
    assert invalid_reason(paths, CELL) is None


def test_an_hour_of_eight_gpus_is_checked_in_little_memory(paths):
    # A tenth of an hour's rows are written; memory must not grow with them at all.
    counted = counters(98.0, 98.0 + 360, gpus=8)
    write_telemetry(paths, samples(98.0, 98.0 + 360, gpus=8), gpus=8, counted=counted)
    del counted
    tracemalloc.start()
    assert invalid_reason(paths, CELL) is None
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert paths.gpu_samples(NODE).stat().st_size > 600_000
    assert peak_bytes < 300_000


# ------------------------------------------------------------------------------ clocks of ranks


def test_replicas_that_generate_need_not_be_in_the_same_step(paths):
    training = dataclasses.replace(CELL.training, workload="inference")
    cell = dataclasses.replace(CELL, training=training)
    write_steps(paths, 1, offset_s=1.3)
    assert invalid_reason(paths, cell) is None
    # Ranks of one replica must.
    record = read_record(paths.rank(1), RankRecord)
    write_json(paths.rank(1), dataclasses.replace(record, dp_rank=0, tp_rank=1))
    assert "ended step 1 0.300 s before" in reason(paths, cell)


# -------------------------------------------------------- telemetry under another run's name


def rewrite(path: Path, kind: type[Any], **changes: Any) -> None:
    """Change some keys of a record."""
    write_json(path, dataclasses.replace(read_record(path, kind), **changes))


@pytest.fixture
def signed(paths) -> RunPaths:
    """A run whose sampler and ranks say in which job and on which start of the node they ran."""
    for rank in range(2):
        rewrite(paths.rank(rank), RankRecord, job_id="41", boot_id="aa")
    rewrite(paths.telemetry_start(NODE), TelemetryStart, job_id="41", boot_id="aa")
    assert invalid_reason(paths, CELL) is None
    return paths


@pytest.mark.parametrize(
    ("of_rank", "changes", "said"),
    [
        (False, {"job_id": "40"}, ("job 40", "rank 0 ", "job 41")),
        (False, {"boot_id": "bb"}, ("boot id bb", "rank 0 ", "boot id aa")),
        (False, {"node": "node02"}, ("node 'node02'",)),
        (True, {"job_id": "40"}, ("rank 1 ", "job 40")),
    ],
)
def test_telemetry_or_a_rank_of_another_run_is_refused(signed, of_rank, changes, said):
    if of_rank:
        rewrite(signed.rank(1), RankRecord, **changes)
    else:
        rewrite(signed.telemetry_start(NODE), TelemetryStart, **changes)
    judge(signed, CELL, *said)


def test_runs_of_earlier_versions_say_nothing_of_it_and_pass(signed):
    rewrite(signed.rank(1), RankRecord, job_id=None, boot_id=None)
    assert invalid_reason(signed, CELL) is None
    rewrite(signed.telemetry_start(NODE), TelemetryStart, job_id=None, boot_id=None)
    assert invalid_reason(signed, CELL) is None


def ahead(paths: RunPaths, node: str, ahead_s: float, error_s: float = 0.0) -> None:
    """A node's clock, which was as far ahead before the steps as after them."""
    readings = [ClockReading(time_s, ahead_s, error_s) for time_s in (90.0, 110.0)]
    write_json(paths.clock(node), NodeClock(node, *readings))


def on_two_nodes(directory: Path) -> tuple[RunPaths, Cell]:
    """A run of one rank on each of two nodes."""
    paths = RunPaths(directory)
    cell = make_cell(
        ranks=2, nodes=2, rate_hz=10.0, source="nvidia", warmup_steps=1, measured_steps=3
    )
    for rank, node in enumerate((NODE, "node02")):
        write_rank(paths, rank, node=node, gpu=0)
        write_telemetry(paths, samples(), node=node)
    return paths, cell


def test_steps_are_compared_by_corrected_clocks(tmp_path):
    """The clock of node02 is 1.3 s ahead; the job knew so, or not."""
    paths, cell = on_two_nodes(tmp_path)
    write_steps(paths, 1, offset_s=1.3)
    ahead(paths, NODE, 0.0)
    ahead(paths, "node02", 1.3, error_s=0.001)
    assert invalid_reason(paths, cell) is None
    ahead(paths, "node02", 0.0, error_s=0.001)
    assert "step 1 0.300 s before" in reason(paths, cell)
    # Corrected, half a millisecond is left, which the job could not tell; or three.
    ahead(paths, "node02", 0.2995, error_s=0.001)
    assert invalid_reason(paths, cell) is None
    ahead(paths, "node02", 0.297, error_s=0.001)
    assert "ended step 1 0.003 s before" in reason(paths, cell)


def test_a_clock_whose_comparison_was_lost_is_named(tmp_path):
    paths, cell = on_two_nodes(tmp_path)
    # Earlier versions compared no clocks.
    assert invalid_reason(paths, cell) is None
    found = Precisions("fp32")
    for rank in range(2):
        rewrite(paths.rank(rank), RankRecord, precisions=found)
    ahead(paths, NODE, 0.0)
    assert paths.clock("node02").name in reason(paths, cell)
    ahead(paths, "node02", 0.0)
    assert invalid_reason(paths, cell) is None


def test_events_that_are_no_regular_file_are_named_and_hide_no_fault(tmp_path):
    run = RunPaths(tmp_path)
    run.gpu_events("node1").mkdir(parents=True)
    row = {"unix_time_s": 1.0, "gpu": 0, "event": "lost", "code": None}
    write_csv(run.gpu_events("node2"), GPU_EVENTS, [row])
    (fault,), (damaged,) = gpu_faults.find(run)
    assert (fault.node, fault.gpu) == ("node2", 0)
    assert str(run.gpu_events("node1")) in damaged
