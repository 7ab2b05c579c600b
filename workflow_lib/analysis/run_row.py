"""A run's row, filled measure by measure; what cannot be had is null, with the reason why."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import polars as pl

from workflow_lib.analysis import metrics
from workflow_lib.analysis.gpus import is_power_sensor
from workflow_lib.analysis.nodes import Node
from workflow_lib.analysis.steps import Steps
from workflow_lib.formulas import flops_per_token
from workflow_lib.records import MEASURES, RUNS, Cell, OutcomeRecord, identity, inapplicable


class RunRow:
    """A row of RUNS as it is filled: values, and a reason for each that is null."""

    def __init__(self, cell: Cell, run: int, ended: OutcomeRecord) -> None:
        self.cell = cell
        self.values: dict[str, Any] = {
            **identity(cell),
            "run": run,
            "outcome": ended.outcome.value,
            "cause": ended.cause,
        }
        self.reasons: dict[str, str] = {}

    def set(self, name: str, value: Any, reason: str = "") -> None:
        """Set a column, or the reason why it is null."""
        self.values[name] = value
        if value is None:
            self.reasons[name] = reason

    def clear_inapplicable(self) -> None:
        """Null what means nothing for the cell's workload; nothing is set afterwards."""
        workload = self.cell.training.workload
        reason = (
            "inference reports prefill and decode apart, and has no loss"
            if workload == "inference"
            else f"workload {workload} generates nothing"
        )
        for name in inapplicable(workload):
            self.set(name, None, reason)

    def whole(self, reason: str) -> dict[str, Any]:
        """The row with all columns; ``reason`` is why a measure that was never set is null."""
        for column in MEASURES:
            if column.name not in self.values:
                self.set(column.name, None, reason)
        self.values["missing_reasons"] = json.dumps(
            self.reasons, sort_keys=True, ensure_ascii=False
        )
        return {column.name: self.values[column.name] for column in RUNS}

    def describe(self, gpu_name: str | None, simulated: bool | None) -> None:
        """Set what the samplers found."""
        self.set("gpu_name", gpu_name, "no sampler recorded the name of a GPU")
        self.set("simulated", simulated, "no sampler started")

    def add_steps(self, steps: Steps) -> None:
        """Set the measures of time, rate, memory and loss."""
        times = metrics.step_times(steps.measured)
        self.set("measured_steps", len(times))
        self.set("measured_duration_s", steps.window.duration_s)
        self.set("step_time_s", metrics.median(times))
        self.set("step_time_iqr_s", metrics.interquartile_range(times))
        rate = steps.tokens / steps.window.duration_s
        self.set("tokens_per_s", rate)
        self.set("tokens_per_s_per_gpu", rate / self.cell.degrees.world_size)
        peak = steps.rows["memory_peak_bytes"].cast(pl.Float64).max()
        self.set("memory_peak_bytes", peak, "no rank recorded its memory")
        losses = steps.rows.drop_nulls("loss").sort("step", "rank")
        first, last = steps.rows.select(first=pl.col("step").min(), last=pl.col("step").max()).row(
            0
        )
        for name, step in (("loss_first", first), ("loss_last", last)):
            found = losses.filter(pl.col("step") == step)["loss"]
            self.set(name, found.first(), f"no rank recorded the loss of step {step}")

    def add_flops(self, steps: Steps) -> None:
        """Set the measures that count FLOPs."""
        counts = flops_per_token(self.cell.model, self.cell.training)
        rate = self.values["tokens_per_s_per_gpu"]
        self.set("model_tflops_per_s_per_gpu", rate * counts.causal / 1e12)
        peak, reason = self._peak(steps)
        for name, count in (
            ("mfu_6n", counts.six_n),
            ("mfu_causal", counts.causal),
            ("mfu_full_attention", counts.full_attention),
        ):
            mfu = metrics.model_flops_utilisation(rate, count, peak) if peak else None
            self.set(name, mfu, reason)

    def _peak(self, steps: Steps) -> tuple[float | None, str]:
        """The peak of the GPU that trained, in FLOP/s, or why it is not known."""
        hardware, precision = self.cell.hardware, self.cell.training.precision
        devices = sorted({rank.device_name for rank in steps.ranks})
        if any(rank.gpu is None for rank in steps.ranks):
            return None, f"trained on a CPU ({', '.join(devices)}), whose peak is not known"
        for device in devices:
            if hardware.gpu is not None and hardware.gpu not in device:
                return None, (
                    f"trained on {device!r}, but platform {hardware.platform} gives the peak of "
                    f"{hardware.gpu!r}"
                )
        peak = hardware.peak_flops_per_s(precision)
        return peak, f"platform {hardware.platform} gives no {precision} peak"

    def add_power(
        self, steps: Steps, nodes: Sequence[Node], gpus: Sequence[dict[str, Any]]
    ) -> None:
        """Set the measures of power and energy, summed over the GPUs that report power."""
        hardware, count = self.cell.hardware, self.cell.degrees.world_size
        sensors = [gpu for gpu in gpus if is_power_sensor(gpu["gpu"], hardware)]
        orphan = _gpu_without_sensor(gpus, self.cell)
        energy_j, reason = _combine(sensors, "energy_j", sum, orphan)
        counter_j, counter_reason = _combine(sensors, "energy_counter_j", sum, orphan)
        peak_w, peak_reason = _combine(sensors, "power_peak_w", max, orphan)
        self.set("energy_j", energy_j, reason)
        self.set("energy_counter_j", counter_j, counter_reason)
        self.set("power_peak_w", peak_w, peak_reason)
        self._set_idle_power(nodes, orphan)
        derived: dict[str, Callable[[float], float]] = {
            "power_mean_w": lambda j: j / steps.window.duration_s,
            "power_per_gpu_mean_w": lambda j: j / steps.window.duration_s / count,
            "tokens_per_j": lambda j: steps.tokens / j,
            "energy_delay_product_js": lambda j: metrics.energy_delay_product_js(
                j, self.values["measured_steps"], self.values["step_time_s"]
            ),
            "samples_per_s_per_mj": lambda j: metrics.samples_per_s_per_mj(
                self.values["tokens_per_s"] / self.cell.model.sequence_length,
                j,
                self.values["measured_steps"],
            ),
        }
        if energy_j is not None and energy_j <= 0:
            energy_j, reason = None, f"energy_j is {energy_j}, by which nothing can be divided"
        for name, formula in derived.items():
            self.set(name, None if energy_j is None else formula(energy_j), reason)
        both = energy_j is not None and counter_j is not None
        difference = counter_j / energy_j - 1 if both else None  # type: ignore[operator]
        self.set("energy_difference", difference, reason or counter_reason)

    def _set_idle_power(self, nodes: Sequence[Node], orphan: str | None) -> None:
        reasons = [node.idle_reason for node in nodes if node.idle_power_w is None]
        if self.cell.telemetry.idle_baseline_s <= 0:
            reasons.insert(0, "the cell asks for no idle baseline (idle_baseline_s is 0)")
        if orphan:
            reasons.insert(0, orphan)
        total = sum(node.idle_power_w for node in nodes if node.idle_power_w is not None)
        self.set("idle_power_w", None if reasons else total, "".join(reasons[:1]))

    def add_temperatures(self, gpus: Sequence[dict[str, Any]]) -> None:
        """Set the measures of temperature, clock and throttling."""
        for name, combine in (
            ("temperature_mean_c", _mean),
            ("temperature_peak_c", max),
            ("sm_clock_mean_mhz", _mean),
            ("throttle_power_share", _mean),
            ("throttle_thermal_share", _mean),
            ("throttle_brake_share", _mean),
        ):
            self.set(name, *_combine(gpus, name, combine))
        by_node: dict[str, list[dict[str, Any]]] = {}
        for gpu in gpus:
            by_node.setdefault(gpu["node"], []).append(gpu)
        several = [of_node for of_node in by_node.values() if len(of_node) > 1]
        spreads = [_combine(of_node, "temperature_mean_c", metrics.spread) for of_node in several]
        if not spreads:
            self.set("temperature_spread_c", None, "no node has two GPUs to compare")
        elif missing := [reason for value, reason in spreads if value is None]:
            self.set("temperature_spread_c", None, missing[0])
        else:
            self.set(
                "temperature_spread_c", max(value for value, _ in spreads if value is not None)
            )


def _gpu_without_sensor(gpus: Sequence[dict[str, Any]], cell: Cell) -> str | None:
    """Names a GPU whose package's power is reported by a GPU that no rank used, if there is one."""
    used = {(gpu["node"], gpu["gpu"]) for gpu in gpus}
    size = cell.hardware.gpus_per_package
    for node, gpu in sorted(used):
        if (node, sensor := gpu - gpu % size) not in used:
            return f"{node} GPU {gpu}: its package's power is reported by GPU {sensor}, unused here"
    return None


def _combine(
    gpus: Sequence[dict[str, Any]],
    column: str,
    combine: Callable[[Sequence[float]], float],
    problem: str | None = None,
) -> tuple[float | None, str]:
    """A figure over GPUs, or None and the reason of the first GPU that lacks it."""
    if problem:
        return None, problem
    for gpu in gpus:
        if gpu[column] is None:
            reason = json.loads(gpu["missing_reasons"])[column]
            return None, f"{gpu['node']} GPU {gpu['gpu']}: {reason}"
    return combine([gpu[column] for gpu in gpus]), ""


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
