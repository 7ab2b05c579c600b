"""What a program that trains must leave for its run to be judged and reduced.

Each rank writes ``steps/rank<n>.json`` before its first step and a row of ``steps/rank<n>.csv`` at
the end of each step. docs/reference/contract.md lists the files, those of others included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from workflow_lib.records.columns import LATER, columns
from workflow_lib.records.training import Precisions

#: why a measure is null whose input is not required and was not written
NOT_TOLD = "not told by the trainer"

# fmt: off
#: steps/rank<n>.csv
STEPS = columns(
    ("step", int, "", "from 0, warm-up included"),
    ("phase", str, "", "warmup or measured"),
    ("started_unix_s", float, "s", "wall clock of the node at the start of the step"),
    ("prefill_ended_unix_s", float, "s",
        "the same once all prompts were read; empty in training", LATER),
    ("ended_unix_s", float, "s", "wall clock of the node once the step's work had ended"),
    ("loss", float, "nat",
        "mean cross-entropy over the global batch; empty where not known here", LATER),
    ("tokens", int, "", "tokens that this rank's replica trained on, or read and generated"),
    ("memory_allocated_bytes", int, "B",
        "allocated at the end of the step; host RSS on a CPU", LATER),
    ("memory_peak_bytes", int, "B", "highest so far; host peak RSS on a CPU", LATER),
    ("memory_reserved_bytes", int, "B",
        "highest so far that torch's allocator held, cached blocks included; empty on a "
        "CPU", LATER),
    ("memory_used_bytes", int, "B",
        "in use on the whole GPU at the end of the step, as its driver counts it; empty on a "
        "CPU", LATER),
    ("allocator_retries", int, "",
        "how often torch's allocator found no memory, gave blocks back and tried again, since the "
        "rank began; empty on a CPU", LATER),
    ("allocator_frees", int, "",
        "how many blocks it gave back to the driver, since the rank began; empty on a CPU", LATER),
    ("expert_choices", int, "",
        "how often this rank's routers chose an expert for a token; empty in a dense model", LATER),
    ("dropped_choices", int, "",
        "those of them that were dropped because the expert had its share already", LATER),
)
# fmt: on
#: what no row may lack
STEPS_REQUIRED = tuple(column.name for column in STEPS if not column.later)


@dataclass(frozen=True)
class RankRecord:
    """``steps/rank<n>.json``: where a rank ran and which part of the model it held.

    A trainer tells ``rank``, ``node``, ``pid``, ``started_unix_s`` and, on a GPU, one of its
    identities: ``gpu_uuid``, ``pci_address`` or ``gpu``. Anything else may be null: it is not
    known, or the trainer does not tell it.
    """

    rank: int
    node: str
    #: index of the GPU in its node, as telemetry counts; null on a CPU
    gpu: int | None = None
    device_name: str | None = None
    #: its place in the groups of each dimension
    tp_rank: int | None = None
    pp_rank: int | None = None
    dp_rank: int | None = None
    ep_rank: int | None = None
    #: parameters that this rank holds, before any ZeRO partitioning
    parameters: int | None = None
    pid: int = field(kw_only=True)
    #: when its process began, by its node's clock
    started_unix_s: float = field(kw_only=True)
    #: the precisions found before the first step, completed after it; null if not told
    precisions: Precisions | None = None
    #: the UUID that the driver gives its GPU; null on a CPU and on AMD GPUs
    gpu_uuid: str | None = None
    #: PCI domain, bus and device of its GPU, "0000:c1:00"; null on a CPU, if torch does not tell
    #: them, and in records of earlier versions
    pci_address: str | None = None
    #: the kernel's boot id of the node, and the job's id; null if not known, and in records of
    #: earlier versions
    boot_id: str | None = None
    job_id: str | None = None
    #: when its libraries were imported, its process groups made, and its part of the model built,
    #: by its node's clock: where its start-up went; null in records of earlier versions
    imported_unix_s: float | None = None
    connected_unix_s: float | None = None
    built_unix_s: float | None = None
    #: the checksum of its text's tokens, which its node's first rank compares with that of
    #: tokens.json; null on other ranks, for synthetic tokens, and in records of earlier versions
    tokens_sha256: str | None = None
    #: torch's allocator of the GPU, and its settings: "native, expandable_segments:True"; null on a
    #: CPU, and in records of earlier versions
    allocator: str | None = None
    #: the checksum of the zip that it imported its code from; null in records of earlier versions
    code_sha256: str | None = None
    #: dimension → its degree, as a trainer of others tells it; a run with other degrees than its
    #: cell's is an error
    degrees: Mapping[str, int] | None = None

    @property
    def on_gpu(self) -> bool:
        """Whether it trained on a GPU, by what it tells of one."""
        return any(identity is not None for identity in (self.gpu, self.gpu_uuid, self.pci_address))

    @property
    def gpu_identity(self) -> str:
        """Its GPU, by the identity that messages give."""
        return self.gpu_uuid or f"the GPU at {self.pci_address}"
