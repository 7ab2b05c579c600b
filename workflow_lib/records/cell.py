"""The cell: one point of a sweep, as ``cell.json`` holds it.

The annotation of each field is its axis: see :mod:`workflow_lib.records.axes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from workflow_lib.records import bounds, ranges
from workflow_lib.records.axes import Axis
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.model import Model
from workflow_lib.records.training import Precision, Training

TelemetrySource = Literal["auto", "nvidia", "amd", "simulated"]


@dataclass(frozen=True)
class Data:
    """The tokens that a cell trains on."""

    # fmt: off
    name: Annotated[str, Axis(
        "name of config/data/<data>.yaml", "work", column="data", says_itself=True)]
    kind: Annotated[Literal["text", "synthetic"], Axis(
        "text or synthetic", "work", column="data_kind", says_itself=True, detail_of="data")]
    definition: Annotated[str | None, Axis(
        "eight digits of a SHA-256 over what that file says, its description apart; null in runs "
        "of version 0.1, which did not keep it", "work", column="data_definition", detail_of="data",
        since=2)] = None


@dataclass(frozen=True)
class Hardware:
    """The GPUs and nodes of a platform. An unknown value is null, never a guess."""

    # fmt: off
    platform: Annotated[str, Axis(
        "name of config/platforms/<platform>.yaml", "place", says_itself=True)]
    gpu: Annotated[str | None, Axis(
        "model of each GPU, or words of its driver's name; null where any will do", "place",
        column="gpu_model")]
    gpus_per_node: Annotated[int, Axis("GPUs of a node", "place")]
    gpus_per_package: Annotated[int, Axis(
        "GPUs that share one package and its power sensor: 2 on MI250, whose GPU is a die",
        "analysis")]
    gpu_memory_bytes: Annotated[int | None, Axis("memory of one GPU", "analysis", "B")]
    peak_bf16_flops_per_s: Annotated[float | None, Axis(
        "dense bf16 peak of one GPU", "analysis", "FLOP/s")]
    peak_fp32_flops_per_s: Annotated[float | None, Axis(
        "dense fp32 peak of one GPU", "analysis", "FLOP/s")]
    power_limit_w: Annotated[float | None, Axis("of one package", "analysis", "W")]
    airflow: Annotated[tuple[str, ...], Axis(
        "where each GPU of a node sits in the air stream: front, rear, unknown", "analysis")]
    intra_node_bytes_per_s: Annotated[float | None, Axis(
        "peak in one direction of all links of a GPU to others of its node", "analysis")] = None
    #: shared by all GPUs of the node
    inter_node_bytes_per_s: Annotated[float | None, Axis(
        "peak in one direction of all adapters of one node", "analysis")] = None
    peak_fp8_flops_per_s: Annotated[float | None, Axis(
        "dense fp8 peak of one GPU", "analysis", "FLOP/s", since=7)] = None
    emulated: Annotated[str | None, Axis(
        "what of the nodes or of the links between GPUs is emulated, in words; null if nothing is",
        "analysis", since=10)] = None
    # fmt: on

    def peak_flops_per_s(self, precision: Precision) -> float | None:
        """The peak of one GPU in a precision, in FLOP/s; None if it is not known."""
        return {
            "bf16": self.peak_bf16_flops_per_s,
            "fp32": self.peak_fp32_flops_per_s,
            "fp8": self.peak_fp8_flops_per_s,
        }[precision]


@dataclass(frozen=True)
class Telemetry:
    """How a run is sampled before and during training."""

    # fmt: off
    source: Annotated[TelemetrySource, Axis(
        "auto, nvidia, amd or simulated", "place", column="telemetry_source")]
    sample_rate_hz: Annotated[float, Axis(
        "rate of GPU samples", "protocol", "Hz", label="sample rate")]
    idle_baseline_s: Annotated[float, Axis(
        "idle time before training, watched but not trained in", "protocol", "s",
        label="idle baseline")]
    #: a run with alternating rates has no energy
    interleaved_rates_hz: Annotated[tuple[float, ...], Axis(
        "rates that alternate within the run, one in each block, to measure what sampling costs; "
        "null where the rate is sample_rate_hz throughout", "protocol", "Hz",
        label="alternating rates")] = ()
    block_s: Annotated[float, Axis(
        "length of a block, which has one rate; 0 without blocks", "protocol", "s",
        label="block")] = 0.0
    # A detail of the limit, because platforms idle at different temperatures.
    cool_down_to_c: Annotated[float | None, Axis(
        "before the idle baseline, the job waits until every GPU is at most this warm; null if it "
        "does not wait", "place", "°C", label="cool down to", detail_of="cool_down_limit_s")] = None
    cool_down_limit_s: Annotated[float, Axis(
        "longest time to wait for that; 0 without a cool-down", "protocol", "s",
        label="cool-down")] = 0.0


#: NCCL keeps from the links between GPUs if this is set to anything but 0, as the first emulated
#: nodes did
_WITHOUT_LINKS = "environment.NCCL_P2P_DISABLE"
_WITHOUT_LINKS_IN_WORDS = (
    "NCCL was kept from the links between GPUs (NCCL_P2P_DISABLE), as on emulated nodes"
)


@dataclass(frozen=True)
class Cell:
    """One point of a sweep, resolved: all that training, telemetry and analysis know of it.

    ``id`` is ``<platform>/<model>/<parallelism>_<options>_<digest>``. The digest covers all fields
    that distinguish cells, so two different cells never share a directory. Fields of role
    ``analysis`` are not among them.
    """

    # fmt: off
    id: str
    model: Model
    degrees: Degrees
    training: Training
    data: Data
    hardware: Hardware
    telemetry: Telemetry
    nodes: Annotated[int, Axis("nodes", "layout")]
    software: Annotated[Mapping[str, str], Axis(
        "variables, modules and container that the job sets up, as they bear on what is measured",
        "place")]
    #: of the record itself: see :mod:`workflow_lib.records.files`
    format: int = 1
    # fmt: on

    @property
    def impossible(self) -> str:
        """Why the cell's fields contradict each other; "" if they do not."""
        degrees, hardware = self.degrees, self.hardware
        if not ranges.is_cell_id(self.id):
            return f"id is {self.id[:120]!r}, expected three names of directories, a/b/c"
        emulated = hardware.emulated
        if emulated is not None and not (
            emulated.isprintable() and 0 < len(emulated) <= bounds.MESSAGE_LETTERS.most
        ):
            return f"hardware.emulated is {emulated[:120]!r}, expected a line of text"
        if degrees.world_size > bounds.RANKS.most:
            return f"{degrees.product} ranks, more than {bounds.RANKS.most}"
        if not self.nodes <= degrees.world_size <= self.nodes * hardware.gpus_per_node:
            return (
                f"{degrees.world_size} ranks do not fit {self.nodes} nodes of "
                f"{hardware.gpus_per_node} GPUs"
            )
        return ""

    @property
    def emulated(self) -> str | None:
        """What of the cell's nodes or links is emulated, in words; None if nothing is.

        The platform states it. The platforms of runs from before format 10 could not: there it is
        read from what the job set for NCCL, and so it is where a platform does not state it.
        """
        if self.hardware.emulated is not None:
            return self.hardware.emulated
        kept = self.software.get(_WITHOUT_LINKS, "")
        return _WITHOUT_LINKS_IN_WORDS if kept and not kept.startswith("0") else None

    @property
    def parallelism(self) -> str:
        """The short name of the layout, as in ``tp2-pp16-dp1``."""
        return self.degrees.name

    @property
    def ranks_per_node(self) -> int:
        """Ranks on each node. The planner makes sure that all nodes have as many."""
        return self.degrees.world_size // self.nodes
