"""What the sampler asks of a source of GPU readings, and what the vendors' sources share.

A reading that cannot be had is ``None``, which becomes an empty field: never 0, never −1. What a
GPU cannot tell at all is found out once at the start and named in ``missing``; what fails later is
counted in ``errors``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Value = float | int | None


class TelemetryError(Exception):
    """Sampling cannot begin or go on: what was wrong, what was expected, what to do."""


class UnreadableError(Exception):
    """One column could not be read, where the others of the same call could."""


class Source(Protocol):
    """A node's GPUs, numbered from 0 as training's local ranks are."""

    #: "nvidia", "amd" or "simulated"
    name: str
    #: "column: message" → how often a reading failed
    errors: Counter[str]
    #: GPUs that the job does not have, as TelemetryStart.other_gpus has them
    others: Sequence[Mapping[str, Any]]

    @property
    def gpus(self) -> Sequence[Mapping[str, Any]]:
        """One entry a GPU: name, uuid, serial, power_limit_w, driver_version, the driver's index
        of it, package, and reports_power (false on the odd die of a package); None where unknown.
        """
        ...

    @property
    def missing(self) -> Mapping[str, str]:
        """Column → why it stays empty."""
        ...

    def read(self, gpu: int, unix_time_s: float) -> Mapping[str, Value]:
        """Read a GPU at the time given: column → value, in the units of GPU_SAMPLES.

        Called at every tick, so it makes only calls of microseconds, and none that blocks.
        """
        ...

    def read_counters(
        self, gpu: int, unix_time_s: float, everything: bool = False
    ) -> Mapping[str, Value]:
        """Read what of GPU_COUNTERS is due by now, or everything; empty where nothing is.

        Called for each GPU about once a second, in turn.
        """
        ...

    def power_samples(self, gpu: int) -> Sequence[tuple[int, int]]:
        """The driver's own power samples since the last call: timestamp in µs since the epoch, mW.

        Empty where the driver keeps none; ``missing["power_mw"]`` then says why.
        """
        ...

    def events(self) -> Sequence[tuple[int, str, int | None]]:
        """GPU, event and code of what the driver has reported since the last call; never waits."""
        ...

    def close(self) -> None:
        """Let go of the driver."""
        ...


#: Outside of these bounds (exclusive, inclusive) a value is a sentinel or a fault, not a reading:
#: 0 K above freezing on a working GPU, all bits set for "not applicable", and the like.
_BOUNDS: Mapping[str, tuple[float, float]] = {
    "power_w": (0.0, 10_000.0),
    "power_instant_w": (0.0, 10_000.0),
    "temperature_c": (0.0, 200.0),
    "memory_temperature_c": (0.0, 200.0),
    "edge_temperature_c": (0.0, 200.0),
    # Negative where the core is hotter than it should be.
    "thermal_margin_c": (-200.0, 200.0),
    "sm_clock_mhz": (-1.0, 10_000.0),
    "memory_clock_mhz": (-1.0, 20_000.0),
    "utilisation_percent": (-1.0, 100.0),
    "energy_j": (0.0, 1e13),
}
_OTHER_BOUNDS = (-1.0, 2.0**63 - 1)

#: how often of a GPU is read what need not be at every tick
_SELDOM_S = 0.5
#: a tick that comes this much too early is the one that was meant
_EARLY_S = 0.02
#: Counters are asked for about once a second; what is due within half of that is read now.
_DUE_EARLY_S = 0.5


@dataclass(frozen=True)
class Poll:
    """One call to the driver, and the columns that it fills."""

    columns: tuple[str, ...]
    #: one value a column, or the error in its place
    read: Callable[[], Sequence[float | int | UnreadableError]]
    #: 0 for GPU_SAMPLES; else how often it is read for GPU_COUNTERS
    period_s: float = 0.0
    #: of GPU_SAMPLES: read with the first tick of every half second alone, as it changes slowly
    seldom: bool = False


@dataclass
class _KnownPoll:
    """A poll that works: which of its values are taken, and when it is due."""

    read: Callable[[], Sequence[float | int | UnreadableError]]
    #: of every column that the GPU supports: place among the values, name, bounds
    columns: list[tuple[int, str, float, float]]
    period_s: float
    seldom: bool
    due_unix_s: float | None = None

    def is_due(self, unix_time_s: float) -> bool:
        """Whether the period is over; also where the clock was set back by more than one."""
        due = self.due_unix_s
        return due is None or not due - self.period_s <= unix_time_s < due


class PolledSource:
    """A source that is read call by call, each call bound to one GPU's handle.

    ``failures`` are the exceptions with which the vendor's binding says that a reading failed.
    """

    def __init__(
        self,
        name: str,
        gpus: Sequence[Mapping[str, Any]],
        polls: Sequence[Sequence[Poll]],
        columns: Sequence[str],
        failures: tuple[type[Exception], ...],
        missing: Mapping[str, str],
    ) -> None:
        """Probe every call of every GPU once; raises TelemetryError where power is not to be had.

        ``columns`` are those that could be filled, ``missing`` those that are known not to be.
        """
        self.name = name
        self.gpus = gpus
        self.others: Sequence[Mapping[str, Any]] = ()
        self.errors: Counter[str] = Counter()
        self._failures: tuple[type[Exception], ...] = (UnreadableError, *failures)
        reasons: list[dict[str, str]] = []
        self._at_every_tick: list[list[_KnownPoll]] = []
        #: the same with what is read seldom
        self._now_and_then: list[list[_KnownPoll]] = []
        self._seldom_unix_s = [-math.inf] * len(gpus)
        self._counters: list[list[_KnownPoll]] = []
        for gpu, gpu_polls in enumerate(polls):
            known, unsupported = self._probe(gpu, gpu_polls)
            fast = [poll for poll in known if not poll.period_s]
            self._at_every_tick.append([poll for poll in fast if not poll.seldom])
            self._now_and_then.append(fast)
            self._counters.append([poll for poll in known if poll.period_s])
            reasons.append(unsupported)
        self.missing: dict[str, str] = {
            "power_mw": f"no power samples of the driver's own are collected from {name}",
            "event": f"no events are collected from {name}",
            **missing,
            **_common_reasons(reasons, columns),
        }
        for gpu, (entry, unsupported) in enumerate(zip(gpus, reasons, strict=True)):
            if entry["reports_power"] and "power_w" in unsupported:
                raise TelemetryError(
                    f"GPU {gpu} ({entry['name']}) reports no power: {unsupported['power_w']}; "
                    "a run cannot be measured without it"
                )

    def read(self, gpu: int, unix_time_s: float) -> dict[str, Value]:
        """Read a GPU; see Source."""
        polls = self._at_every_tick[gpu]
        # At other moments, too, where the clock was set back.
        if not 0 <= unix_time_s - self._seldom_unix_s[gpu] < _SELDOM_S - _EARLY_S:
            polls, self._seldom_unix_s[gpu] = self._now_and_then[gpu], unix_time_s
        values, problems = self._call(gpu, polls)
        return self._with_problems(values, problems) if problems else values

    def read_counters(
        self, gpu: int, unix_time_s: float, everything: bool = False
    ) -> dict[str, Value]:
        """Read what is due of a GPU; see Source."""
        polls = self._counters[gpu]
        due: list[_KnownPoll] = []
        for place, poll in enumerate(polls):
            if not (everything or poll.is_due(unix_time_s)):
                continue
            due.append(poll)
            wait_s = poll.period_s
            if poll.due_unix_s is None:
                # The first row has everything. Thereafter neither one GPU's costly readings nor
                # those of all GPUs fall on one tick: they are spread over the period.
                wait_s *= 1 - (place / len(polls) + gpu / len(self.gpus)) % 1
            poll.due_unix_s = unix_time_s + wait_s - _DUE_EARLY_S
        values, problems = self._call(gpu, due)
        return self._with_problems(values, problems) if problems else values

    def power_samples(self, gpu: int) -> Sequence[tuple[int, int]]:
        """None, unless the vendor's source has them; see Source."""
        return []

    def events(self) -> Sequence[tuple[int, str, int | None]]:
        """None, unless the vendor's source has them; see Source."""
        return []

    def close(self) -> None:
        """Nothing to let go of; the vendors' sources do."""

    def _on_failure(self, gpu: int, error: Exception) -> None:
        """Told of every call that failed, for sources that read more out of it."""

    def _call(
        self, gpu: int, polls: Sequence[_KnownPoll]
    ) -> tuple[dict[str, Value], dict[str, str]]:
        """Column → value of what could be read, and column → message of what could not."""
        values: dict[str, Value] = {}
        problems: dict[str, str] = {}
        for poll in polls:
            try:
                readings = poll.read()
            except self._failures as error:
                self._on_failure(gpu, error)
                problems.update((column, _one_line(error)) for _, column, _, _ in poll.columns)
                continue
            for place, column, low, high in poll.columns:
                value = readings[place]
                if isinstance(value, UnreadableError):
                    problems[column] = _one_line(value)
                elif low < value <= high:
                    values[column] = value
                else:
                    problems[column] = f"the driver returned {value}"
        return values, problems

    def _with_problems(
        self, values: dict[str, Value], problems: Mapping[str, str]
    ) -> dict[str, Value]:
        """Count what failed, and leave its columns empty."""
        for column, message in problems.items():
            self.errors[f"{column}: {message}"] += 1
            values[column] = None
        return values

    def _probe(self, gpu: int, polls: Sequence[Poll]) -> tuple[list[_KnownPoll], dict[str, str]]:
        """The polls that work, and column → message of what the GPU cannot tell."""
        known: list[_KnownPoll] = []
        unsupported: dict[str, str] = {}
        for poll in polls:
            candidate = _KnownPoll(
                poll.read,
                [
                    (place, column, *_BOUNDS.get(column, _OTHER_BOUNDS))
                    for place, column in enumerate(poll.columns)
                ],
                poll.period_s,
                poll.seldom,
            )
            _, problems = self._call(gpu, [candidate])
            if problems:
                # A passing fault must not cost a column for the whole run, so ask twice.
                _, problems = self._call(gpu, [candidate])
            unsupported.update(problems)
            candidate.columns = [c for c in candidate.columns if c[1] not in problems]
            if candidate.columns:
                known.append(candidate)
        return known, unsupported


def _common_reasons(reasons: list[dict[str, str]], columns: Sequence[str]) -> dict[str, str]:
    """Why columns are empty, naming the GPUs where only some lack them."""
    missing: dict[str, str] = {}
    for column in columns:
        reason = common_reason([unsupported.get(column) for unsupported in reasons])
        if reason is not None:
            missing[column] = reason
    return missing


def common_reason(reasons: Sequence[str | None]) -> str | None:
    """One reason out of each GPU's (None: it lacks nothing), naming the GPUs where only some have.

    None where no GPU has any.
    """
    lacking = [gpu for gpu, reason in enumerate(reasons) if reason is not None]
    if not lacking:
        return None
    if len(lacking) == len(reasons):
        return reasons[0]
    return f"on GPU {', '.join(map(str, lacking))} only: {reasons[lacking[0]]}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
