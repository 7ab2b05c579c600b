"""Trains a GPT, Llama or Mixtral with Megatron-core 0.16; a trainer of sweeps, on GPUs.

config/trainers/megatron.yaml has the command. Norms and attention are torch's: Megatron's own need
TransformerEngine.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig

COUNTS = (
    *("layers", "hidden", "feed-forward", "heads", "kv-heads", "vocabulary", "sequence"),
    *("micro-batch", "micro-batches", "steps", "seed", "zero", "tp", "pp", "ep"),
    *("experts", "experts-per-token"),
)
SWITCHES = ("overlap", "sequence-parallel")


# 0.16.1 asks for it where TransformerEngine is not installed, too.
vars(moe_utils).setdefault("te_general_gemm", None)


class Norm:
    """torch's norm, whose gradients Megatron adds over ranks that share a sequence."""

    def __new__(cls, config: TransformerConfig, hidden_size: int, eps: float) -> Any:
        is_rms = config.normalization == "RMSNorm"
        norm = (torch.nn.RMSNorm if is_rms else torch.nn.LayerNorm)(hidden_size, eps)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm


class Attention(MegatronModule):
    """torch's causal attention, by FlashAttention."""

    def __init__(self, config: TransformerConfig, *_: Any, **__: Any) -> None:
        super().__init__(config=config)

    def forward(self, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        # sequence × batch × heads × head
        by_head = [part.permute(1, 2, 0, 3) for part in (query, key, value)]
        found = F.scaled_dot_product_attention(*by_head, is_causal=True, enable_gqa=True)
        return found.permute(2, 0, 1, 3).flatten(2)


def config_of(options: argparse.Namespace) -> TransformerConfig:
    """The model, and how it is divided."""
    full = {"recompute_granularity": "full", "recompute_method": "uniform"}
    recomputation = {**full, "recompute_num_layers": 1} if options.recomputation == "full" else {}
    gpt = options.family == "gpt"
    experts: dict[str, Any] = {}
    if options.experts:
        experts = {
            "num_moe_experts": options.experts,
            "moe_router_topk": options.experts_per_token,
            "expert_model_parallel_size": options.ep,
            "moe_token_dispatcher_type": "alltoall",  # which drops no token
            "moe_router_load_balancing_type": "none",
        }
    return TransformerConfig(
        num_layers=options.layers,
        hidden_size=options.hidden,
        ffn_hidden_size=options.feed_forward,
        num_attention_heads=options.heads,
        num_query_groups=options.kv_heads,
        normalization="LayerNorm" if gpt else "RMSNorm",
        activation_func=F.gelu if gpt else F.silu,
        gated_linear_unit=not gpt,
        add_bias_linear=gpt,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        tensor_model_parallel_size=options.tp,
        pipeline_model_parallel_size=options.pp,
        sequence_parallel=options.sequence_parallel and options.tp > 1,
        bf16=True,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        cross_entropy_loss_fusion=True,
        cross_entropy_fusion_impl="native",
        # What its kernels for these need is not installed.
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        finalize_model_grads_func=finalize_model_grads,
        **recomputation,
        **experts,
    )


def model_of(options: argparse.Namespace, config: TransformerConfig) -> GPTModel:
    """This rank's part of the model."""
    spec = get_gpt_layer_local_spec(options.experts or None, normalization="RMSNorm")
    spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = Norm
    spec.submodules.self_attention.submodules.core_attention = Attention
    return GPTModel(
        config,
        TransformerBlockSubmodules([spec] * (options.layers // options.pp), Norm),
        options.vocabulary,
        options.sequence,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        position_embedding_type="learned_absolute" if options.family == "gpt" else "rope",
        rotary_base=options.rope,
        share_embeddings_and_output_weights=options.family == "gpt",
    )


def batches(options: argparse.Namespace, device: torch.device) -> Iterator[tuple[Any, Any]]:
    """Random tokens and the ones that follow them; replicas have others."""
    replica = parallel_state.get_data_parallel_rank()
    random = torch.Generator().manual_seed(options.seed + 1000 * replica)
    shape = (options.micro_batch, options.sequence + 1)
    while True:
        ids = torch.randint(options.vocabulary, shape, generator=random).to(device)
        yield ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in COUNTS:
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in SWITCHES:
        parser.add_argument(f"--{name}", type=lambda word: word == "true", required=True)
    parser.add_argument("--family", choices=("gpt", "llama", "mixtral"), required=True)
    parser.add_argument("--rope", type=float, required=True)
    parser.add_argument("--recomputation", choices=("none", "full"), required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--weight-decay", type=float, required=True)
    options = parser.parse_args()

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    parallel_state.initialize_model_parallel(
        options.tp, options.pp, expert_model_parallel_size=options.ep
    )
    with suppress(ImportError):  # where somebody measures
        import triptych_steps

        triptych_steps.layout(
            dp=parallel_state.get_data_parallel_world_size(),
            tp=parallel_state.get_tensor_model_parallel_world_size(),
            pp=parallel_state.get_pipeline_model_parallel_world_size(),
            ep=parallel_state.get_expert_model_parallel_world_size(),
        )
    torch.manual_seed(options.seed)
    tensor_parallel.model_parallel_cuda_manual_seed(options.seed)
    config = config_of(options)
    sharded = options.zero > 0
    model = DistributedDataParallel(
        config,
        DistributedDataParallelConfig(
            # As Megatron-LM sets it for bf16.
            grad_reduce_in_fp32=True,
            use_distributed_optimizer=sharded,
            overlap_grad_reduce=options.overlap,
            overlap_param_gather=options.overlap and sharded,
        ),
        model_of(options, config).to(device, torch.bfloat16),
    )
    if options.overlap:
        config.no_sync_func = model.no_sync
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=options.learning_rate,
            weight_decay=options.weight_decay,
            clip_grad=1.0,
            bf16=True,
            params_dtype=torch.bfloat16,
            use_distributed_optimizer=sharded,
            overlap_param_gather=options.overlap and sharded,
        ),
        [model],
    )
    positions = torch.arange(options.sequence, device=device).expand(options.micro_batch, -1)

    def forward(of: Iterator[tuple[Any, Any]], part: Any) -> tuple[Any, Any]:
        ids, labels = next(of)
        output = part(ids, positions, None, labels=labels)
        return output, lambda losses: (losses.float().mean(), {})

    train = get_forward_backward_func()
    tokens = batches(options, device)
    for step in range(options.steps):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        train(
            forward_step_func=forward,
            data_iterator=tokens,
            model=[model],
            num_microbatches=options.micro_batches,
            seq_length=options.sequence,
            micro_batch_size=options.micro_batch,
            forward_only=False,
        )
        _, norm, _ = optimizer.step()
        if (step + 1) % 10 == 0:
            print(f"step {step + 1}: gradient norm {norm:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
