"""Recordings of nvidia-smi become runs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from workflow_lib import audit
from workflow_lib.measure import ingest

HEAD = "timestamp, index, uuid, name, power.draw [W], temperature.gpu, clocks.current.sm [MHz]\n"


def line(second: float, gpu: int, power: str = "") -> str:
    """GPU 0 draws 100 W and 2 W more each second, GPU 1 a constant 300 W."""
    watts = power or f"{100 + 2 * second if gpu == 0 else 300:.2f} W"
    minute, rest = divmod(second, 60)
    at = f"2026/11/27 10:{30 + minute:02.0f}:{rest:06.3f}"
    return f"{at}, {gpu}, GPU-{gpu}, NVIDIA H100, {watts}, {50 + gpu}, 1980 MHz\n"


def lines(seconds: int = 100) -> list[str]:
    return [line(half / 2, gpu) for half in range(2 * seconds + 1) for gpu in (0, 1)]


def ingested(tmp_path: Path, content: str, *options: str) -> dict[str, Any]:
    (tmp_path / "smi.csv").write_text(content, encoding="utf-8")
    run = tmp_path / "run"
    assert ingest.main([str(tmp_path / "smi.csv"), "--output", str(run), *options]) == 0
    record: dict[str, Any] = json.loads((run / "measured.json").read_bytes())
    return record


def test_energy_is_the_integral_of_both_gpus(tmp_path):
    record = ingested(tmp_path, HEAD + "".join(lines()), "--tokens", "1000")
    # 100 s: a mean of 200 W, and 300 W.
    assert record["values"]["energy_j"] == pytest.approx(50_000)
    assert record["values"]["energy_per_token_j"] == pytest.approx(50)
    assert record["values"]["measured_duration_s"] == pytest.approx(100)
    assert (record["invalid"], record["rung"], record["simulated"]) == ([], 0, False)
    assert record["missing"]["step_time_s"] == "steps_not_seen"
    assert [gpu["uuid"] for gpu in record["gpus"]] == ["GPU-0", "GPU-1"]
    assert [gpu["throttle_shares"] for gpu in record["gpus"]] == [{}, {}]
    assert audit.main([str(tmp_path / "run")]) == 0


def test_a_part_of_it_counts(tmp_path):
    options = ("--from", "2026/11/27 10:30:10", "--until", "2026/11/27 10:30:20.5")
    record = ingested(tmp_path, HEAD + "".join(lines()), *options)
    # From 10 to 20.5 s: 100 W and 2 W/s × 15.25 s on average, and 300 W.
    assert record["values"]["energy_j"] == pytest.approx(10.5 * (100 + 2 * 15.25 + 300))


def test_units_may_be_left_out_and_the_last_line_torn(tmp_path):
    bare = "".join(lines(10)).replace(" W,", ",").replace(" MHz", "")
    record = ingested(tmp_path, HEAD + bare + "2026/11/27 10:3")
    assert record["values"]["energy_j"] == pytest.approx(10 * (110 + 300))


def test_a_gap_is_no_energy_to_rely_on(tmp_path):
    kept = [*lines(20)[:20], *lines(20)[60:]]
    record = ingested(tmp_path, HEAD + "".join(kept))
    assert len(record["invalid"]) == 2


def test_a_reading_that_is_not_there_is_left_out(tmp_path):
    every = lines(10)
    every[6] = line(1.5, 0, "[N/A]")
    record = ingested(tmp_path, HEAD + "".join(every))
    assert record["values"]["energy_j"] == pytest.approx(10 * (110 + 300))
    rows = (tmp_path / "run/telemetry/recorded.csv").read_text(encoding="ascii").splitlines()
    assert rows[7].split(",")[1:3] == ["0", ""]


def test_a_time_is_of_this_machines_zone(monkeypatch):
    monkeypatch.setenv("TZ", "UTC-2")
    time.tzset()
    try:
        assert ingest.moment("1970/01/01 03:00:00.250") == 3600.25
    finally:
        monkeypatch.undo()
        time.tzset()


def answer(step_s: float = 0.5, **changed: str) -> str:
    """What Prometheus answers of two nodes: 100 W and 2 W more each second, and 300 W."""
    series = []
    for node, base_w, slope in (("n1", 100.0, 2.0), ("n2", 300.0, 0.0)):
        labels = {"Hostname": node, "UUID": f"GPU-{node}", "gpu": "0", "modelName": "NVIDIA H100"}
        times = [1000 + step_s * n for n in range(int(100 / step_s) + 1)]
        for name, values in (
            ("DCGM_FI_DEV_POWER_USAGE", [base_w + slope * (at - 1000) for at in times]),
            ("DCGM_FI_DEV_GPU_TEMP", [60.0 for _ in times]),
            ("DCGM_FI_DEV_FB_USED", [1024.0 for _ in times]),
        ):
            named = changed.get(name, name)
            pairs = [[at, str(value)] for at, value in zip(times, values, strict=True)]
            series.append({"metric": {**labels, "__name__": named}, "values": pairs})
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": series}})


@pytest.mark.parametrize("step_s", [0.5, 10.0])
def test_dcgms_exporter_by_prometheus(tmp_path, step_s):
    record = ingested(tmp_path, answer(step_s), "--tokens", "1000")
    assert record["values"]["energy_j"] == pytest.approx(100 * (200 + 300))
    assert (record["nodes"], record["invalid"]) == (["n1", "n2"], [])
    assert record["limits"] == ([] if step_s < 1 else ["readings_far_apart"])
    assert [(gpu["uuid"], gpu["temperature_max_c"]) for gpu in record["gpus"]] == [
        ("GPU-n1", 60.0),
        ("GPU-n2", 60.0),
    ]
    assert audit.main([str(tmp_path / "run")]) == 0


#: answers of Prometheus without power
WITHOUT_POWER = (
    "{",
    '{"data": {"result": [{"metric": {"__name__": "DCGM_FI_DEV_GPU_TEMP"}, "values": []}]}}',
    '{"status": "error"}',
    answer(DCGM_FI_DEV_POWER_USAGE="another"),
)


def test_a_host_is_no_path(tmp_path):
    record = ingested(tmp_path, answer().replace('"n1"', '"../../n1"'))
    assert record["nodes"] == ["_.._n1", "n2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "smi.csv"]


def in_ms(half: int) -> str:
    return f" {1_700_000_000_000 + 500 * half}"


def in_s(half: int) -> str:
    return f" {1_700_000_000 + 0.5 * half:.1f}".removesuffix(".0")


def in_s_by_go(half: int) -> str:
    return f" {1_700_000_000 + 0.5 * half:.10e}"


@pytest.mark.parametrize("time_of", [in_ms, in_s, in_s_by_go, None])
def test_texts_of_dcgms_exporter_one_after_the_other(tmp_path, time_of):
    text = ""
    for half in range(41):
        for gpu, watts in ((0, 100 + half), (1, 300)):
            labels = f'gpu="{gpu}",UUID="GPU-{gpu}",modelName="NVIDIA H100",Hostname="n1"'
            at = time_of(half) if time_of else ""
            text += "# HELP DCGM_FI_DEV_GPU_TEMP Degrees\n"
            text += f"DCGM_FI_DEV_GPU_TEMP{{{labels}}} 60{at}\n"
            text += f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} {watts}.5{at}\n"
    told = () if time_of else ("--from", "2026/11/27 10:30:00", "--every", "0.5")
    record = ingested(tmp_path, text, *told)
    assert record["values"]["energy_j"] == pytest.approx(20 * (120.5 + 300.5))
    assert (record["nodes"], record["invalid"]) == (["n1"], [])
    assert record["limits"] == ([] if time_of else ["times_assumed"])
    assert record["started_unix_s"] == (1.7e9 if time_of else ingest.moment("2026/11/27 10:30:00"))
    assert [gpu["name"] for gpu in record["gpus"]] == ["NVIDIA H100"] * 2


#: two GPUs of dcgmi, at 0, 2, 4 … s: 100 W and 2 W more each second, and 300 W but for a gap
DMON = "#Entity   POWER             TMPTR\nID        W                 C\n" + "".join(
    f"GPU 1     {'N/A' if half == 3 else 300.0}             51\n"
    f"GPU 0     {100 + 4 * half}.000       50\n"
    for half in range(11)
)
OF_DMON = ("--from", "2026/11/27 10:30:00", "--every", "2")


def test_dcgmi_dmon_with_times_that_are_told(tmp_path):
    record = ingested(tmp_path, DMON, *OF_DMON)
    assert record["values"]["energy_j"] == pytest.approx(20 * (120 + 300))
    assert record["values"]["measured_duration_s"] == pytest.approx(20)
    assert record["limits"] == ["times_assumed", "readings_far_apart"]
    assert {gpu["uuid"]: gpu["temperature_max_c"] for gpu in record["gpus"]} == {"0": 50, "1": 51}
    assert audit.main([str(tmp_path / "run")]) == 0


ZEUS = "start_time,window_name,elapsed_time,gpu0_energy,gpu1_energy\n" + "".join(
    f"{1000 + 0.5 * n},step,0.5,{50 + n},150.0\n" for n in range(20)
)


def test_zeus_energies_of_windows(tmp_path):
    both = ZEUS + "1000.0,epoch,10.0,1190.0,3000.0\n"
    record = ingested(tmp_path, both, "--window", "step")
    # 50 + n J in the n-th half second, and 300 W.
    assert record["values"]["energy_j"] == pytest.approx(20 * 50 + 190 + 3000)
    assert (record["invalid"], record["limits"]) == ([], ["means_of_windows"])


def test_the_mean_power_of_a_gpu_is_over_time_however_long_windows_are(tmp_path):
    windows = ((1000, 1, 700), (1001, 1, 700), (1002, 1, 700), (1003, 4, 400))
    log = ZEUS.split("\n")[0] + "\n"
    log += "".join(f"{at},step,{s},{joules},0\n" for at, s, joules in windows)
    record = ingested(tmp_path, log)
    # 2,500 J in 7 s; the readings, two a window, have a mean of 550 W.
    assert record["values"]["power_mean_w"] == pytest.approx(2500 / 7)
    assert record["gpus"][0]["power_mean_w"] == pytest.approx(2500 / 7)


@pytest.mark.parametrize(
    ("content", "options", "told"),
    [
        ("", (), "timestamp"),
        ("a,b\n1,2\n", (), "timestamp"),
        (HEAD, (), "two readings"),
        (HEAD + "".join(lines()[:50] + lines()[50::2]), (), "--until"),
        (HEAD + "".join(lines()[:50:2] + lines()[50:]), (), "--from"),
        (HEAD + line(0, 0) + "x\n" + line(1, 0), (), "line 3"),
        (HEAD + line(0, 0) + line(1, 0, "0.1 kW"), (), "line 3"),
        (HEAD + line(0, 0) + "yesterday" + line(1, 0)[23:], (), "line 3"),
        *((content, (), "smi.csv") for content in WITHOUT_POWER),
        (DMON, (), "--every"),
        (DMON.replace("POWER", "GPUTL"), OF_DMON, "POWER"),
        (DMON + "GPU 0   1\n", OF_DMON, "line 25"),
        (DMON + "GPU 0   x 1\n", OF_DMON, "line 25"),
        (ZEUS + "1000.0,epoch,10.0,1190.0,3000.0\n", (), "epoch, step"),
        (ZEUS + "1000.2,step,10.0,1190.0,3000.0\n", (), "overlap"),
        (ZEUS + "1010.0,step,x,1,1\n", (), "smi.csv"),
        (ZEUS + "1010.6,step,0.5,70.0,150.0\n", (), "0.6 s, beside 10.5 s"),
    ],
)
def test_what_is_no_recording_or_says_too_little_is_refused_and_leaves_nothing(
    tmp_path, capsys, content, options, told
):
    with pytest.raises(SystemExit) as error:
        ingested(tmp_path, content, *options)
    assert error.value.code == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
