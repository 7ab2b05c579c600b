"""The page of commands that were measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from workflow_lib.records.telemetry_columns import GPU_SAMPLES
from workflow_lib.report import __main__ as command

VALUES = {"counted_steps": 37, "step_time_s": 0.45961, "energy_j": 11691.6, "power_mean_w": 687.3}
GPU = {"uuid": "GPU-1", "name": "H100 <b>", "power_mean_w": 687.9, "sm_clock_mean_mhz": None} | {
    "temperature_mean_c": 67.4,
    "temperature_max_c": 72.0,
    "throttle_shares": {"throttle_power_cap_s": 0.5, "throttle_sw_thermal_s": 0.0},
}


def write_run(directory: Path, **changed: Any) -> Path:
    """A run on two GPUs, whose steps that count are its seconds 1 to 3."""
    (directory / "telemetry").mkdir(parents=True)
    record = {
        "program": "train<script>",
        "started_unix_s": 100.0,
        "exit_code": 0,
        "rung": 3,
        "simulated": False,
        "values": VALUES,
        "missing": {"tokens_per_s": "tokens_not_told"},
        "invalid": [],
        "nodes": ["n1"],
        "gpus": [{"node": "n1", "gpu": 0, **GPU}, {"node": "n1", "gpu": 1, **GPU}],
        "window_unix_s": [101.0, 103.0],
    }
    (directory / "measured.json").write_text(json.dumps({**record, **changed}), encoding="utf-8")
    head = [column.name for column in GPU_SAMPLES]
    blank = "," * (len(head) - 4)
    rows = [f"{100 + s},{gpu},{600 + s},{50 + s}{blank}\n" for s in range(5) for gpu in (0, 1)]
    text = ",".join(head) + "\n" + "".join(rows) + "104.9,0,6"  # the last line is torn
    (directory / "telemetry/n1.csv").write_text(text, encoding="ascii")
    return directory


def page_of(tmp_path: Path, *runs: Path) -> str:
    page = tmp_path / "page.html"
    assert command.main([*map(str, runs), "--output", str(page)]) == 0
    return page.read_text(encoding="utf-8")


def test_a_run_has_its_values_its_gpus_and_a_figure(tmp_path):
    text = page_of(tmp_path, write_run(tmp_path / "run"))
    for shown in (
        ">37<",
        ">0.4596<",
        ">11,692<",
        "tokens not told",
        "power cap 50.0 %",
        "n1, GPU 1",
    ):
        assert shown in text
    assert text.count("<svg") == 1
    assert "Temperature (°C)" in text
    assert "SIMULATED" not in text


def test_texts_of_others_are_no_elements(tmp_path):
    text = page_of(tmp_path, write_run(tmp_path / "<i>run"))
    assert "<script>" not in text
    assert "H100 <b>" not in text
    assert "<i>run" not in text


def test_what_does_not_hold_is_on_the_page(tmp_path):
    runs = [write_run(tmp_path / "a", rung=1, invalid=["gap of 3 s"], values={}, exit_code=9)]
    runs.append(write_run(tmp_path / "b", simulated=True))
    text = page_of(tmp_path, *runs)
    for shown in ("gap of 3 s", "exit code 9", "rungs 1, 3", "SIMULATED"):
        assert shown in text


def test_a_run_without_readings_has_no_figure(tmp_path):
    run = write_run(tmp_path / "run", nodes=[], gpus=[], window_unix_s=None)
    assert "<svg" not in page_of(tmp_path, run)


def test_a_directory_may_have_the_name_of_a_command(tmp_path, monkeypatch):
    write_run(tmp_path / "page")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        command.main(["page", "--output", "page.html"])
    assert command.main(["measured", "page", "--output", "page.html"]) == 0


@pytest.mark.parametrize("content", [None, "[1]", "{}"])
def test_what_is_no_record_is_refused(tmp_path, capsys, content):
    if content is not None:
        (tmp_path / "measured.json").write_text(content, encoding="utf-8")
    assert command.main([str(tmp_path), "--output", str(tmp_path / "page.html")]) == 1
    assert "measured.json" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()
