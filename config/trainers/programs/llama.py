"""What programs here share: a cell's options, a Llama of transformers, and random tokens."""

from __future__ import annotations

import argparse
import atexit
import os
import sys
from contextlib import nullcontext
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


def random_llama(like: Any, kv_heads: int, attention: str = "sdpa") -> Any:
    """A Llama with random weights and the dimensions of ``like``."""
    config = LlamaConfig(
        hidden_size=like.hidden,
        intermediate_size=like.feed_forward,
        num_hidden_layers=like.layers,
        num_attention_heads=like.heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=like.sequence,
        vocab_size=like.vocabulary,
        attn_implementation=attention,
        # For generation: in training it only costs memory, and torch.compile gives up on it.
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def model_of(options: argparse.Namespace) -> Any:
    """The cell's model, on this rank's GPU if there is one: drawing weights there takes no time."""
    torch.manual_seed(options.seed)
    on_gpu = torch.cuda.is_available()
    with torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else nullcontext():
        model = random_llama(options, options.kv_heads)
    if options.recomputation == "full":
        model.gradient_checkpointing_enable()
    return model


def leave() -> None:
    """End a process that has trained. As the interpreter ends, threads of gloo and of autograd now
    and then abort it: https://github.com/pytorch/pytorch/issues/190489."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
