"""The device of a rank: its GPU, or the CPU if the cell's platform has no GPUs."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from workflow_lib import gpu_models
from workflow_lib.records.cell import Hardware, Telemetry
from workflow_lib.trainers.native.launch import Launch
from workflow_lib.words import counted


def on_gpu(device: torch.device) -> bool:
    """Whether a device is a GPU of NVIDIA or AMD; torch calls both "cuda"."""
    return device.type == "cuda"


@dataclass(frozen=True)
class Memory:
    """A rank's memory, in bytes; on a CPU only the process's resident memory."""

    #: allocated by tensors, now and at most
    allocated: int
    peak: int
    #: the most that torch's allocator held: allocated memory, and freed blocks that it kept
    reserved: int | None = None
    #: used on the whole GPU, as the driver counts it when the allocator holds the most; includes
    #: contexts, libraries and communicators
    used: int | None = None
    #: how often the allocator found no memory, gave blocks back and tried again, and how many
    #: blocks it gave back to the driver, since the process began; None if torch does not count them
    retries: int | None = None
    frees: int | None = None

    @property
    def row(self) -> Mapping[str, int | None]:
        """Its columns of ``steps/rank<n>.csv``."""
        return {
            "memory_allocated_bytes": self.allocated,
            "memory_peak_bytes": self.peak,
            "memory_reserved_bytes": self.reserved,
            "memory_used_bytes": self.used,
            "allocator_retries": self.retries,
            "allocator_frees": self.frees,
        }


@dataclass(frozen=True)
class Device:
    """The device on which a rank computes, and the backend of its communication."""

    torch: torch.device
    name: str
    #: index among the node's GPUs that the job sees; None on a CPU
    gpu: int | None
    backend: str
    #: the UUID by which telemetry identifies the GPU; None on a CPU, and if torch does not give it
    uuid: str | None = None
    #: the GPU's PCI domain, bus and device, "0000:c1:00"; None on a CPU, and if torch does not tell
    pci_address: str | None = None

    def synchronise(self) -> None:
        """Wait until the device has finished all work that it was given."""
        if on_gpu(self.torch):
            torch.cuda.synchronize(self.torch)

    @property
    def allocator(self) -> str | None:
        """torch's allocator of the device, and its settings; None on a CPU."""
        return allocator_settings(self.torch) if on_gpu(self.torch) else None

    def memory(self) -> Memory:
        """The memory of this rank's device."""
        return memory_of(self.torch)


