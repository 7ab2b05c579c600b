"""Trains a Llama on random tokens with transformers' Trainer; a trainer of sweeps.

config/trainers/transformers.yaml has the command. Nothing here knows that anybody measures.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from llama import RandomTokens, leave, model_of, options_of_a_cell
from transformers import Trainer, TrainingArguments


def main() -> None:
    """Train as the command line says."""
    options = options_of_a_cell(__doc__)
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
    data = RandomTokens(options.vocabulary, options.sequence)
    Trainer(model_of(options), arguments, train_dataset=data).train()


if __name__ == "__main__":
    main()
    leave()
