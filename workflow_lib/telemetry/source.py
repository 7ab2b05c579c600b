"""The interface of a source of GPU readings, and which of a node's GPUs the job sees.

A reading that failed is ``None``, which becomes an empty field: never 0, never −1. Readings that a
GPU does not support are found out once at the start and named in ``missing``. Later failures are
counted in ``errors``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Union

from workflow_lib.records.columns import SampledColumn, sampled
from workflow_lib.records.telemetry_columns import (
    GPU_COUNTERS,
    GPU_EVENTS,
    GPU_SAMPLES,
    POWER_SAMPLES,
)

Value = Union[float, int, None]

#: what is read of GPUs at ticks, and at ticks or on periods of its own, by name
TICK_READINGS: Mapping[str, SampledColumn] = sampled(GPU_SAMPLES)
READINGS: Mapping[str, SampledColumn] = {**TICK_READINGS, **sampled(GPU_COUNTERS)}

#: the devices of a vendor's GPUs, each of which the kernel's driver makes in /dev
DEVICES = {"nvidia": "nvidia[0-9]*", "amd": "kfd"}


def declared_lacking(source: str) -> dict[str, str]:
    """Column → why a source never has it."""
    columns = {**READINGS, **sampled((*POWER_SAMPLES, *GPU_EVENTS))}
    return {name: c.lacking[source] for name, c in columns.items() if source in c.lacking}


class TelemetryError(Exception):
    """Sampling cannot begin or go on. The message says what is wrong and what to do."""


class LostGpuError(TelemetryError):
    """A GPU that the job sees does not answer."""

    def __init__(self, gpu: int, message: str) -> None:
        super().__init__(message)
        #: its number among those that the job sees
        self.gpu = gpu


class UnreadableError(Exception):
    """One column could not be read, although the others of the same call could."""


class Source(Protocol):
    """A node's GPUs, numbered from 0 in the order of training's local ranks."""

    #: "nvidia", "amd" or "simulated"
    name: str
    #: "column: message" → how often a reading failed
    errors: Counter[str]
    #: GPUs of the node that the job does not have; see TelemetryStart.other_gpus
    others: Sequence[Mapping[str, Any]]

    @property
    def gpus(self) -> Sequence[Mapping[str, Any]]:
        """One entry a GPU: name, uuid, serial, power_limit_w, driver_version, index (the driver's),
        package, and reports_power (false for a package's die without a sensor). An unknown value is
        None.
        """
        ...

    @property
    def missing(self) -> Mapping[str, str]:
        """Column → why it stays empty."""
        ...

    def read(self, gpu: int, unix_time_s: float) -> Mapping[str, Value]:
        """Read a GPU: column → value, in the units of GPU_SAMPLES. ``unix_time_s`` is the present
        time.

        It is called at every tick, so it only makes calls that take microseconds and never block.
        """
        ...

    def read_counters(
        self, gpu: int, unix_time_s: float, everything: bool = False
    ) -> Mapping[str, Value]:
        """Read the columns of GPU_COUNTERS that are due at ``unix_time_s``, or all: column → value.

        It is called for each GPU about once a second, one GPU after the other.
        """
        ...

    @property
    def energy_in_steps(self) -> Sequence[int]:
        """GPUs whose energy counter is renewed so seldom that it is read at its changes
        (:mod:`workflow_lib.telemetry.recorder`), and not whenever counters are due."""
        ...

    def read_energy(self, gpu: int) -> float | None:
        """The energy counter of one of ``energy_in_steps``, in J; None if the reading failed."""
        ...

    def power_samples(self, gpu: int) -> Sequence[tuple[int, int]]:
        """The driver's own power samples since the last call: timestamp in µs since the epoch, mW.

        Empty if the driver keeps no samples; ``missing["power_mw"]`` then says why.
        """
        ...

    def events(self) -> Sequence[tuple[int, str, int | None]]:
        """GPU, event and code of each event that the driver reported since the last call. Never
        waits.
        """
        ...

    def power_limits_w(self) -> Sequence[float | None]:
        """Each GPU's power limit that is enforced now, in W; None where it is not known."""
        ...

    def close(self) -> None:
        """Close the driver's library."""
        ...


def visible_gpus(
    uuids: Sequence[str], variables: Sequence[str], environment: Mapping[str, str]
) -> list[int]:
    """Indices into ``uuids`` (all GPUs, in the driver's order) of the GPUs that the job sees.

    Each variable that is set selects and reorders GPUs among those that the variable before it
    left, as ROCm does with ``ROCR_VISIBLE_DEVICES`` and ``HIP_VISIBLE_DEVICES``. Entries are
    indices, UUIDs, or unique beginnings of UUIDs. As in CUDA, a negative index ends the list.

    Raises TelemetryError for an entry that names no GPU.
    """
    chosen = list(range(len(uuids)))
    for variable in variables:
        text = environment.get(variable)
        if text is None:
            continue
        narrowed: list[int] = []
        for entry in (part.strip() for part in text.split(",")):
            if entry == "" or entry.startswith("-"):
                break
            narrowed.append(_one_gpu(entry, chosen, uuids, f"{variable}={text}"))
        chosen = narrowed
    return chosen


def _one_gpu(entry: str, chosen: Sequence[int], uuids: Sequence[str], setting: str) -> int:
    if entry.isdecimal():
        if int(entry) < len(chosen):
            return chosen[int(entry)]
        raise TelemetryError(
            f"{setting} names GPU {entry}, but only {len(chosen)} are there (from 0); "
            "set it to GPUs of this node"
        )
    if entry.startswith("MIG-"):
        raise TelemetryError(
            f"{setting} names a MIG instance, whose power no sensor measures; "
            "give the job whole GPUs"
        )
    matches = [index for index in chosen if uuids[index].lower().startswith(entry.lower())]
    if len(matches) == 1:
        return matches[0]
    raise TelemetryError(
        f"{setting}: {entry!r} fits {len(matches)} of this node's GPUs "
        f"({', '.join(uuids[index] for index in chosen) or 'none'}); it must fit exactly one"
    )
