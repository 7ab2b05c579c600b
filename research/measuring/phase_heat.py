"""Heat of a recording: time constants, and what each slot settled at."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from benchmarks.measuring.parts import Log
from benchmarks.measuring.processes import SamplerProcess, series
from research.measuring.thermal_response import fit_exponential, fit_two_exponentials


def tell_time_constants(
    log: Log, gpus: int, sampler: SamplerProcess, loaded: tuple[float, float], cooled_unix_s: float
) -> None:
    """Time constants of heating and of cooling."""
    ticks = sampler.rows(sampler.paths.gpu_samples(sampler.node))
    rows = []
    for gpu in range(gpus):
        times, degrees = series(ticks, gpu, "unix_time_s", "temperature_c", 1.0, 1.0)
        for name, start, end in (
            ("heating", *loaded),
            ("cooling", loaded[1], cooled_unix_s),
        ):
            kept = (times >= start) & (times < end)
            try:
                one = fit_exponential(times[kept] - start, degrees[kept])
                two = fit_two_exponentials(times[kept] - start, degrees[kept])
            except ValueError as error:
                log.row("thermal", gpu=gpu, step=name, error=str(error))
                rows.append((str(gpu), name, str(error), *[""] * 8))
                continue
            log.row("thermal", gpu=gpu, step=name, one=one, two=two)
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
    log.table(
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


def tell_slots(log: Log, gpus: int, sampler: SamplerProcess, loaded: tuple[float, float]) -> None:
    """Temperature, power, clock and shares of throttling in the last 20 s of the load."""
    ticks = sampler.rows(sampler.paths.gpu_samples(sampler.node))
    counted = sampler.rows(sampler.paths.gpu_counters(sampler.node))
    start, end = loaded[1] - 20.0, loaded[1]
    rows = []
    for gpu in range(gpus):
        means = {}
        for column in ("temperature_c", "power_w", "sm_clock_mhz"):
            times, values = series(ticks, gpu, "unix_time_s", column, 1.0, 1.0)
            kept = values[(times >= start) & (times <= end)]
            means[column] = statistics.fmean(kept) if len(kept) else float("nan")
        times, bits = series(ticks, gpu, "unix_time_s", "event_reasons", 1.0, 1.0)
        inside = bits[(times >= loaded[0] + 1) & (times <= end)].astype(int)
        shares = {
            column: _share(*series(counted, gpu, "unix_time_s", column, 1.0, 1.0), loaded)
            for column in (
                "throttle_power_cap_s",
                "throttle_sw_thermal_s",
                "throttle_hw_thermal_s",
                "throttle_power_brake_s",
            )
        }
        by_bits = float(np.mean((inside & 0x4) != 0)) if len(inside) else float("nan")
        memory = series(counted, gpu, "unix_time_s", "memory_temperature_c", 1.0, 1.0)
        hottest = memory[1][(memory[0] >= start) & (memory[0] <= end)]
        memory_c = float(np.mean(hottest)) if len(hottest) else float("nan")
        log.row(
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
    log.table(
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


def _share(times: Any, seconds: Any, between: tuple[float, float]) -> float:
    """Share of time that a cumulative time grew by, between its first and last reading there."""
    kept = (times >= between[0] + 1) & (times <= between[1])
    if kept.sum() < 2:
        return float("nan")
    return float(np.ptp(seconds[kept]) / np.ptp(times[kept]))
