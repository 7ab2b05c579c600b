"""Experts whose products run beside the exchange of rows, in a group of one rank, against plain
experts. tests/training/test_layers.py and test_equality.py compare groups of several."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from tests.training.kept import kept_bytes
from workflow_lib.trainers.native.expert_exchange import ExchangeBeside

HIDDEN, INNER = 6, 5


@pytest.fixture(scope="module")
def group():
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def numbers(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)


def plain(rows, counts, gate_up, down):
    results = []
    for part, first, second in zip(rows.split(counts), gate_up, down, strict=True):
        gate, up = (part @ first.t()).chunk(2, dim=-1)
        results.append((F.silu(gate) * up) @ second.t())
    return torch.cat(results)


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("keep_inner", [True, False])
@pytest.mark.parametrize("counts", [None, [2, 2, 2], [5, 0, 1], [0, 6, 0]])
def test_results_and_gradients_are_those_of_plain_experts(group, counts, keep_inner, trains):
    rows = numbers(6, HIDDEN, seed=1)
    experts = numbers(3, 2 * INNER, HIDDEN, seed=2), numbers(3, HIDDEN, INNER, seed=3)
    # Frozen experts pass the gradient of their rows on.
    experts = [each.requires_grad_(trains) for each in experts]
    operands = [rows, *experts] if trains else [rows]
    gradient = numbers(6, HIDDEN, seed=4).detach()
    beside = ExchangeBeside(group, experts=3, keep_inner=keep_inner, compiled=False)

    result = beside(rows, None if counts is None else torch.tensor(counts), *experts)
    expected = plain(rows, counts or [2, 2, 2], *experts)

    torch.testing.assert_close(result, expected)
    for ours, theirs in zip(
        torch.autograd.grad(result, operands, gradient),
        torch.autograd.grad(expected, operands, gradient),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


class Kept(torch.nn.Module):
    """Experts alone, as a layer of which is counted what it keeps."""

    def __init__(self, beside):
        super().__init__()
        self.beside = beside
        self.gate_up = torch.nn.Parameter(numbers(3, 2 * INNER, HIDDEN, seed=2).detach())
        self.down = torch.nn.Parameter(numbers(3, HIDDEN, INNER, seed=3).detach())

    def forward(self, rows):
        return self.beside(rows, None, self.gate_up, self.down)


@pytest.mark.parametrize(
    ("keep_inner", "trains", "kept"),
    [
        # a row as it arrived, gate and up, and their product
        (True, True, HIDDEN + 3 * INNER),
        (False, True, HIDDEN + 2 * INNER),
        (True, False, 2 * INNER),
    ],
)
def test_what_is_kept_for_the_backward_pass_was_counted_by_hand(group, keep_inner, trains, kept):
    beside = ExchangeBeside(group, experts=3, keep_inner=keep_inner, compiled=False)
    experts = Kept(beside).requires_grad_(trains)

    assert kept_bytes(experts, numbers(6, HIDDEN, seed=1)) == 6 * 8 * kept


class Ranks:
    """A group of which only the number of ranks is asked."""

    def __init__(self, size):
        self.size = lambda: size


def test_rows_lie_by_the_place_of_their_expert_and_then_by_rank():
    # Six experts over three ranks: 0 and 1 are the first's, 2 and 3 the second's, …
    beside = ExchangeBeside(Ranks(3), experts=6, keep_inner=True, compiled=False)

    assert beside.order(torch.arange(6)).tolist() == [0, 2, 4, 1, 3, 5]
    assert beside.order(torch.arange(12).view(2, 6))[1].tolist() == [6, 8, 10, 7, 9, 11]
    # The expert that comes third in that order has the number 2.
    assert beside.number(torch.tensor([[0, 4], [1, 5]])).tolist() == [[0, 2], [3, 5]]
