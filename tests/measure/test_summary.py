"""measured.json by hand: two nodes of two GPUs, whose power is constant."""

from __future__ import annotations

import csv
import json
import math
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from workflow_lib import audit
from workflow_lib.measure import summary
from workflow_lib.measure.log_steps import COLUMNS
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.telemetry_columns import GPU_COUNTERS, GPU_SAMPLES

T0 = 1_000_000.0
#: W of each GPU, and its clock in MHz
GPUS = {"n1": ((300.0, 1900), (320.0, 1900)), "n2": ((310.0, 1900), (350.0, 1700))}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    paths = RunPaths(tmp_path)
    paths.steps.mkdir()
    paths.telemetry.mkdir()
    for node, gpus in GPUS.items():
        entries = [
            {"uuid": f"GPU-{node}-{gpu}", "name": "H100", "power_limit_w": 700.0, "package": gpu}
            for gpu in range(len(gpus))
        ]
        start = {"node": node, "source": "nvidia", "simulated": False, "sample_rate_hz": 10.0}
        text = json.dumps({**start, "gpus": [{**e, "reports_power": True} for e in entries]})
        paths.telemetry_start(node).write_text(text)
        ticks = [T0 - 1 + tick / 10 for tick in range(420)]
        write(
            paths.gpu_samples(node),
            [column.name for column in GPU_SAMPLES],
            [
                {"unix_time_s": at, "gpu": gpu, "power_w": w, "sm_clock_mhz": mhz,
                 "temperature_c": 60 + gpu}
                for at in ticks for gpu, (w, mhz) in enumerate(gpus)
            ],
        )  # fmt: skip
        write(
            paths.gpu_counters(node),
            [column.name for column in GPU_COUNTERS],
            [
                {"unix_time_s": at, "gpu": gpu, "energy_j": 5000 + w * (at - T0),
                 "energy_age_s": 0.01, "throttle_power_cap_s": 100 + 0.25 * (at - T0)}
                for at in ticks[::20] for gpu, (w, _) in enumerate(gpus)
            ],
        )  # fmt: skip
    return tmp_path


