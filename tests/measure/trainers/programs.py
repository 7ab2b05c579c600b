"""Trains a Llama on random tokens with one of other people's trainers, as its users would:

    torchrun --nproc-per-node=2 tests/measure/trainers/programs.py transformers --steps 100

--calls adds the calls of `triptych_steps`; nothing else here knows that anybody measures.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

#: programs of sweeps have the same model and tokens
sys.path.append(str(Path(__file__).resolve().parents[3] / "config/trainers/programs"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "0"))
ON_GPU = torch.cuda.is_available()


class Size(NamedTuple):
    """A Llama, and what each rank feeds it."""

    hidden: int
    feed_forward: int
    layers: int
    heads: int
    sequence: int
    batch: int
    vocabulary: int
    attention: str = "sdpa"


SIZES = {
    "small": Size(64, 128, 2, 4, 64, 2, 512),
    "medium": Size(1024, 2816, 8, 8, 2048, 4, 32_000),
    "large": Size(2048, 5632, 16, 16, 2048, 4, 32_000),
    # Bound by memory, so that a GPU stays below its power cap and steps are of one length.
    "quiet": Size(1024, 2816, 8, 16, 4096, 2, 32_000, "eager"),
}


def samples(size: Size) -> Dataset[dict[str, Tensor]]:
    """Random sequences, the same ones in each process."""
    from llama import RandomTokens

    found: Dataset[dict[str, Tensor]] = RandomTokens(size.vocabulary, size.sequence)
    return found


def llama(size: Size) -> torch.nn.Module:
    """A Llama of transformers."""
    from llama import random_llama

    model: torch.nn.Module = random_llama(size, size.heads, size.attention)
    return model


def batches(size: Size) -> Iterator[dict[str, Tensor]]:
    """Batches of this rank, where they are needed."""
    device = torch.device("cuda" if ON_GPU else "cpu")
    for batch in DataLoader(samples(size), batch_size=size.batch):
        yield {name: values.to(device) for name, values in batch.items()}


def calls() -> Any:
    """The module with the calls. It is found as a user finds it: measure put it on the path."""
    import triptych_steps

    return triptych_steps


def transformers(options: argparse.Namespace, size: Size) -> None:
    """transformers' Trainer, whose accelerate wraps the model in DDP."""
    from transformers import Trainer, TrainingArguments

    os.environ["TENSORBOARD_LOGGING_DIR"] = options.records
    arguments = TrainingArguments(
        output_dir=options.records,
        max_steps=options.steps,
        per_device_train_batch_size=size.batch,
        bf16=ON_GPU,
        use_cpu=not ON_GPU,
        logging_steps=1,
        report_to=options.report_to,
        save_strategy="no",
    )
    callbacks = []
    if options.calls:
        callbacks.append(calls().transformers_callback(tokens=size.batch * size.sequence))
    Trainer(llama(size), arguments, train_dataset=samples(size), callbacks=callbacks).train()


def lightning(options: argparse.Namespace, size: Size) -> None:
    """Lightning's Trainer: FSDP on GPUs, DDP elsewhere."""
    from pytorch_lightning import LightningModule, Trainer
    from pytorch_lightning.loggers import TensorBoardLogger
    from pytorch_lightning.strategies import FSDPStrategy

    class Model(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = llama(size)

        def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
            loss: Tensor = self.model(**batch).loss
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    strategy: Any = "auto" if WORLD == 1 else "ddp"
    if ON_GPU and WORLD > 1:
        strategy = FSDPStrategy(auto_wrap_policy={type(decoder_layers(llama(size))[0])})
    callbacks = []
    if options.calls:
        callbacks.append(calls().lightning_callback(tokens=size.batch * size.sequence))
    Trainer(
        accelerator="gpu" if ON_GPU else "cpu",
        devices=WORLD,
        strategy=strategy,
        precision="bf16-mixed" if ON_GPU else "32-true",
        max_steps=options.steps,
        callbacks=callbacks,
        logger=options.report_to == "tensorboard" and TensorBoardLogger(options.records),
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
    ).fit(Model(), DataLoader(samples(size), batch_size=size.batch))


def decoder_layers(model: Any) -> Any:
    """The layers of a Llama of transformers."""
    return model.model.layers


def deepspeed(options: argparse.Namespace, size: Size) -> None:
    """DeepSpeed's engine with ZeRO-3."""
    if not ON_GPU:
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed as library

    if not ON_GPU:
        # Else it builds a collective with g++, and waits for one that was killed in that.
        library.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    library.init_distributed(dist_backend="nccl" if ON_GPU else "gloo")
    settings = {
        "train_micro_batch_size_per_gpu": size.batch,
        "zero_optimization": {"stage": 3},
        "bf16": {"enabled": ON_GPU},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
        "steps_per_print": 10,
        "tensorboard": {
            "enabled": options.report_to == "tensorboard",
            "output_path": options.records,
        },
    }
    model = llama(size)
    engine, *_ = library.initialize(
        model=model, model_parameters=model.parameters(), config=settings
    )

    def step(batch: dict[str, Tensor]) -> None:
        engine.backward(engine(**batch).loss)
        engine.step()

    loop(options, size, step)
    engine.destroy()


def plain_torch(options: argparse.Namespace, size: Size) -> None:
    """A loop of one's own: FSDP2 where there are several ranks, with compiled layers on GPUs."""
    if ON_GPU:
        torch.cuda.set_device(LOCAL_RANK)
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dist.init_process_group("nccl" if ON_GPU else "gloo")
    model = llama(size).to("cuda" if ON_GPU else "cpu")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if ON_GPU else None)
    for layer in decoder_layers(model):
        if ON_GPU:
            layer.compile()
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(batch: dict[str, Tensor]) -> None:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    loop(options, size, step)


