"""What the sampler asks of a source of GPU readings, and what the vendors' sources share.

A reading that cannot be had is ``None``, which becomes an empty field: never 0, never −1. What a
GPU cannot tell at all is found out once at the start and named in ``missing``; what fails later is
counted in ``errors``.
"""

from __future__ import annotations

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
#: 0 K above freezing on a working GPU, 0xFFFF for "not applicable", and the like.
_BOUNDS: Mapping[str, tuple[float, float]] = {
    "power_w": (0.0, 10_000.0),
    "temperature_c": (0.0, 200.0),
    "memory_temperature_c": (0.0, 200.0),
    "sm_clock_mhz": (-1.0, 10_000.0),
    "memory_clock_mhz": (-1.0, 20_000.0),
    "utilisation_percent": (-1.0, 100.0),
    "energy_j": (0.0, float("inf")),
}


def check_bounds(column: str, value: float | int) -> float | int:
    """The value itself, or UnreadableError where it cannot be a reading of the column."""
    low, high = _BOUNDS.get(column, (-1.0, float("inf")))
    if not low < value <= high:
        raise UnreadableError(f"the driver returned {value}")
    return value


@dataclass(frozen=True)
class Poll:
    """One call to the driver, and the columns that it fills."""

    columns: tuple[str, ...]
    #: one value a column, or the error in its place
    read: Callable[[], Sequence[float | int | UnreadableError]]
    slow: bool = False


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
        self.errors: Counter[str] = Counter()
        self._failures: tuple[type[Exception], ...] = (UnreadableError, *failures)
        reasons: list[dict[str, str]] = []
        self._polls: list[list[tuple[Poll, frozenset[str]]]] = []
        for gpu_polls in polls:
            kept, unsupported = self._probe(gpu_polls)
            self._polls.append(kept)
            reasons.append(unsupported)
        self.missing: Mapping[str, str] = {**missing, **_common_reasons(reasons, columns)}
        for gpu, (entry, unsupported) in enumerate(zip(gpus, reasons, strict=True)):
            if entry["reports_power"] and "power_w" in unsupported:
                raise TelemetryError(
                    f"GPU {gpu} ({entry['name']}) reports no power: {unsupported['power_w']}; "
                    "a run cannot be measured without it"
                )

    def read(self, gpu: int, unix_time_s: float, slow: bool) -> dict[str, Value]:
        """Read a GPU; see Source."""
        values: dict[str, Value] = {}
        for poll, supported in self._polls[gpu]:
            if poll.slow and not slow:
                continue
            for column, value in self._call(poll).items():
                if column not in supported:
                    continue
                if isinstance(value, str):
                    self.errors[f"{column}: {value}"] += 1
                    values[column] = None
                else:
                    values[column] = value
        return values

    def close(self) -> None:
        """Nothing to let go of; the vendors' sources do."""

    def _call(self, poll: Poll) -> dict[str, float | int | str]:
        """Column → value, or the message of what went wrong."""
        try:
            values = poll.read()
        except self._failures as error:
            return dict.fromkeys(poll.columns, _one_line(error))
        checked: dict[str, float | int | str] = {}
        for column, value in zip(poll.columns, values, strict=True):
            if isinstance(value, UnreadableError):
                checked[column] = _one_line(value)
                continue
            try:
                checked[column] = check_bounds(column, value)
            except UnreadableError as error:
                checked[column] = _one_line(error)
        return checked

    def _probe(
        self, polls: Sequence[Poll]
    ) -> tuple[list[tuple[Poll, frozenset[str]]], dict[str, str]]:
        kept: list[tuple[Poll, frozenset[str]]] = []
        unsupported: dict[str, str] = {}
        for poll in polls:
            values = self._call(poll)
            failed = {c: v for c, v in values.items() if isinstance(v, str)}
            if failed:
                # A passing fault must not cost a column for the whole run, so ask twice.
                values = self._call(poll)
                failed = {c: v for c, v in values.items() if isinstance(v, str)}
            unsupported.update(failed)
            if supported := frozenset(poll.columns) - failed.keys():
                kept.append((poll, supported))
        return kept, unsupported


def _common_reasons(reasons: list[dict[str, str]], columns: Sequence[str]) -> dict[str, str]:
    """Why columns are empty, naming the GPUs where only some lack them."""
    missing: dict[str, str] = {}
    for column in columns:
        lacking = [gpu for gpu, unsupported in enumerate(reasons) if column in unsupported]
        if not lacking:
            continue
        reason = reasons[lacking[0]][column]
        if len(lacking) < len(reasons):
            reason = f"on GPU {', '.join(map(str, lacking))} only: {reason}"
        missing[column] = reason
    return missing


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
