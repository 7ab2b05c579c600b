"""Square waves of load, and what the sensors of power make of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.measuring.pairs import percentile
from benchmarks.measuring.parts import Log
from research.measuring import polling
from research.measuring.load import Load, square_waves
from research.measuring.phase_energy import PowerIntegral
from research.measuring.sensor_response import (
    WAVES,
    Drive,
    Window,
    fit_window,
    fit_window_to_power,
    update_period,
)

#: rows of the matrices: products short enough for edges of a millisecond
MATRIX = 4096


class Waves:
    """Update periods and windows of the readings of power, from square waves of load."""

    def __init__(self, gpus: int, worker: Load, log: Log) -> None:
        """Of the first two GPUs, which are enough and spare the site's power supply."""
        self._gpus = list(range(min(2, gpus)))
        self._worker = worker
        self.log = log

    def run(self) -> None:
        """Drive the load, read all sensors meanwhile, and fit."""
        gpus = self._gpus
        spans, begins, end_s = square_waves(WAVES)
        # Two seconds of a wave first, so that clocks are up and the longest box is filled.
        warm, _, warm_s = square_waves([(0.4, 2.0)])
        shifted = [(on + warm_s, off + warm_s) for on, off in spans]
        pollers = {
            "power usage": polling.Poller("power usage", gpus),
            "power instant": polling.Poller("power instant", gpus[:1]),
            "energy counter": polling.Poller("energy counter", gpus[-1:]),
            "driver samples": polling.Poller("driver samples", gpus),
        }
        begin = self._worker.begin([*warm, *shifted], MATRIX, first=len(gpus))
        try:
            worked = self._worker.finish(warm_s + end_s + 60)
        finally:
            seen = {}
            for name, poller in pollers.items():
                try:
                    seen[name] = poller.finish()
                except RuntimeError as error:
                    self.log.say(str(error))
                    self.log.row("sensor", reading=name, error=str(error))
        wave_begins = [begin + warm_s + start for start in begins]
        periods = [period for period, _ in WAVES]
        self.log.row(
            "sensor-raw", worked=worked, wave_begins=wave_begins, periods_s=periods, seen=seen
        )
        rows = []
        for name, of_gpus in seen.items():
            for gpu, changes in of_gpus.items():
                drive = Drive(worked[gpu])
                rows.append(self._sensor_row(name, gpu, changes, drive, wave_begins, periods))
        # Power usage against what the driver's own samples say of power, whatever the load did.
        for gpu in gpus:
            samples = seen.get("driver samples", {}).get(gpu, [])
            changes = seen.get("power usage", {}).get(gpu, [])
            if len(samples) > 100 and len(changes) > 30:
                integral = PowerIntegral([s[1] for s in samples], [s[2] for s in samples])
                kept = [c for c in changes if integral.times[0] + 4 < c[1] < integral.times[-1] - 1]
                rows.append(
                    self._sensor_row("usage of samples", gpu, kept, integral, wave_begins, periods)
                )
        self.log.table(
            (
                "reading, ms",
                "GPU",
                "updates",
                "period",
                "95 %",
                "median",
                "window",
                "95 %",
                "delay",
                "lag",
                "R²",
                "points",
                "left out",
            ),
            rows,
        )

    def _sensor_row(
        self,
        name: str,
        gpu: int,
        changes: Sequence[polling.Change],
        drive: Drive | PowerIntegral,
        wave_begins: Sequence[float],
        periods: Sequence[float],
    ) -> tuple[str, ...]:
        """One reading's period and window, logged; what cannot be had is said in its place."""
        cells = [name, str(gpu), str(len(changes))]
        times = np.array([(old + new) / 2 for old, new, _ in changes])
        values = np.array([value for _, _, value in changes])
        gap_ms = 1e3 * percentile([new - old for old, new, _ in changes], 0.5)
        try:
            period = update_period(times)
        except ValueError as error:
            self.log.row("sensor", reading=name, gpu=gpu, error=str(error))
            return (*cells, str(error), *[""] * 9)
        cells += [
            f"{1e3 * period.mean_s:.2f}",
            f"{1e3 * period.low_s:.2f}–{1e3 * period.high_s:.2f}",
            f"{1e3 * period.median_s:.2f}",
        ]
        if name == "energy counter":  # power is what it grew by since the update before
            values, times = np.diff(values) / np.diff(times), times[1:]
        try:
            if isinstance(drive, Drive):
                window = fit_window(times, values, drive.integral, wave_begins, periods)
            else:
                window = fit_window_to_power(times, values, drive)
        except ValueError as error:
            self.log.row("sensor", reading=name, gpu=gpu, period=period, error=str(error))
            return (*cells, str(error), *[""] * 6)
        self.log.row(
            "sensor", reading=name, gpu=gpu, period=period, window=window, seen_within_ms=gap_ms
        )
        return (*cells, *_window_cells(window))


def _window_cells(window: Window) -> tuple[str, ...]:
    return (
        f"{1e3 * window.window_s:.1f}",
        f"{1e3 * window.low_s:.1f}–{1e3 * window.high_s:.1f}",
        f"{1e3 * window.delay_s:.1f}",
        f"{1e3 * window.lag_s:.1f}",
        f"{window.r2:.4f}",
        str(window.points),
        str(window.left_out),
    )
