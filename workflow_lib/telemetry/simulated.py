"""Simulated GPUs, for machines without GPUs. All their readings are marked as simulated.

Each GPU is a first-order model. The real load of the node's CPUs drives it, so training on the CPU
shows in its readings::

    CPU load × kernels ──low-pass──▶ power asked for ──cap──▶ power ──low-pass──▶ temperature
                                                     │         ├──trapezoid──▶ energy counter
                                                     │         └──lines──▶ samples every 20 ms
                                                     └▶ clock, event bit 0x4, throttle counter

A busy GPU alternates between dense kernels, which ask for more power than the limit, and lulls.
Each GPU has a rhythm, a power draw and a cooling of its own. Their random numbers come from the
cell's seed.

The thermal constants come from a recording of 8×H200 at their 700 W cap: idle at 79 W and 35 °C;
under load 59 °C in the front of the air stream and 65.5 °C in its rear.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workflow_lib.telemetry.devices.kernel import CpuUtilisation
from workflow_lib.telemetry.source import READINGS, TICK_READINGS, Value, declared_lacking

#: the power limit if the platform states none; it is not that of a real GPU
_POWER_LIMIT_W = 300.0
#: the share of the limit drawn when idle: 79 of 700 W
_IDLE_SHARE = 0.113
#: ranges of the power that a busy GPU asks for, as a share of its limit, and of its duration: in
#: dense kernels, and in the lulls between them, which stand for waiting for memory, ranks or host
_DENSE_SHARE, _DENSE_S = (1.0, 1.16), (0.4, 1.6)
_LULL_SHARE, _LULL_S = (0.45, 0.75), (0.1, 0.5)
#: GPUs of one model differ in the power that they draw and in the cooling of their slots: largest
#: relative differences from the mean
_DRAW_SPREAD = 0.04
_COOLING_SPREAD = 0.1
_POWER_TIME_CONSTANT_S = 0.25
_TEMPERATURE_TIME_CONSTANT_S = 12.0
_AIR_C = 32.0
#: how far a GPU at its power limit is above the air, by its place in the air: 59 and 65.5 °C
_RISE_AT_LIMIT_C = {"front": 27.0, "unknown": 27.0, "rear": 33.5}
#: the second die of a package runs hotter (5–10 °C have been reported on MI250)
_SECOND_DIE_RISE_C = 6.0
_MEMORY_RISE_C = 8.0
_SM_CLOCK_MHZ = 1980.0
_IDLE_CLOCK_MHZ = 345.0
_MEMORY_CLOCK_MHZ = 3201.0
#: the busy share below which a GPU lowers its clock
_IDLE_BELOW = 0.05
_EVENT_IDLE = 0x1
_EVENT_POWER_CAP = 0x4
_GIB = 2**30
#: as in NVIDIA's driver: a sample every 20 ms, of which the last 119 are kept
_SAMPLE_PERIOD_US = 20_000
_SAMPLES_KEPT = 119


@dataclass
class _Die:
    """The state of one GPU: a die, which may share a package with others."""

    #: its power draw relative to the mean of all GPUs
    draw: float
    rise_at_limit_c: float
    asked_w: float
    temperature_c: float
    dice: random.Random
    dense: bool = False
    full_load_share: float = _LULL_SHARE[0]
    phase_ends_unix_s: float = -math.inf

    def share_at(self, unix_time_s: float) -> float:
        """The share of the limit that the kernel at this time asks for at full load."""
        length_s = self.phase_ends_unix_s - unix_time_s
        # The phase is over, or the clock was set back.
        if not 0 < length_s <= _DENSE_S[1]:
            self.dense = not self.dense
            shares, lengths_s = (_DENSE_SHARE, _DENSE_S) if self.dense else (_LULL_SHARE, _LULL_S)
            self.full_load_share = self.dice.uniform(*shares)
            self.phase_ends_unix_s = unix_time_s + self.dice.uniform(*lengths_s)
        return self.full_load_share


@dataclass
class _Package:
    """The power sensor that a package's dies share."""

    power_w: float
    energy_j: float
    capped_s: float
    capped: bool = False
    updated_unix_s: float | None = None
    #: power samples that are not collected yet: time in µs since the epoch, mW
    samples: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_SAMPLES_KEPT))


