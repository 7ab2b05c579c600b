"""A simulated meter beside runs whose sensors have a known gain and offset."""

import csv
import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.analysis import synthetic_run
from tests.analysis.synthetic_run import Run, sample, write_csv
from tests.texts import numbers
from workflow_lib.analysis.reduce import reduce_run
from workflow_lib.config import Meters
from workflow_lib.meter import Log, MeterError, Watched, fit, main, read_log, watched
from workflow_lib.records.outcomes import Outcome
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.tables import RUNS
from workflow_lib.records.telemetry_columns import GPU_COUNTERS, GPU_SAMPLES
from workflow_lib.results import run_directory
from workflow_lib.table_files import table, write_table

GAIN, OFFSET_W, AHEAD_S = -0.046, 2.0, 3.25
START, APART_S, IDLE_S = 1_700_000_000.0, 200.0, 30
IDLE_W, BUSY_W = 80.0, (300.0, 480.0, 660.0)
UUID = "GPU-node1-0"


def true_w(at_s, busy_w, gpu=0):
    """Power at a time after a run's start: two seconds up, and down again after the steps."""
    return float(np.interp(at_s, (3, 5, 42, 44), (IDLE_W, busy_w, busy_w, IDLE_W))) + 10 * gpu


def sensor_w(at_s, busy_w, gpu=0):
    return (1 + GAIN) * true_w(at_s, busy_w, gpu) + OFFSET_W


def write_runs(tmp_path, monkeypatch, busy_w=BUSY_W, **changes):
    """A run a load; its GPUs idle for half a minute before the first rank starts."""
    directories = []
    for number, load_w in enumerate(busy_w):
        start = START + number * APART_S
        monkeypatch.setattr(synthetic_run, "START", start)
        directory = tmp_path / f"load{number}" / "run1"
        paths = Run(**changes).write(directory)
        paths.gpu_counters("node1").unlink()
        rows = [
            sample(tick / 2, gpu) | {"power_w": sensor_w(tick / 2, load_w, gpu)}
            for tick in range(-2 * IDLE_S, 101)
            for gpu in (0, 1)
        ]
        write_csv(paths.gpu_samples("node1"), GPU_SAMPLES, rows)
        directories.append(str(directory))
    return directories


def meter_rows(
    busy_w=BUSY_W, every_s=0.5, noise_w=0.0, whole=lambda power_w, at_s, busy_w: power_w
):
    """Times on the meter's clock, and powers."""
    noise = np.random.default_rng(1)
    return [
        (
            START + number * APART_S + at_s + AHEAD_S,
            whole(true_w(at_s, load_w), at_s, load_w) + noise.normal(0, noise_w),
        )
        for number, load_w in enumerate(busy_w)
        for at_s in np.arange(-IDLE_S - 20, 60, every_s)
    ]


def write_log(path, rows, header=("unix_time_s", "power_w")):
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])
    return str(path)


@pytest.fixture
def meter(tmp_path, monkeypatch, capsys):
    """Calls the command: what it printed, and what it said of why not, of a log and runs."""

    def call(rows, *options, header=("unix_time_s", "power_w"), **runs):
        directories = write_runs(tmp_path, monkeypatch, **runs)
        log = write_log(tmp_path / "meter.csv", rows, header)
        chosen = options or ("--gpu", UUID)
        code = main([*directories, "--log", log, "--instrument", "LMG671, A. Tester", *chosen])
        printed = capsys.readouterr()
        assert (code == 0) == (printed.err == "")
        assert (code == 0) == (printed.out != "")
        return printed.out, " ".join(printed.err.split())

    return call


def powers(directory):
    return np.array([power_w for _, _, power_w in watched(directory, UUID, None).windows])


def entry(printed):
    block = yaml.safe_load(printed)
    Meters.model_validate(block)
    return block["gpus"][UUID]


@pytest.mark.parametrize("noise_w", [0.0, 15.0])
def test_the_interval_holds_the_truth_whatever_the_meters_clock(meter, noise_w):
    printed, _ = meter(meter_rows(noise_w=noise_w), "--gpu", UUID, "--accuracy", "0")
    found = entry(printed)
    # Steps of the search are 0.25 s, and of the sampler 0.5 s.
    assert "clock is 3.25 s ahead" in printed
    # Readings of half a second's steps leave nothing but rounding.
    assert abs(found["gain"] - GAIN) <= found["uncertainty"] + 1e-4
    assert found["uncertainty"] < (0.02 if noise_w else 1e-3)
    assert OFFSET_W - 0.1 <= found["offset_w"] < (8 if noise_w else 2.2)
    assert found["source"] == "LMG671, A. Tester, 2023-11-14"
    assert numbers(printed)[:5] == [6, 3, 4, 78, 632]


