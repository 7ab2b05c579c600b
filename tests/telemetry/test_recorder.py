"""How often the driver's own samples of power are collected."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from workflow_lib.records import RunPaths
from workflow_lib.telemetry.node.host import Host
from workflow_lib.telemetry.recorder import Recorder

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


def test_where_the_driver_keeps_2_4_s_all_samples_come_in_batches_of_two_seconds(
    tmp_path: Path,
) -> None:
    driver = Driver(kept_s=2.38)
    times = recorded(tmp_path, driver, 20)
    assert {later - earlier for earlier, later in itertools.pairwise(times)} == {EVERY_US}
    gaps = [b - a for a, b in zip(driver.calls[1], driver.calls[1][1:], strict=False)]
    assert gaps == pytest.approx([2.0] * len(gaps))
    assert len(driver.calls[0]) == 10


def test_where_it_keeps_fewer_they_come_every_second_from_the_first_loss_on(
    tmp_path: Path,
) -> None:
    driver = Driver(kept_s=1.2)
    times = recorded(tmp_path, driver, 20)
    holes = [a for a, b in itertools.pairwise(times) if b - a > EVERY_US]
    assert len(holes) == 1
    late = [at for at in driver.calls[1] if at > holes[0] / 1e6 + 2]
    assert [b - a for a, b in itertools.pairwise(late)] == pytest.approx([1.0] * (len(late) - 1))
