"""The main measures of a run in pandas, as one would write them: the peer of reduce and collect.

It reads the same files and computes what reduce's time goes into: power, energy, heat, clocks,
throttling, traffic and errors of every GPU, energy by counter, idle power, the energy, heat and
clock of every step, and the series for figures. It checks no file, gives no reasons, writes
nothing, and takes from reduce's summary from which step on a run is steady.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from workflow_lib.records.paths import RunPaths
from workflow_lib.records.tables import SERIES_POINTS

#: NVML's bits, as in analysis/metrics.py
_BITS = {"power_capped": 0x4, "thermally_slowed": 0x60, "power_braked": 0x80}
_TRAFFIC = (
    *("gpu_link_received_bytes", "gpu_link_sent_bytes"),
    *("pcie_received_bytes", "pcie_sent_bytes"),
)
_ERRORS = ("ecc_corrected_errors", "ecc_uncorrected_errors")
_THROTTLE = ("throttle_power_cap_s", "throttle_sw_thermal_s", "throttle_hw_thermal_s")


def integral(times: np.ndarray, values: np.ndarray, start: float, end: float) -> float:
    """The trapezoid rule between two moments, with interpolated edges."""
    inside = (times > start) & (times < end)
    x = np.concatenate([[start], times[inside], [end]])
    y = np.concatenate(
        [[np.interp(start, times, values)], values[inside], [np.interp(end, times, values)]]
    )
    return float(np.trapezoid(y, x))


def reduce_run(directory: Path) -> dict[str, Any]:
    """A run's measures, its steps' energies and temperatures, and its series."""
    paths = RunPaths(directory)
    cell = json.loads(paths.cell.read_text(encoding="utf-8"))
    world = math.prod(cell["degrees"][axis] for axis in ("tp", "pp", "dp"))
    ranks, places = [], []
    for rank in range(world):
        frame = pd.read_csv(paths.rank_steps(rank))
        place = json.loads(paths.rank(rank).read_text(encoding="utf-8"))
        places.append(place)
        ranks.append(frame.assign(rank=rank, dp_rank=place["dp_rank"]))
    rows = pd.concat(ranks)
    steps = rows.groupby("step").agg(start=("started_unix_s", "min"), end=("ended_unix_s", "max"))
    steps["tokens"] = rows.drop_duplicates(["step", "dp_rank"]).groupby("step")["tokens"].sum()
    measured = rows[rows["phase"] == "measured"]["step"].min()
    counted = steps[steps.index >= measured]
    start, end = counted["start"].min(), counted["end"].max()
    first, last = steps["start"].min(), steps["end"].max()
    interval_s = (last - first) / SERIES_POINTS
    gpus, series = [], []
    energy = np.zeros(len(steps))
    temperature, clock = np.zeros(len(steps)), np.zeros(len(steps))
    hottest = np.full(len(steps), -np.inf)
    begun = min(rank["started_unix_s"] for rank in places)
    idle_s = cell["telemetry"]["idle_baseline_s"]
    for node in paths.sampled_nodes():
        samples = pd.read_csv(paths.gpu_samples(node))
        for name, bits in _BITS.items():
            samples[name] = (samples["event_reasons"] & bits != 0) * 1.0
        power = pd.read_csv(paths.power_samples(node))
        power["unix_time_s"] = power["driver_time_us"] / 1e6
        power["power_w"] = power["power_mw"] / 1000
        counters = pd.read_csv(paths.gpu_counters(node))
        powers = dict(iter(power.groupby("gpu")))
        counts = dict(iter(counters.groupby("gpu")))
        for gpu, of_gpu in samples.groupby("gpu"):
            times = of_gpu["unix_time_s"].to_numpy()
            driver = powers[gpu]
            driver = driver[driver["unix_time_s"] >= times[0]]
            at, watts = driver["unix_time_s"].to_numpy(), driver["power_w"].to_numpy()
            heat = of_gpu["temperature_c"].to_numpy()
            speed = of_gpu["sm_clock_mhz"].to_numpy()
            energy_j = integral(at, watts, start, end)
            row = {
                "node": node,
                "gpu": gpu,
                "energy_j": energy_j,
                "power_peak_w": watts[(at >= start) & (at <= end)].max(),
                "temperature_mean_c": integral(times, heat, start, end) / (end - start),
                "temperature_peak_c": heat[(times >= start) & (times <= end)].max(),
                "sm_clock_mean_mhz": integral(times, speed, start, end) / (end - start),
            }
            around = times[(times >= start - 1) & (times <= end + 1)]
            row["longest_gap_s"] = np.diff(around).max()
            idle_end = min(at[0] + idle_s, begun)
            row["idle_power_w"] = integral(at, watts, at[0], idle_end) / (idle_end - at[0])
            for name in _BITS:
                on = of_gpu[name].to_numpy()
                row[f"{name}_sampled"] = integral(times, on, start, end) / (end - start)
            counter = counts[gpu]
            within = counter[counter["unix_time_s"].between(start, end)]
            grown = within.iloc[-1] - within.iloc[0]
            shares = grown[list(_THROTTLE)] / grown["unix_time_s"]
            row["throttle_power_share"] = min(shares.iloc[0], 1)
            row["throttle_thermal_share"] = min(shares.iloc[1] + shares.iloc[2], 1)
            if row["throttle_thermal_share"] > 0.1 / grown["unix_time_s"]:
                row["throttle_power_share"] = row["power_capped_sampled"]
            for name in _TRAFFIC:
                row[name] = grown[name] / grown["unix_time_s"] * (end - start)
            about = counter[
                (counter["unix_time_s"] >= counter[counter["unix_time_s"] <= start].iloc[-1, 0])
                & (counter["unix_time_s"] <= counter[counter["unix_time_s"] >= end].iloc[0, 0])
            ]
            for name in _ERRORS:
                row[name] = about[name].iloc[-1] - about[name].iloc[0]
            row["memory_temperature_peak_c"] = within["memory_temperature_c"].max()
            row["thermal_margin_c"] = within["thermal_margin_c"].min()
            ends = [
                counter.iloc[(counter["unix_time_s"] - edge).abs().argmin()]
                for edge in (start, end)
            ]
            row["energy_integral_j"] = energy_j
            grown_j = ends[1]["energy_j"] - ends[0]["energy_j"]
            share = grown_j / integral(at, watts, *(end["unix_time_s"] for end in ends))
            row["energy_j"] = share * energy_j
            row["power_mean_w"] = share * energy_j / (end - start)
            gpus.append(row)
            for place, (step_start, step_end) in enumerate(
                zip(steps["start"], steps["end"], strict=True)
            ):
                energy[place] += share * integral(at, watts, step_start, step_end)
                lasted_s = step_end - step_start
                warm = integral(times, heat, step_start, step_end) / lasted_s
                temperature[place] += warm
                hottest[place] = max(hottest[place], warm)
                clock[place] += integral(times, speed, step_start, step_end) / lasted_s
        begins = samples.groupby("gpu")["unix_time_s"].first()
        means = [
            frame[frame["unix_time_s"].between(first, last)]
            .assign(place=lambda f: ((f["unix_time_s"] - first) // interval_s).clip(0, 149))
            .groupby(["gpu", "place"])[columns]
            .mean()
            for frame, columns in (
                (samples, ["temperature_c", "sm_clock_mhz", *_BITS]),
                (power[power["unix_time_s"] >= power["gpu"].map(begins)], ["power_w"]),
            )
        ]
        series.append(pd.concat(means, axis=1).assign(node=node))
    table = pd.DataFrame(gpus)
    tokens = counted["tokens"].sum()
    total_j = table["energy_j"].sum()
    return {
        "run": {
            "step_time_s": (counted["end"] - counted["start"]).median(),
            "tokens_per_s": tokens / (end - start),
            "energy_j": total_j,
            "energy_integral_j": table["energy_integral_j"].sum(),
            "power_mean_w": total_j / (end - start),
            "tokens_per_j": tokens / total_j,
            "idle_power_w": table["idle_power_w"].sum(),
            "power_peak_w": table["power_peak_w"].max(),
            "temperature_mean_c": table["temperature_mean_c"].mean(),
            "temperature_peak_c": table["temperature_peak_c"].max(),
            "sm_clock_mean_mhz": table["sm_clock_mean_mhz"].mean(),
            "throttle_power_share": table["throttle_power_share"].mean(),
            "throttle_thermal_share": table["throttle_thermal_share"].mean(),
        },
        "gpus": table,
        "steps": steps.assign(
            energy_j=energy,
            temperature_mean_c=temperature / len(table),
            hottest_c=hottest,
            sm_clock_mean_mhz=clock / len(table),
        ),
        "series": pd.concat(series).reset_index(),
    }
