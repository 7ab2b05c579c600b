"""The driver's own samples of power, and energy counters, which are read at their changes."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workflow_lib.records.paths import RunPaths
from workflow_lib.telemetry import recorder
from workflow_lib.telemetry.devices.host import Host
from workflow_lib.telemetry.recorder import EnergyChanges, Recorder

EVERY_US = 20_000


class Driver:
    """Two GPUs whose driver keeps the samples of the last ``kept_s``."""

    name = "nvidia"
    energy_in_steps = ()

    def __init__(self, kept_s: float) -> None:
        self.gpus: list[Mapping[str, Any]] = [{}, {}]
        self.missing: Mapping[str, str] = {"event": "none here"}
        self.errors: Counter[str] = Counter()
        self.now_us = 10_000_000
        self.calls: dict[int, list[float]] = {0: [], 1: []}
        self._kept_us = round(kept_s * 1e6)
        self._told_us = [self.now_us, self.now_us]

    def read(self, gpu: int, unix_time_s: float) -> dict[str, float]:
        return {"power_w": 100.0}

    def read_counters(
        self, gpu: int, unix_time_s: float, everything: bool = False
    ) -> dict[str, Any]:
        return {}

    def power_samples(self, gpu: int) -> list[tuple[int, int]]:
        self.calls[gpu].append(self.now_us / 1e6)
        first = max(self._told_us[gpu], self.now_us - self._kept_us) // EVERY_US + 1
        times = range(first * EVERY_US, self.now_us + 1, EVERY_US)
        self._told_us[gpu] = self.now_us
        return [(time_us, 100_000) for time_us in times]

    def events(self) -> list[tuple[int, str, int | None]]:
        return []

    def close(self) -> None:
        """Nothing to let go of."""


def recorded(directory: Path, driver: Driver, seconds: int) -> list[int]:
    """Tick at 10 Hz in the driver's time; the times of GPU 1's samples in the file, in µs."""
    paths = RunPaths(directory)
    paths.telemetry.mkdir(parents=True)
    with closing(Host()) as host:
        recorder = Recorder(paths, "node1", driver, host, rates_alternate=False)
        recorder.restart_rounds(10.0)
        for tick in range(10 * seconds):
            driver.now_us = 10_000_000 + tick * 100_000
            recorder.tick(driver.now_us / 1e6, 0.0)
        recorder.close()
    lines = paths.power_samples("node1").read_text(encoding="ascii").splitlines()[1:]
    return [int(line.split(",")[0]) for line in lines if line.split(",")[1] == "1"]


def test_where_the_driver_keeps_2_4_s_all_samples_come_in_batches_of_two_seconds(tmp_path):
    driver = Driver(kept_s=2.38)
    times = recorded(tmp_path, driver, 20)
    assert {later - earlier for earlier, later in itertools.pairwise(times)} == {EVERY_US}
    gaps = [b - a for a, b in zip(driver.calls[1], driver.calls[1][1:], strict=False)]
    assert gaps == pytest.approx([2.0] * len(gaps))
    assert len(driver.calls[0]) == 10


def test_where_it_keeps_fewer_they_come_every_second_from_the_first_loss_on(tmp_path):
    driver = Driver(kept_s=1.2)
    times = recorded(tmp_path, driver, 20)
    holes = [a for a, b in itertools.pairwise(times) if b - a > EVERY_US]
    assert len(holes) == 1
    late = [at for at in driver.calls[1] if at > holes[0] / 1e6 + 2]
    assert [b - a for a, b in itertools.pairwise(late)] == pytest.approx([1.0] * (len(late) - 1))


CALL_S = 0.0037
WATTS = 500.0
#: of a first renewal, and from one to the next
FIRST_S, RENEWED_S = 0.063, 0.1


class Counters:
    """GPUs at 500 W whose counters are renewed every 0.1 s; each call takes 3.7 ms."""

    def __init__(self, gpus: int, renewed_s: float = RENEWED_S, first_s: float = FIRST_S) -> None:
        self.energy_in_steps = tuple(range(gpus))
        self.now_s = 0.0
        self.calls: list[tuple[float, int]] = []
        self._renewed_s, self._first_s = renewed_s, first_s

    def read_energy(self, gpu: int) -> float:
        self.calls.append((self.now_s, gpu))
        self.now_s += CALL_S
        at_s = self._first_s + (self.now_s - self._first_s) // self._renewed_s * self._renewed_s
        return round(1e6 + WATTS * at_s, 3)


def searched(
    source: Counters, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    """The rows of some seconds, in which every call is made when it is due."""
    clock = SimpleNamespace(monotonic=lambda: source.now_s, time=lambda: 1e9 + source.now_s)
    monkeypatch.setattr(recorder, "time", clock)
    changes = EnergyChanges(source)
    changes.restart(0.0)
    rows = []
    while changes.next_s < seconds:
        source.now_s = max(source.now_s, changes.next_s)
        if row := changes.call(source.now_s):
            rows.append(row)
    return rows


def test_the_renewal_lies_within_the_age_before_the_row(monkeypatch):
    rows = searched(Counters(2), 60.0, monkeypatch)
    for row in rows:
        renewed_s = (row["energy_j"] - 1e6) / WATTS
        after_s = row["unix_time_s"] - 1e9 - renewed_s
        # A call every 10 ms, and the last one's 3.7 ms.
        assert row["energy_age_s"] == pytest.approx(0.01 + CALL_S)
        assert 0 <= after_s <= row["energy_age_s"]
    # Each GPU once in 2 s.
    assert [row["gpu"] for row in rows] == [0, 1] * 30


def test_a_change_costs_a_few_calls(monkeypatch):
    source = Counters(8)
    rows = searched(source, 80.0, monkeypatch)
    # Searches of a second do not grow with GPUs: each of eight once in 8 s.
    assert [row["gpu"] for row in rows] == [*range(8)] * 10
    # At most one until the first value, and one in each 10 ms of 0.1 s.
    assert 2 * 80 <= len(source.calls) <= 12 * 80
    assert sum(row["read_cost_s"] for row in rows) == pytest.approx(
        CALL_S * len(source.calls), abs=1e-4
    )


def test_a_counter_that_stands_still_is_told_without_an_age(monkeypatch):
    rows = searched(Counters(1, renewed_s=1e6, first_s=-1.0), 4.0, monkeypatch)
    assert [row["energy_age_s"] for row in rows] == [None, None]
    assert [row["unix_time_s"] - 1e9 for row in rows] == pytest.approx([0.3, 2.3], abs=0.02)


def test_without_such_counters_no_call_is_due():
    changes = EnergyChanges(Counters(0))
    changes.restart(5.0)
    assert changes.next_s == math.inf


def test_a_failed_call_ends_the_search(monkeypatch):
    source = Counters(1)
    monkeypatch.setattr(source, "read_energy", lambda gpu: None)
    changes = EnergyChanges(source)
    changes.restart(0.0)
    assert changes.call(0.0) is None
    assert changes.next_s == 2.0
