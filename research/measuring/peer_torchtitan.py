"""Steps of a cell by torchtitan 0.2, whose own trainer runs them.

Only data, settings and the model's sizes are given to it. Its models import packages that read
text and write TensorBoard's files (datasets, tensorboard). Neither is used here, so a machine need
not have them.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from research.measuring import tokens
from workflow_lib.records.cell import Cell

#: section of torchtitan's configuration, and its settings
Settings = dict[str, dict[str, Any]]


def refusal(cell: Cell) -> str | None:
    """Why torchtitan cannot train a cell as it is, or None."""
    model, degrees, training = cell.model, cell.degrees, cell.training
    if model.family not in ("llama", "mixtral"):
        return f"torchtitan has no model of the family {model.family}"
    if model.experts and degrees.pp > 1:
        return "torchtitan does not cut this model into pipeline stages"
    if model.experts and training.precision == "fp8":
        return "its experts would stay in bf16"
    if training.workload != "pretrain" or training.precision == "fp32":
        return f"torchtitan is set up here to pretrain in bf16 or fp8, not for {training.name}"
    if training.routing == "balanced":
        return "torchtitan's router is free, and the cell's is balanced"
    if degrees.dp > 1 and training.zero_stage < 3 and training.micro_batches(degrees.dp) > 1:
        return (
            "with FSDP torchtitan gathers weights and reduces gradients for each micro-batch, as "
            "ZeRO-3 does"
        )
    if degrees.virtual_stages > 2:
        return "torchtitan's pipelines have one or two chunks a rank"
    if degrees.schedule != "1f1b":
        return f"the schedule {degrees.schedule} is ours"
    if 3 * model.ffn_hidden_size < 8 * model.hidden_size:
        return "torchtitan's feed-forward parts are at least 8/3 as wide as its model"
    return None


def settings(cell: Cell) -> Settings:
    """torchtitan's settings for a cell, by section.

    It trains as it is fastest: compiled in any case, with layers divided over stages as it does.
    Where replicas share weights, FSDP2 shards them and casts them to bf16; on a single GPU autocast
    does. In all other layouts torchtitan 0.2 has no mixed precision, and so its weights are bf16.
    """
    degrees, training = cell.degrees, cell.training
    sharded = degrees.dp * degrees.cp > 1
    mixed = sharded or degrees.world_size == 1
    # It splits what it gets at once into the micro-batches of a pipeline; otherwise it accumulates.
    at_once = training.micro_batch_size
    if degrees.pp > 1:
        at_once *= training.micro_batches(degrees.dp)
    found: Settings = {
        "training": {
            "local_batch_size": at_once,
            "global_batch_size": training.global_batch_size,
            "seq_len": cell.model.sequence_length,
            "steps": 10_000,
            "dtype": "float32" if mixed else "bfloat16",
            "max_norm": 1.0,
        },
        "parallelism": {
            "data_parallel_shard_degree": degrees.dp,
            "fsdp_reshard_after_forward": "default" if training.zero_stage == 3 else "never",
            "tensor_parallel_degree": degrees.tp,
            "enable_async_tensor_parallel": degrees.tp > 1 and training.overlap,
            "context_parallel_degree": degrees.cp,
            "expert_parallel_degree": degrees.ep,
            "pipeline_parallel_degree": degrees.pp,
            "pipeline_parallel_microbatch_size": training.micro_batch_size,
            "pipeline_parallel_schedule": (
                "1F1B" if degrees.virtual_stages == 1 else "Interleaved1F1B"
            ),
        },
        "activation_checkpoint": {"mode": training.recomputation},
        "compile": {"enable": True},
        "metrics": {"log_freq": 1},
        "optimizer": {"lr": training.learning_rate, "weight_decay": training.weight_decay},
        "lr_scheduler": {"warmup_steps": 0},
    }
    if training.recomputation == "selective":
        found["activation_checkpoint"]["selective_ac_option"] = "op"
    if training.precision == "fp8":
        found["model"] = {"converters": ["quantize.linear.float8"]}
        # As ours: rows of the layers' matrices, not of the head.
        found["quantize.linear.float8"] = {"recipe_name": "rowwise", "filter_fqns": ["output"]}
    return found


def parameters(cell: Cell) -> int:
    """How many parameters torchtitan's model of a cell has, by its own code."""
    _import_without_unused_packages()
    spec, arguments = _model(cell)
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in spec.model_cls(arguments).parameters())


