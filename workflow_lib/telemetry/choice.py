"""Chooses the source of a node's GPU readings, and checks that its GPUs are those of the cell."""

from __future__ import annotations

from workflow_lib import gpu_models
from workflow_lib.records import Cell
from workflow_lib.telemetry.amd.source import AmdSource
from workflow_lib.telemetry.nvidia.source import NvidiaSource
from workflow_lib.telemetry.simulated import SimulatedSource
from workflow_lib.telemetry.source import Source, TelemetryError
from workflow_lib.words import counted


def open_source(cell: Cell, node: str) -> Source:
    """Open the source that the cell asks for. The caller closes it.

    "auto" takes NVIDIA or AMD GPUs if there are enough of them for the node's ranks, else simulated
    ones. Raises TelemetryError if there are too few GPUs, or GPUs of another model.
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
    return SimulatedSource(cell, node)


def _first_that_opens(cell: Cell, node: str) -> Source:
    for name in ("nvidia", "amd"):
        try:
            source = _open(name, cell, node)
        except TelemetryError:
            # With "auto" it is no error that the node has no GPUs of a vendor.
            continue
        if len(source.gpus) >= cell.ranks_per_node:
            return source
        source.close()
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
