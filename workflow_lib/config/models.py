"""``config/models``: the dimensions of what trains."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from pydantic import Field, model_validator

from workflow_lib import records
from workflow_lib.config.fields import PositiveFloat, PositiveInt, Strict, Text
from workflow_lib.records import bounds

#: Llama 3's (arXiv 2407.21783)
_ROTARY_BASE = 500_000.0


class Published(Strict):
    """A number to check a definition against, and where it was published."""

    parameters: PositiveFloat
    """All parameters of the model, embeddings included."""
    source: Text
    """Where the number was published."""


class ModelSpec(Strict):
    """``config/models/<name>.yaml``: a decoder's dimensions; see records.Model."""

    description: Text
    """One line on the model, and where its dimensions were published."""
    family: Literal["gpt", "llama", "mixtral"]
    """GPT-3 style, Llama-3 style, or Llama-3 style with experts."""
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
    published: Published | None = None
    """A published total, which the dimensions must reproduce within 0.1 %."""

    @model_validator(mode="after")
    def _shapes_agree(self) -> ModelSpec:
        if self.hidden_size % (2 * self.attention_heads):
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
        if self.family == "gpt" and self.rotary_base != _ROTARY_BASE:
            raise ValueError("a gpt model has learned positions, so it has no rotary_base")
        if self.experts and not 0 < self.experts_per_token <= self.experts:
            raise ValueError(
                f"experts_per_token must lie between 1 and experts ({self.experts}), "
                f"not {self.experts_per_token}"
            )
        return self

    def record(self, name: str) -> records.Model:
        """The dimensions as cells and compute nodes know them."""
        names = {field.name for field in dataclasses.fields(records.Model)} - {"name"}
        return records.Model(name=name, **self.model_dump(include=names))
