"""Context parallelism: each rank has a part of every sequence, and attends to all before it.

A sequence is cut into two chunks a rank, of which rank r of n has chunks r and 2n − 1 − r: what is
early attends to little and what is late to much, so that all ranks have equal work (as in arXiv
2407.21783, section 3.3.2). Keys and values are gathered over the group; their gradients are summed
to the parts. All else in a layer looks at one token at a time and needs no other rank.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.attention.bias import CausalBias, causal_lower_right

from workflow_lib.training.collectives import Group, gather_slices, group_rank, group_size

#: begins and ends of the chunks that a rank has of a sequence, in tokens
Chunks = tuple[tuple[int, int], ...]


def chunks_of(length: int, ranks: int, rank: int) -> Chunks:
    """What a rank of a group has of a sequence of ``length`` tokens, which 2 · ranks divides."""
    if ranks == 1:
        return ((0, length),)
    size = length // (2 * ranks)
    return tuple((place * size, (place + 1) * size) for place in (rank, 2 * ranks - 1 - rank))


def cut(x: Tensor, chunks: Chunks, dim: int) -> Tensor:
    """The chunks of x, one behind the other."""
    if len(chunks) == 1:
        return x
    return torch.cat([x.narrow(dim, begin, end - begin) for begin, end in chunks], dim)


def seen_by(chunks: Chunks) -> list[CausalBias]:
    """For each chunk which of the tokens up to its end its own see: those before, and themselves.

    On GPUs flash attention then leaves out the others; elsewhere it is a mask.
    """
    return [causal_lower_right(end - begin, end) for begin, end in chunks]


class ContextParallel:
    """What attention needs to know of its context-parallel group."""

    def __init__(self, group: Group, length: int, device: torch.device) -> None:
        """``length`` is that of whole sequences, in tokens."""
        self.group, self.size = group, group_size(group)
        self.chunks = chunks_of(length, self.size, group_rank(group))
        places = [
            place
            for rank in range(self.size)
            for begin, end in chunks_of(length, self.size, rank)
            for place in range(begin, end)
        ]
        #: where each token of a sequence is in what is gathered, rank behind rank
        self._order = torch.tensor(places, device=device).argsort() if self.size > 1 else None
        #: which of the tokens up to a chunk's end its queries see; made here, as selective
        #: recomputation lets no such tensor be made within a layer
        self._seen = seen_by(self.chunks) if self.size > 1 else []

    def gather(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of whole sequences, [batch, sequence, heads, size], from this rank's."""
        assert self._order is not None
        heads = key.shape[2]
        joined = gather_slices(torch.cat([key, value], dim=2), self.group)
        ordered = joined.index_select(1, self._order)
        whole_key, whole_value = torch.split(ordered, [heads, heads], dim=2)
        return whole_key, whole_value

    def attended(
        self, query: Tensor, key: Tensor, value: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, CausalBias]]:
        """For each chunk of the queries: it, the keys and values up to its end, and what of them
        each query sees. Keys and values are whole sequences.
        """
        parts = zip(query.chunk(2, dim=1), self.chunks, self._seen, strict=True)
        for part, (_, end), seen in parts:
            yield part, key[:, :end], value[:, :end], seen
