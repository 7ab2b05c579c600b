"""Bytes of a collective, as nccl-tests counts them (its ``doc/PERFORMANCE.md``).

The size S of an all-reduce, all-to-all, broadcast or send is what each rank sends. S of an
all-gather is its whole result, and S of a reduce-scatter its whole input, over all ranks. Whatever
the algorithm, a bus must carry S times a factor that depends on the number of ranks n. So ``S ·
factor / time`` can be compared with the peak of a link.
"""

from __future__ import annotations

from workflow_lib.analysis.traces import names
from workflow_lib.analysis.traces.batches import Collective


def message_bytes(collective: Collective, kind: str) -> int | None:
    """S in bytes; None if the trace does not say."""
    element = names.ELEMENT_BYTES.get(collective.element_type or "")
    sent, received = collective.sent_elements, collective.received_elements
    if element is None or sent is None or received is None or min(sent, received) < 0:
        return None
    if kind in (names.ALL_GATHER, names.REDUCE_SCATTER, names.SEND_RECEIVE):
        return max(sent, received) * element
    return sent * element


def bus_factor(kind: str, ranks: int | None) -> float | None:
    """The factor of S; None if the number of ranks is not known, or nccl-tests has no factor."""
    if kind in (names.SEND_RECEIVE, names.BROADCAST):
        return 1.0
    if ranks is None or ranks < 1:
        return None
    if kind == names.ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    if kind in (names.ALL_GATHER, names.REDUCE_SCATTER, names.ALL_TO_ALL):
        return (ranks - 1) / ranks
    return None
