"""Eight real H200 under load, reduced as a run: see tests/data/README.md.

The load lasts from about 14 to 63 s of the recording's 65. The run made of it has steps of 4 s, and
is measured from 40 to 60 s.
"""

from __future__ import annotations

import csv
from itertools import pairwise
from typing import Any

import pytest

from workflow_lib.records.contract import RankRecord
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.nodes import TelemetryStart
from workflow_lib.records.outcomes import Outcome, OutcomeRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.telemetry_columns import GPU_COUNTERS, GPU_SAMPLES
from workflow_lib.records.whole_files import write_json
from workflow_lib.telemetry.validity.coverage import invalid_reason

from .synthetic_run import START, assert_null, cell, write_csv, write_steps
from .synthetic_run import summary as reduced
from .test_metrics import COUNTERS_J, RECORDING

FRONT, REAR = (0, 3, 4, 7), (1, 2, 5, 6)
WARMUP_STEPS, MEASURED_STEPS, STEP_S = 5, 5, 4.0


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The recording as a run, which must be valid, reduced."""
    with RECORDING.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    began, ended = float(rows[0]["unix_time_s"]), float(rows[-1]["unix_time_s"])
    steps = WARMUP_STEPS + MEASURED_STEPS
    of_recording = cell(
        degrees=Degrees(dp=8),
        global_batch_size=8,
        warmup_steps=WARMUP_STEPS,
        measured_steps=MEASURED_STEPS,
        gpus_per_node=8,
        airflow=tuple("front" if gpu in FRONT else "rear" for gpu in range(8)),
    )
    paths = RunPaths(tmp_path_factory.mktemp("recording") / "run1")
    write_json(paths.cell, of_recording)
    done = OutcomeRecord(Outcome.COMPLETED, "trained", "1", ("n",), None, None, None, False)
    write_json(paths.outcome, done)
    gpus = tuple({"name": "NVIDIA H200"} for _ in range(8))
    start = TelemetryStart("n", "nvidia", False, began, 10, gpus, {})
    write_json(paths.telemetry_start("n"), start)
    samples = [
        {
            **{name: row[name] for name in ("unix_time_s", "gpu", "temperature_c", "sm_clock_mhz")},
            "power_w": int(row["power_mw"]) / 1000,
            "event_reasons": row["clocks_event_reasons"],
        }
        for row in rows
    ]
    write_csv(paths.gpu_samples("n"), GPU_SAMPLES, samples)
    counted = [
        {"unix_time_s": at, "gpu": gpu, "energy_j": 1e6 + share * COUNTERS_J[gpu]}
        for at, share in ((began, 0), (ended, 1))
        for gpu in range(8)
    ]
    write_csv(paths.gpu_counters("n"), GPU_COUNTERS, counted)
    edges_s = [began - START + 40 + STEP_S * (step - WARMUP_STEPS) for step in range(steps + 1)]
    write_steps(paths, list(pairwise(edges_s)), 8, WARMUP_STEPS, tokens=16)
    for rank in range(8):
        place = RankRecord(rank, "n", rank, dp_rank=rank, pid=1, started_unix_s=START + edges_s[0])
        write_json(paths.rank(rank), place)
    assert invalid_reason(paths, of_recording) is None
    return reduced(paths)


def test_counters_read_65_s_apart_say_little_of_the_20_s_in_between(summary):
    assert {gpu["energy_source"] for gpu in summary["gpus"]} == {"integral"}
    for name in ("energy_difference", "energy_error_share"):
        assert_null(summary["run"], name, "counter_off_edges")


def test_every_gpu_is_at_its_power_cap(summary):
    assert summary["run"]["throttle_power_share"] == 1.0
    assert summary["run"]["throttle_thermal_share"] == 0.0
    for gpu in summary["gpus"]:
        assert gpu["throttle_source"] == "events"
        assert gpu["throttle_power_sampled_share"] == 1.0
        # Of 1980 MHz without the cap.
        assert 1440 < gpu["sm_clock_mean_mhz"] < 1510
        # 689.5 W on GPU 0: during an all-reduce a GPU draws less.
        assert gpu["power_mean_w"] == pytest.approx(690, abs=5)


def test_the_rear_is_hotter_than_the_front(summary):
    mean_c = [gpu["temperature_mean_c"] for gpu in summary["gpus"]]
    # Means of the rows from 40 to 60 s, by hand with awk.
    by_hand = [58.525, 63.075, 63.955, 58.770, 56.940, 64.815, 65.075, 58.035]
    assert mean_c == pytest.approx(by_hand, abs=0.05)
    assert max(mean_c[gpu] for gpu in FRONT) + 4 < min(mean_c[gpu] for gpu in REAR)
    assert [gpu["airflow"] for gpu in summary["gpus"]][:3] == ["front", "rear", "rear"]
    assert summary["run"]["temperature_spread_c"] == pytest.approx(8, abs=0.5)
