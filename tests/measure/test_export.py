"""Runs for other programs: a timeline, and metrics."""

from __future__ import annotations

import gzip
import json
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.test_metrics import parsed
from workflow_lib.audit import Clock, DamagedError
from workflow_lib.measure import export
from workflow_lib.records.paths import RunPaths


def extracted(archive: str, run: str, directory: Path) -> Path:
    """The files of a run of the evidence."""
    with zipfile.ZipFile(ROOT / "evidence" / archive) as file:
        for name in file.namelist():
            _, found, rest = name.partition(f"{run}/")
            if found and not name.endswith("/"):
                path = directory / "run" / rest
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(file.read(name))
    return directory / "run"


def timeline(run: Path, output: Path) -> list[dict[str, Any]]:
    assert export.main([str(run), "--to", "perfetto", "--output", str(output)]) == 0
    content = output.read_bytes()
    events = json.loads(gzip.decompress(content) if output.suffix == ".gz" else content)
    found: list[dict[str, Any]] = events["traceEvents"]
    return found


def test_a_measured_command_has_steps_and_readings_on_one_axis(tmp_path):
    run = extracted("measured/trainers-h100x2.zip", "megatron-2", tmp_path)
    events = timeline(run, tmp_path / "timeline.json.gz")
    steps = [e for e in events if e["ph"] == "X"]
    # 200 calls of each of two ranks, and 199 steps that the hook saw
    assert len(steps) == 2 * 200 + 2 * 199
    first, last = min(e["ts"] for e in steps), max(e["ts"] + e["dur"] for e in steps)
    power = [e for e in events if e["name"] == "GPU 1 power, W" and first < e["ts"] < last]
    watts = sum(e["args"]["value"] for e in power) / len(power)
    record = json.loads((run / "measured.json").read_text())
    assert watts == pytest.approx(record["gpus"][1]["power_mean_w"], rel=0.05)
    names = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert {"vm", "rank0", "rank1", "hook-rank0"} <= names


@pytest.mark.slow
def test_kernels_of_a_profiled_run_lie_in_its_steps(tmp_path):
    run = extracted("evidence-fp8-h100x1.zip", "e99a5485/run0", tmp_path)
    events = timeline(run, tmp_path / "timeline.json")
    slices = [e for e in events if e["ph"] == "X"]
    steps = [e for e in slices if e["name"].startswith("step ")]
    kernels = [e for e in slices if e["tid"] >= 1_000]
    begin, end = min(e["ts"] for e in steps), max(e["ts"] + e["dur"] for e in steps)
    assert len(kernels) > 1_000
    assert all(begin < e["ts"] and e["ts"] + e["dur"] < end + 1e3 for e in kernels)


def test_metrics_follow_the_grammar_and_have_the_values(tmp_path):
    run = extracted("measured/trainers-h100x2.zip", "megatron-1", tmp_path)
    output = tmp_path / "run.prom"
    assert export.main([str(run), "--to", "openmetrics", "--output", str(output)]) == 0
    found = parsed(output.read_text())
    record = json.loads((run / "measured.json").read_text())
    (energy_j,) = (v for (name, _), v in found.items() if name == "triptych_run_energy_joules")
    assert energy_j == record["values"]["energy_j"]
    uuids = {dict(labels).get("uuid") for _, labels in found} - {None}
    assert uuids == {record["gpus"][0]["uuid"]}


def test_what_is_not_known_is_absent(tmp_path):
    run = extracted("measured/trainers-h100x2.zip", "megatron-1", tmp_path)
    record = json.loads((run / "measured.json").read_text())
    del record["values"]["energy_per_token_j"]
    record["gpus"][0]["power_mean_w"] = None
    record["invalid"] = ["telemetry/vm.csv: no power"]
    (run / "measured.json").write_text(json.dumps(record))
    found = {name: value for (name, _), value in parsed(export.openmetrics(run)).items()}
    assert found["triptych_run_valid"] == 0
    assert not {"triptych_run_token_joules", "triptych_run_gpu_power_watts"} & found.keys()


def test_a_row_a_step_has_the_power_of_all_gpus(tmp_path):
    run = extracted("measured/trainers-h100x2.zip", "transformers-2", tmp_path)
    output = tmp_path / "rows.jsonl"
    assert export.main([str(run), "--to", "rows", "--output", str(output)]) == 0
    found = [json.loads(line) for line in output.read_text().splitlines()][3:]
    record = json.loads((run / "measured.json").read_text())
    assert len(found) == record["values"]["counted_steps"]
    powers = [row["power_w"] for row in found if row["power_w"] is not None]
    assert len(powers) > 150
    mean_w = sum(powers) / len(powers)
    assert mean_w == pytest.approx(record["values"]["power_mean_w"], rel=0.02)
    # Of both ranks, as the energy is of both GPUs.
    assert {row["tokens"] for row in found} == {2 * 8192}
    assert record["values"]["energy_per_token_j"] == pytest.approx(
        record["values"]["energy_per_step_j"] / found[0]["tokens"]
    )


