"""Which of a node's GPUs the job sees.

Driver libraries list all GPUs of the node and ignore ``CUDA_VISIBLE_DEVICES`` and similar
variables. Local rank n of training uses the n-th GPU that these variables leave visible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workflow_lib.telemetry.source import TelemetryError


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