class Peer:
    """torchtitan's trainer of a cell on this rank."""

    def __init__(self, cell: Cell, _: torch.device) -> None:
        """Build model and optimiser on this rank's GPU. torch's process group must exist."""
        _import_without_unused_packages()
        from torchtitan.components.metrics import MetricsProcessor
        from torchtitan.config import JobConfig
        from torchtitan.protocols.train_spec import register_train_spec
        from torchtitan.train import Trainer

        losses = self._losses = []

        class Losses(MetricsProcessor):  # type: ignore[misc]
            def log(self, step: int, loss: float, *_: Any, **__: Any) -> None:
                losses.append(float(loss))

        spec, arguments = _model(cell)
        register_train_spec(
            "cell",
            dataclasses.replace(
                spec,
                model_args={"cell": arguments},
                build_dataloader_fn=None,
                build_tokenizer_fn=None,
                build_validator_fn=None,
                state_dict_adapter=None,
                build_metrics_processor_fn=lambda config, dims, *_: Losses(config, dims),
            ),
        )
        config = JobConfig()
        # It writes nothing there, as neither checkpoints nor logs are asked for.
        config.job.dump_folder = tempfile.gettempdir()
        config.model.name = config.model.flavor = "cell"
        for section, values in settings(cell).items():
            change(config, section, values)
        self._trainer = Trainer(config)
        self._batches = self._batches_of(cell)

    def step(self) -> float:
        """Train one step; returns its loss in nats."""
        self._trainer.step += 1
        self._trainer.train_step(self._batches)
        return self._losses[-1]

    def stage_layers(self) -> list[int]:
        """How many layers each stage of the pipeline holds, first to last, as torchtitan divided
        them. Every rank must ask.
        """
        dims = self._trainer.parallel_dims
        rank = dims.get_mesh("pp").get_local_rank() if dims.pp_enabled else 0
        held: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(
            held, (rank, [len(model_part.layers) for model_part in self._trainer.model_parts])
        )
        return in_order_of_stages(dict(held))

    def _batches_of(self, cell: Cell) -> Iterator[tuple[Any, Tensor]]:
        """The micro-batches of all steps, as ours gets them, but on the host: torchtitan copies
        them within a step.
        """
        dims = self._trainer.parallel_dims
        replica = dims.get_mesh("batch").get_local_rank() if dims.dp_enabled else 0
        at_once = self._trainer.job_config.training.local_batch_size
        for ids, targets in tokens.on_host(cell, replica, at_once):
            yield {"input": ids}, targets


def in_order_of_stages(held: Mapping[int, Sequence[int]]) -> list[int]:
    """The layers of each stage, from those of each chunk by pipeline rank. The first chunks of all
    ranks come before the second ones, as in torchtitan's 1F1B and Interleaved1F1B.
    """
    return [held[rank][chunk] for chunk in range(len(held[0])) for rank in sorted(held)]


def change(config: Any, section: str, values: dict[str, Any]) -> None:
    """Set a section of torchtitan's configuration. Raises ValueError for what it does not have."""
    for part in section.split("."):
        if not hasattr(config, part):
            raise ValueError(f"this torchtitan has no settings {section}; use 0.2.2")
        config = getattr(config, part)
    for name, value in values.items():
        if not hasattr(config, name):
            raise ValueError(f"this torchtitan has no setting {section}.{name}; use 0.2.2")
        setattr(config, name, value)


def _model(cell: Cell) -> tuple[Any, Any]:
    """torchtitan's recipe for a model like ours, and its sizes."""
    model = cell.model
    sizes = {
        "dim": model.hidden_size,
        "n_layers": model.layers,
        "n_heads": model.attention_heads,
        "n_kv_heads": model.kv_heads,
        "vocab_size": model.padded_vocabulary_size,
        "max_seq_len": model.sequence_length,
        "norm_eps": model.norm_epsilon,
        "rope_theta": model.rotary_base,
    }
    if not model.experts:
        from torchtitan.models import llama3

        # Its width is a multiple of this, and the first from 8/3 of the model's.
        arguments = llama3.TransformerModelArgs(**sizes, multiple_of=model.ffn_hidden_size)
        return llama3.get_train_spec(), arguments
    # Mixtral's layers are those of Qwen3 without norms of queries and keys.
    from torchtitan.models import qwen3
    from torchtitan.models.moe import MoEArgs

    experts = MoEArgs(
        num_experts=model.experts,
        num_shared_experts=0,
        top_k=model.experts_per_token,
        score_func="softmax",
        route_norm=True,
        score_before_experts=False,
    )
    arguments = qwen3.Qwen3ModelArgs(
        **sizes,
        head_dim=model.head_size,
        hidden_dim=model.ffn_hidden_size,
        qk_norm=False,
        moe_enabled=True,
        moe_inter_dim=model.ffn_hidden_size,
        moe_args=experts,
    )
    return qwen3.get_train_spec(), arguments


#: what its modules import of packages that nothing here uses, by package and module
_UNUSED: dict[str, dict[str, tuple[str, ...]]] = {
    "datasets": {
        "datasets": ("Dataset", "load_dataset"),
        "datasets.distributed": ("split_dataset_by_node",),
    },
    "tensorboard": {"torch.utils.tensorboard": ("SummaryWriter",)},
}


def _import_without_unused_packages() -> None:
    """Let those of the unused packages be imported that are not installed."""
    for package, modules in _UNUSED.items():
        if not modules.keys() <= sys.modules.keys() and importlib.util.find_spec(package) is None:
            for name, attributes in modules.items():
                sys.modules[name] = ModuleType(name)
                vars(sys.modules[name]).update(dict.fromkeys(attributes))