def test_intervals_are_those_of_95_in_a_hundred():
    noise, held, tries = np.random.default_rng(7), 0, 400
    loads = np.array([80.0, 80, 300, 480, 660])
    times = np.arange(0.0, 5 * 20 + 1)
    starts = np.arange(5) * 20.0 + 1
    joules = np.concatenate([[0.0], np.cumsum(np.repeat(loads, 20))])
    for _ in range(tries):
        readings = (1 + GAIN) * loads + OFFSET_W + noise.normal(0, 2, 5)
        run = Watched(list(zip(starts, starts + 18, readings, strict=True)), times, times)
        line = fit(Log(times, joules), [run], 0.0, 0.0)
        held += abs(line.values[0] - GAIN) <= line.errors[0]
    assert 0.92 * tries <= held <= 0.98 * tries


def test_what_the_meter_may_be_off_is_added_at_its_worst(meter):
    """A meter that shows 1 % more at the highest load and 1 % less at all others."""

    def whole(power_w, at_s, busy_w):
        return power_w * (1.01 if busy_w == BUSY_W[-1] and 5 < at_s < 42 else 0.99)

    rows = meter_rows(whole=whole)
    found = entry(meter(rows)[0])
    assert abs(found["gain"] - GAIN) <= found["uncertainty"]
    assert 0.01 < found["uncertainty"] < 0.06


@pytest.mark.parametrize(("column", "joules"), [("energy_j", 1), ("energy_wh", 3600)])
def test_a_counter_of_energy_and_iso_times(meter, column, joules):
    total, last, rows = 5e6, None, []
    for at, power_w in meter_rows():
        total += 0 if last is None else power_w * (at - last)
        last = at
        stamp = datetime.fromtimestamp(at, UTC).isoformat()
        rows.append((stamp, "other", f"{total / joules:.5f}"))
    printed, _ = meter(rows, "--gpu", UUID, "--accuracy", "0", header=("Time", "phase", column))
    assert abs(entry(printed)["gain"] - GAIN) < 5e-4


def test_a_node_gives_the_gain_of_all_its_gpus_and_no_entry(meter):
    # The second GPU draws 10 W more.
    rows = meter_rows(whole=lambda power_w, at_s, busy_w: 2 * power_w + 10 + 1500)
    printed, _ = meter(rows, "--node", "node1")
    assert yaml.safe_load(printed) is None
    assert "Gain -4.60%" in printed
    assert "drew 1496 W" in printed
    assert "neither offsets nor" in printed


def test_a_shift_that_is_told_is_taken(meter):
    printed, _ = meter(meter_rows(), "--gpu", UUID, "--shift", "3")
    assert "clock is 3 s ahead" in printed
    assert abs(entry(printed)["gain"] - GAIN) < 5e-3


def test_powers_of_the_measured_steps_are_the_counters(tmp_path, monkeypatch):
    """A counter that grows by 2 % more than the integral of readings."""
    directory = Path(*write_runs(tmp_path, monkeypatch, busy_w=(500.0,)))
    integral_w = powers(directory)
    total, rows = 1e5, []
    for second in range(-IDLE_S, 51):
        rows += [{"unix_time_s": START + second, "gpu": gpu, "energy_j": total} for gpu in (0, 1)]
        total += 1.02 * sensor_w(second + 0.5, 500.0)
    write_csv(RunPaths(directory).gpu_counters("node1"), GPU_COUNTERS, rows)
    assert powers(directory) / integral_w == pytest.approx([1, 1.02], rel=1e-3)


