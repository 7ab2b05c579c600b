"""Trains a Llama of transformers on random tokens with DeepSpeed's ZeRO; a trainer of sweeps.

config/trainers/deepspeed-plain.yaml has the command. Nothing here knows that anybody measures.
"""

from __future__ import annotations

import os

import torch
from llama import RandomTokens, leave, model_of, options_of_a_cell
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    """Train as the command line says."""
    options = options_of_a_cell(__doc__)
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    if not on_gpu:
        # Else it builds a collective with g++ for minutes, and gloo has the same. A run that is
        # killed in a build leaves a lock in ~/.cache/torch_extensions: later ones wait for ever.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="nccl" if on_gpu else "gloo")
    adam = {"lr": options.learning_rate, "torch_adam": True}
    model = model_of(options)
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": options.micro_batch,
            "gradient_accumulation_steps": options.micro_batches,
            "zero_optimization": {"stage": options.zero, "overlap_comm": options.zero > 0},
            "bf16": {"enabled": options.precision == "bf16"},
            "optimizer": {"type": "AdamW", "params": adam},
            "gradient_clipping": 1.0,
            "steps_per_print": 10,
        },
    )
    if options.compile == "true":
        engine.compile()
    data = RandomTokens(options.vocabulary, options.sequence)
    loader = DataLoader(data, options.micro_batch, sampler=DistributedSampler(data, seed=1))
    batches = options.steps * options.micro_batches
    for _, batch in zip(range(batches), loader, strict=False):
        moved = {name: ids.to(engine.device) for name, ids in batch.items()}
        engine.backward(engine(**moved).loss)
        engine.step()
    engine.destroy()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
    leave()
