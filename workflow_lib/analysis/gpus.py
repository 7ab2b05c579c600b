"""One GPU's row: what its readings did over the measured steps, or why that is not known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from workflow_lib.analysis import metrics
from workflow_lib.analysis.metrics import Window
from workflow_lib.records import GPUS, Hardware, TelemetryStart

#: a straight line is drawn over a gap between two readings of at most this long, or this many
#: sample periods, whichever is longer; a longer one makes the measure null
_BRIDGED_GAP_S = 5.0
_BRIDGED_PERIODS = 5.0

_THROTTLE_COUNTERS = (
    "throttle_power_cap_s",
    "throttle_sw_thermal_s",
    "throttle_hw_thermal_s",
    "throttle_power_brake_s",
)

#: readings that are looked at over the window
READINGS: Mapping[str, pl.Expr] = {
    name: pl.col(name)
    for name in (
        "unix_time_s",
        "power_w",
        "energy_j",
        "temperature_c",
        "sm_clock_mhz",
        *_THROTTLE_COUNTERS,
    )
}
#: event bits as 0 or 1, looked at where the counters of throttling are not to be had
EVENTS: Mapping[str, pl.Expr] = {
    "power_capped": metrics.power_capped(),
    "thermally_slowed": metrics.thermally_slowed(),
    "power_braked": metrics.power_braked(),
}
#: columns of GPUS that hold whatever the samples say
_ALWAYS_KNOWN = ("cell", "run", "node", "gpu", "airflow", "samples", "missing_reasons")


def is_power_sensor(gpu: int, hardware: Hardware) -> bool:
    """Whether a GPU reports its package's power: the first die of a package does, for all of it.

    On MI250 the second die's own power reading is 0 or absent, and means nothing.
    """
    return gpu % hardware.gpus_per_package == 0


def empty_row(node: str, gpu: int, hardware: Hardware, reason: str) -> dict[str, Any]:
    """The row of a GPU of which nothing is known, for one reason."""
    names = [column.name for column in GPUS if column.name not in _ALWAYS_KNOWN]
    return {
        "node": node,
        "gpu": gpu,
        "airflow": _airflow(gpu, hardware),
        "samples": 0,
        **dict.fromkeys(names),
        "missing_reasons": _reasons_text(dict.fromkeys(names, reason)),
    }


def _airflow(gpu: int, hardware: Hardware) -> str:
    return hardware.airflow[gpu] if gpu < len(hardware.airflow) else "unknown"


def _reasons_text(reasons: Mapping[str, str]) -> str:
    return json.dumps(reasons, sort_keys=True, ensure_ascii=False)


@dataclass(frozen=True)
class Gpu:
    """One GPU's readings, looked at over the window."""

    node: str
    gpu: int
    start: TelemetryStart
    window: Window
    #: quantity → GPU → row of :func:`metrics.over_window`
    looks: Mapping[str, Mapping[int, Mapping[str, Any]]]

    def row(self, hardware: Hardware) -> dict[str, Any]:
        """The GPU's row: values where they can be had, else null and why."""
        row: dict[str, Any] = {
            "node": self.node,
            "gpu": self.gpu,
            "airflow": _airflow(self.gpu, hardware),
            "simulated": self.start.simulated,
            "samples": self._look("unix_time_s").get("readings", 0),
        }
        reasons: dict[str, str] = {}
        duration_s = self.window.duration_s

        def fill(quantity: str, problem: str | None, **columns: tuple[str, float]) -> None:
            """Set each column to a figure of the look, divided, or to null and the problem."""
            look = self._look(quantity)
            for column, (figure, divisor) in columns.items():
                value = None if problem else look[figure]
                row[column] = None if value is None else value / divisor
                if value is None:
                    reasons[column] = problem or "no reading lies within the measured steps"

        fill(
            "unix_time_s",
            self._problem("unix_time_s", any_gap=True),
            longest_gap_s=("longest_gap_s", 1),
        )
        package = _package_reason(self.gpu, hardware)
        fill(
            "power_w",
            package or self._problem("power_w"),
            power_mean_w=("integral", duration_s),
            power_peak_w=("peak", 1),
            energy_j=("integral", 1),
        )
        fill(
            "energy_j",
            package or self._counter_problem("energy_j"),
            energy_counter_j=("increase", 1),
        )
        fill(
            "temperature_c",
            self._problem("temperature_c"),
            temperature_mean_c=("integral", duration_s),
            temperature_peak_c=("peak", 1),
        )
        fill(
            "sm_clock_mhz",
            self._problem("sm_clock_mhz"),
            sm_clock_mean_mhz=("integral", duration_s),
        )
        shares, source, reason = self._throttle()
        row.update(shares, throttle_source=source)
        if reason:
            reasons.update(dict.fromkeys([*shares, "throttle_source"], reason))
        row["missing_reasons"] = _reasons_text(reasons)
        return row

    def has_throttle_counters(self) -> bool:
        """Whether all cumulative counters of throttling can be had over the window."""
        return all(self._counter_problem(counter) is None for counter in _THROTTLE_COUNTERS)

    def _look(self, quantity: str) -> Mapping[str, Any]:
        return self.looks[quantity].get(self.gpu, {})

    def _problem(self, quantity: str, any_gap: bool = False) -> str | None:
        """Why a quantity cannot be integrated over the window, or None where it can."""
        look = self._look(quantity)
        if not self._look("unix_time_s"):
            return f"telemetry of node {self.node} has no sample of GPU {self.gpu}"
        column = "event_reasons" if quantity in EVENTS else quantity
        if not look:
            return self.start.missing.get(column, f"no sample has a {column}")
        late_s = look["first_unix_s"] - self.window.start_unix_s
        early_s = self.window.end_unix_s - look["last_unix_s"]
        if late_s > 0:
            return f"the first {column} was read {late_s:.3g} s after the measured steps began"
        if early_s > 0:
            return f"the last {column} was read {early_s:.3g} s before the measured steps ended"
        bridged_s = max(_BRIDGED_GAP_S, _BRIDGED_PERIODS / self.start.sample_rate_hz)
        if not any_gap and look["longest_gap_s"] > bridged_s:
            return (
                f"{column} was not read for {look['longest_gap_s']:.3g} s, more than the "
                f"{bridged_s:.3g} s that are interpolated"
            )
        return None

    def _counter_problem(self, counter: str) -> str | None:
        if problem := self._problem(counter):
            return problem
        return f"the counter {counter} ran backwards" if self._look(counter)["falls"] else None

    def _throttle(self) -> tuple[dict[str, float | None], str | None, str | None]:
        """Power, thermal and brake shares, where they come from, and why they are missing.

        Exact from the cumulative counters where all of them can be had, else from the event bits
        that were sampled. Time in software and in hardware thermal slowdown is added up, so that
        time in both counts twice. Counters advance in steps of about 0.1 s, so that a share may
        seem to exceed 1 by that much; it is cut there.
        """
        duration_s = self.window.duration_s
        if self.has_throttle_counters():
            cap, software, hardware, brake = (
                self._look(counter)["increase"] / duration_s for counter in _THROTTLE_COUNTERS
            )
            return _shares(cap, software + hardware, brake), "counters", None
        if problem := self._problem("power_capped"):
            return _shares(None, None, None), None, problem
        sampled = (self._look(name)["integral"] / duration_s for name in EVENTS)
        return _shares(*sampled), "events", None


def _shares(
    power: float | None, thermal: float | None, brake: float | None
) -> dict[str, float | None]:
    named = {
        "throttle_power_share": power,
        "throttle_thermal_share": thermal,
        "throttle_brake_share": brake,
    }
    return {name: None if share is None else min(share, 1.0) for name, share in named.items()}


def _package_reason(gpu: int, hardware: Hardware) -> str | None:
    if is_power_sensor(gpu, hardware):
        return None
    first = gpu - gpu % hardware.gpus_per_package
    return (
        f"GPU {gpu} shares the power sensor of its package ({hardware.gpus_per_package} GPUs) "
        f"with GPU {first}, which reports for all of it"
    )
