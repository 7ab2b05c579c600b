"""Converts the times of all nodes to one clock, that of rank 0's node, as the job compared them.

Steps and readings carry the time of their own node's clock. A step lasts from the first rank's
start to the last rank's end, so a clock that is 0.3 s ahead makes a step of 3.1 s seem a tenth
longer unless it is corrected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from workflow_lib.analysis.known import Values
from workflow_lib.records import NodeClock, RunPaths, read_if_there


def read_clocks(paths: RunPaths, nodes: Iterable[str]) -> dict[str, NodeClock]:
    """Node → how its clock compares with rank 0's, of the nodes that were compared. Raises
    RecordError if a file is damaged."""
    found = {node: read_if_there(paths.clock(node), NodeClock) for node in set(nodes)}
    return {node: clock for node, clock in found.items() if clock is not None}


def corrected(times: Any, clock: NodeClock | None) -> Any:
    """Convert times of a node's clock (s; a number, an array or an expression) to rank 0's clock.
    They stay as they are without ``clock``."""
    return times if clock is None else times - clock.ahead_at(times)


def clock_values(clocks: Mapping[str, NodeClock], nodes: int) -> Values:
    """The columns ``clock_skew_s`` and ``clock_error_s``: the largest skew of any node, which was
    corrected, and the largest error that may remain."""
    reason = next((f"{node}: {clock.reason}" for node, clock in clocks.items() if clock.reason), "")
    if nodes == 1:
        reason = "one node has one clock"
    elif len(clocks) < nodes:
        reason = "an earlier version made the run, and did not compare clocks"
    if reason:
        return dict.fromkeys(("clock_skew_s", "clock_error_s"), (None, reason))
    return {
        "clock_skew_s": (max(clock.skew_s for clock in clocks.values()), ""),
        "clock_error_s": (max(clock.error_s for clock in clocks.values()), ""),
    }
