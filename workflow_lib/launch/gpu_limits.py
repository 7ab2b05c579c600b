"""Says whether the limits that a run's job set on GPUs held and were given back."""

from __future__ import annotations

from collections.abc import Iterable

from workflow_lib import records
from workflow_lib.records import NodeLimits, RunPaths


def _found(paths: RunPaths) -> list[NodeLimits]:
    """The records of all nodes that have one. Raises RecordError."""
    return [
        records.read_record(each, NodeLimits) for each in sorted(paths.gpu_limits.glob("*.json"))
    ]


def not_kept(paths: RunPaths, nodes: Iterable[str] = ()) -> str:
    """A clause that says why limits were not in force throughout; empty if they were or still are.

    ``nodes`` are those that must have a record. Raises RecordError.
    """
    found = _found(paths)
    for limits in found:
        if limits.set_unix_s is None or limits.restored_early:
            return f"the limits of the GPUs of {limits.node} were given back before training ended"
    if missing := sorted({*nodes} - {limits.node for limits in found}):
        return f"no record says that limits were set on {', '.join(missing)}"
    return ""


def left(paths: RunPaths) -> str:
    """A sentence that names the GPUs that may still have the run's limits, and says what to do;
    empty if there are none.

    Raises RecordError.
    """
    said = []
    for limits in _found(paths):
        gpus = [gpu for gpu in limits.gpus if not gpu.is_restored]
        if gpus:
            named = ", ".join(f"{gpu}, before at {gpu.power_limit_before_w:g} W" for gpu in gpus)
            why = f" ({'; '.join(limits.problems)})" if limits.problems else ""
            said.append(f"on {limits.node}: {named}{why}")
    if not said:
        return ""
    return (
        f"{records.LIMITS_LEFT} {'; '.join(said)}: the next run of the same user there gives "
        "them back, or an admin does (nvidia-smi -pl and -rgc)"
    )
