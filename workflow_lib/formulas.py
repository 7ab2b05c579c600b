"""Parameters and floating-point operations of a model, from its dimensions.

The planner and the analysis both count with these, so that an estimate and a measurement of one
cell never differ in what they count. Only the standard library is used.
"""

from __future__ import annotations

from dataclasses import dataclass

from workflow_lib.records import Model, Training


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


def key_value_size(model: Model) -> int:
    """Columns of the keys, and as many of the values, of all their heads together."""
    return model.hidden_size // model.attention_heads * model.kv_heads


def parameters(model: Model, vocabulary_size: int | None = None) -> Parameters:
    """Count a model's parameters.

    ``vocabulary_size`` is the model's own unless given (the padded one, say).

    Checked against the published totals: GPT-3 175B (arXiv 2005.14165), Llama 3 (arXiv 2407.21783)
    and Mixtral (arXiv 2401.04088); see tests/test_formulas.py.
    """
    hidden, ffn = model.hidden_size, model.ffn_hidden_size
    vocabulary = model.vocabulary_size if vocabulary_size is None else vocabulary_size
    key_value = key_value_size(model)
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


def adapter_parameters(model: Model, rank: int, tp: int = 1) -> float:
    """Parameters of the low-rank adapters (arXiv 2106.09685) of all layers, of ``rank`` each; with
    ``tp``, of one tensor-parallel rank's part of them.

    A matrix of ``in`` × ``out`` gets rank · (in + out). Adapted are the joined query, key and value
    matrix, attention's output, and the dense feed-forward part's matrices, a gated one's gate and
    up matrix being joined; experts, the router, the embedding and the head are not. Only the side
    on which the adapted matrix is cut is cut.
    """
    hidden, ffn = model.hidden_size, model.ffn_hidden_size
    cut, whole = hidden + 2 * key_value_size(model) + hidden, hidden + hidden
    if not model.experts:
        cut += (ffn if model.family == "gpt" else 2 * ffn) + ffn
        whole += hidden + hidden
    return model.layers * rank * (cut / tp + whole)


@dataclass(frozen=True)
class Flops:
    """Model FLOPs (no recomputation), counted in the four ways in use. One run of training has,
    say, 52.0 %, 55.6 %, 62.5 % and 65.9 % MFU by them.
    """

    #: products with all N active parameters and nothing else: 6·N in training (arXiv 2001.08361)
    six_n: float
    #: products with all but the input embeddings, and attention over the half of the matrix that
    #: causality leaves (as NVIDIA counts Grok 1)
    causal: float
    #: products with all but the input embeddings, and attention over the whole matrix (arXiv
    #: 2204.02311, appendix B; as NVIDIA counts GPT-3, Llama 3.1 and Nemotron-4)
    full_attention: float
    #: products with all N active parameters, look-ups of embeddings among them, and attention over
    #: the whole matrix (as torchtitan counted in its tables of A100)
    six_n_attention: float

    def __add__(self, other: Flops) -> Flops:
        return Flops(
            self.six_n + other.six_n,
            self.causal + other.causal,
            self.full_attention + other.full_attention,
            self.six_n_attention + other.six_n_attention,
        )

    def __mul__(self, factor: float) -> Flops:
        return Flops(
            self.six_n * factor,
            self.causal * factor,
            self.full_attention * factor,
            self.six_n_attention * factor,
        )


def flops_per_token(
    model: Model, training: Training | None = None, dropped_share: float = 0.0
) -> Flops:
    """Count the FLOPs of a cell's workload for one token of a full sequence; without ``training``,
    those of pretraining.

    Of a token's choices of an expert ``dropped_share`` were dropped: these products were not done,
    and count nowhere in training.

    A matrix product takes two FLOPs a parameter in the forward pass and four in the backward one:
    two for the gradient of its input and two for that of its weight. The scores and the weighted
    sum of values take 4·s·h FLOPs a token and layer in the forward pass over the whole s × s
    matrix, and twice that in the backward one: 12·L·h·s in all. The input embeddings are look-ups
    and count nothing, but a tied head is a product and counts.

    Adapters (workload ``lora``) train while the weights are frozen, which then have no gradient:
    four FLOPs a parameter of theirs, six an adapter's; attention has no weights and keeps its
    12·L·h·s. In inference a token's share of :func:`generation_flops`.
    """
    if training is not None and training.workload == "inference":
        length = model.sequence_length
        generated = training.generated_tokens
        return generation_flops(model, length - generated, generated) * (1 / length)
    each, adapters = 6.0, 0.0
    if training is not None and training.workload == "lora":
        each, adapters = 4.0, adapter_parameters(model, training.lora_rank)
    counts = parameters(model)
    attention = 3.0 * _ATTENTION_FLOPS * model.layers * model.hidden_size * model.sequence_length
    idle = dropped_share * counts.layers * counts.experts_per_token * counts.feed_forward
    products = each * (_multiplied(counts) - idle) + 6.0 * adapters
    six_n = each * (counts.active - idle) + 6.0 * adapters
    return Flops(
        six_n=six_n,
        causal=products + attention / 2,
        full_attention=products + attention,
        six_n_attention=six_n + attention,
    )


#: a layer's scores and weighted sum, forward, for each token, hidden column and token attended to:
#: two products of two FLOPs
_ATTENTION_FLOPS = 4


def prefill_flops(model: Model, tokens: int) -> Flops:
    """Count the FLOPs of the forward pass over one prompt of ``tokens`` tokens.

    As in training, but only the last token's logits are wanted: the head is one product of its
    matrix with one vector. ``six_n`` is 2·N a token all the same (arXiv 2001.08361, table 1).
    """
    counts = parameters(model)
    head = counts.output_head or counts.input_embedding
    products = 2.0 * ((_multiplied(counts) - head) * tokens + head)
    attention = float(_ATTENTION_FLOPS * model.layers * model.hidden_size) * tokens * tokens
    return Flops(
        six_n=2.0 * counts.active * tokens,
        causal=products + attention / 2,
        full_attention=products + attention,
        six_n_attention=2.0 * counts.active * tokens + attention,
    )


def decode_flops(model: Model, context: float) -> Flops:
    """Count the FLOPs of generating one token that attends to ``context`` tokens, itself among
    them; causality leaves nothing out there.
    """
    counts = parameters(model)
    attention = float(_ATTENTION_FLOPS * model.layers * model.hidden_size) * context
    flops = 2.0 * _multiplied(counts) + attention
    return Flops(
        six_n=2.0 * counts.active,
        causal=flops,
        full_attention=flops,
        six_n_attention=2.0 * counts.active + attention,
    )


def generation_flops(model: Model, prompt: int, generated: int) -> Flops:
    """Count the FLOPs of one sequence: a prompt, and the tokens generated after it.

    The prompt's pass yields the first generated token and each later one takes a pass of its own;
    the last one is never fed back.
    """
    passes = generated - 1
    # Contexts are prompt + 1 to prompt + passes, and the count is linear in the context.
    mean_context = prompt + (passes + 1) / 2
    return prefill_flops(model, prompt) + decode_flops(model, mean_context) * passes


def _multiplied(counts: Parameters) -> int:
    """The active parameters that are multiplied with something: all but look-ups."""
    tied = counts.output_head == 0
    return counts.active - counts.position_embedding - (0 if tied else counts.input_embedding)