def test_the_runs_of_a_sweep_but_for_one_that_failed(tmp_path, monkeypatch, capsys):
    results, rows = tmp_path / "results", []
    for number, directory in enumerate(write_runs(tmp_path, monkeypatch), start=1):
        reduce_run(Path(directory))
        row = json.loads((Path(directory) / "summary.json").read_text())["run"] | {"run": number}
        target = run_directory(results, row["cell"], number)
        target.parent.mkdir(parents=True, exist_ok=True)
        Path(directory).rename(target)
        rows.append(row)
    failed = run_directory(results, row["cell"], 4)
    Run(outcome=Outcome.OUT_OF_MEMORY).write(failed)
    sweep = results / "sweeps" / "meter"
    write_table(table([*rows, row | {"run": 4}], RUNS), sweep / "runs.parquet")
    log = write_log(tmp_path / "meter.csv", meter_rows())
    assert main([str(sweep), "--log", log, "--instrument", "a", "--gpu", UUID]) == 0
    printed = capsys.readouterr().out
    assert "6 windows of 3 runs" in printed
    assert entry(printed)["gain"] == pytest.approx(GAIN, abs=2e-3)


@pytest.mark.parametrize(
    ("rows", "options", "runs", "words"),
    [
        (
            meter_rows(BUSY_W[:1]),
            (),
            {"busy_w": BUSY_W[:1]},
            "at 2 levels, of 78, 288 W; expected 3 levels",
        ),
        (meter_rows((100, 120)), (), {"busy_w": (100, 120)}, "at 3 levels, of 78, 78, 97, 116 W"),
        ([(at - 86400, w) for at, w in meter_rows()], (), {}, "does not overlap with the runs"),
        (
            meter_rows(whole=lambda w, at_s, busy_w: 200),
            (),
            {},
            "correlation of -1.00; expected 0.9",
        ),
        (meter_rows(every_s=10), ("--gpu", UUID, "--shift", "3.25"), {}, "covers 0 windows"),
        (meter_rows(), ("--gpu", "GPU-x"), {}, "one of node1: GPU-node1-0, node1: GPU-node1-1"),
        (meter_rows(), ("--gpu", UUID, "--accuracy", "1"), {}, "expected a share"),
        (meter_rows(), (), {"simulated": True}, "sensors are simulated"),
        (meter_rows(), ("--node", "node1"), {"other_gpus": [{"index": 2}]}, "whole node"),
        (
            [(at, w / 1e3) for at, w in meter_rows()],
            (),
            {},
            "less than 50 %; see that the meter shows W",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_it_refuses_and_says_why(meter, rows, options, runs, words):
    printed, why = meter(rows, *options, **runs)
    assert printed == ""
    assert words in why


def test_neither_a_run_nor_a_sweep(tmp_path, capsys):
    log = write_log(tmp_path / "meter.csv", [(1, 2), (2, 2)])
    assert main([str(tmp_path), "--log", log, "--instrument", "a", "--node", "n"]) == 1
    assert "directory of a run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ":1: the header is empty, expected one column of time, unix_time_s"),
        ("unix_time_s,power_w\n", "0 rows below the header"),
        ("unix_time_s,power_kw\n1,2\n", "expected one column of power_w, energy_j, energy_wh"),
        ("unix_time_s,power_w,energy_wh\n1,2,3\n", "leave out the others"),
        ("time,unix_time_s,power_w\n1,1,2\n", "expected one column of time, unix_time_s"),
        ("unix_time_s,power_w\n1,2\n2,2\n2,3\n", ":4: unix_time_s is 2, expected more"),
        ("unix_time_s,power_w\n5,2\n4,2\n", ":3: unix_time_s is 4, expected more"),
        ("unix_time_s,power_w\n1,2\n2,nan\n", ":3: power_w is 'nan'"),
        ("unix_time_s,power_w\n1,2\n2,0.2 kW\n", ":3: power_w is '0.2 kW'"),
        ("unix_time_s,power_w\n1,2\n2,-3\n", "expected a number from 0 on"),
        ("unix_time_s,power_w\n1,2\n2\n", ":3: 1 fields, expected 2"),
        (
            "unix_time_s,power_w\n1,2\n2026-05-03T10:00:00Z,2\n",
            ":3: unix_time_s is '2026-05-03T10:00:00Z'",
        ),
        ("time,power_w\n2026-05-03 10:00:00,2\n", "expected a time with its zone"),
        ("time,power_w\n1777802400,2\n", "expected a time with its zone"),
        ("unix_time_s,energy_wh\n1,5\n2,4\n", ":3: energy_wh is 4, expected more"),
    ],
)
def test_a_log_that_cannot_be_read_is_refused_by_its_line(tmp_path, text, words):
    path = tmp_path / "meter.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MeterError) as refused:
        read_log(path)
    assert words in str(refused.value)
    assert str(path) in str(refused.value)