class SimulatedSource:
    """One GPU for each rank on the node. The same seed and loads give the same readings.

    ``load`` returns the busy share of the node, 0 to 1, since its last call; None means the same
    share as before.
    """

    name = "simulated"
    others: Sequence[Mapping[str, Any]] = ()
    #: the model's counter is exact at every moment
    energy_in_steps: Sequence[int] = ()

    def __init__(
        self,
        node: str,
        count: int,
        *,
        seed: int = 0,
        model: str | None = None,
        gpus_per_package: int = 1,
        power_limit_w: float | None = None,
        memory_bytes: float | None = None,
        airflow: Sequence[str] = (),
        load: Callable[[], float | None] | None = None,
    ) -> None:
        """``count`` GPUs of one ``model``; what is None has a value that is no real GPU's."""
        self._dies_per_package = gpus_per_package
        self._limit_w = power_limit_w or _POWER_LIMIT_W
        #: the share of the package's power limit for one die, in W
        self._share_w = self._limit_w / self._dies_per_package
        self._memory_bytes = memory_bytes or 16 * _GIB
        self._load = load or CpuUtilisation().share
        self._busy = 0.0
        airflow = (*airflow, *("unknown",) * count)
        dice = random.Random(f"{seed}/{node}")
        self._dies = [
            self._idle_die(random.Random(f"{seed}/{node}/{gpu}"), airflow[gpu], gpu)
            for gpu in range(count)
        ]
        self._packages = [
            _Package(power_w=0.0, energy_j=dice.uniform(1e6, 2e6), capped_s=dice.uniform(0, 100))
            for _ in range(math.ceil(count / self._dies_per_package))
        ]
        for number, package in enumerate(self._packages):
            self._settle(package, self._members(number))
        self.gpus = [
            {
                "name": f"simulated {model or 'GPU'}",
                "uuid": f"simulated-{node}-{gpu}",
                "serial": None,
                "power_limit_w": self._limit_w if self._reports_power(gpu) else None,
                "driver_version": None,
                "index": gpu,
                "package": gpu // self._dies_per_package,
                "reports_power": self._reports_power(gpu),
            }
            for gpu in range(count)
        ]
        simulated = (*TICK_READINGS, *self._counters(0))
        self.missing: dict[str, str] = {
            **{column: "not simulated" for column in READINGS if column not in simulated},
            **declared_lacking(self.name),
        }
        self.errors: Counter[str] = Counter()

    def read(self, gpu: int, unix_time_s: float) -> dict[str, Value]:
        """Read a GPU; see Source. Reading a package's first die advances the package's state."""
        if gpu == 0 and (load := self._load()) is not None:
            self._busy = load
        number = gpu // self._dies_per_package
        die, package, members = self._dies[gpu], self._packages[number], self._members(number)
        if self._reports_power(gpu):
            self._advance(package, members, unix_time_s)
        # Dynamic power grows with f · V², and V with f, so the clock grows with power ** (1 / 3).
        granted = package.power_w / sum(member.asked_w for member in members)
        slowdown = granted ** (1 / 3) if package.capped else 1.0
        idle = self._busy < _IDLE_BELOW and not package.capped
        values: dict[str, Value] = {
            "temperature_c": round(die.temperature_c, 1),
            "sm_clock_mhz": _IDLE_CLOCK_MHZ if idle else round(_SM_CLOCK_MHZ * slowdown),
            "memory_clock_mhz": _MEMORY_CLOCK_MHZ,
            "utilisation_percent": round(100 * self._busy),
            "event_reasons": _EVENT_POWER_CAP if package.capped else (_EVENT_IDLE if idle else 0),
        }
        if self._reports_power(gpu):
            values["power_w"] = package.power_w
        return values

    def read_counters(
        self, gpu: int, unix_time_s: float, everything: bool = False
    ) -> dict[str, Value]:
        """Read all counters of a GPU; all are due at every call. See Source."""
        if self._reports_power(gpu):
            number = gpu // self._dies_per_package
            self._advance(self._packages[number], self._members(number), unix_time_s)
        return self._counters(gpu)

    def _counters(self, gpu: int) -> dict[str, Value]:
        die, package = self._dies[gpu], self._packages[gpu // self._dies_per_package]
        values: dict[str, Value] = {
            "throttle_power_cap_s": package.capped_s,
            "throttle_sw_thermal_s": 0.0,
            "throttle_hw_thermal_s": 0.0,
            "throttle_power_brake_s": 0.0,
            "memory_temperature_c": round(die.temperature_c + _MEMORY_RISE_C, 1),
            "memory_used_bytes": int(self._memory_bytes * (0.02 + 0.6 * self._busy)),
        }
        if self._reports_power(gpu):
            values["energy_j"] = package.energy_j
        return values

    def read_energy(self, gpu: int) -> float | None:
        """Never asked for, because ``energy_in_steps`` is empty; see Source."""
        return None

    def power_samples(self, gpu: int) -> Sequence[tuple[int, int]]:
        """The samples of the latest 2.4 s that were not collected before; see Source."""
        if not self._reports_power(gpu):
            return ()
        samples = self._packages[gpu // self._dies_per_package].samples
        collected = tuple(samples)
        samples.clear()
        return collected

    def events(self) -> Sequence[tuple[int, str, int | None]]:
        """No events; see Source."""
        return ()

    def power_limits_w(self) -> Sequence[float | None]:
        """The limits with which they were made."""
        return [
            self._limit_w if self._reports_power(gpu) else None for gpu in range(len(self._dies))
        ]

    def close(self) -> None:
        """Nothing to close."""

    def _reports_power(self, gpu: int) -> bool:
        return gpu % self._dies_per_package == 0

    def _idle_die(self, dice: random.Random, airflow: str, gpu: int) -> _Die:
        draw = 1 + dice.uniform(-_DRAW_SPREAD, _DRAW_SPREAD)
        rise = _RISE_AT_LIMIT_C.get(airflow, _RISE_AT_LIMIT_C["unknown"])
        rise *= 1 + dice.uniform(-_COOLING_SPREAD, _COOLING_SPREAD)
        if not self._reports_power(gpu):
            rise += _SECOND_DIE_RISE_C
        asked_w = _IDLE_SHARE * self._share_w * draw
        return _Die(draw, rise, asked_w, _AIR_C + rise * asked_w / self._share_w, dice)

    def _members(self, number: int) -> list[_Die]:
        first = number * self._dies_per_package
        return self._dies[first : first + self._dies_per_package]

    def _settle(self, package: _Package, members: list[_Die]) -> None:
        asked_w = sum(die.asked_w for die in members)
        package.capped = asked_w > self._limit_w
        # Rounded to mW, as it is reported, so that the counter integrates the reported power.
        package.power_w = round(min(asked_w, self._limit_w), 3)

    def _advance(self, package: _Package, members: list[_Die], unix_time_s: float) -> None:
        before = package.updated_unix_s
        package.updated_unix_s = unix_time_s
        if before is None or unix_time_s <= before:
            return
        elapsed_s = unix_time_s - before
        power_gain = 1 - math.exp(-elapsed_s / _POWER_TIME_CONSTANT_S)
        heat_gain = 1 - math.exp(-elapsed_s / _TEMPERATURE_TIME_CONSTANT_S)
        for die in members:
            share = _IDLE_SHARE + (die.share_at(unix_time_s) - _IDLE_SHARE) * self._busy
            die.asked_w += (share * self._share_w * die.draw - die.asked_w) * power_gain
        power_before_w = package.power_w
        self._settle(package, members)
        package.energy_j += (power_before_w + package.power_w) / 2 * elapsed_s
        _take_samples(package, before, power_before_w)
        if package.capped:
            package.capped_s += elapsed_s
        granted = package.power_w / sum(die.asked_w for die in members)
        for die in members:
            rise_c = die.rise_at_limit_c * granted * die.asked_w / self._share_w
            die.temperature_c += (_AIR_C + rise_c - die.temperature_c) * heat_gain


def _take_samples(package: _Package, before_unix_s: float, power_before_w: float) -> None:
    """Add samples at whole periods since the epoch, interpolated linearly to the present power."""
    assert package.updated_unix_s is not None
    elapsed_s = package.updated_unix_s - before_unix_s
    last = math.floor(package.updated_unix_s * 1e6 / _SAMPLE_PERIOD_US)
    first = math.floor(before_unix_s * 1e6 / _SAMPLE_PERIOD_US) + 1
    for number in range(max(first, last + 1 - _SAMPLES_KEPT), last + 1):
        time_us = number * _SAMPLE_PERIOD_US
        share = (time_us / 1e6 - before_unix_s) / elapsed_s
        power_w = power_before_w + share * (package.power_w - power_before_w)
        package.samples.append((time_us, round(1000 * power_w)))
