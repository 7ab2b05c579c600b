"""What each context-parallel rank has of a sequence, and what its queries see."""

import pytest
import torch
import torch.nn.functional as F

from workflow_lib.trainers.native.context_parallel import ContextParallel, chunks_of, cut, seen_by


def test_chunks_are_as_drawn_by_hand():
    # Twelve tokens over three ranks, in chunks of two: 0 1 2 | 2 1 0.
    assert [chunks_of(12, 3, rank) for rank in range(3)] == [
        *(((0, 2), (10, 12)), ((2, 4), (8, 10)), ((4, 6), (6, 8)))
    ]
    assert chunks_of(12, 1, 0) == ((0, 12),)


class Rank(ContextParallel):
    """A rank of a group that is not there: what the others have is given."""

    def __init__(self, ranks, rank, length):
        super().__init__(None, length, torch.device("cpu"))
        self.size, self.chunks = ranks, chunks_of(length, ranks, rank)
        self._seen = seen_by(self.chunks)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_chunks_attend_as_the_whole_sequence_does(ranks, compiled, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiled)
    torch.manual_seed(1)
    query, key, value = (torch.randn(2, 32, heads, 8) for heads in (4, 2, 2))
    heads_first = (each.transpose(1, 2) for each in (query, key, value))
    attention = F.scaled_dot_product_attention(*heads_first, is_causal=True, enable_gqa=True)
    whole = attention.transpose(1, 2)

    for rank in range(ranks):
        context = Rank(ranks, rank, 32)
        attended = context.attend(cut(query, context.chunks, 1), key, value)

        torch.testing.assert_close(attended, cut(whole, context.chunks, 1))
