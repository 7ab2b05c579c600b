"""Trains a Llama on random tokens with transformers' Trainer; a trainer of sweeps.

config/trainers/transformers.yaml has the command. Nothing here knows that anybody measures.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

OPTIONS = (
    *("layers", "hidden", "feed-forward", "heads", "kv-heads", "sequence", "vocabulary"),
    *("micro-batch", "micro-batches", "steps", "seed", "zero"),
)


class RandomTokens(Dataset[dict[str, Any]]):
    """Sequences of tokens, the same ones in each process."""

    def __init__(self, vocabulary: int, sequence: int) -> None:
        self._vocabulary, self._sequence = vocabulary, sequence

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, number: int) -> dict[str, Any]:
        random = torch.Generator().manual_seed(number)
        ids = torch.randint(self._vocabulary, (self._sequence,), generator=random)
        return {"input_ids": ids, "labels": ids}


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in OPTIONS:
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--precision", choices=("bf16", "fp32"), required=True)
    parser.add_argument("--compile", choices=("true", "false"), required=True)
    parser.add_argument("--recomputation", choices=("none", "full"), required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    options = parser.parse_args()
    config = LlamaConfig(
        hidden_size=options.hidden,
        intermediate_size=options.feed_forward,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.kv_heads,
        max_position_embeddings=options.sequence,
        vocab_size=options.vocabulary,
    )
    sharded: dict[str, Any] = {}
    if options.zero == 3:
        wrapped = {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "version": 2}
        sharded = {"fsdp": "full_shard auto_wrap", "fsdp_config": wrapped}
    arguments = TrainingArguments(
        output_dir=tempfile.gettempdir(),  # where nothing is saved
        max_steps=options.steps,
        per_device_train_batch_size=options.micro_batch,
        gradient_accumulation_steps=options.micro_batches,
        bf16=options.precision == "bf16",
        torch_compile=options.compile == "true",
        learning_rate=options.learning_rate,
        lr_scheduler_type="constant",
        seed=options.seed,
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
        save_strategy="no",
        logging_steps=10,
        **sharded,
    )
    torch.manual_seed(options.seed)
    model = LlamaForCausalLM(config)
    if options.recomputation == "full":
        model.gradient_checkpointing_enable()
    data = RandomTokens(options.vocabulary, options.sequence)
    Trainer(model, arguments, train_dataset=data).train()


if __name__ == "__main__":
    main()