def test_tokens_of_a_row_are_told_by_the_cell_the_command_line_or_all_ranks(tmp_path):
    run = RunPaths(tmp_path)
    run.steps.mkdir()
    for rank, tokens in ((0, ("8", "8")), (1, ("8", ""))):
        lines = [f"{n},measured,{n}.0,{n + 1}.0,{told}\n" for n, told in enumerate(tokens)]
        head = "step,phase,started_unix_s,ended_unix_s,tokens\n"
        (run.steps / f"rank{rank}.csv").write_text(head + "".join(lines))
    cell = {"training": {"global_batch_size": 3}, "model": {"sequence_length": 4}}
    for name, record, expected in (
        ("measured.json", {"tokens_per_step": None}, [16, None]),
        ("measured.json", {"tokens_per_step": 20}, [20, 20]),
        ("cell.json", cell, [12, 12]),
    ):
        (tmp_path / name).write_text(json.dumps(record))
        rows = [json.loads(line) for line in export.rows(tmp_path).splitlines()]
        assert [row["tokens"] for row in rows] == expected


def test_a_step_between_two_readings_has_no_power():
    columns = ("unix_time_s", "gpu", "power_w", "temperature_c")
    rows = [(1, 0, 300, 50), (1, 1, 200, 60), (2, 0, 310, 51), (2, 1, "", 61)]
    read = [dict(zip(columns, map(str, row), strict=True)) for row in rows]
    readings = export.NodeReadings(read, Clock(None))
    assert readings.between(0.5, 1.5) == (500.0, [50.0, 60.0])
    assert readings.between(1.2, 1.8) == (None, [])
    # GPU 1 did not tell.
    assert readings.between(1.5, 2.5) == (None, [51.0, 61.0])


def test_the_power_in_a_step_is_that_of_its_time_on_every_node(tmp_path):
    run = RunPaths(tmp_path)
    run.steps.mkdir()
    run.telemetry.mkdir()
    (run.steps / "rank0.csv").write_text(
        "step,started_unix_s,ended_unix_s,tokens\n0,10,12,8\n1,12,14,8\n"
    )
    compared = {"ahead_s": 2.0, "error_s": 0.0}
    clock = {name: {**compared, "unix_time_s": at} for name, at in (("before", 0), ("after", 20))}
    (run.steps / "clock-n2.json").write_text(json.dumps(clock))
    for node, ahead_s in (("n1", 0), ("n2", 2)):
        (run.telemetry / f"{node}.json").write_text("{}")
        lines = [f"{at + ahead_s}.5,0,{100 if at < 12 else 300},50\n" for at in range(10, 14)]
        head = "unix_time_s,gpu,power_w,temperature_c\n"
        (run.telemetry / f"{node}.csv").write_text(head + "".join(lines))
    rows = [json.loads(line) for line in export.rows(tmp_path).splitlines()]
    # n2's clock is 2 s, a whole step, ahead.
    assert [row["power_w"] for row in rows] == [200, 600]


def test_power_for_grids_is_that_of_a_gpu_over_the_measured_steps(tmp_path):
    run = extracted("measured/trainers-h100x2.zip", "megatron-2", tmp_path)
    output = tmp_path / "power.csv"
    assert export.main([str(run), "--to", "openg2g", "--output", str(output)]) == 0
    head, *lines = output.read_text().splitlines()
    assert head == "t_s,power_W"
    times, watts = zip(*(map(float, line.split(",")) for line in lines), strict=True)
    values = json.loads((run / "measured.json").read_text())["values"]
    assert times[0] == 0
    assert times[-1] == pytest.approx(values["measured_duration_s"], abs=0.1)
    assert {round(b - a, 1) for a, b in pairwise(times)} == {0.1}
    # of one of two GPUs
    assert sum(watts) / len(watts) == pytest.approx(values["power_mean_w"] / 2, rel=0.01)


def test_power_for_grids_needs_samples_of_the_driver(tmp_path, capsys):
    run = extracted("measured/trainers-h100x2.zip", "megatron-2", tmp_path)
    (run / "telemetry" / "vm-power.csv").unlink()
    with pytest.raises(SystemExit):
        export.main([str(run), "--to", "openg2g", "--output", str(tmp_path / "power.csv")])
    assert "driver" in capsys.readouterr().err
    assert not (tmp_path / "power.csv").exists()


def test_simulated_readings_say_so_in_every_format(tmp_path):
    run = extracted("measured/trainers-h100x2.zip", "megatron-2", tmp_path)
    for name in ("measured.json", "telemetry/vm.json"):
        record = json.loads((run / name).read_text())
        (run / name).write_text(json.dumps({**record, "simulated": True}))
    counters = {e["name"] for e in timeline(run, tmp_path / "t.json") if e["ph"] == "C"}
    assert all(name.endswith("(simulated)") for name in counters)
    rows = [json.loads(line) for line in export.rows(run).splitlines()]
    assert {row["simulated"] for row in rows} == {True}
    assert [row["warmup"] for row in rows[:4]] == [True, True, True, False]
    assert 'simulated="true"' in export.openmetrics(run)
    with pytest.raises(DamagedError, match="simulated"):
        export.openg2g(run)


@pytest.mark.parametrize("to", export.FORMATS)
def test_a_directory_without_a_run_is_refused(tmp_path, to):
    with pytest.raises(SystemExit) as ended:
        export.main([str(tmp_path), "--to", to, "--output", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert not (tmp_path / "out").exists()
