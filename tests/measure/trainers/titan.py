"""Trains a Llama on random tokens with torchtitan 0.2; it needs GPUs:

    torchrun --nproc-per-node=2 tests/measure/trainers/titan.py --training.steps=100 …

Options are torchtitan's; --calls adds the calls of `triptych_steps`.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

#: torchtitan reads options when it is imported
CALLS = "--calls" in sys.argv
sys.argv[:] = [word for word in sys.argv if word != "--calls"]
#: hidden width, layers, heads; as programs.py has them
SIZES = {"large": (2048, 16, 16), "medium": (1024, 8, 8), "quiet": (1024, 8, 16)}
VOCABULARY = 32_000


def main() -> None:
    """Train as the command line says."""
    sys.path.append(str(Path(__file__).resolve().parents[3] / "config/trainers/programs"))
    from train_torchtitan import RandomTokens, without_datasets

    without_datasets()
    from torchtitan.models import llama3
    from torchtitan.protocols.train_spec import register_train_spec
    from torchtitan.train import Trainer
    from torchtitan.train import main as train

    def loader(*_: Any, job_config: Any, **__: Any) -> Any:
        training = job_config.training
        return RandomTokens(VOCABULARY, training.local_batch_size, training.seq_len)

    sizes = {
        name: llama3.TransformerModelArgs(
            dim=width, n_layers=layers, n_heads=heads, vocab_size=VOCABULARY, max_seq_len=2048
        )
        for name, (width, layers, heads) in SIZES.items()
    }
    register_train_spec(
        "tokens",
        dataclasses.replace(
            llama3.get_train_spec(),
            model_args=sizes,
            build_dataloader_fn=loader,
            build_tokenizer_fn=None,
            build_validator_fn=None,
        ),
    )
    trainer = Trainer
    if CALLS:
        import triptych_steps

        batch = next(a for a in sys.argv if a.startswith("--training.local_batch_size="))
        tokens = int(batch.partition("=")[2]) * 2048
        trainer = triptych_steps.torchtitan_trainer(Trainer, tokens=tokens)
    train(trainer)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
