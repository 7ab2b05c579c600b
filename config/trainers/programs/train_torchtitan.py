"""Trains a Llama 3 on random tokens with torchtitan 0.2; a trainer of sweeps, on GPUs.

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

DIMENSIONS = ("layers", "hidden", "heads", "kv-heads", "feed-forward", "vocabulary", "sequence")


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


def without_datasets() -> None:
    """torchtitan imports a library that reads text, of which there is none."""
    if importlib.util.find_spec("datasets") is None:
        for name in ("datasets", "datasets.distributed"):
            sys.modules[name] = ModuleType(name)
        vars(sys.modules["datasets"]).update(Dataset=None, load_dataset=None)
        vars(sys.modules["datasets.distributed"]).update(split_dataset_by_node=None)


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in DIMENSIONS:
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--rope", type=float, required=True)
    for name in ("micro-batch", "micro-batches", "dp", "pp"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--precision", choices=("bf16", "fp8"), required=True)
    parser.add_argument("--compiled", choices=("true", "false"), required=True)
    parser.add_argument("--recomputation", choices=("none", "full"), required=True)
    own, rest = parser.parse_known_args()
    rest.append(f"--training.seq_len={own.sequence}")
    rest.append(f"--activation_checkpoint.mode={own.recomputation}")
    rest.append(f"--parallelism.pipeline_parallel_degree={own.pp}")
    # A pipeline splits what it gets at once into its micro-batches.
    at_once = own.micro_batch * (own.micro_batches if own.pp > 1 else 1)
    rest.append(f"--training.local_batch_size={at_once}")
    rest.append(f"--parallelism.pipeline_parallel_microbatch_size={own.micro_batch}")
    if own.dp == 1 < int(os.environ["WORLD_SIZE"]):
        # Without FSDP it has no mixed precision.
        rest.append("--training.dtype=bfloat16")
    if own.compiled == "true":
        rest.append("--compile.enable")
    if own.precision == "fp8":
        # As ours: matrices of the layers, not the head.
        rest.append("--model.converters=quantize.linear.float8")
        rest.append("--quantize.linear.float8.recipe_name=rowwise")
        rest.append("--quantize.linear.float8.filter_fqns=output")
    sys.argv[1:] = ["--model.name=cell", "--model.flavor=cell", *rest]
    without_datasets()
    from torchtitan.models import llama3
    from torchtitan.protocols.train_spec import register_train_spec
    from torchtitan.train import Trainer
    from torchtitan.train import main as train

    def loader(*_: Any, job_config: Any, **__: Any) -> Any:
        return RandomTokens(own.vocabulary, job_config.training.local_batch_size, own.sequence)

    # torchtitan makes the width of the feed-forward part of that of the model.
    usual = int(2 * 4 * own.hidden / 3)
    arguments = llama3.TransformerModelArgs(
        dim=own.hidden,
        n_layers=own.layers,
        n_heads=own.heads,
        n_kv_heads=own.kv_heads,
        vocab_size=own.vocabulary,
        max_seq_len=own.sequence,
        multiple_of=1,
        ffn_dim_multiplier=(own.feed_forward + 0.5) / usual,
        rope_theta=own.rope,
    )
    register_train_spec(
        "cell",
        dataclasses.replace(
            llama3.get_train_spec(),
            model_args={"cell": arguments},
            build_dataloader_fn=loader,
            build_tokenizer_fn=None,
            build_validator_fn=None,
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
