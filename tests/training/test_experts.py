"""Routing, dropping and padding, and the balancing loss, against numbers worked out by hand."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tests.training.cells import MIXTRAL, TRAINING
from tests.training.ranks import HAS_COMPILER
from workflow_lib.trainers.native.experts import choices_of, expert_product, has_grouped_product
from workflow_lib.trainers.native.feed_forward import gated
from workflow_lib.trainers.native.mesh import single_process
from workflow_lib.trainers.native.model import Decoder, parts
from workflow_lib.trainers.native.routing import (
    Choices,
    attach,
    balanced_rows,
    balancing_loss,
    dropless_rows,
    reorder,
)
from workflow_lib.trainers.native.weights import Weights

CPU = torch.device("cpu")
#: four tokens choose one of two experts; the first expert is chosen three times
CHOSEN = torch.tensor([[0], [1], [0], [0]])
PROBABILITIES = torch.tensor([[0.7, 0.3], [0.2, 0.8], [0.6, 0.4], [0.9, 0.1]])
TOKENS = torch.tensor([[1.0], [2.0], [3.0], [4.0]])


def sparse_layer(**options):
    """The sparse feed-forward part of a layer, with a router that decides clearly."""
    weights = Weights(single_process(CPU), 7, torch.float32)
    decoder = Decoder(parts(MIXTRAL, weights, replace(TRAINING, **options)), None)
    part = decoder.parts[1].feed_forward
    part.router.data.mul_(50)
    return part


def tokens_of(batch, length, seed=0):
    return torch.randn(batch, length, 64, generator=torch.Generator().manual_seed(seed))


def test_dropless_rows_are_sorted_by_expert_and_none_is_missing():
    rows = dropless_rows(CHOSEN, 2)

    assert rows.spread(TOKENS).flatten().tolist() == [1, 3, 4, 2]
    assert rows.counts.tolist() == [3, 1]
    assert torch.equal(rows.collect(rows.spread(TOKENS)), TOKENS)


def test_balanced_experts_drop_the_least_probable_rows_and_pad_with_zeros():
    # Two rows each: the first expert drops token 2 (0.6), the second one lacks a row.
    rows = balanced_rows(CHOSEN, PROBABILITIES)

    assert rows.counts is None
    assert rows.spread(TOKENS).flatten().tolist() == [4, 1, 2, 0]
    assert rows.collect(rows.spread(TOKENS)).flatten().tolist() == [1, 2, 0, 4]


def test_a_capacity_is_rounded_up():
    # 5 tokens · 2 choices over 4 experts: 3 rows each
    chosen = torch.tensor([[0, 1], [0, 1], [2, 3], [0, 2], [1, 3]])
    rows = balanced_rows(chosen, torch.full((5, 4), 0.25))

    assert len(rows.choice) == 12
    assert rows.padded.sum() == 2
    assert not rows.dropped.any()


@pytest.mark.parametrize(
    "way",
    [
        *(
            lambda x, rows=rows: rows.collect(rows.spread(x) ** 2)
            for rows in (dropless_rows(CHOSEN, 2), balanced_rows(CHOSEN, PROBABILITIES))
        ),
        # Two experts see each token.
        lambda x: dropless_rows(torch.tensor([[0, 1], [1, 0], [1, 2], [0, 2]]), 3).spread(x) ** 2,
        lambda x: reorder(x, torch.tensor([2, 0, 3, 1])) ** 2,
    ],
    ids=["dropless", "balanced", "two experts", "reordered"],
)
def test_gradients_go_back_the_way_that_the_rows_came(way):
    assert torch.autograd.gradcheck(way, TOKENS.double().requires_grad_())


def test_rows_are_reordered():
    assert reorder(TOKENS, torch.tensor([2, 0, 3, 1])).flatten().tolist() == [3, 1, 4, 2]


def test_balanced_routing_changes_nothing_where_the_router_is_even():
    # Every expert is the first and the second choice of equally many tokens.
    x = torch.zeros(1, 8, 64)
    x[0, :, :4] = torch.eye(4).repeat(2, 1) + 0.5 * torch.eye(4).roll(1, 0).repeat(2, 1)
    outputs = []
    for routing in ("dropless", "balanced"):
        part = sparse_layer(routing=routing)
        part.router.data.zero_()[:, :4] = torch.eye(4)
        outputs.append(part(x))

    torch.testing.assert_close(*outputs)


def test_a_token_that_all_its_experts_drop_is_passed_by():
    part = sparse_layer(routing="balanced")
    x = tokens_of(1, 1).repeat(1, 8, 1)  # all want the same two experts, which take 4 each

    assert (part(x)[0].abs().sum(dim=-1) == 0).sum() == 4


@pytest.mark.long
def test_balanced_routing_never_asks_what_the_numbers_are():
    # A graph without breaks: no size and no branch depends on a value.
    torch._dynamo.reset()
    part = sparse_layer(routing="balanced", balancing_loss=0.1)
    x = tokens_of(2, 16)

    compiled = torch.compile(part, fullgraph=True, backend="aot_eager", dynamic=False)

    torch.testing.assert_close(compiled(x), part(x))


def test_an_attached_loss_leaves_values_alone_and_adds_its_gradient():
    x = torch.tensor([3.0, 4.0], requires_grad=True)
    y = attach(2 * x, x.square().sum(), 0.5)
    y.sum().backward()

    assert y.tolist() == [6, 8]
    assert x.grad.tolist() == [2 + 0.5 * 6, 2 + 0.5 * 8]


def test_the_balancing_loss_is_averaged_over_a_replicas_micro_batches():
    x = tokens_of(1, 16)
    gradients = {}
    for name, options in {
        "none": {"global_batch_size": 1},
        "one micro-batch": {"global_batch_size": 1, "balancing_loss": 0.5},
        "four": {"global_batch_size": 4, "balancing_loss": 0.5},
    }.items():
        part = sparse_layer(**options)
        part(x).sum().backward()
        gradients[name] = part.router.grad
    router = part.router.detach().requires_grad_()
    logits = F.linear(x[0], router)
    (0.5 * balancing_loss(logits, logits.topk(2).indices)).backward()

    added = gradients["one micro-batch"] - gradients["none"]
    torch.testing.assert_close(added, router.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        gradients["four"] - gradients["none"], added / 4, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("counts", [[3, 0, 5], [0, 8, 0], None])
def test_each_expert_multiplies_its_own_rows(counts, trains):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    rows = rows[: sum(counts or [3] * 3)].requires_grad_()
    matrices = torch.randn(3, 6, 4, generator=generator, dtype=torch.float64)
    # Frozen experts pass the gradient of their rows on.
    operands = (rows, matrices.requires_grad_()) if trains else (rows,)
    # Experts with equally many rows need no counts.
    expert = torch.arange(3).repeat_interleave(torch.tensor(counts or [3] * 3))

    product = expert_product(rows, matrices, None if counts is None else torch.tensor(counts))

    expected = torch.einsum("ri,roi->ro", rows, matrices[expert])
    torch.testing.assert_close(product, expected)
    gradient = torch.randn(product.shape, generator=generator, dtype=torch.float64)
    for ours, theirs in zip(
        torch.autograd.grad(product, operands, gradient),
        torch.autograd.grad(expected, operands, gradient),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_grouped_product_is_found_on_a_gpu_that_has_tensor_cores_for_it():
    device = torch.device("cuda", 0)
    if torch.cuda.get_device_capability(device) < (9, 0):
        pytest.skip("older than Hopper")

    assert has_grouped_product(device, torch.bfloat16)
    assert not has_grouped_product(device, torch.float32)


@pytest.mark.parametrize("recomputation", ["none", "selective", "full"])
@pytest.mark.parametrize("compiled", [False, True])
def test_dropped_choices_are_counted_once_however_a_layer_is_computed(recomputation, compiled):
    # 8 equal tokens want the same 2 of 4 experts, which take 8 · 2 / 4 = 4 each: 8 of 16 are
    # dropped, in each of 4 layers.
    torch._dynamo.reset()
    weights = Weights(single_process(CPU), 7, torch.float32)
    training = replace(TRAINING, routing="balanced", recomputation=recomputation)
    decoder = Decoder(parts(MIXTRAL, weights, training), None)
    for layer in decoder.parts[1:5]:
        if compiled:
            layer.compile(backend="aot_eager", dynamic=False)
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    for layer in decoder.parts[1:5]:
        layer.attention.rotary = None  # so that positions make no difference
    for _ in range(2):
        decoder(tokens, tokens).backward()
        assert choices_of([decoder], per_layer=16) == Choices(made=64, dropped=32)


def test_dropless_experts_drop_nothing_and_a_dense_model_has_no_choices():
    part = sparse_layer(routing="dropless")
    part(tokens_of(1, 8))
    assert choices_of([part], per_layer=16) == Choices(made=16, dropped=0)
    assert choices_of([part.local], per_layer=16) is None


@pytest.mark.slow
@pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler")
def test_one_kernel_serves_all_numbers_of_rows_within_a_layer_of_fixed_sizes():
    torch._dynamo.reset()
    graphs = torch._dynamo.utils.counters["stats"]
    numbers = iter((5, 9, 12, 2))
    x = torch.randn(12, 8, requires_grad=True)
    between = torch.compiler.disable(lambda rows: gated(rows[: next(numbers)], fused=True))
    layer = torch.compile(lambda x: between(x * 2).sum(), dynamic=False)

    layer(x).backward()
    (expected,) = torch.autograd.grad(gated(x[:5] * 2).sum(), x)
    torch.testing.assert_close(x.grad, expected)
    compiled = graphs["unique_graphs"]
    for _ in range(3):
        layer(x).backward()
    assert graphs["unique_graphs"] == compiled
