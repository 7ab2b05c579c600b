"""A run of a trainer that leaves only what docs/reference/contract.md requires.

Two ranks on one node, two steps of warm-up and four measured ones, each 2 s long and one after the
other, from 100 s on. Each rank trains on 32 tokens of its own in a step. From 95 to 115 s GPU 0
draws 300 W and GPU 1 500 W. All files are written as text, as another program would.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from tests.analysis.synthetic_run import assert_null, codes, write_csv
from tests.telemetry.cells import NODE, make_cell
from tests.texts import edit
from workflow_lib.analysis.reduce import reduced_run
from workflow_lib.launch.outcome import classify
from workflow_lib.records.contract import STEPS, STEPS_REQUIRED, RankRecord
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import Outcome
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.records.telemetry_columns import (
    GPU_COUNTERS,
    GPU_EVENTS,
    GPU_SAMPLES,
    HOST_SAMPLES,
)
from workflow_lib.records.whole_files import write_json

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "contract.md"
#: each GPU's power in W
POWER_W = (300, 500)
UUIDS = ("GPU-aaaa", "GPU-bbbb")


def foreign_run(directory: Path, source: str) -> RunPaths:
    """The run's directory; ``source`` is the sampler's: simulated, or nvidia with UUIDs."""
    paths = RunPaths(directory / "run1")
    on_gpus = source == "nvidia"
    cell = make_cell(source=source, rate_hz=10.0, warmup_steps=2, measured_steps=4)
    write_json(paths.cell, cell)
    paths.steps.mkdir(parents=True)
    paths.telemetry.mkdir()
    for rank in (0, 1):
        uuid = f', "gpu_uuid": "{UUIDS[rank]}"' if on_gpus else ""
        paths.rank(rank).write_text(
            f'{{"rank": {rank}, "node": "{NODE}", "pid": 4{rank}, "started_unix_s": 97{uuid}}}'
        )
        lines = ["step,phase,started_unix_s,ended_unix_s,tokens"]
        lines += [
            f"{step},{'warmup' if step < 2 else 'measured'},{100 + 2 * step},{102 + 2 * step},32"
            for step in range(6)
        ]
        paths.rank_steps(rank).write_text("\n".join(lines) + "\n")
    gpus = [
        {"name": "NVIDIA H200" if on_gpus else "simulated", "uuid": uuid if on_gpus else None}
        for uuid in reversed(UUIDS)  # the sampler counts the GPUs the other way round
    ]
    start = {
        **{"node": NODE, "source": source, "simulated": not on_gpus, "started_unix_s": 95.0},
        **{"sample_rate_hz": 10.0, "gpus": gpus, "missing": {}},
    }
    paths.telemetry_start(NODE).write_text(json.dumps(start))
    power_w = tuple(reversed(POWER_W))
    samples = [
        {"unix_time_s": 95 + tick / 10, "gpu": gpu, "power_w": power_w[gpu], "temperature_c": 60}
        for tick in range(201)
        for gpu in (0, 1)
    ]
    write_csv(paths.gpu_samples(NODE), GPU_SAMPLES, samples)
    energies = [
        {"unix_time_s": 95 + second, "gpu": gpu, "energy_j": 1e6 + power_w[gpu] * second}
        for second in range(21)
        for gpu in (0, 1)
    ]
    write_csv(paths.gpu_counters(NODE), GPU_COUNTERS, energies)
    write_csv(paths.host_samples(NODE), HOST_SAMPLES, [{"unix_time_s": 95}, {"unix_time_s": 115}])
    write_csv(paths.gpu_events(NODE), GPU_EVENTS, [])
    ended = {
        **{"job_id": "7", "nodes": [NODE], "started_unix_s": 94.0, "ended_unix_s": 116.0},
        **{"training_exit_code": 0, "telemetry_exit_code": 0, "failed_stage": None},
        "script_sha256": "",
    }
    paths.ended.write_text(json.dumps(ended))
    return paths


def judged_and_reduced(paths: RunPaths):
    """The summary and the rows of steps of a run, once its outcome is recorded."""
    write_json(paths.outcome, classify(paths, None))
    return reduced_run(paths, 1)


#: 2 s a step; 2 · 32 tokens each over 2 s; 300 W + 500 W over 8 s, for 4 · 64 tokens
BY_HAND = {
    "outcome": "completed",
    "counted_steps": 4,
    "measured_duration_s": 8.0,
    "step_time_s": 2.0,
    "tokens_per_s": 32.0,
    "tokens_per_s_per_gpu": 16.0,
    "power_mean_w": 800.0,
    "power_peak_w": 500.0,
    "energy_j": 6400.0,
    "energy_per_token_j": 25.0,
    "energy_per_step_j": 1600.0,
    "temperature_mean_c": 60.0,
}
#: what such a trainer does not tell, by the sampler's source, with the code
NOT_TOLD_ANYWHERE = {"loss_first": "loss_not_recorded", "loss_last": "loss_not_recorded"}
ALLOCATOR = ("allocator", "allocator_retries", "allocator_frees", "memory_pressure")
NULL = {
    "nvidia": {
        **dict.fromkeys(ALLOCATOR, "not_told"),
        "memory_peak_bytes": "memory_not_recorded",
        "memory_used_peak_bytes": "gpu_memory_not_recorded",
        "mfu_causal": "peak_unknown",
    },
    "simulated": {
        **dict.fromkeys(ALLOCATOR, "cpu_has_no_gpu_allocator"),
        "memory_used_peak_bytes": "cpu_memory_not_counted",
        "mfu_causal": "cpu_peak_unknown",
    },
}


@pytest.mark.parametrize("source", ["simulated", "nvidia"])
def test_a_run_with_no_more_than_what_is_required_is_judged_and_reduced(tmp_path, source):
    reduced = judged_and_reduced(foreign_run(tmp_path, source))
    run = reduced.summary["run"]
    assert {name: run[name] for name in BY_HAND} == pytest.approx(BY_HAND)
    assert reduced.steps["tokens"].to_list() == [64] * 6
    assert all(run[name] is None for name in codes(run))
    expected = NOT_TOLD_ANYWHERE | NULL[source]
    assert {name: codes(run)[name] for name in expected} == expected
    assert_null(run, "loss_last", "loss_not_recorded", "step 5")
    # The platform names its GPU, and the sampler's name agrees; no rank names its device.
    assert_null(run, "mfu_causal", NULL[source]["mfu_causal"])
    if source == "nvidia":
        powers = {gpu["gpu_uuid"]: gpu["power_mean_w"] for gpu in reduced.summary["gpus"]}
        assert powers == pytest.approx(dict(zip(UUIDS, POWER_W, strict=True)))


def test_a_gpu_that_was_not_sampled_makes_telemetry_invalid(tmp_path):
    paths = foreign_run(tmp_path, "nvidia")
    edit(paths.rank(0), "aaaa", "cccc")
    ended = classify(paths, None)
    assert ended.outcome is Outcome.TELEMETRY_INVALID
    assert "GPU-cccc" in ended.cause


@pytest.mark.parametrize("name", ["rank", "node", "pid", "started_unix_s"])
def test_a_rank_without_a_required_field_is_refused(tmp_path, name):
    paths = foreign_run(tmp_path, "simulated")
    plain = json.loads(paths.rank(0).read_text())
    del plain[name]
    paths.rank(0).write_text(json.dumps(plain))
    with pytest.raises(RecordError, match=f"'{name}'"):
        read_record(paths.rank(0), RankRecord)


@pytest.mark.parametrize("name", STEPS_REQUIRED)
def test_steps_without_a_required_column_make_telemetry_invalid(tmp_path, name):
    paths = foreign_run(tmp_path, "simulated")
    edit(paths.rank_steps(1), name, "other")
    assert classify(paths, None).outcome is Outcome.TELEMETRY_INVALID


def test_the_page_names_each_field_and_says_which_are_required():
    rows = dict(re.findall(r"^\| `(\w+)` \|[^|]*\| (yes|no)", PAGE.read_text(), re.MULTILINE))
    record = {field.name: "no" if field.default is None else "yes" for field in fields(RankRecord)}
    steps = {column.name: "no" if column.later else "yes" for column in STEPS}
    assert rows == record | steps
