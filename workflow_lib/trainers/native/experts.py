"""Mixtral's sparse feed-forward part (arXiv 2401.04088).

Each token goes to its best experts, weighted by the softmax over their logits. With expert
parallelism the rows travel to the rank that holds their expert and back. With dropless routing
every expert gets all rows that the router sends to it, so the load is as uneven as the routing.
With balanced routing all experts get equally many rows.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workflow_lib.records import Model, Training
from workflow_lib.trainers.native.collectives import exchange
from workflow_lib.trainers.native.expert_exchange import ExchangeBeside
from workflow_lib.trainers.native.expert_products import expert_product
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


class LocalExperts(nn.Module):
    """This rank's experts, each a SwiGLU whose inner size is cut over the tensor-parallel group."""

    def __init__(self, weights: Weights, name: str, model: Model, output_deviation: float) -> None:
        super().__init__()
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
        inner = gated(expert_product(rows, self.gate_up, counts))
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
        self.local = LocalExperts(weights, name, model, output_deviation)
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
        passed = self._through_all_experts(rows.spread(whole.flatten(0, 1)), rows.counts)
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
    inner = [each for module in modules for each in module.modules()]
    counters = [each.choices for each in inner if isinstance(each, SparseFeedForward)]
    if not counters:
        return None
    counted, made = ChoiceCounter.take(counters), per_layer * len(counters)
    share = counted.dropped / counted.made if counted.made else 0.0
    return Choices(made, round(share * made))
