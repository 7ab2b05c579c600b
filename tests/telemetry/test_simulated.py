"""The simulated GPUs' model, driven by loads and times that the tests make up."""

from __future__ import annotations

import itertools

import pytest

from tests.telemetry.cells import make_cell
from workflow_lib import records
from workflow_lib.telemetry.simulated import SimulatedSource
from workflow_lib.telemetry.source import Value

TABLES = (records.GPU_SAMPLES, records.GPU_COUNTERS, records.POWER_SAMPLES, records.GPU_EVENTS)


def series(
    cell: records.Cell, load: float, seconds: float, rate_hz: float = 10.0
) -> list[list[dict[str, Value]]]:
    """Readings at a constant load: one list a GPU."""
    source = SimulatedSource(cell, "node01", lambda: load)
    rows: list[list[dict[str, Value]]] = [[] for _ in source.gpus]
    for tick in range(int(seconds * rate_hz) + 1):
        for gpu in range(len(source.gpus)):
            at = 1000.0 + tick / rate_hz + 0.001 * gpu
            readings = {**source.read(gpu, at), **source.read_counters(gpu, at)}
            rows[gpu].append({"unix_time_s": at, **readings})
    return rows


def number(row: dict[str, Value], column: str) -> float:
    value = row[column]
    assert value is not None
    return float(value)


def test_idle_gpus_are_cool_and_nearly_alike() -> None:
    front, rear = series(make_cell(), load=0.0, seconds=60)
    # 11.3 % of 700 W are 79 W, parts differ by 2 %; a recorded H200 idled at 79 W and 35 °C.
    assert number(front[-1], "power_w") == pytest.approx(79.1, rel=0.021)
    assert number(front[-1], "temperature_c") == pytest.approx(35.0, abs=0.2)
    assert number(rear[-1], "temperature_c") == pytest.approx(35.8, abs=0.2)
    assert front[-1]["event_reasons"] == 1
    assert front[-1]["sm_clock_mhz"] == 345


def test_busy_gpus_sit_on_their_cap_and_the_rear_is_hotter() -> None:
    front, rear = series(make_cell(), load=1.0, seconds=120)
    assert number(front[-1], "power_w") == 700.0
    assert number(front[-1], "temperature_c") == pytest.approx(59.0, abs=0.2)
    assert number(rear[-1], "temperature_c") == pytest.approx(65.5, abs=0.2)
    assert front[-1]["event_reasons"] == 4
    # 12 ± 2 % more is asked for than granted: the clock falls by its cube root, to 1893–1919.
    assert 1893 <= number(front[-1], "sm_clock_mhz") <= 1919
    # Once capped, always capped at this load: the counter then runs with the clock.
    ten_s = number(front[-1], "throttle_power_cap_s") - number(front[-101], "throttle_power_cap_s")
    assert ten_s == pytest.approx(10.0, abs=1e-6)


def test_the_energy_counter_is_the_trapezoid_of_the_reported_power() -> None:
    for rows in series(make_cell(), load=0.6, seconds=30, rate_hz=7.0):
        trapezoid_j = sum(
            (number(a, "power_w") + number(b, "power_w"))
            / 2
            * (number(b, "unix_time_s") - number(a, "unix_time_s"))
            for a, b in itertools.pairwise(rows)
        )
        counted_j = number(rows[-1], "energy_j") - number(rows[0], "energy_j")
        assert counted_j == pytest.approx(trapezoid_j, rel=1e-9)
        assert counted_j > 30 * 79


def test_power_follows_the_load_with_its_time_constant() -> None:
    front, _ = series(make_cell(), load=0.5, seconds=20)
    first, settled = number(front[0], "power_w"), number(front[-1], "power_w")
    after_1_s = number(front[10], "power_w")
    assert (after_1_s - first) / (settled - first) == pytest.approx(0.632, abs=0.002)


def test_the_same_seed_and_load_give_the_same_readings() -> None:
    assert series(make_cell(), 0.7, 5) == series(make_cell(), 0.7, 5)


