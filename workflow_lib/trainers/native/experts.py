"""Mixtral's sparse feed-forward part (arXiv 2401.04088).

Each token goes to its best experts, weighted by the softmax over their logits. With expert
parallelism the rows travel to the rank that holds their expert and back. With dropless routing
every expert gets all rows that the router sends to it, so the load is as uneven as the routing.
With balanced routing all experts get equally many rows.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workflow_lib.records.model import Model
from workflow_lib.records.training import Training
from workflow_lib.trainers.native.collectives import exchange
from workflow_lib.trainers.native.device import on_gpu
from workflow_lib.trainers.native.expert_exchange import ExchangeBeside
from workflow_lib.trainers.native.feed_forward import gated
from workflow_lib.trainers.native.routing import (
    ChoiceCounter,
    Choices,
    attach,
    balanced_rows,
    balancing_loss,
    dropless_rows,
    inverse,
    reorder,
)
from workflow_lib.trainers.native.tensor_parallel import TensorParallel
from workflow_lib.trainers.native.weights import Weights

#: the public name from torch 2.10 on, else the private one before
_grouped_mm: Callable[..., Tensor] = getattr(
    torch.nn.functional, "grouped_mm", getattr(torch, "_grouped_mm", None)
)  # type: ignore[assignment]


def expert_product(rows: Tensor, matrices: Tensor, counts: Tensor | None) -> Tensor:
    """Multiply each expert's rows with the transpose of its matrix.

    ``rows`` is [rows, in], sorted by expert. ``matrices`` is [experts, out, in]. ``counts`` is the
    number of rows of each expert, [experts], or None if all have equally many. The result is [rows,
    out]. It is one operator of torch, so that selective recomputation keeps its result. For the
    backward pass the parameter itself is kept, which ZeRO-3 can free in between.
    """
    grouped = counts is not None and has_grouped_product(rows.device, rows.dtype)
    result: Tensor = _product(rows, matrices, counts, grouped)
    return result


# A compiler takes the result as a constant, and does not trace into the function.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def has_grouped_product(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether one kernel can do all experts' products on a device; this is tried once."""
    return _tried(device, dtype)


@functools.cache
def _tried(device: torch.device, dtype: torch.dtype) -> bool:
    if not on_gpu(device) or dtype != torch.bfloat16 or _grouped_mm is None:
        return False
    # Small integers, whose products and sums are exact in bf16; one expert has no rows.
    numbers = torch.arange(2 * 48 * 64 + 3 * 64 * 64, device=device) * 7 % 11 % 3 - 1
    rows, gradient = numbers[: 2 * 48 * 64].view(2, 48, 64).to(dtype)
    matrices = numbers[2 * 48 * 64 :].view(3, 64, 64).to(dtype)
    counts = torch.tensor([13, 0, 35], device=device)
    try:
        product = _product(rows, matrices, counts, True)
        gradients = _product_backward(gradient, rows, matrices, counts, True)
    except RuntimeError as reason:
        warnings.warn(
            f"experts' products run one after the other: no grouped GEMM ({reason})", stacklevel=2
        )
        return False
    expected = _product(rows, matrices, counts, False)
    expected_gradients = _product_backward(gradient, rows, matrices, counts, False)
    right = all(
        torch.equal(one, other)
        for one, other in zip((product, *gradients), (expected, *expected_gradients), strict=True)
    )
    if not right:
        warnings.warn(
            "experts' products run one after the other: grouped GEMM gives wrong results here",
            stacklevel=2,
        )
    return right


def _times(rows: Tensor, matrices: Tensor, counts: Tensor | None, grouped: bool) -> Tensor:
    """Each expert's rows, [rows, in], times its matrix of [experts, in, out]; the result is [rows,
    out]."""
    if counts is None:
        stacked = rows.view(len(matrices), -1, rows.shape[1])
        return torch.bmm(stacked, matrices).flatten(0, 1)
    if grouped:
        return _grouped_mm(rows, matrices, offs=_ends(counts))
    product = rows.new_empty(len(rows), matrices.shape[2])
    sizes = counts.tolist()
    parts = zip(torch.split(rows, sizes), matrices, torch.split(product, sizes), strict=True)
    for part, matrix, result in parts:
        torch.mm(part, matrix, out=result)
    return product


