"""``config/models``: the dimensions of models."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from pydantic import Field, model_validator

from workflow_lib.config.fields import PositiveFloat, PositiveInt, Strict, Text
from workflow_lib.records import bounds
from workflow_lib.records.model import Activation, Family, Model

#: Llama 3's (arXiv 2407.21783)
_ROTARY_BASE = 500_000.0
#: activations that a family's feed-forward part can have, the usual one first
_ACTIVATIONS: dict[Family, tuple[Activation, ...]] = {
    "gpt": ("gelu_tanh", "gelu"),
    "neox": ("gelu", "gelu_tanh"),
    "llama": ("silu", "gelu_tanh", "gelu"),
    "mixtral": ("silu",),
}


class Published(Strict):
    """A number to check a definition against, and where it was published."""

    parameters: PositiveFloat
    """All parameters of the model, embeddings included."""
    source: Text
    """Where the number was published."""


class RotaryScaling(Strict):
    """Scaling of rotary frequencies, in models that were extended to longer sequences."""

    kind: Literal["linear", "llama3"]
    """`linear` divides all frequencies; `llama3` divides the low ones, as Llama 3.1 does."""
    factor: Annotated[float, Field(ge=1, le=bounds.QUANTITY.most)]
    """Divisor of the frequencies."""
    low_frequency_factor: PositiveFloat | None = None
    """Only llama3: frequencies of less than this many turns in original_length are divided."""
    high_frequency_factor: PositiveFloat | None = None
    """Only llama3: frequencies of more than this many turns in original_length are kept."""
    original_length: PositiveInt | None = None
    """Only llama3: the sequence length, in tokens, before the model was extended."""

    @model_validator(mode="after")
    def _complete(self) -> RotaryScaling:
        of_llama3 = (self.low_frequency_factor, self.high_frequency_factor, self.original_length)
        if self.kind == "linear" and of_llama3 != (None, None, None):
            raise ValueError("linear scaling has a factor and nothing else")
        if self.kind == "llama3" and None in of_llama3:
            raise ValueError(
                "llama3 scaling needs low_frequency_factor, high_frequency_factor and "
                "original_length"
            )
        low, high = self.low_frequency_factor, self.high_frequency_factor
        if low is not None and high is not None and low >= high:
            raise ValueError(
                f"low_frequency_factor {low:g} must be less than high_frequency_factor {high:g}"
            )
        return self

    def record(self) -> tuple[float, ...]:
        """The numbers for records.Model.rotary_scaling."""
        given = (
            self.factor,
            self.low_frequency_factor,
            self.high_frequency_factor,
            self.original_length,
        )
        return tuple(float(number) for number in given if number is not None)


class ModelSpec(Strict):
    """``config/models/<name>.yaml``: the dimensions of a decoder; see records.Model."""

    description: Text
    """One line on the model, and where its dimensions were published."""
    family: Family
    """GPT-3 style, GPT-NeoX style, Llama-3 style, or Llama-3 style with experts."""
    layers: Annotated[int, Field(gt=0, le=bounds.LAYERS.most)]
    """Decoder layers."""
    hidden_size: PositiveInt
    """Width of the residual stream."""
    ffn_hidden_size: PositiveInt
    """Width of the feed-forward network, or of one expert."""
    attention_heads: PositiveInt
    """Query heads."""
    kv_heads: PositiveInt
    """Key and value heads; as many as attention_heads without grouped-query attention."""
    sequence_length: PositiveInt
    """Tokens per sequence."""
    vocabulary_size: PositiveInt
    """Tokens of the tokenizer."""
    vocabulary_multiple: PositiveInt = 1
    """The vocabulary is padded to a multiple of this before training."""
    experts: Annotated[int, Field(ge=0, le=bounds.DIMENSION.most)] = 0
    """Experts per layer; 0 in a dense model."""
    experts_per_token: Annotated[int, Field(ge=0, le=bounds.DIMENSION.most)] = 0
    """Experts that see a token; 0 in a dense model."""
    rotary_base: PositiveFloat = _ROTARY_BASE
    """Base of the frequencies of rotary positions; GPT has learned positions instead."""
    rotary_scaling: RotaryScaling | None = None
    """Scaling of the rotary frequencies; none unless given."""
    rotary_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of a head's columns that rotary positions turn."""
    sliding_window: PositiveInt | None = None
    """Window of attention, in tokens. It is not implemented, so a longer sequence_length is
    refused."""
    tied_embeddings: bool = False
    """Whether the head is the input embedding. GPT's always is."""
    head_dimension: PositiveInt | None = None
    """Columns of an attention head; hidden_size / attention_heads unless given."""
    qkv_bias: bool = False
    """Whether queries, keys and values have biases. GPT and NeoX have biases everywhere."""
    qk_norm: bool = False
    """Whether queries and keys are normalised head by head (RMS norm)."""
    norm_epsilon: PositiveFloat = 1e-5
    """Number that every norm adds to the variance."""
    activation: Activation = "usual"
    """Activation of the feed-forward part; `usual` is silu, in GPT gelu_tanh, in NeoX gelu."""
    embedding_scale: PositiveFloat = 1.0
    """Factor of the rows of the input embedding."""
    published: Published | None = None
    """A published total, which the dimensions must reproduce within 0.1 %."""

    @model_validator(mode="after")
    def _shapes_agree(self) -> ModelSpec:
        if self.head_dimension is not None and self.head_dimension % 2:
            raise ValueError(f"head_dimension {self.head_dimension} must be even")
        if self.head_dimension is None and self.hidden_size % (2 * self.attention_heads):
            raise ValueError(
                f"hidden_size {self.hidden_size} must be an even multiple of attention_heads "
                f"{self.attention_heads}"
            )
        if self.attention_heads % self.kv_heads:
            raise ValueError(
                f"attention_heads {self.attention_heads} must be a multiple of kv_heads "
                f"{self.kv_heads}"
            )
        if (self.family == "mixtral") != (self.experts > 0):
            raise ValueError("a mixtral model has experts, and no other family does")
        if self.family in ("gpt", "neox"):
            self._refuse_for_plain()
        head = self.head_dimension or self.hidden_size // self.attention_heads
        turned = int(head * self.rotary_share)
        if turned % 2 or not turned:
            raise ValueError(
                f"rotary_share {self.rotary_share:g} turns {turned} of {head} columns of a head, "
                "and they turn in pairs"
            )
        if self.activation not in ("usual", *_ACTIVATIONS[self.family]):
            raise ValueError(
                f"activation {self.activation}: a {self.family} model can have "
                f"{' or '.join(_ACTIVATIONS[self.family])}"
            )
        window = self.sliding_window
        if window is not None and window < self.sequence_length:
            raise ValueError(
                f"sequence_length {self.sequence_length} is longer than the sliding_window of "
                f"{window} tokens, and attention over a window is not implemented; use a "
                f"sequence_length of at most {window}"
            )
        if self.experts and not 0 < self.experts_per_token <= self.experts:
            raise ValueError(
                f"experts_per_token must lie between 1 and experts ({self.experts}), "
                f"not {self.experts_per_token}"
            )
        return self

    def _refuse_for_plain(self) -> None:
        """Raise ValueError for a key that a gpt or neox model cannot have, or always has."""
        name, given = f"a {self.family} model", self.model_fields_set
        if self.qk_norm:
            raise ValueError(f"{name} has no qk_norm")
        if "qkv_bias" in given:
            raise ValueError(f"{name} always has biases everywhere; leave qkv_bias out")
        if self.family == "gpt":
            if self.rotary_base != _ROTARY_BASE:
                raise ValueError(f"{name} has learned positions, so it has no rotary_base")
            for key in sorted({"rotary_scaling", "rotary_share"} & given):
                raise ValueError(f"{name} has learned positions, so it has no {key}")
            if "tied_embeddings" in given:
                raise ValueError(
                    f"{name} always has its embedding as its head; leave tied_embeddings out"
                )

    def record(self, name: str) -> Model:
        """The dimensions for cells and compute nodes. A given value that equals the default becomes
        the default, so that both give the same cell.
        """
        names = {field.name for field in dataclasses.fields(Model)} - {"name"}
        plain = self.model_dump(include=names)
        if self.head_dimension == self.hidden_size / self.attention_heads:
            plain["head_dimension"] = None
        if self.activation == _ACTIVATIONS[self.family][0]:
            plain["activation"] = "usual"
        plain["rotary_scaling"] = self.rotary_scaling.record() if self.rotary_scaling else ()
        return Model(name=name, **plain)