def write(path: Path, names: list[str], rows: list[dict[str, Any]]) -> None:
    with path.open("w", encoding="ascii", newline="") as stream:
        writer = csv.DictWriter(stream, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def told(**changes: Any) -> dict[str, Any]:
    return {
        "program": "train",
        "started_unix_s": T0,
        "ended_unix_s": T0 + 40,
        "exit_code": 0,
        "warmup_steps": 0,
        "tokens_per_step": None,
        "tokens": None,
        **changes,
    }


def test_the_whole_command_without_steps(run):
    record = summary.summarise(run, told(tokens=1280))
    # 1,280 W over 40 s
    assert record["values"]["energy_j"] == pytest.approx(51_200, rel=1e-6)
    assert record["values"]["power_mean_w"] == pytest.approx(1280)
    assert record["values"]["energy_per_token_j"] == pytest.approx(40)
    assert record["missing"] == dict.fromkeys(
        ("counted_steps", "step_time_s", "energy_per_step_j"), "steps_not_seen"
    )
    assert record["invalid"] == []


def test_what_power_misses_of_the_counter_is_told_beside_the_energy(run):
    assert summary.summarise(run, told())["values"]["energy_error_share"] == 0
    path = RunPaths(run).gpu_counters("n2")
    with path.open(encoding="ascii", newline="") as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:  # 660 W of 1,280: the counter of n2 tells 4 % more
        row["energy_j"] = str(5000 + 1.04 * (float(row["energy_j"]) - 5000))
    write(path, list(rows[0]), rows)
    record = summary.summarise(run, told())
    of_n2 = 1.04 * 660
    share = of_n2 * (1 - 1 / 1.04) / (620 + of_n2)
    assert record["values"]["energy_error_share"] == pytest.approx(share, rel=1e-6)
    path.unlink()
    record = summary.summarise(run, told())
    assert "energy_error_share" not in record["values"]
    assert record["missing"]["energy_error_share"] == "no_energy_counter"
    assert "energy_j" in record["values"]


def test_steps_of_all_ranks_after_the_warm_up(run):
    names = ["step", "phase", "started_unix_s", "ended_unix_s", "tokens"]
    for rank in range(2):
        rows = [
            {"step": step, "phase": "measured" if step > 1 else "warmup",
             "started_unix_s": T0 + 4 * step + 0.1 * rank, "ended_unix_s": T0 + 4 * step + 4,
             "tokens": 64}
            for step in range(8 + rank)  # one rank has begun a step that the other never ended
        ]  # fmt: skip
        write(run / f"steps/rank{rank}.csv", names, rows)
    record = summary.summarise(run, told())
    # Steps 2 to 7: from 8 s to 32 s, each 4 s, with 2 × 64 tokens
    assert record["values"]["counted_steps"] == 6
    assert record["values"]["step_time_s"] == pytest.approx(4)
    assert record["values"]["measured_duration_s"] == pytest.approx(24)
    assert record["values"]["energy_j"] == pytest.approx(1280 * 24, rel=1e-6)
    assert record["values"]["energy_per_step_j"] == pytest.approx(5120, rel=1e-6)
    assert record["values"]["energy_per_token_j"] == pytest.approx(40, rel=1e-6)
    given = summary.summarise(run, told(tokens_per_step=256))
    assert given["values"]["energy_per_token_j"] == pytest.approx(20, rel=1e-6)
    # The ranks tell 128.
    assert len(given["invalid"]) == 1 + len(record["invalid"])
    assert summary.summarise(run, told(tokens_per_step=128))["invalid"] == record["invalid"]
    of_all = summary.summarise(run, told(tokens=1000))
    assert "tokens_per_s" in of_all["values"]
    for rank in range(2):
        path = run / f"steps/rank{rank}.csv"
        path.rename(path.with_name(f"hook-{path.name}"))
    # However often it is summed up, the hook has seen them.
    assert [summary.summarise(run, told())["rung"] for _ in range(2)] == [3, 3]


@pytest.mark.parametrize(("of_other", "tokens_per_s"), [(0, 32.0), (64, 48.0), ("", None)])
def test_a_rank_may_say_that_another_tells_the_tokens_of_its_sequences(run, of_other, tokens_per_s):
    names = ["step", "phase", "started_unix_s", "ended_unix_s", "tokens"]
    for rank, tokens in enumerate((128, of_other)):
        rows = [
            {"step": step, "phase": "measured", "started_unix_s": T0 + 4 * step,
             "ended_unix_s": T0 + 4 * step + 4, "tokens": tokens}
            for step in range(5)
        ]  # fmt: skip
        write(run / f"steps/rank{rank}.csv", names, rows)
    record = summary.summarise(run, told())
    assert record["values"].get("tokens_per_s") == tokens_per_s
    assert record["invalid"] == []


def test_processes_that_trained_one_after_the_other_are_no_ranks(run):
    names = ["step", "phase", "started_unix_s", "ended_unix_s", "tokens"]
    for name, began in (("rank0", 0), ("rank0-4711", 20)):
        rows = [
            {"step": step, "phase": "measured", "started_unix_s": T0 + began + step,
             "ended_unix_s": T0 + began + step + 1, "tokens": 64}
            for step in range(10)
        ]  # fmt: skip
        write(run / f"steps/{name}.csv", names, rows)
    # Taken for two ranks, each step would last from 0 s to 21 s.
    (why,) = summary.summarise(run, told())["invalid"]
    assert "trained more than once" in why


def test_an_interval_of_the_log_is_several_steps(run):
    write(
        run / "steps/log.csv",
        ["step", "phase", "started_unix_s", "ended_unix_s", "steps", "told_step_s"],
        [
            {"step": 10 * n, "phase": "measured", "started_unix_s": T0 + 10 * n - 10,
             "ended_unix_s": T0 + 10 * n, "steps": 10}
            for n in (1, 2, 3)
        ],
    )  # fmt: skip
    record = summary.summarise(run, told(tokens_per_step=128))
    assert (record["rung"], record["values"]["counted_steps"]) == (1, 30)
    assert record["values"]["step_time_s"] == pytest.approx(1)
    assert record["values"]["energy_per_token_j"] == pytest.approx(10, rel=1e-6)


#: (step, how many steps its row ends): a program that began again from what it had saved, and
#: evaluations of 50 and of one batch, whose progress bars are read as well
ANEW = (
    [(4, 1), (5, 1), (6, 1), (5, 1), (6, 1), (7, 1)],
    [(200, 1), *((batch, 1) for batch in range(2, 51)), (201, 151)],
    [(200, 1), (201, 200)],
)


@pytest.mark.parametrize("numbers", ANEW)
def test_steps_that_begin_anew_are_not_counted_as_if_they_went_on(run, numbers):
    for rows, valid in ((numbers, False), ([(10, 10), (12, 2), (13, 1)], True)):
        write(
            run / "steps/log.csv",
            ["step", "phase", "started_unix_s", "ended_unix_s", "steps"],
            [
                {"step": step, "phase": "measured" if step - count >= 3 else "warmup",
                 "started_unix_s": T0 + n / 2, "ended_unix_s": T0 + n / 2 + 0.5, "steps": count}
                for n, (step, count) in enumerate(rows)
            ],
        )  # fmt: skip
        invalid = summary.summarise(run, told())["invalid"]
        assert (valid and not invalid) or "begin anew" in invalid[0]


@pytest.mark.parametrize(("told_by_log", "valid"), [(32, True), (64, False)])
def test_tokens_that_the_log_contradicts_are_not_valid(run, told_by_log, valid):
    names = ["step", "phase", "started_unix_s", "ended_unix_s", "steps", "told_step_s"]
    write(
        run / "steps/log.csv",
        [*names, "told_gpu_tokens_per_s"],
        [
            {"step": n, "phase": "measured", "started_unix_s": T0 + n - 1,
             "ended_unix_s": T0 + n, "steps": 1, "told_gpu_tokens_per_s": told_by_log}
            for n in (1, 2, 3)
        ],
    )  # fmt: skip
    # 128 tokens in a step of 1 s, of four GPUs
    record = summary.summarise(run, told(tokens_per_step=128))
    assert (record["invalid"] == []) is valid


def test_a_gpu_lags_by_its_clock_at_work(run):
    # n1's GPU 0 idles at 300 MHz for half of the time, and keeps up with the others at work.
    path = RunPaths(run).gpu_samples("n1")
    with path.open(encoding="ascii", newline="") as stream:
        rows = list(csv.DictReader(stream))
    for number, row in enumerate(rows):
        idles = row["gpu"] == "0" and float(row["unix_time_s"]) < T0 + 19
        row["sm_clock_mhz"] = "300" if idles else row["sm_clock_mhz"]
        # Utilisation is read more seldom.
        row["utilisation_percent"] = ("0" if idles else "100") if number % 10 < 2 else ""
    write(path, list(rows[0]), rows)
    record = summary.summarise(run, told())
    first, *_, slow = record["gpus"]
    of_all_its_time, *at_work = (first["sm_clock_mean_mhz"], first["sm_clock_at_work_mhz"])
    at_work.append(slow["sm_clock_at_work_mhz"])
    assert of_all_its_time < 1200
    # Without utilisation nothing tells it.
    assert at_work == [1900, None]
    # The mean of its own and the other clocks at work is 1,850 MHz.
    (line,) = (line for line in summary.lines_of(record, run) if slow["uuid"] in line)
    assert f"{100 * (1 - 1700 / 1850):.1f}" in line


def test_each_gpu_and_the_one_that_lags(run):
    record = summary.summarise(run, told())
    slow = record["gpus"][3]
    assert (slow["node"], slow["uuid"]) == ("n2", "GPU-n2-1")
    assert slow["sm_clock_mean_mhz"] == pytest.approx(1700)
    assert slow["temperature_max_c"] == 61
    assert slow["throttle_shares"]["throttle_power_cap_s"] == pytest.approx(0.25)
    lines = summary.lines_of(record, run)
    assert len(lines) <= 10
    assert any("GPU-n2-1" in line for line in lines)
    # An idle GPU's clock says nothing.
    slow["power_mean_w"] = 100.0
    assert not any("GPU-n2-1" in line for line in summary.lines_of(record, run))


def test_throttling_is_never_only_where_each_gpu_has_counters(run):
    record = summary.summarise(run, told())
    for gpu in record["gpus"]:
        gpu["throttle_shares"] = {"throttle_power_cap_s": 0.0}
    (line,) = [x for x in summary.lines_of(record, run) if x.startswith("throttled")]
    assert "never" in line
    record["gpus"][3]["throttle_shares"] = {}
    (line,) = [x for x in summary.lines_of(record, run) if x.startswith("throttled")]
    assert "not known" in line
    assert "1 GPU" in line


@pytest.mark.parametrize("kind", ["sw", "hw"])
def test_the_power_cap_is_not_told_beside_heat_of_either_kind(run, kind):
    rows = [
        {"unix_time_s": T0 + at, "gpu": 0, "throttle_power_cap_s": at / 2,
         f"throttle_{kind}_thermal_s": at / 4}
        for at in (1, 11, 21)
    ]  # fmt: skip
    write(RunPaths(run).gpu_counters("n1"), [column.name for column in GPU_COUNTERS], rows)
    shares = summary.summarise(run, told())["gpus"][0]["throttle_shares"]
    assert shares == {f"throttle_{kind}_thermal_s": pytest.approx(0.25)}


def test_a_gap_in_telemetry_is_not_valid(run):
    path = RunPaths(run).gpu_samples("n2")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:100], *lines[400:]]))
    assert summary.summarise(run, told())["invalid"]


