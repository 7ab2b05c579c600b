"""Finds GPU faults in the telemetry that explain why ranks died or waited in vain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from workflow_lib.records.files import read_record
from workflow_lib.records.nodes import LIMITS_LEFT, NodeLimits
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError, read_csv
from workflow_lib.records.telemetry_columns import GPU_EVENTS

_NVLINK = dict.fromkeys((74, *range(144, 151)), "an NVLink failed")
#: Xid errors that no application causes: those for which NVIDIA's catalogue ("Analyzing Xid Errors
#: with the Xid Catalog", docs.nvidia.com/deploy/xid-errors) says to reset the GPU or its machine,
#: and 94, after which the application must be restarted. Xids 63 (a row was remapped), 92, 155 and
#: 156 are left out because healthy hardware reports them too; 13, 31, 43 and 45 because the
#: application or its end causes them.
_FATAL_XIDS = _NVLINK | {
    46: "the GPU stopped processing",
    48: "an uncorrectable memory error",
    62: "its micro-controller halted",
    64: "a row of its memory could not be remapped",
    79: "the GPU fell off the bus",
    94: "a contained memory error",
    95: "an uncontained memory error",
    109: "a context switch did not end",
    110: "a security fault",
    119: "its system processor did not answer",
    120: "its system processor failed",
    136: "a link could not be trained",
    140: "an unrecovered memory error",
    143: "the GPU could not be initialised",
    158: "a fatal timeout",
    167: "a fatal timeout of PCIe",
    169: "its micro-controller halted",
    171: "an uncorrectable memory error",
    172: "an uncorrectable memory error",
}


@dataclass(frozen=True)
class GpuFault:
    """One fault of one GPU."""

    node: str
    #: the GPU's slot, as telemetry counts
    gpu: int
    unix_time_s: float
    #: e.g. "Xid 79, the GPU fell off the bus"
    what: str
    #: whether a link failed; that may be because the GPU at its other end failed
    of_link: bool

    def __str__(self) -> str:
        return f"GPU {self.gpu} of {self.node}: {self.what}"


def find(paths: RunPaths) -> tuple[list[GpuFault], list[str]]:
    """The run's GPU faults, and what is wrong with event files that could not be read to their end.

    The likeliest cause comes first: faults of GPUs before faults of links, then by time.
    """
    faults, damaged = [], []
    # A sampler that finds a GPU lost leaves its events, and does not start.
    for path in sorted(paths.telemetry.glob(paths.gpu_events("*").name)):
        node = path.name.removesuffix(paths.gpu_events("").name)
        try:
            for _, row in read_csv(path, GPU_EVENTS):
                time_s, gpu, code = row["unix_time_s"], row["gpu"], row["code"]
                what = _fault(row["event"], code)
                if what is not None and isinstance(time_s, float) and isinstance(gpu, int):
                    faults.append(GpuFault(node, gpu, time_s, what, code in _NVLINK))
        except (RecordError, OSError) as error:
            damaged.append(str(error).rstrip("."))
    return sorted(faults, key=lambda fault: (fault.of_link, fault.unix_time_s)), damaged


def _fault(event: object, code: object) -> str | None:
    """A fault of a GPU in words; None if the event is not a fault."""
    if event == "lost":
        return "the driver lost it"
    if event == "ecc_uncorrected":
        return "an uncorrectable memory error (ECC)"
    if event == "xid" and isinstance(code, int) and code in _FATAL_XIDS:
        return f"Xid {code}, {_FATAL_XIDS[code]}"
    return None


def _limits(paths: RunPaths) -> list[NodeLimits]:
    """The records of all nodes that have one. Raises RecordError."""
    return [read_record(path, NodeLimits) for path in sorted(paths.gpu_limits.glob("*.json"))]


def not_kept(paths: RunPaths, nodes: Iterable[str] = ()) -> str:
    """A clause that says why limits were not in force throughout; empty if they were or still are.

    ``nodes`` are those that must have a record. Raises RecordError.
    """
    recorded = _limits(paths)
    for limits in recorded:
        if limits.set_unix_s is None or limits.restored_early:
            return f"the limits of the GPUs of {limits.node} were given back before training ended"
    if missing := sorted({*nodes} - {limits.node for limits in recorded}):
        return f"no record says that limits were set on {', '.join(missing)}"
    return ""


def left(paths: RunPaths) -> str:
    """A sentence that names the GPUs that may still have the run's limits, and says what to do;
    empty if there are none.

    Raises RecordError.
    """
    by_node = []
    for limits in _limits(paths):
        gpus = [gpu for gpu in limits.gpus if not gpu.is_restored]
        if gpus:
            named = ", ".join(f"{gpu}, before at {gpu.power_limit_before_w:g} W" for gpu in gpus)
            why = f" ({'; '.join(limits.problems)})" if limits.problems else ""
            by_node.append(f"on {limits.node}: {named}{why}")
    if not by_node:
        return ""
    return (
        f"{LIMITS_LEFT} {'; '.join(by_node)}: the next run of the same user there gives "
        "them back, or an admin does (nvidia-smi -pl and -rgc)"
    )
