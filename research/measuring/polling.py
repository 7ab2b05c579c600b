"""Sensors read as fast as they can be, in a process of their own that imports no torch."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Literal

from workflow_lib.telemetry.source import visible_gpus

#: when the old value was last seen, when the new one first was (wall clock, s), and the new one
Change = tuple[float, float, float]
Kind = Literal["power usage", "power instant", "energy counter", "driver samples", "counter edges"]
_FIELD_POWER_INSTANT = 186
#: how often the counter's edges are waited for, and how long at most
_EDGES_EVERY_S, _EDGE_WITHIN_S = 0.5, 0.3


class Poller:
    """Reads one sensor of some GPUs until it is asked for what it saw."""

    def __init__(self, kind: Kind, gpus: Sequence[int]) -> None:
        """Start reading. Raises RuntimeError where it cannot."""
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._end, theirs = context.Pipe()
        self._process = context.Process(
            target=_poll, args=(kind, list(gpus), theirs, self._stop), daemon=True
        )
        self._process.start()
        theirs.close()
        self._kind = kind
        self._answer(60.0)

    def finish(self) -> dict[int, list[Change]]:
        """Stop; GPU → what changed. Driver samples have their own time in both places of time.

        Raises RuntimeError where reading failed.
        """
        self._stop.set()
        try:
            changes: dict[int, list[Change]] = self._answer(30.0)
        finally:
            self.close()
        return changes

    def close(self) -> None:
        """End the process, whatever it saw."""
        self._stop.set()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _answer(self, timeout_s: float) -> Any:
        if not self._end.poll(timeout_s):
            raise RuntimeError(f"reading {self._kind} has not answered for {timeout_s:.0f} s")
        try:
            good, value = self._end.recv()
        except EOFError:
            raise RuntimeError(f"reading {self._kind} died; see its message above") from None
        if not good:
            raise RuntimeError(f"reading {self._kind} failed:\n{value}")
        return value


def open_handles() -> tuple[Any, list[Any]]:
    """The binding, initialised, and the handles of the GPUs that CUDA sees, in its order (by PCI
    bus; set CUDA_DEVICE_ORDER=PCI_BUS_ID).
    """
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
    chosen = visible_gpus(uuids, ("CUDA_VISIBLE_DEVICES",), os.environ)
    return pynvml, [handles[index] for index in chosen]


def field_value(nvml: Any, field: Any) -> float | int:
    """The value of a field at its own width. Raises the binding's NVMLError where it has none."""
    if field.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(field.nvmlReturn)
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    value: float | int = getattr(field.value, members[field.valueType])
    return value


def _poll(kind: Kind, gpus: list[int], end: Connection, stop: Any) -> None:
    try:
        nvml, every = open_handles()
        handles = {gpu: every[gpu] for gpu in gpus}
        end.send((True, None))
        if kind == "driver samples":
            changes = _driver_samples(nvml, handles, stop)
        elif kind == "counter edges":
            changes = _counter_edges(nvml, handles, stop)
        else:
            changes = _changes(nvml, _reading(nvml, kind), handles, stop)
        end.send((True, changes))
    except Exception:  # handed to the one who asked, with all that is known of it
        end.send((False, traceback.format_exc()))


def _reading(nvml: Any, kind: Kind) -> Callable[[Any], float]:
    if kind == "power usage":
        return lambda handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3
    if kind == "power instant":
        fields = [_FIELD_POWER_INSTANT]
        return lambda handle: (
            field_value(nvml, nvml.nvmlDeviceGetFieldValues(handle, fields)[0]) / 1e3
        )
    return lambda handle: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3


def _changes(
    nvml: Any, read: Callable[[Any], float], handles: dict[int, Any], stop: Any
) -> dict[int, list[Change]]:
    """At most about 2 000 rounds a second. A reading that the driver declines is left out."""
    declined: Counter[str] = Counter()
    seen: dict[int, tuple[float, float]] = {}
    changes: dict[int, list[Change]] = {gpu: [] for gpu in handles}
    deadline = time.time()
    while not stop.is_set():
        for gpu, handle in handles.items():
            before = time.time()
            try:
                value = read(handle)
            except nvml.NVMLError as error:
                declined[str(error)] += 1
                continue
            now = (before + time.time()) / 2
            if gpu in seen and value != seen[gpu][1]:
                changes[gpu].append((seen[gpu][0], now, value))
            seen[gpu] = (now, value)
        deadline = max(deadline + 0.0005, time.time())
        time.sleep(max(0.0, deadline - time.time()))
    if declined:
        print(f"readings that the driver declined: {dict(declined)}", flush=True)
    return changes


def _driver_samples(nvml: Any, handles: dict[int, Any], stop: Any) -> dict[int, list[Change]]:
    """The driver keeps somewhat more than two seconds, so they are fetched once a second."""
    last = dict.fromkeys(handles, int(time.time() * 1e6))
    changes: dict[int, list[Change]] = {gpu: [] for gpu in handles}
    ending = False
    while not ending:
        ending = bool(stop.wait(1.0))
        for gpu, handle in handles.items():
            try:
                _, samples = nvml.nvmlDeviceGetSamples(
                    handle, nvml.NVML_TOTAL_POWER_SAMPLES, last[gpu]
                )
            except nvml.NVMLError_NotFound:
                continue  # nothing new
            for sample in sorted(samples, key=lambda one: one.timeStamp):
                if sample.timeStamp > last[gpu]:
                    last[gpu] = sample.timeStamp
                    at = sample.timeStamp / 1e6
                    changes[gpu].append((at, at, sample.sampleValue.uiVal / 1e3))
    return changes


def _counter_edges(nvml: Any, handles: dict[int, Any], stop: Any) -> dict[int, list[Change]]:
    """The energy counter (J) as it is renewed, every half second, and as often in between as it
    takes to see that: read at any other time it is up to a tenth of a second old.
    """
    changes: dict[int, list[Change]] = {gpu: [] for gpu in handles}
    deadline = time.time()
    while not stop.wait(max(0.0, deadline - time.time())):
        started = time.time()
        seen: dict[int, tuple[float, float]] = {}
        waiting = dict(handles)
        while waiting and time.time() < started + _EDGE_WITHIN_S:
            for gpu, handle in list(waiting.items()):
                before = time.time()
                value = nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3
                now = (before + time.time()) / 2
                if gpu in seen and value != seen[gpu][1]:
                    changes[gpu].append((seen[gpu][0], now, value))
                    del waiting[gpu]
                seen[gpu] = (now, value)
        deadline = max(deadline + _EDGES_EVERY_S, time.time())
    return changes
