"""What programs here share: a cell's options, a Llama of transformers, and random tokens."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

COUNTS = (
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


def options_of_a_cell(description: str | None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=description)
    for name in COUNTS:
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--precision", choices=("bf16", "fp32"), required=True)
    parser.add_argument("--compile", choices=("true", "false"), required=True)
    parser.add_argument("--recomputation", choices=("none", "full"), required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    return parser.parse_args()


def model_of(options: argparse.Namespace) -> Any:
    """The model, with random weights."""
    torch.manual_seed(options.seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=options.hidden,
            intermediate_size=options.feed_forward,
            num_hidden_layers=options.layers,
            num_attention_heads=options.heads,
            num_key_value_heads=options.kv_heads,
            max_position_embeddings=options.sequence,
            vocab_size=options.vocabulary,
        )
    )
    if options.recomputation == "full":
        model.gradient_checkpointing_enable()
    return model