def megatron(options: argparse.Namespace, size: Size) -> None:
    """Megatron-core: tensor parallelism over all ranks, and its distributed optimizer."""
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.transformer_config import TransformerConfig

    torch.cuda.set_device(LOCAL_RANK)
    dist.init_process_group("nccl")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=WORLD)
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(
        num_layers=size.layers,
        hidden_size=size.hidden,
        ffn_hidden_size=size.feed_forward,
        num_attention_heads=size.heads,
        tensor_model_parallel_size=WORLD,
        bf16=True,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        # What its kernels for these need is not installed.
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        finalize_model_grads_func=finalize_model_grads,
    )
    built = GPTModel(config, get_gpt_layer_local_spec(), size.vocabulary, size.sequence)
    model = DistributedDataParallel(
        config,
        DistributedDataParallelConfig(use_distributed_optimizer=True),
        built.cuda().bfloat16(),
    )
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=1e-4, bf16=True, use_distributed_optimizer=True),
        [model],
    )
    positions = torch.arange(size.sequence, device="cuda").expand(size.batch, -1)
    ones = torch.ones(size.sequence, size.sequence, dtype=torch.bool, device="cuda")
    mask = ones.triu(1)[None, None]

    def step(batch: dict[str, Tensor]) -> None:
        model.zero_grad_buffer()
        optimizer.zero_grad()
        ids = batch["input_ids"]
        model(ids, positions, mask, labels=batch["labels"]).float().mean().backward()
        finalize_model_grads([model])
        optimizer.step()

    # Ranks of a tensor-parallel group share their sequences.
    loop(options, size, step, tokens=size.batch * size.sequence // WORLD)


def loop(options: argparse.Namespace, size: Size, step: Any, tokens: int = 0) -> None:
    """The steps of those who own their loop, and the line that they would print."""
    tokens = tokens or size.batch * size.sequence
    began_s = time.perf_counter()
    for number, batch in zip(range(options.steps), batches(size), strict=False):
        if options.calls:
            with calls().step(tokens=tokens):
                step(batch)
        else:
            step(batch)
        if number + 1 in (3, options.steps):
            if ON_GPU:
                torch.cuda.synchronize()
            now_s = time.perf_counter()
            print(f"step={number + 1} seconds={now_s - began_s:.6f}", flush=True)


TRAINERS = {
    "transformers": transformers,
    "lightning": lightning,
    "deepspeed": deepspeed,
    "torch": plain_torch,
    "megatron": megatron,
}


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trainer", choices=TRAINERS)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--records", default="records")
    parser.add_argument("--report-to", choices=("none", "tensorboard"), default="none")
    options = parser.parse_args()
    # Its directory would come before those of the packages that have the names of functions here.
    sys.path.pop(0)
    TRAINERS[options.trainer](options, SIZES[options.size])
    if dist.is_initialized():
        dist.destroy_process_group()
    from llama import leave

    leave()


if __name__ == "__main__":
    main()
