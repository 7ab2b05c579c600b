"""Trains a Llama 3 or Mixtral with torchtitan 0.2; a trainer of sweeps, on GPUs.

config/trainers/torchtitan.yaml has the command. Options that are not listed below are torchtitan's.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any

import torch

COUNTS = (
    *("layers", "hidden", "heads", "kv-heads", "feed-forward", "vocabulary", "sequence"),
    *("experts", "experts-per-token", "micro-batch", "micro-batches", "dp", "pp", "chunks"),
)


class RandomTokens:
    """Batches of tokens, in place of a loader of text."""

    def __init__(self, vocabulary: int, batch: int, sequence: int) -> None:
        self._vocabulary, self._shape = vocabulary, (batch, sequence + 1)

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        while True:
            ids = torch.randint(self._vocabulary, self._shape)
            yield {"input": ids[:, :-1]}, ids[:, 1:]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, _: dict[str, Any]) -> None: ...


#: what torchtitan imports of packages that nothing here uses, by package and module
UNUSED = {
    "datasets": {
        "datasets": ("Dataset", "load_dataset"),
        "datasets.distributed": ("split_dataset_by_node",),
    },
    "tensorboard": {"torch.utils.tensorboard": ("SummaryWriter",)},
}


def without_unused_packages() -> None:
    """Let those of the unused packages be imported that are not installed."""
    for package, modules in UNUSED.items():
        if importlib.util.find_spec(package) is None:
            for name, attributes in modules.items():
                sys.modules[name] = ModuleType(name)
                vars(sys.modules[name]).update(dict.fromkeys(attributes))


def options_of_torchtitan(own: argparse.Namespace) -> list[str]:
    """What follows for torchtitan from this program's own options."""
    # A pipeline splits what it gets at once into its micro-batches.
    at_once = own.micro_batch * (own.micro_batches if own.pp > 1 else 1)
    found = [
        "--model.name=cell",
        "--model.flavor=cell",
        f"--training.seq_len={own.sequence}",
        f"--training.local_batch_size={at_once}",
        f"--activation_checkpoint.mode={own.recomputation}",
        "--activation_checkpoint.selective_ac_option=op",
        f"--parallelism.data_parallel_shard_degree={own.dp}",
        f"--parallelism.pipeline_parallel_degree={own.pp}",
        f"--parallelism.pipeline_parallel_microbatch_size={own.micro_batch}",
        "--parallelism.pipeline_parallel_schedule="
        + ("1F1B" if own.chunks == 1 else "Interleaved1F1B"),
    ]
    if own.dp == 1 < int(os.environ["WORLD_SIZE"]):
        # Without FSDP it has no mixed precision.
        found.append("--training.dtype=bfloat16")
    if own.compiled == "true":
        found.append("--compile.enable")
    if own.precision == "fp8":
        # As ours: matrices of the layers, not the head.
        found.append("--model.converters=quantize.linear.float8")
        if own.fp8_recipe == "tensorwise":
            # What it does without a recipe; as it recommends, weights travel in fp8.
            found.append("--quantize.linear.float8.enable_fsdp_float8_all_gather")
            found.append("--quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp")
        else:
            found.append(f"--quantize.linear.float8.recipe_name={own.fp8_recipe}")
        found.append("--quantize.linear.float8.filter_fqns=output")
    return found


def model_of(own: argparse.Namespace) -> tuple[Any, Any]:
    """torchtitan's recipe for the cell's model, and the model's sizes."""
    sizes = {
        "dim": own.hidden,
        "n_layers": own.layers,
        "n_heads": own.heads,
        "n_kv_heads": own.kv_heads,
        "vocab_size": own.vocabulary,
        "max_seq_len": own.sequence,
        "norm_eps": own.norm_epsilon,
        "rope_theta": own.rope,
    }
    if not own.experts:
        from torchtitan.models import llama3

        # torchtitan makes the width of the feed-forward part of that of the model.
        wide = (own.feed_forward + 0.5) / int(2 * 4 * own.hidden / 3)
        arguments = llama3.TransformerModelArgs(**sizes, multiple_of=1, ffn_dim_multiplier=wide)
        return llama3.get_train_spec(), arguments
    # Mixtral's layers are those of Qwen3 without norms of queries and keys.
    from torchtitan.models import qwen3
    from torchtitan.models.moe import MoEArgs

    experts = MoEArgs(
        num_experts=own.experts,
        num_shared_experts=0,
        top_k=own.experts_per_token,
        score_func="softmax",
        route_norm=True,
        score_before_experts=False,
    )
    arguments = qwen3.Qwen3ModelArgs(
        **sizes,
        head_dim=own.hidden // own.heads,
        hidden_dim=own.feed_forward,
        qk_norm=False,
        moe_enabled=True,
        moe_inter_dim=own.feed_forward,
        moe_args=experts,
    )
    return qwen3.get_train_spec(), arguments


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in COUNTS:
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("rope", "norm-epsilon"):
        parser.add_argument(f"--{name}", type=float, required=True)
    parser.add_argument("--precision", choices=("bf16", "fp8"), required=True)
    parser.add_argument("--fp8-recipe", default="rowwise")
    parser.add_argument("--compiled", choices=("true", "false"), required=True)
    parser.add_argument("--recomputation", choices=("none", "selective", "full"), required=True)
    own, rest = parser.parse_known_args()
    sys.argv[1:] = [*options_of_torchtitan(own), *rest]
    without_unused_packages()
    from torchtitan.protocols.train_spec import register_train_spec
    from torchtitan.train import Trainer
    from torchtitan.train import main as train

    def loader(*_: Any, job_config: Any, **__: Any) -> Any:
        return RandomTokens(own.vocabulary, job_config.training.local_batch_size, own.sequence)

    recipe, arguments = model_of(own)
    register_train_spec(
        "cell",
        dataclasses.replace(
            recipe,
            model_args={"cell": arguments},
            build_dataloader_fn=loader,
            build_tokenizer_fn=None,
            build_validator_fn=None,
            state_dict_adapter=None,
        ),
    )

    class Told(Trainer):  # type: ignore[misc]
        """Tells the layout that torchtitan has made of its options, where somebody measures."""

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            dims = self.parallel_dims
            with suppress(ImportError):
                import triptych_steps

                dp = dims.dp_replicate * dims.dp_shard
                triptych_steps.layout(dp=dp, cp=dims.cp, tp=dims.tp, pp=dims.pp, ep=dims.ep)

    train(Told)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
