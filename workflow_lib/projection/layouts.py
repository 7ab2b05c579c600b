"""How a model is spread over GPUs, with everything that the time of a step depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workflow_lib.projection.machines import Machine
from workflow_lib.records.degrees import DEGREES, Degrees
from workflow_lib.records.model import Model
from workflow_lib.records.training import Training

GRADIENT_BYTES = 4
#: In steps, in 4 bytes: converted, largest, subtracted, exponential, summed, divided; backward
#: multiplied and converted (Megatron-LM, core/tensor_parallel/cross_entropy.py).
_UNFUSED_LOSS_BYTES = 6 + 4 + 8 + 8 + 4 + 8 + 8 + 6
#: Compiled, as here: the logits are read for their largest and for the sum; backward they are read
#: and their gradient written, all in 2 bytes.
_COMPILED_LOSS_BYTES = 2 + 2 + 2 + 2
#: kinds of recomputation that the model of a step supports
RECOMPUTATIONS = ("none", "selective", "full")


@dataclass(frozen=True)
class Shape:
    """A decoder's dimensions. Biases and norms are left out, because they take hardly any time."""

    name: str
    layers: int
    hidden: int
    #: width of the feed-forward part, or of one expert
    ffn: int
    #: whether the feed-forward part has three matrices, with a gate, or two
    gated: bool
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    #: whether the head is the input embedding
    tied: bool
    experts: int = 0
    experts_per_token: int = 0
    #: width of an expert that sees all tokens, besides the others
    shared_ffn: int = 0

    @classmethod
    def of(cls, model: Model) -> Shape:
        """The shape of a model of this workflow."""
        return cls(
            name=model.name,
            layers=model.layers,
            hidden=model.hidden_size,
            ffn=model.ffn_hidden_size,
            gated=not model.is_plain,
            heads=model.attention_heads,
            kv_heads=model.kv_heads,
            head_size=model.head_size,
            vocabulary=model.padded_vocabulary_size,
            tied=model.has_tied_embeddings,
            experts=model.experts,
            experts_per_token=model.experts_per_token,
        )

    @property
    def attention_parameters(self) -> int:
        """Parameters of one layer's attention: queries and result, keys and values."""
        return 2 * self.hidden * self.head_size * (self.heads + self.kv_heads)

    @property
    def expert_parameters(self) -> int:
        """Parameters of one expert, or of the dense feed-forward part."""
        return (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def shared_parameters(self) -> int:
        """Parameters of the expert that sees all tokens."""
        return (3 if self.gated else 2) * self.hidden * self.shared_ffn

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer, with all of its experts."""
        experts = max(self.experts, 1) * self.expert_parameters
        return self.attention_parameters + self.shared_parameters + experts

    @property
    def layer_active_parameters(self) -> int:
        """Parameters of one layer that one token passes through."""
        experts = max(self.experts_per_token, 1) * self.expert_parameters
        return self.attention_parameters + self.shared_parameters + experts

    @property
    def parameters(self) -> int:
        """Parameters of the model, without norms, biases and positions."""
        return self.layers * self.layer_parameters + self.end_parameters * (1 if self.tied else 2)

    @property
    def end_parameters(self) -> int:
        """Parameters of the head's matrix; the input embedding has as many."""
        return self.vocabulary * self.hidden


#: What all fitted runs have, by its name in tables. DeepSpeed, and trainers of others, take other
#: times for the same layout.
_FITTED: Mapping[str, Any] = {
    **{"workload": "pretrain", "precision": "bf16", "backend": "torch"},
    **{"cp": 1, "schedule": "1f1b"},
}
#: Axes that change a step's time or power and that a layout cannot state, null where they are
#: usual. An order or choice of GPUs was made for those of one host, and a layout is for any; no
#: machine has emulated nodes or links.
_UNSTATED = ("power_limits_w", "clock_limits_mhz", "gpu_order", "gpu_uuids", "emulated")


def is_like_fitted(row: Mapping[str, Any]) -> bool:
    """Whether a cell, a row with the columns of IDENTITY, has what all fitted runs have. Nothing is
    projected of others, nor are they fitted. Balanced routing drops tokens."""
    return (
        all(row[name] == only for name, only in _FITTED.items())
        and all(row[name] is None for name in _UNSTATED)
        and row["routing"] in (None, "dropless")
    )


@dataclass(frozen=True)
class Layout(Degrees):
    """A model, its workload and its degrees, on a machine."""

    machine: Machine
    shape: Shape
    #: layers that run: a twin has fewer than the shape
    layers: int
    sequence_length: int
    micro_batch: int
    #: micro-batches of a step and replica
    micro_batches: float
    #: ZeRO's stage; stage 2 scatters gradients in every pass, and stage 3 gathers weights, too
    sharding: int = 1
    #: none, selective or full
    recomputation: str = "none"
    precision: str = "BF16"
    #: whether communication runs beside computation if the stack can do that
    overlap: bool = True
    sequence_parallel: bool = True
    #: bytes of a gradient that replicas exchange
    gradient_bytes: int = GRADIENT_BYTES
    #: bytes that the loss reads and writes for each entry of the logits
    loss_bytes: int = _UNFUSED_LOSS_BYTES
    #: whether torch.compile fuses the layers of this workflow's stack
    compiled: bool = True
    #: what evaluation adds to the time of passes, if the time of a step includes it
    evaluation: float = 0.0

    @property
    def gpus(self) -> int:
        """The number of GPUs, one for each rank."""
        return self.world_size

    @property
    def tokens(self) -> float:
        """Tokens of a step."""
        return self.dp * self.micro_batches * self.micro_batch * self.sequence_length

    @property
    def bubble(self) -> float:
        """Passes of the pipeline in a step, in micro-batches: m + (p − 1)/v (arXiv 2104.04473,
        sections 2.2.1 and 2.2.2)."""
        return self.micro_batches + (self.pp - 1) / self.virtual_stages

    @property
    def ideal_s(self) -> float:
        """Seconds of a step's model FLOPs at the GPUs' peak, with the pipeline's bubble."""
        shape = self.shape
        products = 6.0 * (self.layers * shape.layer_active_parameters + shape.end_parameters)
        # Scores and weighted sums of half the matrix, in the forward and backward pass.
        attended = 6.0 * self.layers * self.sequence_length * shape.heads * shape.head_size
        rate = self.gpus * self.machine.peak(self.precision)
        idle = self.bubble / self.micro_batches
        return self.tokens * (products + attended) / rate * idle

    @property
    def layers_of_ranks(self) -> tuple[int, ...]:
        """The number of layers on each pipeline rank."""
        spread = self.layers_of_stages(self.layers)
        return tuple(sum(spread[rank :: self.pp]) for rank in range(self.pp))


def own_layout(model: Model, degrees: Degrees, training: Training, machine: Machine) -> Layout:
    """The layout of a cell of this workflow."""
    return Layout(
        machine=machine,
        shape=Shape.of(model),
        layers=model.layers,
        sequence_length=model.sequence_length,
        micro_batch=training.micro_batch_size,
        micro_batches=training.micro_batches(degrees.dp),
        **{name: getattr(degrees, name) for name in (*DEGREES, "stage_layers")},
        sharding=training.zero_stage,
        recomputation=training.recomputation,
        precision=training.precision.upper(),
        overlap=training.overlap,
        sequence_parallel=training.sequence_parallel,
        loss_bytes=_COMPILED_LOSS_BYTES if training.compile else _UNFUSED_LOSS_BYTES,
        compiled=training.compile,
    )