def test_power_samples_lie_on_the_line_between_two_readings() -> None:
    source = SimulatedSource(make_cell(ranks=1), "node01", lambda: 1.0)
    before_w = number(dict(source.read(0, 1000.0)), "power_w")
    assert source.power_samples(0) == ()
    after_w = number(dict(source.read(0, 1000.1)), "power_w")
    samples = source.power_samples(0)
    assert [time_us for time_us, _ in samples] == [
        *(1000_020_000, 1000_040_000, 1000_060_000, 1000_080_000, 1000_100_000)
    ]
    assert after_w > before_w + 30
    for part, (_, power_mw) in enumerate(samples, start=1):
        assert power_mw == pytest.approx(1000 * (before_w + part / 5 * (after_w - before_w)), abs=1)
    # Each is told once.
    assert source.power_samples(0) == ()


def test_power_samples_are_kept_for_as_long_as_a_driver_keeps_them() -> None:
    source = SimulatedSource(make_cell(ranks=1), "node01", lambda: 1.0)
    for at in (1000.0, 1001.0, 1060.0):
        source.read(0, at)
    samples = source.power_samples(0)
    assert len(samples) == 119
    assert (samples[0][0], samples[-1][0]) == (1057_640_000, 1060_000_000)


def test_a_clock_that_was_set_back_leaves_samples_of_the_new_time() -> None:
    source = SimulatedSource(make_cell(ranks=1), "node01", lambda: 1.0)
    for at in (1000.0, 1000.05, 400.0, 400.05):
        source.read(0, at)
    assert [time_us / 1e6 for time_us, _ in source.power_samples(0)] == [
        *(1000.02, 1000.04, 400.02, 400.04)
    ]


def test_what_is_not_simulated_is_named() -> None:
    source = SimulatedSource(make_cell(), "node01", lambda: 1.0)
    read = {*source.read(0, 1000.0), *source.read_counters(0, 1000.0), "power_mw"}
    named = {c.name for table in TABLES for c in table} - {"unix_time_s", "gpu", "driver_time_us"}
    of_the_sampler = {"lateness_s", "read_cost_s", "code"}
    assert named - read - of_the_sampler == source.missing.keys()
    assert source.events() == ()


def test_time_that_stands_still_or_turns_back_adds_no_energy() -> None:
    source = SimulatedSource(make_cell(), "node01", lambda: 1.0)
    before = source.read_counters(0, 1000.0)["energy_j"]
    assert source.read_counters(0, 1000.0)["energy_j"] == before
    assert source.read_counters(0, 990.0)["energy_j"] == before


def test_of_a_package_only_the_even_die_reports_power() -> None:
    cell = make_cell(ranks=4, gpu="MI250", gpus_per_package=2, power_limit_w=500.0)
    source = SimulatedSource(cell, "node01", lambda: 1.0)
    rows = series(cell, load=1.0, seconds=120)
    assert [gpu["name"] for gpu in source.gpus] == ["simulated MI250"] * 4
    assert [gpu["package"] for gpu in source.gpus] == [0, 0, 1, 1]
    assert [gpu["reports_power"] for gpu in source.gpus] == [True, False, True, False]
    assert [gpu["power_limit_w"] for gpu in source.gpus] == [500.0, None, 500.0, None]
    # Both dies at full load fill the package's limit.
    assert [row[-1].get("power_w") for row in rows] == [500.0, None, 500.0, None]
    assert rows[1][-1].get("energy_j") is None
    source.read(0, 1000.0)
    source.read(0, 1000.1)
    assert [len(source.power_samples(gpu)) for gpu in range(4)] == [5, 0, 0, 0]
    difference_c = number(rows[1][-1], "temperature_c") - number(rows[0][-1], "temperature_c")
    assert 5 <= difference_c <= 13  # the die's own 6 K, and 6.5 K for its place in the rear


def test_unknown_hardware_is_simulated_without_a_name() -> None:
    cell = make_cell(gpu=None, power_limit_w=None, gpu_memory_bytes=None, airflow=())
    source = SimulatedSource(cell, "node01", lambda: None)
    assert [gpu["name"] for gpu in source.gpus] == ["simulated GPU"] * 2
    assert source.read(0, 1000.0)["power_w"] == pytest.approx(33.9, rel=0.021)
