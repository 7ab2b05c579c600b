"""GPUs and what joins them: peaks that the parts of a step are measured against."""

from __future__ import annotations

import csv
import functools
import re
from dataclasses import dataclass
from importlib import resources

from workflow_lib.config import Platform

_FILE = resources.files("workflow_lib.projection") / "data" / "gpus.csv"


@dataclass(frozen=True)
class Machine:
    """A GPU, its node and its network. Rates are peaks, in one direction."""

    gpu: str
    gpus_per_node: int
    #: FLOP/s of one GPU by precision; a precision that is not here cannot be projected
    peak_flops_per_s: tuple[tuple[str, float], ...]
    memory_bytes: float
    memory_bytes_per_s: float
    #: of all links of a GPU to others of its node
    link_bytes_per_s: float
    #: of the adapters that a GPU has for itself; its share of a node's, where GPUs share them
    network_bytes_per_s: float
    power_limit_w: float

    def peak(self, precision: str) -> float:
        """FLOP/s of one GPU. Raises KeyError for a precision whose peak is not known."""
        return dict(self.peak_flops_per_s)[precision]

    def bytes_per_s(self, ranks: int) -> float:
        """Of a group of so many neighbours: the links' within a node, else the network's."""
        within = ranks <= self.gpus_per_node
        return self.link_bytes_per_s if within else self.network_bytes_per_s


@functools.cache
def _known() -> tuple[tuple[re.Pattern[str], dict[str, str]], ...]:
    with _FILE.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    # The longest pattern first: "H100 (96GB" before "H100".
    rows.sort(key=lambda row: -len(row["pattern"]))
    return tuple((re.compile(row["pattern"]), row) for row in rows)


def published_machine(gpu: str, gpus_per_node: int = 8) -> Machine | None:
    """The machine of a published row by its GPU's name; None where its peaks are not known here."""
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


def platform_machine(platform: Platform, node_gbit_per_s: float | None = None) -> Machine | str:
    """The machine of a platform's file, with another network where given; why not, where the file
    does not say what is needed.
    """
    needed = {
        "gpu": platform.gpu,
        "peak_bf16_tflops": platform.peak_bf16_tflops,
        "gpu_memory_gb": platform.gpu_memory_gb,
        "memory_bandwidth_gb_per_s": platform.memory_bandwidth_gb_per_s,
        "power_limit_w": platform.power_limit_w,
    }
    if missing := [name for name, value in needed.items() if value is None]:
        return f"the platform's file does not say {missing[0]}"
    assert platform.gpu is not None
    assert platform.peak_bf16_tflops is not None
    assert platform.gpu_memory_gb is not None
    assert platform.memory_bandwidth_gb_per_s is not None
    assert platform.power_limit_w is not None
    node_gbit = node_gbit_per_s or platform.network.gbit_per_s
    link = platform.link_gb_per_s
    if link is None:
        known = published_machine(platform.gpu)
        link = known.link_bytes_per_s / 1e9 if known else 50.0
    return Machine(
        gpu=platform.gpu,
        gpus_per_node=platform.gpus_per_node,
        peak_flops_per_s=(
            ("BF16", 1e12 * platform.peak_bf16_tflops),
            *((("FP32", 1e12 * platform.peak_fp32_tflops),) if platform.peak_fp32_tflops else ()),
        ),
        memory_bytes=1e9 * platform.gpu_memory_gb,
        memory_bytes_per_s=1e9 * platform.memory_bandwidth_gb_per_s,
        link_bytes_per_s=1e9 * link,
        network_bytes_per_s=(node_gbit or 1.0) * 1e9 / 8 / platform.gpus_per_node,
        power_limit_w=platform.power_limit_w / platform.gpus_per_package,
    )
