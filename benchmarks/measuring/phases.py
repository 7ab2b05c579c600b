"""Idle, a steady load, cooling and bursts, under the eyes of the real sampler."""

from __future__ import annotations

import statistics
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import energy_windows, polling
from benchmarks.measuring.energy_windows import PowerIntegral
from benchmarks.measuring.load import Load, bursts
from benchmarks.measuring.pairs import percentile
from benchmarks.measuring.parts import Log
from benchmarks.measuring.processes import SamplerProcess
from benchmarks.measuring.thermal_response import fit_exponential, fit_two_exponentials

#: rows of the matrices: power at its highest
MATRIX = 8192
#: the phases, in seconds
IDLE_S, STEADY_S, COOLING_S, BURSTS_S, REST_S = 5.0, 63.5, 31.0, 62.0, 2.5
_WINDOW_S, _SHORT_WINDOW_S = 60.0, 5.0


class Phases:
    """One recording of all GPUs, and what it says of energy, of heat and of the slots."""

    def __init__(self, gpus: int, worker: Load, directory: Path, log: Log) -> None:
        """``directory`` is a new one for the sampler's files."""
        self.gpus = gpus
        self._worker = worker
        self._directory = directory
        self.log = log

    def run(self) -> None:
        """Record, then analyse; an analysis that fails costs the others nothing."""
        steady = (IDLE_S, IDLE_S + STEADY_S)
        bursting_s = (steady[1] + COOLING_S, steady[1] + COOLING_S + BURSTS_S)
        edges = polling.Poller("counter edges", range(self.gpus))
        try:
            sampler = SamplerProcess(self._directory, self.gpus, 10.0)
        except RuntimeError:
            edges.close()
            raise
        try:
            time.sleep(1.5)  # the sampler's first readings of everything are behind it
            cpu_before, from_s = sampler.cpu_s(), time.time()
            begin = self._worker.begin([steady, *bursts(*bursting_s)], MATRIX)
            worked = self._worker.finish(bursting_s[1] + 60)
            time.sleep(REST_S)  # the driver's samples of the last seconds are still to come
            cpu_s, until_s = sampler.cpu_s() - cpu_before, time.time()
            memory_bytes = sampler.memory_bytes()
            seen = edges.finish()
            end = sampler.stop()
        finally:
            edges.close()
            if sampler.process.poll() is None:
                sampler.end()
        self.log.row(
            "phases-raw",
            begin_unix_s=begin,
            steady=steady,
            bursts=bursting_s,
            worked=worked,
            counter_edges=seen,
        )
        achieved = sampler.achieved(from_s, until_s)
        share = cpu_s / (until_s - from_s)
        self.log.row(
            "sampler",
            rate_hz=10.0,
            cpu_share=share,
            memory_bytes=memory_bytes,
            end=end,
            seconds=until_s - from_s,
            **achieved,
        )
        self.log.say(
            f"sampler at 10 Hz × {self.gpus} GPUs for {until_s - from_s:.0f} s, a core busy with "
            f"counter edges beside it: {100 * share:.3f} % of a core, "
            f"{memory_bytes / 1e6:.1f} MB, {100 * achieved['delivered']:.3f} % delivered, lateness "
            f"p99 {achieved['lateness_p99_ms']:.2f} ms; late {end.late_samples}, missed "
            f"{end.missed_samples}, errors {dict(end.errors) or 'none'}"
        )
        # What begins with a load begins with all GPUs'; the slowest to start begins it.
        loaded = (max(spans[0][0] for spans in worked), min(spans[0][1] for spans in worked))
        bursting = (begin + bursting_s[0], begin + bursting_s[1])
        for analyse in (
            lambda: self._energy(sampler, seen, loaded, bursting),
            lambda: self._thermal(sampler, loaded, begin + bursting_s[0]),
            lambda: self._slots(sampler, loaded),
        ):
            self._try(analyse)

    def _try(self, analyse: Callable[[], None]) -> None:
        try:
            analyse()
        except Exception as error:  # the recording is kept, and the other analyses go on
            self.log.say(f"FAILED:\n{traceback.format_exc()}")
            self.log.row("phases", error=f"{type(error).__name__}: {error}")

    def _energy(
        self,
        sampler: SamplerProcess,
        seen: Mapping[int, Sequence[polling.Change]],
        loaded: tuple[float, float],
        bursting: tuple[float, float],
    ) -> None:
        """Integral over counter, less 1, by three ways to integrate and two ways to stamp."""
        ticks = sampler.rows(sampler.paths.gpu_samples(sampler.node))
        driver = sampler.rows(sampler.paths.power_samples(sampler.node))
        counted = sampler.rows(sampler.paths.gpu_counters(sampler.node))
        gpus = sorted(seen)
        edges = [
            (np.array([(c[0] + c[1]) / 2 for c in seen[gpu]]), np.array([c[2] for c in seen[gpu]]))
            for gpu in gpus
        ]
        methods = {
            "readings at 10 Hz": [
                _series(ticks, gpu, "unix_time_s", "power_w", 1.0, 1.0) for gpu in gpus
            ],
            "driver's samples": [
                _series(driver, gpu, "driver_time_us", "power_mw", 1e-6, 1e-3) for gpu in gpus
            ],
        }
        # Windows of the steady load leave its edges out, which are in those of the bursts.
        spans = {"steady": (loaded[0] + 1.5, loaded[1]), "bursts": bursting}
        rows = []
        for method, series in methods.items():
            if any(len(times) < 2 for times, _ in series):
                self.log.say(f"{method}: none were recorded")
                self.log.row("energy", method=method, error="none were recorded")
                continue
            integrals = [PowerIntegral(*one) for one in series]
            shift = energy_windows.best_shift(edges, integrals, _SHORT_WINDOW_S, bursting)
            for stamped, shift_s in (("as stamped", 0.0), (f"{1e3 * shift:+.0f} ms", shift)):
                for phase, between in spans.items():
                    rows.append(
                        self._energy_row(method, stamped, phase, edges, integrals, between, shift_s)
                    )
        own = [_series(counted, gpu, "unix_time_s", "energy_j", 1.0, 1.0) for gpu in gpus]
        readings_10 = [PowerIntegral(*one) for one in methods["readings at 10 Hz"]]
        both = (loaded[0] - 1.0, bursting[1] + 1.0)
        rows.append(
            self._energy_row(
                "readings, sampler's counter", "as stamped", "all phases", own, readings_10, both, 0
            )
        )
        self.log.table(
            (
                "|integral / counter − 1|, %",
                "stamps",
                "phase",
                "window s",
                "median",
                "p95 of GPUs",
                "worst",
                "5 s median",
                "p95",
                "windows",
            ),
            rows,
        )

    def _energy_row(
        self,
        method: str,
        stamped: str,
        phase: str,
        counters: Sequence[tuple[Any, Any]],
        integrals: Sequence[PowerIntegral],
        between: tuple[float, float],
        shift_s: float,
    ) -> tuple[str, ...]:
        long, short = [], []
        for (times, joules), integral in zip(counters, integrals, strict=True):
            long.append(
                energy_windows.longest_difference(times, joules, integral, between, shift_s)
            )
            short.append(
                energy_windows.differences(
                    times, joules, integral, _SHORT_WINDOW_S, between, shift_s
                )
            )
        apart = [100 * abs(difference) for difference, _ in long]
        pooled = [100 * abs(difference) for differences in short for difference in differences]
        length_s = min(length for _, length in long)
        self.log.row(
            "energy",
            method=method,
            stamps=stamped,
            shift_s=shift_s,
            phase=phase,
            window_s=length_s,
            differences=[difference for difference, _ in long],
            short_median=percentile(pooled, 0.5) / 100,
            short_p95=percentile(pooled, 0.95) / 100,
            short_windows=len(pooled),
            long_enough=length_s >= _WINDOW_S,
        )
        return (
            method,
            stamped,
            phase,
            f"{length_s:.1f}",
            f"{percentile(apart, 0.5):.3f}",
            f"{percentile(apart, 0.95):.3f}",
            f"{max(apart):.3f}",
            f"{percentile(pooled, 0.5):.3f}",
            f"{percentile(pooled, 0.95):.3f}",
            str(len(pooled)),
        )

    def _thermal(
        self, sampler: SamplerProcess, loaded: tuple[float, float], cooled_unix_s: float
    ) -> None:
        """Time constants of heating and of cooling."""
        ticks = sampler.rows(sampler.paths.gpu_samples(sampler.node))
        rows = []
        for gpu in range(self.gpus):
            times, degrees = _series(ticks, gpu, "unix_time_s", "temperature_c", 1.0, 1.0)
            for name, start, end in (
                ("heating", *loaded),
                ("cooling", loaded[1], cooled_unix_s),
            ):
                kept = (times >= start) & (times < end)
                try:
                    one = fit_exponential(times[kept] - start, degrees[kept])
                    two = fit_two_exponentials(times[kept] - start, degrees[kept])
                except ValueError as error:
                    self.log.row("thermal", gpu=gpu, step=name, error=str(error))
                    rows.append((str(gpu), name, str(error), *[""] * 8))
                    continue
                self.log.row("thermal", gpu=gpu, step=name, one=one, two=two)
                rows.append(
                    (
                        str(gpu),
                        name,
                        f"{one.time_constant_s:.1f}",
                        f"{one.low_s:.1f}–{one.high_s:.1f}",
                        f"{one.first_c:.1f}",
                        f"{one.final_c:.1f}",
                        f"{one.r2:.4f}",
                        f"{one.residual_c:.2f}",
                        f"{two.fast_s:.1f} ({100 * two.fast_share:.0f} %)",
                        f"{two.slow_s:.1f}",
                        f"{two.r2:.4f}, {two.residual_c:.2f}",
                    )
                )
        self.log.table(
            (
                "GPU",
                "step",
                "τ/s",
                "95 %",
                "T0/°C",
                "T∞/°C",
                "R²",
                "rms/°C",
                "of two: fast/s",
                "slow/s",
                "R², rms",
            ),
            rows,
        )

    def _slots(self, sampler: SamplerProcess, loaded: tuple[float, float]) -> None:
        """Temperature, power, clock and shares of throttling in the last 20 s of the load."""
        ticks = sampler.rows(sampler.paths.gpu_samples(sampler.node))
        counted = sampler.rows(sampler.paths.gpu_counters(sampler.node))
        start, end = loaded[1] - 20.0, loaded[1]
        rows = []
        for gpu in range(self.gpus):
            means = {}
            for column in ("temperature_c", "power_w", "sm_clock_mhz"):
                times, values = _series(ticks, gpu, "unix_time_s", column, 1.0, 1.0)
                kept = values[(times >= start) & (times <= end)]
                means[column] = statistics.fmean(kept) if len(kept) else float("nan")
            times, bits = _series(ticks, gpu, "unix_time_s", "event_reasons", 1.0, 1.0)
            inside = bits[(times >= loaded[0] + 1) & (times <= end)].astype(int)
            shares = {
                column: _share(*_series(counted, gpu, "unix_time_s", column, 1.0, 1.0), loaded)
                for column in (
                    "throttle_power_cap_s",
                    "throttle_sw_thermal_s",
                    "throttle_hw_thermal_s",
                    "throttle_power_brake_s",
                )
            }
            by_bits = float(np.mean((inside & 0x4) != 0)) if len(inside) else float("nan")
            memory = _series(counted, gpu, "unix_time_s", "memory_temperature_c", 1.0, 1.0)
            hottest = memory[1][(memory[0] >= start) & (memory[0] <= end)]
            memory_c = float(np.mean(hottest)) if len(hottest) else float("nan")
            self.log.row(
                "slots",
                gpu=gpu,
                **means,
                memory_temperature_c=memory_c,
                power_cap_by_bits=by_bits,
                shares=shares,
            )
            rows.append(
                (
                    str(gpu),
                    f"{means['temperature_c']:.1f}",
                    f"{memory_c:.1f}",
                    f"{means['power_w']:.1f}",
                    f"{means['sm_clock_mhz']:.0f}",
                    *(f"{100 * share:.1f}" for share in shares.values()),
                    f"{100 * by_bits:.1f}",
                )
            )
        self.log.table(
            (
                "GPU",
                "core/°C",
                "memory/°C",
                "power/W",
                "SM/MHz",
                "cap/%",
                "SW thermal/%",
                "HW thermal/%",
                "brake/%",
                "cap by bits/%",
            ),
            rows,
        )


def _series(
    rows: Sequence[Mapping[str, str]],
    gpu: int,
    time_column: str,
    column: str,
    time_unit_s: float,
    unit: float,
) -> tuple[Any, Any]:
    """Times in seconds and the values of a column of one GPU; without empty fields."""
    kept = [row for row in rows if row["gpu"] == str(gpu) and row[column]]
    return (
        np.array([time_unit_s * float(row[time_column]) for row in kept]),
        np.array([unit * float(row[column]) for row in kept]),
    )


def _share(times: Any, seconds: Any, between: tuple[float, float]) -> float:
    """Share of time that a cumulative time grew by, between its first and last reading there."""
    kept = (times >= between[0] + 1) & (times <= between[1])
    if kept.sum() < 2:
        return float("nan")
    return float(np.ptp(seconds[kept]) / np.ptp(times[kept]))
