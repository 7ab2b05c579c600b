"""One GPU's row: statistics of its readings over the measured steps, or why they are not known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workflow_lib import gpu_models
from workflow_lib.analysis import metrics
from workflow_lib.analysis.counters import Counted, CountedThrottling, ThrottleShares
from workflow_lib.analysis.known import Known, Values, Why, known, merged, missing_of, over, scaled
from workflow_lib.analysis.metrics import Window
from workflow_lib.analysis.recordings import Recording, power_limit_w
from workflow_lib.records import measures
from workflow_lib.records.cell import Hardware
from workflow_lib.records.columns import sampled
from workflow_lib.records.reasons import Reason
from workflow_lib.records.tables import GPUS
from workflow_lib.records.telemetry_columns import GPU_COUNTERS, GPU_SAMPLES
from workflow_lib.telemetry.validity.counter_span import CounterSpan

#: no driver lets mean power exceed a limit by so much; sensors are off by up to 5 %
_ABOVE_LIMIT = 1.1

ERROR_COUNTERS = ("ecc_corrected_errors", "ecc_uncorrected_errors")

_READINGS = sampled((*GPU_SAMPLES, *GPU_COUNTERS))
#: quantity → the column that it is computed from
_COLUMNS = {**dict.fromkeys(metrics.EVENTS, "event_reasons"), "capped_clock": "sm_clock_mhz"}

#: columns of GPUS that are never null
_ALWAYS_KNOWN = (
    *("cell", "run", "node", "gpu", "airflow", "samples", "power_refused"),
    *("missing_reasons", "missing_codes"),
)

_NONE_INSIDE = Reason("no_reading_inside")


def empty_row(node: str, gpu: int, hardware: Hardware, reason: Reason) -> dict[str, Any]:
    """The row of a GPU without telemetry: its measures are null for ``reason``."""
    names = [column.name for column in GPUS if column.name not in _ALWAYS_KNOWN]
    values: Values = dict.fromkeys(names, (None, reason))
    known_of_it = {"node": node, "gpu": gpu, "airflow": airflow_of(gpu, hardware)}
    known_of_it |= {"samples": 0, "power_refused": 0}
    return {**known_of_it, **dict.fromkeys(names), **missing_of(values)}


def airflow_of(gpu: int, hardware: Hardware) -> str:
    """The place of a GPU in its node's airflow: front, rear or unknown."""
    return hardware.airflow[gpu] if gpu < len(hardware.airflow) else "unknown"


