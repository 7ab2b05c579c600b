"""Times of all nodes on one clock, that of rank 0's node, as the job compared them.

Steps and readings have their node's own clock. Uncorrected, a clock that is 0.3 s ahead makes a
step of 3.1 s seem a tenth longer, as it lasts from the first rank's start to the last one's end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from workflow_lib.analysis.known import Values
from workflow_lib.records import NodeClock, RunPaths, read_if_there


def read_clocks(paths: RunPaths, nodes: Iterable[str]) -> dict[str, NodeClock]:
    """The clocks of the nodes that were compared. Raises RecordError where a file is damaged."""
    found = {node: read_if_there(paths.clock(node), NodeClock) for node in set(nodes)}
    return {node: clock for node, clock in found.items() if clock is not None}


def corrected(times: Any, clock: NodeClock | None) -> Any:
    """Times of a node's clock (a number, an array or an expression) as rank 0's clock had them."""
    return times if clock is None else times - clock.ahead_at(times)


def clock_values(clocks: Mapping[str, NodeClock], nodes: int) -> Values:
    """The skew that was corrected, and what may be left of it, of the node with the most."""
    reason = next((f"{node}: {each.reason}" for node, each in clocks.items() if each.reason), "")
    if nodes == 1:
        reason = "one node has one clock"
    elif len(clocks) < nodes:
        reason = "the run is of an earlier version, which compared no clocks"
    if reason:
        return dict.fromkeys(("clock_skew_s", "clock_error_s"), (None, reason))
    return {
        "clock_skew_s": (max(clock.skew_s for clock in clocks.values()), ""),
        "clock_error_s": (max(clock.error_s for clock in clocks.values()), ""),
    }