def test_the_auditor_agrees_and_finds_what_was_changed(run):
    record = summary.summarise(run, told(tokens=1280))
    path = run / "measured.json"
    path.write_text(json.dumps(record))
    assert audit.main([str(run)]) == 0
    record["values"]["energy_j"] *= 1.001
    path.write_text(json.dumps(record))
    assert audit.main([str(run)]) == 1


def test_a_gpu_that_heat_slows_lags_though_it_draws_little(tmp_path):
    with zipfile.ZipFile(ROOT / "evidence/measured/hot-gpu-h100x2.zip") as archive:
        for name in archive.namelist():
            if name.startswith(("native/steps/rank", "native/telemetry/")):
                archive.extract(name, tmp_path)
    run = tmp_path / "native"
    record = summary.summarise(
        run, summary.nothing_told("train.py", warmup_steps=5, started_unix_s=0.0, ended_unix_s=1.0)
    )
    hot = record["gpus"][1]
    assert hot["power_mean_w"] < 0.4 * hot["power_limit_w"]
    assert hot["throttle_shares"].keys() >= {"throttle_sw_thermal_s"}
    assert "throttle_power_cap_s" not in hot["throttle_shares"]
    (lags,) = [line for line in summary.lines_of(record, run) if line.startswith("lags")]
    assert hot["uuid"] in lags


