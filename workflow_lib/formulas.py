"""Parameters and floating-point operations of a model, from its dimensions.

The planner and the analysis both count with these, so that an estimate and a measurement of one
cell never differ in what they count. Only the standard library is used.
"""

from __future__ import annotations

from dataclasses import dataclass

from workflow_lib.records import Model


@dataclass(frozen=True)
class Parameters:
    """Parameter counts of a model, by where they sit. Norms and biases are included."""

    input_embedding: int
    #: learned positions (GPT only)
    position_embedding: int
    #: the head's matrix; 0 where it is the input embedding, as in GPT-3
    output_head: int
    final_norm: int
    #: attention, norms and router of one layer: held by every expert-parallel rank
    layer_dense: int
    #: the feed-forward part of one layer: one expert's, or the dense one
    feed_forward: int
    layers: int
    #: feed-forward parts in a layer (1 in a dense model), and how many of them a token uses
    experts: int
    experts_per_token: int

    @property
    def total(self) -> int:
        """All parameters."""
        return self._count(self.experts)

    @property
    def active(self) -> int:
        """The parameters that one token passes through."""
        return self._count(self.experts_per_token)

    def _count(self, experts: int) -> int:
        ends = self.input_embedding + self.position_embedding + self.output_head + self.final_norm
        return ends + self.layers * (self.layer_dense + experts * self.feed_forward)


def parameters(model: Model, vocabulary_size: int | None = None) -> Parameters:
    """Count a model's parameters.

    ``vocabulary_size`` is the model's own unless given (the padded one, say).

    Checked against the published totals: GPT-3 175B (arXiv 2005.14165), Llama 3 (arXiv 2407.21783)
    and Mixtral (arXiv 2401.04088); see tests/test_formulas.py.
    """
    hidden, ffn = model.hidden_size, model.ffn_hidden_size
    vocabulary = model.vocabulary_size if vocabulary_size is None else vocabulary_size
    key_value = hidden // model.attention_heads * model.kv_heads
    attention = 2 * hidden * hidden + 2 * hidden * key_value
    if model.family == "gpt":
        # Biases everywhere, two LayerNorms with weight and bias, a two-matrix feed-forward part.
        attention += 2 * hidden + 2 * key_value
        feed_forward = 2 * hidden * ffn + ffn + hidden
        norm = 2 * hidden
    else:
        # No biases, two RMSNorms, a gated (SwiGLU) three-matrix feed-forward part.
        feed_forward = 3 * hidden * ffn
        norm = hidden
    router = hidden * model.experts
    return Parameters(
        input_embedding=vocabulary * hidden,
        position_embedding=model.sequence_length * hidden if model.family == "gpt" else 0,
        output_head=0 if model.family == "gpt" else vocabulary * hidden,
        final_norm=norm,
        layer_dense=attention + 2 * norm + router,
        feed_forward=feed_forward,
        layers=model.layers,
        experts=max(model.experts, 1),
        experts_per_token=max(model.experts_per_token, 1),
    )


@dataclass(frozen=True)
class FlopsPerToken:
    """Model FLOPs of training on one token (forward and backward, no recomputation), counted in
    the three ways in use. One run has, say, 52.0 %, 55.6 % and 62.5 % MFU by them.
    """

    #: 6·N, N being the active parameters (arXiv 2001.08361)
    six_n: float
    #: 6·(N − input embeddings), and attention over the half of the matrix that causality leaves
    causal: float
    #: 6·(N − input embeddings), and attention over the whole matrix (arXiv 2204.02311, appendix B;
    #: as NVIDIA's published Megatron and NeMo figures count)
    full_attention: float


def flops_per_token(model: Model) -> FlopsPerToken:
    """Count a model's training FLOPs for one token of a full sequence.

    The scores and the weighted sum take 2·s·h multiply-adds a token and layer in the forward pass
    over the whole s × s matrix, and twice that in the backward one: 12·L·h·s FLOPs in all. The
    input embeddings are look-ups and count nothing, but a tied head is a product and counts.
    """
    counts = parameters(model)
    attention = 12.0 * model.layers * model.hidden_size * model.sequence_length
    tied = counts.output_head == 0
    multiplied = counts.active - counts.position_embedding - (0 if tied else counts.input_embedding)
    return FlopsPerToken(
        six_n=6.0 * counts.active,
        causal=6.0 * multiplied + attention / 2,
        full_attention=6.0 * multiplied + attention,
    )