def _transposed_times(
    left: Tensor, right: Tensor, experts: int, counts: Tensor | None, grouped: bool
) -> Tensor:
    """For each expert, its rows of ``left``, transposed, times its rows of ``right``: [experts,
    left columns, right columns]."""
    if counts is None:
        stacked = left.view(experts, -1, left.shape[1]).transpose(1, 2)
        return torch.bmm(stacked, right.view(experts, -1, right.shape[1]))
    if grouped:
        return _grouped_mm(left.t(), right, offs=_ends(counts))
    products = left.new_empty(experts, left.shape[1], right.shape[1])
    sizes = counts.tolist()
    parts = zip(torch.split(left, sizes), torch.split(right, sizes), products, strict=True)
    for one, other, result in parts:
        torch.mm(one.t(), other, out=result)
    return products


def _ends(counts: Tensor) -> Tensor:
    return counts.cumsum(0).to(torch.int32)


@torch.library.custom_op("triptych::expert_product", mutates_args=())
def _product(rows: Tensor, matrices: Tensor, counts: Tensor | None, grouped: bool) -> Tensor:
    return _times(rows, matrices.transpose(1, 2), counts, grouped)


@torch.library.custom_op("triptych::expert_product_backward", mutates_args=())
def _product_backward(
    gradient: Tensor, rows: Tensor | None, matrices: Tensor, counts: Tensor | None, grouped: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of the rows and of the matrices; the latter is empty if the rows
    were not kept."""
    gradient = gradient.contiguous()
    of_rows = _times(gradient, matrices, counts, grouped)
    if rows is None:
        return of_rows, matrices.new_empty(0)
    return of_rows, _transposed_times(gradient, rows, len(matrices), counts, grouped)


@_product.register_fake
def _(rows: Tensor, matrices: Tensor, counts: Tensor | None, grouped: bool) -> Tensor:
    return rows.new_empty(rows.shape[0], matrices.shape[1])


@_product_backward.register_fake
def _(
    gradient: Tensor, rows: Tensor | None, matrices: Tensor, counts: Tensor | None, grouped: bool
) -> tuple[Tensor, Tensor]:
    of_matrices = matrices.new_empty(0) if rows is None else torch.empty_like(matrices)
    return gradient.new_empty(gradient.shape[0], matrices.shape[2]), of_matrices


def _remember(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
    rows, matrices, counts, ctx.grouped = inputs
    # If the matrices are frozen, the rows are not needed for the backward pass.
    ctx.save_for_backward(rows if ctx.needs_input_grad[1] else None, matrices, counts)


def _gradients(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    rows, matrices, counts = context.saved_tensors
    of_rows, of_matrices = _product_backward(gradient, rows, matrices, counts, context.grouped)
    return of_rows, None if rows is None else of_matrices, None, None


_product.register_autograd(_gradients, setup_context=_remember)

#: the operator as torch dispatches it, without that of the backward pass
OPERATORS = [torch.ops.triptych.expert_product.default]


class LocalExperts(nn.Module):
    """This rank's experts, each a SwiGLU whose inner size is cut over the tensor-parallel group."""

    def __init__(
        self, weights: Weights, name: str, model: Model, output_deviation: float, compiled: bool
    ) -> None:
        super().__init__()
        self.compiled = compiled
        hidden, ffn = model.hidden_size, model.ffn_hidden_size
        names = [f"{name}.expert{index}" for index in range(model.experts)]
        self.gate_up = weights.experts(
            [[f"{expert}.gate", f"{expert}.up"] for expert in names], (ffn, hidden)
        )
        self.down = weights.experts(
            [[f"{expert}.down"] for expert in names], (hidden, ffn), output_deviation, split=1
        )

    def forward(
        self, rows: Tensor, counts: Tensor | None, beside: ExchangeBeside | None = None
    ) -> Tensor:
        """Apply experts to their rows, [rows, hidden], sorted by expert; ``counts`` is as in
        ``Rows``. With ``beside`` these are the rows of all ranks' experts, in its order."""
        if beside is not None:
            return beside(rows, counts, self.gate_up, self.down)
        inner = gated(expert_product(rows, self.gate_up, counts), fused=self.compiled)
        return expert_product(inner, self.down, counts)


class SparseFeedForward(nn.Module):
    """A router, and the experts that it sends tokens to."""

    def __init__(
        self,
        weights: Weights,
        parallel: TensorParallel,
        name: str,
        model: Model,
        training: Training,
        output_deviation: float,
    ) -> None:
        super().__init__()
        degrees = weights.mesh.degrees
        self.parallel = parallel
        self.expert_group = weights.mesh.expert_group
        self.ep = degrees.ep
        self.experts, self.experts_per_token = model.experts, model.experts_per_token
        self.balanced = training.routing == "balanced"
        # The backends average gradients over micro-batches and replicas. Every tensor-parallel
        # rank computes the balancing loss, and their gradients are summed.
        self.balancing_factor = training.balancing_loss / (
            training.micro_batches(degrees.dp) * parallel.size
        )
        self.router = weights.normal(f"{name}.router", (model.experts, model.hidden_size))
        self.local = LocalExperts(weights, name, model, output_deviation, training.compile)
        self.choices = ChoiceCounter(weights.mesh.device)
        #: None if nothing is computed during the exchange of rows
        self.beside = None
        if training.overlap and self.expert_group is not None and self.ep > 1:
            self.beside = ExchangeBeside(
                *(self.expert_group, self.experts),
                keep_inner=training.recomputation != "selective",
                compiled=training.compile,
            )

    def forward(self, x: Tensor) -> Tensor:
        # The router sees this rank's part of the sequence. Its logits then enter the group like the
        # tokens, because both become parts of sums over the ranks.
        logits = F.linear(x, self.parallel.whole(self.router)).float()
        logits = self.parallel.enter(logits).flatten(0, 1)
        whole = self.parallel.enter(x)
        best, chosen = logits.topk(self.experts_per_token, dim=-1)
        shares = best.softmax(dim=-1)
        if self.balancing_factor and torch.is_grad_enabled():
            shares = attach(shares, balancing_loss(logits, chosen), self.balancing_factor)

        preferences = logits.detach()
        if self.beside is not None:
            chosen, preferences = self.beside.number(chosen), self.beside.order(preferences)
        if self.balanced:
            rows = balanced_rows(chosen, preferences.softmax(dim=-1))
        else:
            rows = dropless_rows(chosen, self.experts)
        self.choices.count(rows)
        through = self._through_all_experts
        if rows.counts is not None and self.ep > 1:
            # Other numbers of rows in every step, for which torch would compile again.
            through = torch.compiler.disable(through)  # type: ignore[no-untyped-call]
        passed = through(rows.spread(whole.flatten(0, 1)), rows.counts)
        picked = rows.collect(passed).view(*shares.shape, -1)
        mixed = (picked * shares.to(x.dtype).unsqueeze(-1)).sum(dim=1)
        return self.parallel.leave(mixed.view_as(whole))

    def _through_all_experts(self, rows: Tensor, counts: Tensor | None) -> Tensor:
        """Apply the experts of all ranks to rows that are sorted by expert; ``counts`` is as in
        ``Rows``."""
        if self.beside is not None:
            beside: Tensor = self.local(rows, counts, self.beside)
            return beside
        if self.expert_group is None or self.ep == 1:
            alone: Tensor = self.local(rows, counts)
            return alone
        if counts is None:
            # All ranks send and receive equally many rows: [ranks, local experts, capacity,
            # hidden].
            equal = [len(rows) // self.ep] * self.ep
            arrived = exchange(rows, equal, equal, self.expert_group)
            by_rank = arrived.view(self.ep, self.experts // self.ep, -1, rows.shape[1])
            by_expert = by_rank.transpose(0, 1)
            passed = self.local(by_expert.flatten(0, 2), None).view(by_expert.shape)
            return exchange(passed.transpose(0, 1).flatten(0, 2), equal, equal, self.expert_group)

        ones = [1] * self.ep
        sent_counts = counts.view(self.ep, -1)
        received_counts = exchange(sent_counts, ones, ones, self.expert_group)
        totals = torch.stack((sent_counts.sum(dim=1), received_counts.sum(dim=1)))
        sent, received = totals.tolist()
        arrived = exchange(rows, received, sent, self.expert_group)

        # Arriving rows are sorted by sender and then by expert; the experts need them sorted by
        # expert only.
        local = torch.arange(received_counts.shape[1], device=rows.device).repeat(self.ep)
        local = local.repeat_interleave(received_counts.flatten(), output_size=len(arrived))
        order = local.argsort(stable=True)
        passed = self.local(reorder(arrived, order), received_counts.sum(dim=0))
        return exchange(reorder(passed, inverse(order)), sent, received, self.expert_group)


def choices_of(modules: Iterable[nn.Module], per_layer: int) -> Choices | None:
    """The choices of a rank's routers since the last call; None if there is no router.

    ``per_layer`` is the true number of choices of a layer. It corrects counts that recomputation
    doubled.
    """
    inner = [part for module in modules for part in module.modules()]
    counters = [part.choices for part in inner if isinstance(part, SparseFeedForward)]
    if not counters:
        return None
    counted, made = ChoiceCounter.take(counters), per_layer * len(counters)
    share = counted.dropped / counted.made if counted.made else 0.0
    return Choices(made, round(share * made))