@dataclass(frozen=True)
class Gpu:
    """One GPU's readings over the window, from which its row is made."""

    gpu: int
    recording: Recording
    window: Window
    #: quantity → this GPU's statistics by :meth:`Integrals.looks`, if it has readings of it
    looks: Mapping[str, Mapping[str, Any]]
    #: cumulative counter → its readings around the window, None if it has none
    spans: Mapping[str, CounterSpan | None]
    counted: Counted
    power_source: str | None
    #: how many values of power were left out as impossible
    power_refused: int
    #: shares of throttling by counters; None unless all GPUs of the run have them
    throttled: CountedThrottling | None
    #: how often power rose to its limit
    bursts: int
    #: columns that its rank counted: bytes over links, and its allocator's counts
    of_rank: Values

    def row(self, hardware: Hardware) -> dict[str, Any]:
        """The GPU's row of GPUS, less ``cell`` and ``run``; a null value has a reason."""
        values = merged(
            self._about_itself(),
            self._about_its_sensor(),
            self._energies(hardware),
            self._read(hardware),
            self._throttle(),
            self._power_cap(hardware.gpus_per_package),
            self.of_rank,
            {counter: self._increase(counter) for counter in ERROR_COUNTERS},
            {"xid_events": self._xid_events()},
        )
        return {
            "node": self.recording.node,
            "gpu": self.gpu,
            "airflow": airflow_of(self.gpu, hardware),
            "simulated": self.recording.start.simulated,
            "samples": self._look("sample").get("readings", 0),
            "power_refused": self.power_refused,
            **{name: value for name, (value, _) in values.items()},
            **missing_of(values),
        }

    def _about_itself(self) -> Values:
        uuid = self.recording.start.gpus[self.gpu].get("uuid")
        gap = self._problem("sample", any_gap=True)
        return {
            "gpu_uuid": known(uuid, Reason("driver_does_not_tell", what="the GPU's UUID")),
            "longest_gap_s": self._of_look("sample", "longest_gap_s", gap),
        }

    def _about_its_sensor(self) -> Values:
        """What is known of the power sensor of this model of GPU, for the source that was read."""
        if self.recording.start.simulated:
            nothing = None, Reason("simulated_sensor")
            return {"power_window_s": nothing, "power_seen_share": nothing}
        name = str(self.recording.start.gpus[self.gpu].get("name"))
        model = gpu_models.of_device(name)
        unknown = Reason("gpu_model_unknown", name=name)
        window: Known = known(model and model.reading_window_s, unknown)
        if self.power_source == "driver":
            window = None, Reason("look_of_unknown_length")
        return {
            "power_window_s": window,
            "power_seen_share": known(model and model.seen_share, unknown),
        }

    def _energies(self, hardware: Hardware) -> Values:
        package = self._package_reason(hardware.gpus_per_package)
        problem = package or self._problem("power_w")
        share = self.counted.share
        difference: Known = (None, problem or self.counted.reason)
        error = difference
        if share is not None and not problem:
            difference = 1 / share - 1, ""
            error = self.counted.error_share, ""
        energy = self._energy_j(problem)
        source = "integral" if share is None else "counter"
        return {
            "energy_j": energy,
            "energy_source": (None, problem) if problem else (source, ""),
            "energy_integral_j": self._of_look("power_w", "integral", problem),
            "energy_difference": difference,
            "energy_error_share": error,
            "power_mean_w": over(energy, self.window.duration_s),
            "power_peak_w": self._of_look("power_w", "peak", problem),
            "power_source": (None, problem) if problem else known(self.power_source, _NONE_INSIDE),
        }

    def _energy_j(self, problem: Reason | None) -> Known:
        """The energy over the window: the counter's if that is known, else the integral of power.
        Null with ``problem`` as the reason."""
        share = self.counted.share
        return scaled(
            self._of_look("power_w", "integral", problem), 1.0 if share is None else share
        )

    def _read(self, hardware: Hardware) -> Values:
        """The measures that are a plain statistic of a sensor's readings."""
        values: Values = {}
        for measure in measures.read_from("gpu", "counters"):
            reading = measure.reading
            assert reading is not None  # read_from() returns only measures with a reading
            column = reading.column
            # A highest or lowest of slow readings needs none at the ends of the window.
            strict = reading.file == "gpu" or reading.statistic == "mean"
            problem = self._problem(column) if strict else self._never(column)
            if measure.sensor == "power":
                problem = self._package_reason(hardware.gpus_per_package) or problem
            if reading.statistic == "increase":
                values[measure.name] = scaled(self._increase(column), reading.factor)
            elif reading.statistic == "mean":
                whole = self._of_look(column, "integral", problem)
                mean = over(whole, self.window.duration_s)
                values[measure.name] = scaled(mean, reading.factor)
            else:
                value = self._of_look(column, reading.statistic, problem)
                values[measure.name] = scaled(value, reading.factor)
        return values

    def _of_look(self, quantity: str, name: str, problem: Reason | None) -> Known:
        """A statistic of a quantity, or null with ``problem`` as the reason."""
        return (None, problem) if problem else known(self._look(quantity)[name], _NONE_INSIDE)

    def _look(self, quantity: str) -> Mapping[str, Any]:
        return self.looks.get(quantity, {})

    def _never(self, quantity: str) -> Reason | None:
        """Why a quantity has no reading at all, or None where it has one."""
        if not self._look("sample"):
            return Reason("no_sample_of_gpu", node=self.recording.node, gpu=self.gpu)
        column = _COLUMNS.get(quantity, quantity)
        return None if self._look(quantity) else self.recording.why_absent(column)

    def _problem(self, quantity: str, any_gap: bool = False) -> Reason | None:
        """Why a quantity cannot be integrated over the window, or None where it can."""
        if problem := self._never(quantity):
            return problem
        look = self._look(quantity)
        column = _COLUMNS.get(quantity, quantity)
        late_s = look["first_unix_s"] - self.window.start_unix_s
        early_s = self.window.end_unix_s - look["last_unix_s"]
        for end, off_s, edge in (
            ("first", late_s, "after the measured steps began"),
            ("last", early_s, "before the measured steps ended"),
        ):
            if off_s > 0:
                return Reason("edge_not_read", end=end, column=column, off_s=off_s, edge=edge)
        if any_gap:
            return None
        bridged_s = _READINGS[column].bridged_s(self.recording.start.sample_rate_hz)
        if look["longest_gap_s"] > bridged_s:
            return Reason(
                "reading_gap", column=column, gap_s=look["longest_gap_s"], bridged_s=bridged_s
            )
        return None

    def _throttle(self) -> Values:
        """The shares of throttling and their source, and beside them the shares by sampled event
        bits."""
        problem: Why = self._problem("power_capped") or ""
        duration_s = self.window.duration_s
        sampled = ThrottleShares(None, None, None)
        if not problem:
            sampled = ThrottleShares(
                *(self._look(name)["integral"] / duration_s for name in metrics.EVENTS)
            )
        exact = self.throttled
        source = "counters" if exact else (None if problem else "events")
        chosen = exact.shares if exact else sampled
        reason: Why = "" if exact else problem
        power: Known = (chosen.power, reason)
        is_nvidia = self.recording.start.source == "nvidia"
        if exact and is_nvidia and (exact.shares.thermal or 0) > exact.error:
            # NVIDIA's counter of time at the power cap counts thermal slowdown as well: an H100 at
            # 250 W of 700 W and 92 °C (evidence/measured/hot-gpu-h100x2.zip).
            power = (sampled.power, problem)
        return {
            "throttle_share_error": self._throttle_error(reason),
            "throttle_power_share": power,
            "throttle_thermal_share": (chosen.thermal, reason),
            "throttle_brake_share": (chosen.brake, reason),
            "throttle_power_sampled_share": (sampled.power, problem),
            "throttle_thermal_sampled_share": (sampled.thermal, problem),
            "throttle_brake_sampled_share": (sampled.brake, problem),
            "throttle_source": (source, reason),
        }

    def _throttle_error(self, problem: Why) -> Known:
        """The largest error of the shares of throttling."""
        if self.throttled is None:
            return None, problem or Reason("events_without_bound")
        if self.recording.start.simulated:
            return None, Reason("simulated_counters")
        if self.recording.start.source != "nvidia":
            return None, Reason("counter_steps_unknown")
        return self.throttled.error, ""

    def _power_cap(self, gpus_per_package: int) -> Values:
        """The power limit, how close power came to it, and how the cap lowered the clock."""
        package = self._package_reason(gpus_per_package)
        limit_w, no_limit = power_limit_w(self.recording.start, self.recording.end, self.gpu)
        if package:
            limit_w, no_limit = None, package
        problem = package or self._problem("power_w") or no_limit or None
        mean_w = over(self._energy_j(problem), self.window.duration_s)
        if limit_w and mean_w[0] is not None and mean_w[0] > _ABOVE_LIMIT * limit_w:
            problem = Reason("limit_raised_later", mean_w=mean_w[0], limit_w=limit_w)
            mean_w = None, problem
        if problem is None and self.power_source != "driver":
            problem = Reason("readings_too_long_for_bursts")
        at_limit_s = self._of_look("at_power_limit", "integral", problem)
        no_burst = problem or Reason("never_at_limit")
        unread = self._problem("capped_clock") or self._problem("power_capped")
        clock = self._of_look("capped_clock", "integral", unread)
        highest_mhz = self.recording.start.gpus[self.gpu].get("sm_clock_max_mhz")
        capped_s = self._look("power_capped").get("integral")
        if highest_mhz is None or not capped_s:
            reason = Reason("driver_does_not_tell", what="the highest clock")
            never = Reason("never_power_capped")
            clock = None, clock[1] or (reason if capped_s else never)
        return {
            "power_limit_w": known(limit_w, no_limit),
            "power_of_limit_share": over(mean_w, limit_w or 1.0),
            "at_power_limit_share": over(at_limit_s, self.window.duration_s),
            "at_power_limit_burst_s": over(at_limit_s, self.bursts)
            if self.bursts
            else (None, no_burst),
            "capped_clock_share": over(clock, (capped_s or 1.0) * (highest_mhz or 1.0)),
        }

    def _increase(self, counter: str) -> Known:
        """How much a counter counted between the readings that bracket the window."""
        span = self.spans[counter]
        if span is None:
            return None, self.recording.why_absent(counter)
        around = span.around()
        if around is None:
            return None, Reason("counter_not_around", counter=counter)
        if span.fell:
            return None, Reason("counter_fell", counter=counter)
        return _READINGS[counter].type(around[1].value - around[0].value), ""

    def _package_reason(self, gpus_per_package: int) -> Reason | None:
        sensor = self.recording.start.power_sensor(self.gpu, gpus_per_package)
        if sensor == self.gpu:
            return None
        return Reason(
            "shares_package_sensor", gpu=self.gpu, gpus_per_package=gpus_per_package, sensor=sensor
        )

    def _xid_events(self) -> Known:
        events = self.recording.xid_events
        if events is None:
            return None, self.recording.why_absent("event")
        return events.get(self.gpu, 0), ""
