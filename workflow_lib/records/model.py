"""The model of a cell: a decoder's dimensions.

The annotation of each field is its axis: see :mod:`workflow_lib.records.axes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from workflow_lib.records.axes import Axis

Family = Literal["gpt", "neox", "llama", "mixtral"]
Activation = Literal["usual", "silu", "gelu", "gelu_tanh"]


@dataclass(frozen=True)
class Model:
    """A decoder's dimensions. Counts are exact, lengths are in tokens."""

    # fmt: off
    name: Annotated[str, Axis(
        "name of config/models/<model>.yaml", "work", column="model", says_itself=True)]
    family: Annotated[Family, Axis(
        "what kind of layers: gpt, neox, llama or mixtral", "work", column="model_family",
        says_itself=True)]
    layers: Annotated[int, Axis("transformer layers", "work")]
    hidden_size: Annotated[int, Axis("width of the model", "work")]
    ffn_hidden_size: Annotated[int, Axis("width of a feed-forward part, or of an expert", "work")]
    attention_heads: Annotated[int, Axis("attention heads", "work")]
    kv_heads: Annotated[int, Axis("heads of keys and values", "work")]
    sequence_length: Annotated[int, Axis("tokens per sequence", "work", label="sequences of")]
    vocabulary_size: Annotated[int, Axis("entries of the vocabulary", "work")]
    vocabulary_multiple: Annotated[int, Axis(
        "the vocabulary is padded to a multiple of this before it is trained", "work")] = 1
    experts: Annotated[int, Axis("experts per layer; 0 in a dense model", "work")] = 0
    experts_per_token: Annotated[int, Axis(
        "how many experts see a token; 0 in a dense model", "work")] = 0
    rotary_base: Annotated[float, Axis(
        "base of the rotary positions' frequencies; not used by gpt", "work", since=3)] = 500_000.0
    #: a single number divides all frequencies. Four numbers are Llama 3.1's: the divisor of low
    #: frequencies, the bounds of low and of high ones, and the original sequence length
    #: (trainers/native/rotary.py)
    rotary_scaling: Annotated[tuple[float, ...], Axis(
        "what stretches the rotary positions: one factor; or, as in Llama 3.1, a factor, its low "
        "and high frequency factors and the length before; null where nothing does", "work",
        since=6)] = ()
    rotary_share: Annotated[float, Axis(
        "share of a head's columns that rotary positions turn", "work", since=6)] = 1.0
    tied_embeddings: Annotated[bool, Axis(
        "whether the head is the input embedding; gpt's always is", "work", since=6)] = False
    head_dimension: Annotated[int | None, Axis(
        "columns of an attention head; null where they are hidden_size / attention_heads", "work",
        since=6)] = None
    qkv_bias: Annotated[bool, Axis(
        "biases of queries, keys and values; gpt and neox have biases everywhere", "work",
        since=6)] = False
    qk_norm: Annotated[bool, Axis(
        "an RMS norm over each head's queries and keys", "work", since=6)] = False
    norm_epsilon: Annotated[float, Axis(
        "what every norm adds to the variance", "work", since=6)] = 1e-5
    activation: Annotated[Activation, Axis(
        "of the feed-forward part; usual is silu, gelu_tanh in gpt, gelu in neox", "work",
        since=6)] = "usual"
    embedding_scale: Annotated[float, Axis(
        "what the rows of the input embedding are multiplied by", "work", since=6)] = 1.0
    # fmt: on

    @property
    def padded_vocabulary_size(self) -> int:
        """The vocabulary as trained: rounded up to ``vocabulary_multiple``."""
        return -(-self.vocabulary_size // self.vocabulary_multiple) * self.vocabulary_multiple

    @property
    def head_size(self) -> int:
        """Columns of one attention head."""
        return self.head_dimension or self.hidden_size // self.attention_heads

    @property
    def query_size(self) -> int:
        """Columns of all queries together, and of attention's output."""
        return self.head_size * self.attention_heads

    @property
    def key_value_size(self) -> int:
        """Columns of all keys together; all values together have as many."""
        return self.head_size * self.kv_heads

    @property
    def rotary_size(self) -> int:
        """Columns of a head that rotary positions turn."""
        return int(self.head_size * self.rotary_share)

    @property
    def is_plain(self) -> bool:
        """Whether the model has LayerNorms, biases everywhere and two matrices in the feed-forward
        part. Other models have RMSNorms, biases only as ``qkv_bias`` says, and a gated feed-forward
        part."""
        return self.family in ("gpt", "neox")

    @property
    def has_tied_embeddings(self) -> bool:
        """Whether the head is the input embedding."""
        return self.tied_embeddings or self.family == "gpt"
