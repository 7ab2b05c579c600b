"""Parameters and floating-point operations of a model, from its dimensions.

The planner and the analysis both use these, so an estimate and a measurement of a cell always count
the same. Only the standard library is used.
"""

from __future__ import annotations

import operator
from dataclasses import astuple, dataclass

from workflow_lib.records.model import Model
from workflow_lib.records.training import Training


@dataclass(frozen=True)
class Parameters:
    """Parameter counts of a model's parts. Norms and biases are included."""

    input_embedding: int
    #: learned positions (GPT only)
    position_embedding: int
    #: the head's matrix; 0 if the head is the input embedding
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

    ``vocabulary_size`` is the model's own unless given, for example the padded one.

    Checked against the published totals: GPT-3 175B (arXiv 2005.14165), Llama 3 (arXiv 2407.21783)
    and Mixtral (arXiv 2401.04088); see tests/test_formulas.py.
    """
    hidden, ffn = model.hidden_size, model.ffn_hidden_size
    vocabulary = model.vocabulary_size if vocabulary_size is None else vocabulary_size
    joined = model.query_size + 2 * model.key_value_size
    attention = hidden * joined + model.query_size * hidden
    if model.is_plain:
        # Biases everywhere, two LayerNorms with weight and bias, a two-matrix feed-forward part.
        attention += joined + hidden
        feed_forward = 2 * hidden * ffn + ffn + hidden
        norm = 2 * hidden
    else:
        # Two RMSNorms, a gated (SwiGLU) three-matrix feed-forward part, and seldom biases.
        if model.qkv_bias:
            attention += joined
        if model.qk_norm:
            attention += 2 * model.head_size
        feed_forward = 3 * hidden * ffn
        norm = hidden
    router = hidden * model.experts
    return Parameters(
        input_embedding=vocabulary * hidden,
        position_embedding=model.sequence_length * hidden if model.family == "gpt" else 0,
        output_head=0 if model.has_tied_embeddings else vocabulary * hidden,
        final_norm=norm,
        layer_dense=attention + 2 * norm + router,
        feed_forward=feed_forward,
        layers=model.layers,
        experts=max(model.experts, 1),
        experts_per_token=max(model.experts_per_token, 1),
    )


def adapter_parameters(model: Model, rank: int, tp: int = 1) -> float:
    """Parameters of the low-rank adapters (arXiv 2106.09685) of all layers, each of rank ``rank``.
    With ``tp``, of the part that one tensor-parallel rank holds.

    The adapter of a matrix of ``in`` × ``out`` has rank · (in + out) parameters. Adapters are on
    the joined matrix of queries, keys and values, on attention's output, and on the matrices of a
    dense feed-forward part, where a gated part's gate and up matrices are joined. Experts, the
    router, the embedding and the head have none. An adapter is cut only on the side on which its
    matrix is cut.
    """
    hidden, ffn = model.hidden_size, model.ffn_hidden_size
    cut, whole = 2 * model.query_size + 2 * model.key_value_size, hidden + hidden
    if not model.experts:
        cut += (ffn if model.is_plain else 2 * ffn) + ffn
        whole += hidden + hidden
    return model.layers * rank * (cut / tp + whole)


@dataclass(frozen=True)
class Flops:
    """Model FLOPs, without recomputation, counted in the four ways in use. For example, one run has
    an MFU of 52.0 %, 55.6 %, 62.5 % or 65.9 %, depending on the way."""

    #: products with all N active parameters and nothing else: 6·N in training (arXiv 2001.08361)
    six_n: float
    #: products with all parameters but the input embeddings, and attention over the causal half of
    #: the matrix (as NVIDIA counts Grok 1)
    causal: float
    #: products with all parameters but the input embeddings, and attention over the whole matrix
    #: (arXiv 2204.02311, appendix B; as NVIDIA counts GPT-3, Llama 3.1 and Nemotron-4)
    full_attention: float
    #: products with all N active parameters, embeddings included, and attention over the whole
    #: matrix (as torchtitan counted in its tables of A100)
    six_n_attention: float

    def __add__(self, other: Flops) -> Flops:
        return Flops(*map(operator.add, astuple(self), astuple(other)))

    def __mul__(self, factor: float) -> Flops:
        return Flops(*(count * factor for count in astuple(self)))


def flops_per_token(
    model: Model, training: Training | None = None, dropped_share: float = 0.0
) -> Flops:
    """Count the FLOPs of a cell's workload for one token of a full sequence. Without ``training``,
    count those of pretraining.

    ``dropped_share`` is the share of a token's choices of experts that were dropped. Their products
    were not computed, so they are not counted.

    A matrix product takes two FLOPs a parameter in the forward pass and four in the backward one:
    two for the gradient of its input and two for that of its weight. The scores and the weighted
    sum of values take 4·s·h FLOPs a token and layer in the forward pass over the whole s × s
    matrix, and twice that in the backward one: 12·L·h·s in all. The input embeddings are look-ups
    and count nothing, but a tied head is a product and counts.

    In workload ``lora`` adapters train and the weights are frozen, so weights have no gradient:
    they take four FLOPs a parameter, adapters six. Attention has no weights and keeps its 12·L·h·s.
    In inference, the result is :func:`generation_flops` over the tokens of a sequence.
    """
    if training is not None and training.workload == "inference":
        length = model.sequence_length
        generated = training.generated_tokens
        return generation_flops(model, length - generated, generated) * (1 / length)
    per_parameter, adapters = 6.0, 0.0
    if training is not None and training.workload == "lora":
        per_parameter, adapters = 4.0, adapter_parameters(model, training.lora_rank)
    counts = parameters(model)
    attention = 3.0 * _ATTENTION_FLOPS * model.layers * model.query_size * model.sequence_length
    idle = dropped_share * counts.layers * counts.experts_per_token * counts.feed_forward
    products = per_parameter * (_multiplied(counts) - idle) + 6.0 * adapters
    six_n = per_parameter * (counts.active - idle) + 6.0 * adapters
    return Flops(
        six_n=six_n,
        causal=products + attention / 2,
        full_attention=products + attention,
        six_n_attention=six_n + attention,
    )


@dataclass(frozen=True)
class StageWork:
    """FLOPs for one token of a full sequence, by the parts of a model that stages hold.

    FLOPs that recomputation repeats are included.
    """

    #: only sums, of positions and of gradients of rows, because look-ups are not products
    embedding: float
    #: one layer
    layer: float
    #: the last norm, the head and the loss
    head: float


def stage_work(model: Model, training: Training) -> StageWork:
    """Count the FLOPs of each part of a model for one token, with causal attention.

    Products count as in :func:`flops_per_token`, over the padded vocabulary. Full recomputation
    adds a layer's forward pass; selective recomputation repeats no product. The loss takes five
    FLOPs a logit: three in the forward pass (subtract the largest one, exponentiate, sum), and two
    in the backward pass (scale the probability, subtract the target's).
    """
    counts = parameters(model, model.padded_vocabulary_size)
    weights = counts.layer_dense + counts.experts_per_token * counts.feed_forward
    matrix = counts.output_head or counts.input_embedding
    attention = _ATTENTION_FLOPS / 2 * model.query_size * model.sequence_length
    positions = model.hidden_size if counts.position_embedding else 0
    if training.workload == "inference":
        # The head is computed only for the generated tokens.
        share = training.generated_tokens / model.sequence_length
        head = 2.0 * (counts.final_norm + matrix) * share
        return StageWork(float(positions), 2.0 * weights + attention, head)
    per_parameter, adapters, rows = 6.0, 0.0, model.hidden_size + 2 * positions
    if training.workload == "lora":
        per_parameter, rows = 4.0, positions
        adapters = adapter_parameters(model, training.lora_rank) / model.layers
    layer = per_parameter * weights + 6.0 * adapters + 3.0 * attention
    if training.recomputation == "full":
        layer += 2.0 * (weights + adapters) + attention
    loss = _LOSS_FLOPS * model.padded_vocabulary_size
    return StageWork(float(rows), layer, per_parameter * (counts.final_norm + matrix) + loss)


#: FLOPs of the cross entropy for each logit, in both passes
_LOSS_FLOPS = 5.0

#: FLOPs of a layer's scores and weighted sum in the forward pass, for each token, hidden column and
#: token attended to: two products of two FLOPs
_ATTENTION_FLOPS = 4


def prefill_flops(model: Model, tokens: int) -> Flops:
    """Count the FLOPs of the forward pass over one prompt of ``tokens`` tokens.

    They are counted as in training, but only the last token's logits are needed, so the head is one
    product of its matrix with one vector. ``six_n`` is still 2·N a token (arXiv 2001.08361,
    table 1).
    """
    counts = parameters(model)
    head = counts.output_head or counts.input_embedding
    products = 2.0 * ((_multiplied(counts) - head) * tokens + head)
    attention = float(_ATTENTION_FLOPS * model.layers * model.query_size) * tokens * tokens
    return Flops(
        six_n=2.0 * counts.active * tokens,
        causal=products + attention / 2,
        full_attention=products + attention,
        six_n_attention=2.0 * counts.active * tokens + attention,
    )


def decode_flops(model: Model, context: float) -> Flops:
    """Count the FLOPs of generating one token that attends to ``context`` tokens, itself included.
    It attends to all of them, so ``causal`` equals ``full_attention``."""
    counts = parameters(model)
    attention = float(_ATTENTION_FLOPS * model.layers * model.query_size) * context
    flops = 2.0 * _multiplied(counts) + attention
    return Flops(
        six_n=2.0 * counts.active,
        causal=flops,
        full_attention=flops,
        six_n_attention=2.0 * counts.active + attention,
    )


def generation_flops(model: Model, prompt: int, generated: int) -> Flops:
    """Count the FLOPs of one sequence: a prompt, and the tokens generated after it.

    The prompt's pass gives the first generated token. Each later token takes a pass of its own. The
    last token is not fed back.
    """
    passes = generated - 1
    # Contexts are prompt + 1 to prompt + passes, and the count is linear in the context.
    mean_context = prompt + (passes + 1) / 2
    return prefill_flops(model, prompt) + decode_flops(model, mean_context) * passes


def _multiplied(counts: Parameters) -> int:
    """The active parameters that are in a matrix product: all but embeddings that are looked up."""
    tied = counts.output_head == 0
    return counts.active - counts.position_embedding - (0 if tied else counts.input_embedding)
