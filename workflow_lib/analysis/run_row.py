"""A run's row, filled measure by measure; what cannot be had is null, with the reason why."""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from workflow_lib.analysis import metrics
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
