"""GPUs, their memory and their links: the peaks that the parts of a step are divided by."""

from __future__ import annotations

import csv
import functools
import re
from dataclasses import dataclass, replace
from importlib import resources

from workflow_lib.records.cell import Hardware

_FILE = resources.files("workflow_lib.projection") / "data" / "gpus.csv"
#: Of the power limit of a model of GPU: at a limit of less than this share it takes longer, and no
#: such run was fitted.
WHOLE_LIMIT = 0.99


@dataclass(frozen=True)
class Machine:
    """A GPU, its node and its network. Rates are peaks, in one direction."""

    gpu: str
    gpus_per_node: int
    #: FLOP/s of one GPU by precision; other precisions cannot be projected
    peak_flops_per_s: tuple[tuple[str, float], ...]
    memory_bytes: float
    memory_bytes_per_s: float
    #: rate of all links of a GPU to others of its node
    link_bytes_per_s: float
    #: rate of a GPU's own network adapters, or its share of the node's if GPUs share them
    network_bytes_per_s: float
    power_limit_w: float
    #: what says the rate of network adapters
    network_source: str = "that GPU's usual adapters, workflow_lib/projection/data/gpus.csv"

    def peak(self, precision: str) -> float:
        """FLOP/s of one GPU. Raises KeyError for a precision whose peak is not known."""
        return dict(self.peak_flops_per_s)[precision]

    def bytes_per_s(self, ranks: int) -> float:
        """The rate at which each of ``ranks`` neighbours sends to one of the others: of the links
        within a node, else of its own adapters."""
        within = ranks <= self.gpus_per_node
        return self.link_bytes_per_s if within else self.network_bytes_per_s

    def ring_bytes_per_s(self, members: int, stride: int) -> float:
        """The rate at which each member of a group receives what all members hold together. The
        members are every ``stride``-th rank.

        If they are on several nodes, each byte enters a node once, by the adapters of all members
        on that node, and the links pass it on. So NCCL's rings run.
        """
        on_a_node = max(1, self.gpus_per_node // stride)
        if members <= on_a_node:
            return self.link_bytes_per_s
        return min(self.link_bytes_per_s, on_a_node * self.network_bytes_per_s)


@functools.cache
def _known() -> tuple[tuple[re.Pattern[str], dict[str, str]], ...]:
    with _FILE.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    # The longest name first: "H100 500 W" before "H100".
    rows.sort(key=lambda row: -len(row["name"]))
    return tuple((re.compile(row["pattern"], re.IGNORECASE), row) for row in rows)


def machine_names() -> list[str]:
    """The GPUs whose peaks are known here."""
    return sorted(row["name"] for _, row in _known())


def published_machine(gpu: str, gpus_per_node: int = 8) -> Machine | None:
    """The machine of a published row by its GPU's name; None if the GPU's peaks are
    not known here."""
    row = next((row for pattern, row in _known() if pattern.match(gpu)), None)
    if row is None:
        return None
    peaks = {"BF16": row["peak_bf16_tflops"], "FP16": row["peak_bf16_tflops"]}
    if row["peak_fp8_tflops"]:
        peaks["FP8"] = row["peak_fp8_tflops"]
    return Machine(
        gpu=row["name"],
        gpus_per_node=gpus_per_node,
        peak_flops_per_s=tuple((name, 1e12 * float(peak)) for name, peak in peaks.items()),
        memory_bytes=1e9 * float(row["memory_gb"]),
        memory_bytes_per_s=1e9 * float(row["memory_gb_per_s"]),
        link_bytes_per_s=1e9 * float(row["link_gb_per_s"] or 50),
        network_bytes_per_s=1e9 * float(row["network_gb_per_s"]),
        power_limit_w=float(row["power_limit_w"]),
    )


def hardware_machine(hardware: Hardware) -> Machine | str:
    """The machine of a platform. If the platform's file lacks a value that is also not known here,
    or states that its nodes or links are emulated, or that its GPUs have less power than others of
    their model, the result says so."""
    if hardware.emulated is not None:
        return f"its nodes or links are emulated: {hardware.emulated}"
    known = published_machine(hardware.gpu or "", hardware.gpus_per_node)
    if hardware.peak_bf16_flops_per_s is None:
        return f"the bf16 peak of {hardware.gpu or 'its GPU'} is not known"
    if hardware.gpu_memory_bytes is None:
        return "the platform's file does not say gpu_memory_gb"
    if known is None:
        return f"the memory and links of {hardware.gpu} are not known"
    # Both are of a package.
    limit_w = hardware.power_limit_w or known.power_limit_w
    if limit_w < WHOLE_LIMIT * known.power_limit_w:
        return (
            f"its power_limit_w is {limit_w:g} of the {known.power_limit_w:g} W of {hardware.gpu}, "
            "and how much longer a step takes then was not fitted"
        )
    network = hardware.inter_node_bytes_per_s
    return replace(
        known,
        gpu=hardware.gpu or known.gpu,
        peak_flops_per_s=(("BF16", hardware.peak_bf16_flops_per_s),),
        memory_bytes=float(hardware.gpu_memory_bytes),
        link_bytes_per_s=hardware.intra_node_bytes_per_s or known.link_bytes_per_s,
        network_bytes_per_s=network / hardware.gpus_per_node
        if network
        else known.network_bytes_per_s,
        power_limit_w=limit_w / hardware.gpus_per_package,
        network_source="the platform's file" if network else known.network_source,
    )
