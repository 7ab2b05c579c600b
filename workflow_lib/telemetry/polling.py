"""A source that reads its GPUs by polling: a list of calls to the driver, each with a period."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workflow_lib import gpu_models
from workflow_lib.records.telemetry_columns import SELDOM_S
from workflow_lib.telemetry.source import (
    READINGS,
    TICK_READINGS,
    TelemetryError,
    UnreadableError,
    Value,
    declared_lacking,
)

#: a tick that comes up to this much early also reads the seldom readings
_EARLY_S = 0.02
#: Counters are asked for about once a second, so those that are due within half a second are read.
_DUE_EARLY_S = 0.5


@dataclass(frozen=True)
class Poll:
    """One call to the driver, and the columns that it fills."""

    columns: tuple[str, ...]
    #: returns one value a column, or an error in its place; or None if there is nothing to tell
    #: yet, as the first time that a mean since the last reading is asked for
    read: Callable[[], Sequence[float | int | UnreadableError | None]]
    #: for GPU_COUNTERS how often it is read; None if as often as its columns declare
    period_s: float | None = None
    #: for energy_j: whether it is read at its changes, and otherwise only if all is read
    at_changes: bool = False


@dataclass
class _WorkingPoll:
    """A poll that works: which of its values are used, and when it is due."""

    read: Callable[[], Sequence[float | int | UnreadableError | None]]
    #: for every column that the GPU supports: index of its value, name, bounds
    columns: list[tuple[int, str, float, float]]
    period_s: float
    at_changes: bool
    due_unix_s: float | None = None

    @property
    def is_fast(self) -> bool:
        """Whether it fills GPU_SAMPLES."""
        return self.columns[0][1] in TICK_READINGS

    def is_due(self, unix_time_s: float) -> bool:
        """Whether the period is over, or the clock was set back by more than a period."""
        due = self.due_unix_s
        return due is None or not due - self.period_s <= unix_time_s < due


class PolledSource:
    """A source that reads each GPU by a list of calls to the driver.

    ``failures`` are the exceptions that the vendor's binding raises for a failed reading.
    """

    def __init__(
        self,
        name: str,
        gpus: Sequence[Mapping[str, Any]],
        polls: Sequence[Sequence[Poll]],
        failures: tuple[type[Exception], ...],
    ) -> None:
        """Probe every call of every GPU.

        ``polls`` are the calls of each GPU. Raises TelemetryError if a GPU that should report power
        does not.
        """
        self.name = name
        self.gpus = gpus
        self.others: Sequence[Mapping[str, Any]] = ()
        self.errors: Counter[str] = Counter()
        self._failures: tuple[type[Exception], ...] = (UnreadableError, *failures)
        reasons: list[dict[str, str]] = []
        self._at_every_tick: list[list[_WorkingPoll]] = []
        #: the same together with the seldom readings
        self._now_and_then: list[list[_WorkingPoll]] = []
        self._seldom_unix_s = [-math.inf] * len(gpus)
        self._counters: list[list[_WorkingPoll]] = []
        self._energy: dict[int, _WorkingPoll] = {}
        for gpu, gpu_polls in enumerate(polls):
            working, unsupported = self._probe(gpu, gpu_polls)
            fast = [poll for poll in working if poll.is_fast]
            self._at_every_tick.append([poll for poll in fast if not poll.period_s])
            self._now_and_then.append(fast)
            self._counters.append([poll for poll in working if not poll.is_fast])
            for poll in working:
                if poll.at_changes:
                    self._energy[gpu] = poll
            reasons.append(unsupported)
        self.energy_in_steps: Sequence[int] = tuple(self._energy)
        filled = {column for of_gpu in polls for poll in of_gpu for column in poll.columns}
        if any(poll.at_changes for of_gpu in polls for poll in of_gpu):
            filled.add("energy_age_s")
        self.missing: dict[str, str] = {
            **{column: f"not read from {name}" for column in READINGS if column not in filled},
            **declared_lacking(name),
        }
        for column in READINGS:
            reason = common_reason([unsupported.get(column) for unsupported in reasons])
            if reason is not None:
                self.missing[column] = reason
        for gpu, (entry, unsupported) in enumerate(zip(gpus, reasons)):
            if entry["reports_power"] and "power_w" in unsupported:
                raise TelemetryError(
                    f"GPU {gpu} ({entry['name']}) reports no power: {unsupported['power_w']}; "
                    "a run cannot be measured without it"
                )

    def read(self, gpu: int, unix_time_s: float) -> dict[str, Value]:
        """Read a GPU; see Source."""
        polls = self._at_every_tick[gpu]
        # The difference is negative if the clock was set back; they are then read, too.
        if not 0 <= unix_time_s - self._seldom_unix_s[gpu] < SELDOM_S - _EARLY_S:
            polls, self._seldom_unix_s[gpu] = self._now_and_then[gpu], unix_time_s
        values, problems = self._call(gpu, polls)
        return self._with_problems(values, problems) if problems else values

    def read_counters(
        self, gpu: int, unix_time_s: float, everything: bool = False
    ) -> dict[str, Value]:
        """Read the counters of a GPU that are due; see Source."""
        polls = self._counters[gpu]
        due: list[_WorkingPoll] = []
        for place, poll in enumerate(polls):
            if not everything and (poll.at_changes or not poll.is_due(unix_time_s)):
                continue
            due.append(poll)
            wait_s = poll.period_s
            if poll.due_unix_s is None:
                # The first row has all columns. From then on, the costly readings of one GPU and of
                # all GPUs are spread over the period, so that they do not fall on one tick.
                wait_s *= 1 - (place / len(polls) + gpu / len(self.gpus)) % 1
            poll.due_unix_s = unix_time_s + wait_s - _DUE_EARLY_S
        values, problems = self._call(gpu, due)
        return self._with_problems(values, problems) if problems else values

    def read_energy(self, gpu: int) -> float | None:
        """The energy counter; see Source."""
        values, problems = self._call(gpu, [self._energy[gpu]])
        return (self._with_problems(values, problems) if problems else values)["energy_j"]

    def power_samples(self, gpu: int) -> Sequence[tuple[int, int]]:
        """No samples, unless the vendor's source overrides this; see Source."""
        return []

    def events(self) -> Sequence[tuple[int, str, int | None]]:
        """No events, unless the vendor's source overrides this; see Source."""
        return []

    def close(self) -> None:
        """Nothing to close here; the vendors' sources close their libraries."""

    def _on_failure(self, gpu: int, error: Exception) -> None:
        """Called for every call that failed, so that a vendor's source can react."""

    def _call(
        self, gpu: int, polls: Sequence[_WorkingPoll]
    ) -> tuple[dict[str, Value], dict[str, str]]:
        """Column → value for readings that succeeded, column → message for those that failed."""
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
                if value is None:
                    continue
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
        """Count the failed readings, and set their columns to None."""
        for column, message in problems.items():
            self.errors[f"{column}: {message}"] += 1
            values[column] = None
        return values

    def _probe(self, gpu: int, polls: Sequence[Poll]) -> tuple[list[_WorkingPoll], dict[str, str]]:
        """The polls that work, and column → message for columns that the GPU does not support."""
        working: list[_WorkingPoll] = []
        unsupported: dict[str, str] = {}
        for poll in polls:
            period_s = poll.period_s
            if period_s is None:
                period_s = min(READINGS[column].period_s for column in poll.columns)
            candidate = _WorkingPoll(
                poll.read,
                [
                    (place, column, *self._bounds(gpu, column))
                    for place, column in enumerate(poll.columns)
                ],
                period_s,
                poll.at_changes,
            )
            _, problems = self._call(gpu, [candidate])
            if problems:
                # Ask twice, so that a transient fault does not cost a column for the whole run.
                _, problems = self._call(gpu, [candidate])
            unsupported.update(problems)
            candidate.columns = [c for c in candidate.columns if c[1] not in problems]
            if candidate.columns:
                working.append(candidate)
        return working, unsupported

    def _bounds(self, gpu: int, column: str) -> tuple[float, float]:
        low, high = READINGS[column].bounds
        is_power = READINGS[column].unit == "W"
        return low, gpu_models.most_power_w(self.gpus[gpu]) if is_power else high


def common_reason(reasons: Sequence[str | None]) -> str | None:
    """One reason for all GPUs, from each GPU's reason (None if the GPU lacks nothing). If only some
    GPUs have a reason, it names them. None if no GPU has a reason.
    """
    lacking = [gpu for gpu, reason in enumerate(reasons) if reason is not None]
    if not lacking:
        return None
    if len(lacking) == len(reasons):
        return reasons[0]
    return f"on GPU {', '.join(map(str, lacking))} only: {reasons[lacking[0]]}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