def memory_of(device: torch.device) -> Memory:
    """The memory of a rank that computes on this device."""
    if on_gpu(device):
        free, total = torch.cuda.mem_get_info(device)
        stats = torch.cuda.memory_stats(device)
        reserved = stats["reserved_bytes.all.peak"]
        # If the GPU is full, the allocator frees blocks, so that the driver counts less at a
        # step's end.
        given_back = reserved - stats["reserved_bytes.all.current"]
        return Memory(
            stats["allocated_bytes.all.current"],
            stats["allocated_bytes.all.peak"],
            reserved,
            total - free + given_back,
            *allocator_shortages(stats),
        )
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    now = pages * resource.getpagesize()
    # Linux counts ru_maxrss in KiB, and updates it a little late.
    return Memory(now, max(now, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


def current_device() -> torch.device:
    """The device that a program of others computes on in this process."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def choose(
    launch: Launch,
    hardware: Hardware,
    telemetry: Telemetry,
    gpu_order: Sequence[int] = (),
    gpu_uuids: Sequence[str] = (),
) -> Device:
    """Choose the rank's GPU if the node has enough GPUs, else the CPU.

    ``gpu_order`` gives the GPU of each local rank; without it, local rank i takes GPU i.
    ``gpu_uuids`` lists the GPUs that the cell was placed on, node after node; without it, any GPU
    is accepted.

    Raises ValueError if the platform has GPUs and this node shows too few, or other GPUs than the
    cell is for. A run that is meant for GPUs never falls back to the CPU.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count < launch.local_world_size:
        if hardware.gpu is not None and telemetry.source != "simulated":
            raise ValueError(
                f"platform {hardware.platform} trains on {hardware.gpu} GPUs, but this node shows "
                f"{count} to its {counted(launch.local_world_size, 'rank')}: check the driver "
                "and the job's GPU request (every rank must see all GPUs of its node)"
            )
        return Device(torch.device("cpu"), "CPU", None, "gloo")
    gpu = gpu_order[launch.local_rank] if gpu_order else launch.local_rank
    device = torch.device("cuda", gpu)
    torch.cuda.set_device(device)
    name = torch.cuda.get_device_name(device)
    if why := gpu_models.mismatch(hardware.gpu, name):
        raise ValueError(
            f"platform {hardware.platform} trains on {hardware.gpu} GPUs, but {why}: choose the "
            "right partition, or correct the platform's file"
        )
    uuid = _uuid(device)
    meant = gpu_uuids[gpu :: launch.local_world_size]
    if meant and uuid not in meant:
        raise ValueError(
            f"GPU {gpu} is {uuid or 'unknown to torch'}, but the cell was placed on "
            f"{' or '.join(meant)}: a placement does not apply to other GPUs; run it on the "
            "node of these GPUs, or place it again"
        )
    # Telemetry numbers the GPUs that the job sees in the same way.
    return Device(device, name, gpu, "nccl", uuid, _pci_address(device))


def _uuid(device: torch.device) -> str | None:
    """The GPU's UUID in NVML's form. On ROCm it is None, because torch's UUID is not that of AMD
    SMI."""
    if torch.version.hip is not None:
        return None
    return f"GPU-{str(torch.cuda.get_device_properties(device).uuid).removeprefix('GPU-')}"


def _pci_address(device: torch.device) -> str | None:
    """The GPU's PCI domain, bus and device, by which telemetry finds it on ROCm. HIP and AMD SMI
    may number GPUs in different orders."""
    gpu: Any = torch.cuda.get_device_properties(device)
    if not hasattr(gpu, "pci_bus_id"):
        return None  # torch is older than these properties
    return f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}"


#: with either of them torch asks the driver for each tensor, and keeps nothing
_NO_CACHING = ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING")
#: the only allocator that counts its shortages; others tell 0
_NATIVE = "native"
#: the key of torch's own record; on ROCm too
_ASKED = "PYTORCH_CUDA_ALLOC_CONF"


def allocator_settings(device: torch.device) -> str:
    """A GPU's allocator and its settings in the order of the alphabet: "native" or
    "native, expandable_segments:True". Torch tells them, so settings that code changed count too.
    """
    backend = torch.cuda.get_allocator_backend()
    if not _keeps_segments():
        return f"{backend}, no caching"
    if backend != _NATIVE:
        return backend
    asked = torch.cuda.memory._snapshot(device)["allocator_settings"][_ASKED]
    # Commas within brackets belong to one setting.
    parts = re.split(r",(?![^\[]*\])", asked.replace(" ", ""))
    return ", ".join([backend, *sorted(filter(None, parts))])


def allocator_shortages(stats: Mapping[str, int]) -> tuple[int | None, int | None]:
    """Retries, and segments that were given back to the driver, since the process began; ``stats``
    are those of torch.cuda.memory_stats. None where the allocator does not count them.

    The allocator keeps segments that tensors no longer need. Where neither it nor the driver has
    room, it gives them back, which waits for all work of the GPU, and asks again: a retry.
    """
    if not _keeps_segments() or torch.cuda.get_allocator_backend() != _NATIVE:
        return None, None
    return stats.get("num_alloc_retries"), stats.get("num_device_free")


def _keeps_segments() -> bool:
    return not any(name in os.environ for name in _NO_CACHING)