def log_rows(step_s, steps, together=False, told_s=""):
    """Lines of a log as they are seen every 20 ms, after two steps of warm-up."""
    seen = [
        T0 + (0 if together else math.floor(step_s * n / 0.02) * 0.02) for n in range(steps + 1)
    ]
    return [
        {"step": n, "phase": "measured" if n > 2 else "warmup", "started_unix_s": begun,
         "ended_unix_s": end, "steps": 1, "told_step_s": told_s, "loss": "", "pattern": "own",
         "told_gpu_tokens_per_s": ""}
        for n, (begun, end) in enumerate(pairwise(seen), start=1)
    ]  # fmt: skip


@pytest.mark.parametrize(("step_s", "steps"), [(0.033, 1000), (0.11, 250), (0.31, 90), (0.47, 5)])
def test_short_steps_by_a_log_are_those_that_passed(run, step_s, steps):
    """Their median alone is a multiple of 20 ms: 0.04 s for 0.033 s."""
    write(run / "steps/log.csv", COLUMNS, log_rows(step_s, steps, told_s=step_s))
    record = summary.summarise(run, told())
    assert record["invalid"] == []  # the program's own seconds are those
    assert record["values"]["counted_steps"] == steps - 2
    assert record["values"]["step_time_s"] == pytest.approx(step_s, rel=0.02)


def test_lines_that_came_at_once_leave_the_command_and_say_why(run):
    write(run / "steps/log.csv", COLUMNS, log_rows(0.1, 9, together=True))
    record = summary.summarise(run, told())
    assert record["rung"] == summary.NO_STEPS
    assert record["values"]["energy_j"] == pytest.approx(51_200, rel=1e-6)
    assert record["missing"]["step_time_s"] == "steps_not_seen"
    assert len(record["invalid"]) == 1


def test_a_pace_without_gpus_is_told(run):
    record = summary.summarise(run, told(tokens=1280))
    del record["values"]["energy_per_token_j"], record["values"]["energy_j"]
    record["missing"]["energy_j"] = "no_gpus"
    assert any("32 tokens/s" in line for line in summary.lines_of(record, run))
