"""Mixtral's sparse feed-forward part (arXiv 2401.04088): no token is dropped or padded.

Each token goes to its two best experts, weighted by the softmax over those two logits. With expert
parallelism the rows travel to the rank that holds their expert and back; how many each rank gets
is what the router decides, so the loads are as uneven as the routing.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from workflow_lib.training.collectives import copy_to_group, exchange, sum_over_group
from workflow_lib.training.weights import Weights


class SparseFeedForward(nn.Module):
    """A router and this rank's experts, each a SwiGLU whose inner size is cut over the TP group."""

    def __init__(
        self,
        weights: Weights,
        name: str,
        hidden_size: int,
        ffn_size: int,
        experts: int,
        experts_per_token: int,
        output_deviation: float,
    ) -> None:
        super().__init__()
        self.tp_group = weights.mesh.tp_group
        self.expert_group = weights.mesh.expert_group
        self.ep = weights.mesh.degrees.ep
        self.experts, self.experts_per_token = experts, experts_per_token
        self.router = weights.normal(f"{name}.router", (experts, hidden_size))
        names = [f"{name}.expert{index}" for index in range(experts)]
        self.gate_up = weights.experts(
            [[f"{expert}.gate", f"{expert}.up"] for expert in names], (ffn_size, hidden_size)
        )
        self.down = weights.experts(
            [[f"{expert}.down"] for expert in names],
            (hidden_size, ffn_size),
            output_deviation,
            split=1,
        )

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        logits = F.linear(tokens, self.router).float()
        best, chosen = logits.topk(self.experts_per_token, dim=-1)
        # Both the rows and their weights meet sums that are partial on each tensor-parallel rank,
        # so the gradients of both have to be summed over the group; the router's then is whole.
        shares = copy_to_group(best.softmax(dim=-1).to(x.dtype), self.tp_group)
        tokens = copy_to_group(tokens, self.tp_group)

        order = chosen.flatten().argsort(stable=True)
        rows = tokens[order // self.experts_per_token]
        counts = chosen.flatten().bincount(minlength=self.experts)
        rows = self._through_all_experts(rows, counts)

        back = torch.empty_like(order)
        back[order] = torch.arange(order.numel(), device=order.device)
        picked = rows[back].view(-1, self.experts_per_token, x.shape[-1])
        mixed = (picked * shares.unsqueeze(-1)).sum(dim=1)
        return sum_over_group(mixed, self.tp_group).view_as(x)

    def _through_all_experts(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Pass rows, sorted by expert, through their experts; ``counts`` holds rows an expert."""
        if self.ep == 1:
            return self._through_local_experts(rows, counts)
        sent_counts = counts.view(self.ep, -1)
        received_counts = torch.empty_like(sent_counts)
        dist.all_to_all_single(received_counts, sent_counts.contiguous(), group=self.expert_group)
        sent = sent_counts.sum(dim=1).tolist()
        received = received_counts.sum(dim=1).tolist()
        arrived = exchange(rows, received, sent, self.expert_group)

        # What arrives is sorted by sender, then expert; the experts want it by expert alone.
        local = torch.arange(received_counts.shape[1], device=rows.device).repeat(self.ep)
        order = local.repeat_interleave(received_counts.flatten()).argsort(stable=True)
        passed = self._through_local_experts(arrived[order], received_counts.sum(dim=0))
        back = torch.empty_like(order)
        back[order] = torch.arange(order.numel(), device=order.device)
        return exchange(passed[back], sent, received, self.expert_group)

    def _through_local_experts(self, rows: Tensor, counts: Tensor) -> Tensor:
        if rows.is_cuda and rows.dtype == torch.bfloat16 and torch.version.hip is None:
            ends = counts.cumsum(0).to(torch.int32)
            gate, up = _grouped_product(rows, self.gate_up, ends).chunk(2, dim=-1)
            return _grouped_product(F.silu(gate) * up, self.down, ends)
        outputs = []
        # unbind: one backward node for the whole stack, where indexing would fill one a slice
        parts = zip(
            torch.split(rows, counts.tolist()),
            self.gate_up.unbind(0),
            self.down.unbind(0),
            strict=True,
        )
        for part, gate_up, down in parts:
            gate, up = F.linear(part, gate_up).chunk(2, dim=-1)
            outputs.append(F.linear(F.silu(gate) * up, down))
        return torch.cat(outputs)


def _grouped_product(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Multiply consecutive runs of rows, ending at ``ends``, each with the transpose of its matrix.

    One kernel for all experts; needs bf16 on an NVIDIA GPU.
    """
    product: Tensor = torch._grouped_mm(rows, matrices.transpose(-2, -1), offs=ends)
    return product
