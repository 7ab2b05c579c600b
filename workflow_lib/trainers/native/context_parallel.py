"""Context parallelism: each rank has a part of every sequence, and attends to all tokens before it.

A sequence is cut into two chunks for each rank; rank r of n has chunks r and 2n − 1 − r. Early
tokens attend to few others and late ones to many, so this gives all ranks equal work (as in arXiv
2407.21783, section 3.3.2). Keys and values are gathered over the group, and their gradients are
summed back to the parts. Everything else in a layer works on one token at a time and needs no other
rank.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import CausalBias, causal_lower_right

from workflow_lib.trainers.native.collectives import Group, gather_slices, group_rank, group_size
from workflow_lib.trainers.native.device import on_gpu

#: begin and end of each chunk that a rank has of a sequence, in tokens
Chunks = tuple[tuple[int, int], ...]


def chunks_of(length: int, ranks: int, rank: int) -> Chunks:
    """The chunks that a rank of a group has of a sequence of ``length`` tokens; 2 · ranks divides
    it."""
    if ranks == 1:
        return ((0, length),)
    size = length // (2 * ranks)
    return tuple((place * size, (place + 1) * size) for place in (rank, 2 * ranks - 1 - rank))


def cut(x: Tensor, chunks: Chunks, dim: int) -> Tensor:
    """The chunks of x along ``dim``, joined in their order."""
    if len(chunks) == 1:
        return x
    return torch.cat([x.narrow(dim, begin, end - begin) for begin, end in chunks], dim)


def seen_by(chunks: Chunks) -> list[CausalBias]:
    """For each chunk, the causal mask of its tokens over all tokens up to its end.

    On GPUs flash attention skips masked tokens; elsewhere the mask is a tensor.
    """
    return [causal_lower_right(end - begin, end) for begin, end in chunks]


class ContextParallel:
    """The chunks of a rank of a context-parallel group, and what attention exchanges
    in the group."""

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
        #: for each token of a sequence, its index in the gathered tokens, which are sorted by rank
        self._order = torch.tensor(places, device=device).argsort() if self.size > 1 else None
        #: causal masks of this rank's chunks; made here, because selective recomputation does not
        #: allow such a tensor to be made within a layer
        self._seen = seen_by(self.chunks) if self.size > 1 else []

    def gather(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of whole sequences, [batch, sequence, heads, size], from this rank's."""
        assert self._order is not None
        heads = key.shape[2]
        joined = gather_slices(torch.cat([key, value], dim=2), self.group)
        ordered = joined.index_select(1, self._order)
        whole_key, whole_value = torch.split(ordered, [heads, heads], dim=2)
        return whole_key, whole_value

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of this rank's chunks of queries to the keys and values of whole sequences. All
        are [batch, sequence, heads, size].
        """
        query, key, value = (states.transpose(1, 2) for states in (query, key, value))
        grouped = query.shape[1] != key.shape[1]
        mixed = []
        for number, part in enumerate(query.chunk(2, dim=2)):
            end = self.chunks[number][1]
            seen_key, seen_value = key[:, :, :end], value[:, :, :end]
            if torch.compiler.is_compiling():
                one = _compiled_attention(part, seen_key, seen_value, grouped)
            else:
                one = F.scaled_dot_product_attention(
                    part, seen_key, seen_value, attn_mask=self._seen[number], enable_gqa=grouped
                )
            mixed.append(one.transpose(1, 2))
        return torch.cat(mixed, dim=1)


def _compiled_attention(query: Tensor, key: Tensor, value: Tensor, grouped: bool) -> Tensor:
    """Attention as torch does it under a mask that :func:`seen_by` made. A compiler does not see
    such a mask, but the tensor that stands for it, which is empty.
    """
    nvidia = on_gpu(query.device) and torch.version.hip is None
    if nvidia and query.dtype == torch.bfloat16 and query.shape[-1] in range(8, 257, 8):
        # Flash attention is causal up to the last key, so it needs no mask.
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        result: Tensor = flash(query, key, value, is_causal=True)[0]
        return result
    sees, there = query.shape[2], key.shape[2]
    mask = torch.ones(sees, there, dtype=torch.bool, device=query.device).tril(there - sees)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=grouped)
