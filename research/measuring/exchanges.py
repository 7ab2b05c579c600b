"""The collectives that the engine uses, on one message, and the bytes that each rank receives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

#: bytes that a rank sends, and receives, for a message of 1 B over n ranks. Rings pass (n − 1)/n of
#: it on, an all-reduce twice (Patarasuk and Yuan 2009); of an all-to-all each rank keeps 1/n.
SHARES: Mapping[str, Callable[[int], float]] = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "send/recv": lambda n: 1.0,
}


def expected_bytes(collective: str, message_bytes: int, ranks: int) -> float:
    """What a rank sends, and receives, in one step."""
    return SHARES[collective](ranks) * message_bytes


def exchanges(group: Any, message_bytes: int, device: Any) -> Mapping[str, Callable[[], object]]:
    """Each collective of SHARES over the ranks of a process group, on a message in bf16."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    whole = torch.zeros(message_bytes // 2, device=device, dtype=torch.bfloat16)
    other, part = torch.zeros_like(whole), torch.zeros_like(whole[: whole.numel() // ranks])
    following, preceding = (
        dist.get_global_rank(group, (rank + step) % ranks) for step in (1, ranks - 1)
    )

    def shift() -> None:
        """Everybody to the next rank, around."""
        sending = dist.P2POp(dist.isend, whole, following, group)
        receiving = dist.P2POp(dist.irecv, other, preceding, group)
        for work in dist.batch_isend_irecv([sending, receiving]):
            work.wait()

    return {
        "all-reduce": lambda: dist.all_reduce(whole, group=group),
        "all-gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce-scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "all-to-all": lambda: dist.all_to_all_single(other, whole, group=group),
        "send/recv": shift,
    }
