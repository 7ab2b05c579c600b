"""The dimensions of a decoder that its time depends on, for models of this workflow and for models
of published runs."""

from __future__ import annotations

import csv
import functools
import re
from dataclasses import dataclass
from importlib import resources

from workflow_lib.records import Model, bounds

_FILE = resources.files("workflow_lib.projection") / "data" / "models.csv"
_DIMENSIONS = re.compile(r"layers (\d+), hidden (\d+)|hidden (\d+), layers (\d+)")


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


@functools.cache
def _known() -> tuple[tuple[re.Pattern[str], Shape], ...]:
    with _FILE.open(encoding="utf-8") as lines:
        return tuple((re.compile(row["pattern"]), _shape(row)) for row in csv.DictReader(lines))


def _shape(row: dict[str, str]) -> Shape:
    counts = {
        name: int(row[name])
        for name in (
            *("layers", "hidden", "ffn", "heads", "kv_heads", "head_size", "vocabulary"),
            *("experts", "experts_per_token", "shared_ffn"),
        )
    }
    flags = {name: row[name] == "yes" for name in ("gated", "tied")}
    return Shape(name=row["name"], **flags, **counts)  # type: ignore[arg-type]


def published_shape(model: str, notes: str = "") -> Shape | None:
    """The shape of a published model by its name, or by dimensions in the row's notes (taken as a
    GPT: two matrices, four times as wide as the hidden state); None if neither gives it."""
    name = re.sub(r"[^a-z0-9]", "", model.lower())
    for pattern, shape in _known():
        if pattern.fullmatch(name):
            return shape
    found = _DIMENSIONS.search(notes)
    if not found:
        return None
    layers, hidden = (int(each) for each in (found[1] or found[4], found[2] or found[3]))
    heads = re.search(r"heads (\d+)", notes)
    vocabulary = re.search(r"vocab (\d+)", notes)
    count = int(heads[1]) if heads else hidden // 128
    if not (0 < count <= hidden and 0 < layers <= bounds.LAYERS.most):
        return None
    return Shape(
        name=model,
        layers=layers,
        hidden=hidden,
        ffn=4 * hidden,
        gated=False,
        heads=count,
        kv_heads=count,
        head_size=hidden // count,
        vocabulary=int(vocabulary[1]) if vocabulary else 51200,
        tied=True,
    )
