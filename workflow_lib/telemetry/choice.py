"""Chooses the source of a node's GPU readings, and checks that its GPUs are those of the cell."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from workflow_lib import gpu_models
from workflow_lib.records.cell import Cell
from workflow_lib.telemetry.devices.amd import AmdSource
from workflow_lib.telemetry.devices.nvidia import NvidiaSource
from workflow_lib.telemetry.simulated import SimulatedSource
from workflow_lib.telemetry.source import DEVICES, LostGpuError, Source, TelemetryError
from workflow_lib.words import counted

_DEVICES_IN = Path("/dev")


def open_source(cell: Cell, node: str) -> Source:
    """Open the source that the cell asks for. The caller closes it.

    "auto" takes NVIDIA or AMD GPUs if there are enough of them for the node's ranks, else simulated
    ones. Raises TelemetryError if there are too few GPUs, or GPUs of another model, or if a node
    has GPUs that its driver's library does not show.
    """
    asked = cell.telemetry.source
    source = _first_that_opens(cell, node) if asked == "auto" else _open(asked, cell, node)
    try:
        _check(source, cell)
    except TelemetryError:
        source.close()
        raise
    return source


def _open(name: str, cell: Cell, node: str) -> Source:
    if name == "nvidia":
        return NvidiaSource()
    if name == "amd":
        return AmdSource(cell.hardware.gpus_per_package)
    return simulated(cell, node)


def simulated(
    cell: Cell, node: str, load: Callable[[], float | None] | None = None
) -> SimulatedSource:
    """The GPUs of a cell's node, simulated."""
    hardware = cell.hardware
    return SimulatedSource(
        node,
        cell.ranks_per_node,
        seed=cell.training.seed,
        model=hardware.gpu,
        gpus_per_package=hardware.gpus_per_package,
        power_limit_w=hardware.power_limit_w,
        memory_bytes=hardware.gpu_memory_bytes,
        airflow=hardware.airflow,
        load=load,
    )


def _first_that_opens(cell: Cell, node: str) -> Source:
    for name, devices in DEVICES.items():
        try:
            source = _open(name, cell, node)
        except LostGpuError:
            raise
        except TelemetryError as error:
            # That the node has no GPUs of a vendor is no error here.
            if any(_DEVICES_IN.glob(devices)):
                raise TelemetryError(
                    f"this node has {_DEVICES_IN / devices}, but {error}; or give the platform "
                    "telemetry: simulated"
                ) from None
            continue
        if len(source.gpus) >= cell.ranks_per_node:
            return source
        shown = counted(len(source.gpus), "GPU")
        print(f"telemetry on {node}: {name} shows {shown}, too few", file=sys.stderr)
        source.close()
    print(f"telemetry on {node}: readings of GPUs are simulated", file=sys.stderr, flush=True)
    return _open("simulated", cell, node)


def _check(source: Source, cell: Cell) -> None:
    if len(source.gpus) < cell.ranks_per_node:
        raise TelemetryError(
            f"{source.name} shows {counted(len(source.gpus), 'GPU')}, but this node has "
            f"{counted(cell.ranks_per_node, 'rank')}, one GPU each; give the telemetry step "
            "the same GPUs as training"
        )
    wanted = cell.hardware.gpu
    if wanted is None or source.name == "simulated":
        return
    for gpu, entry in enumerate(source.gpus):
        if why := gpu_models.mismatch(wanted, str(entry["name"])):
            raise TelemetryError(
                f"platform {cell.hardware.platform!r} has {wanted!r}, but of GPU {gpu} {why}; run "
                "on the right partition, or correct the platform"
            )
