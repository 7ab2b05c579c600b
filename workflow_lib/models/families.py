"""Translates each kind of model's ``config.json`` into a model file.

A missing key means what it means in Hugging Face transformers: the default of the configuration
class of the ``model_type``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from workflow_lib.models.config_json import ConfigJson
from workflow_lib.records.reading import shown

#: keys and values of a model file
Plain = dict[str, Any]

#: the longest sequence unless asked for, that of Llama 3's training
_SEQUENCE_LENGTH = 8192

#: activation in config.json → its name in a model file
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


@dataclass(frozen=True)
class _Kind:
    """The differences of one model_type from Llama."""

    family: str = "llama"
    rotary_base: float = 1e4
    epsilon: float = 1e-6
    tied: bool = False
    #: columns of a head if head_dim is missing; None for hidden_size / num_attention_heads
    head_dimension: int | None = None
    #: whether a missing num_key_value_heads means as many heads as queries have
    kv_heads_known: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    #: whether sliding_window always counts (True), only with use_sliding_window (False), or is not
    #: a key of this model_type (None)
    window: bool | None = None
    #: the window if the file has no key for it, not even null
    usual_window: int | None = None


_LLAMA_LIKE = {
    "llama": _Kind(),
    "mistral": _Kind(kv_heads_known=False, window=True, usual_window=4096),
    "mixtral": _Kind("mixtral", 1e6, 1e-5, kv_heads_known=False, window=True),
    "qwen2": _Kind(kv_heads_known=False, qkv_bias=True, window=False),
    "qwen3": _Kind(kv_heads_known=False, head_dimension=128, qk_norm=True, window=False),
    "qwen3_moe": _Kind("mixtral", kv_heads_known=False, qk_norm=True, window=False),
    "gemma": _Kind(tied=True, head_dimension=256),
    # Llama's layers; queries, keys and values lie in one matrix, and so do gate and up.
    "phi3": _Kind(epsilon=1e-5, window=True),
}

#: model_type → the first reason why it cannot be imported
_REFUSED = {
    "gemma2": "it caps logits (attn_logit_softcapping, final_logit_softcapping), has norms behind "
    "its parts, and attends over a window in every other layer",
    "gemma3": "it has norms behind its parts, and windows and rotary bases that differ from layer "
    "to layer",
    "gemma3_text": "it has norms behind its parts, and windows and rotary bases that differ from "
    "layer to layer",
    "gpt_neo": "it attends over a window in every other layer (attention_types)",
    "gptj": "it turns a part of each head only (rotary_dim), and computes attention and the "
    "feed-forward part from the same input",
    "olmo2": "it has norms behind its parts, and one norm over all heads of queries and of keys",
    "smollm3": "some of its layers have no positions (no_rope_layers)",
    "qwen2_moe": "it has an expert that all tokens see (shared_expert_intermediate_size)",
    "qwen3_next": "most of its layers have linear attention (layer_types)",
    "deepseek_v2": "its attention is over compressed keys and values (kv_lora_rank)",
    "deepseek_v3": "its attention is over compressed keys and values (kv_lora_rank)",
    "llama4": "it has an expert that all tokens see, and layers without rotary positions",
    "mllama": "it sees images; use the config.json of a language model",
    "gpt_oss": "its attention has sinks, and windows in every other layer (layer_types)",
}


def read(config: ConfigJson, sequence_length: int | None) -> Plain:
    """The keys and values of a model file, without its description.

    ``sequence_length`` is that of training, in tokens; None means the model's own length, but at
    most 8192. Raises ImportRefusedError for the first key that the engine does not support.
    """
    kind = config.word("model_type", "")
    readers: Mapping[str, Callable[[ConfigJson, int | None], Plain]] = {
        **dict.fromkeys(_LLAMA_LIKE, _llama_like),
        "gpt2": _gpt2,
        "gpt_neox": _neox,
    }
    if kind not in readers:
        why = _REFUSED.get(
            kind,
            "this import does not know it; if it computes as one of those, write that name; if the "
            "engine can be told of it, write its model file (docs/how-to/bring-a-model.md)",
        )
        raise config.refuse(
            "model_type", f"{kind or 'missing'}: {why}; can be imported: {', '.join(readers)}"
        )
    plain = readers[kind](config, sequence_length)
    config.finish()
    return plain


def _llama_like(config: ConfigJson, sequence_length: int | None) -> Plain:
    name = config.word("model_type", "")
    kind = _LLAMA_LIKE[name]
    heads = config.whole("num_attention_heads")
    plain: Plain = {
        "family": kind.family,
        "layers": config.whole("num_hidden_layers"),
        "hidden_size": config.whole("hidden_size"),
        "ffn_hidden_size": config.whole("intermediate_size"),
        "attention_heads": heads,
        "kv_heads": config.whole("num_key_value_heads", heads if kind.kv_heads_known else None),
        "vocabulary_size": config.whole("vocab_size"),
    }
    window = _window(config, kind)
    plain |= sequence(config, sequence_length, window)
    if head := config.take("head_dim", kind.head_dimension):
        plain["head_dimension"] = head
    plain |= rotary(config, kind.rotary_base)
    plain["norm_epsilon"] = config.number("rms_norm_eps", kind.epsilon)
    plain["tied_embeddings"] = config.flag("tie_word_embeddings", kind.tied)
    plain["qkv_bias"], plain["qk_norm"] = kind.qkv_bias, kind.qk_norm
    without_bias = "a bias of attention's output is implemented only for gpt models"
    config.must_be("attention_bias", False, without_bias)
    config.must_be("use_mrope", False, "positions in images are not implemented")
    config.must_be("rope_interleaved", False, "pairs of a head's columns lie half a head apart")
    config.must_be("mlp_bias", False, "biases of a gated feed-forward part are not implemented")
    plain["activation"] = _activation(config, "hidden_act", "silu")
    if name == "phi3":
        # Only positions of kind longrope, which are refused, depend on it.
        config.take("original_max_position_embeddings")
    if name == "gemma":
        plain |= _gemma(config, plain["hidden_size"])
    if name == "mixtral":
        plain |= _experts(config, "num_local_experts", 8, 2)
    if name == "qwen3_moe":
        config.must_be("mlp_only_layers", [], "all layers have experts, or none has")
        config.must_be("decoder_sparse_step", 1, "all layers have experts, or none has")
        if not config.flag("norm_topk_prob", False):
            raise config.refuse(
                "norm_topk_prob", "is false, and the shares of a token's experts always sum to 1"
            )
        plain["ffn_hidden_size"] = config.whole("moe_intermediate_size")
        plain |= _experts(config, "num_experts", 128, 8)
    return plain


def _gemma(config: ConfigJson, hidden_size: int) -> Plain:
    """Gemma's own keys. Its published files have ``hidden_act: gelu``, but transformers has always
    run the tanh form for it. The weights of its norms are one less than ours."""
    config.must_be(
        "use_bidirectional_attention", False, "no token may see those that come after it"
    )
    activation = _activation(config, "hidden_activation", "gelu_pytorch_tanh")
    config.notes.append(
        "the norms' weights are Gemma's plus one: weight decay pulls them to 0, not to 1"
    )
    return {"activation": activation, "embedding_scale": float(hidden_size) ** 0.5}


def _experts(config: ConfigJson, key: str, count: int, of_token: int) -> Plain:
    config.must_be("router_jitter_noise", 0.0, "noise of the router's input is not implemented")
    if coefficient := config.take("router_aux_loss_coef"):
        config.notes.append(
            f"router_aux_loss_coef is {shown(coefficient)}: a sweep's balancing_loss trains with it"
        )
    return {
        "experts": config.whole(key, count),
        "experts_per_token": config.whole("num_experts_per_tok", of_token),
    }


def _gpt2(config: ConfigJson, sequence_length: int | None) -> Plain:
    positions = config.whole("n_positions")
    if sequence_length not in (None, positions):
        raise config.refuse(
            "n_positions",
            f"it has learned {positions} positions, one for each token of a sequence; use "
            f"--sequence-length {positions}, or none",
        )
    config.take("n_ctx")
    config.must_be("tie_word_embeddings", True, "a gpt model's head is its embedding")
    config.must_be("scale_attn_weights", True, "attention is always scaled by the heads' size")
    config.must_be("scale_attn_by_inverse_layer_idx", False, "it is not implemented")
    # These keys concern attention in fp32, and heads for other tasks.
    for key in ("reorder_and_upcast_attn", "summary_type", "summary_use_proj"):
        config.take(key)
    for key in ("summary_activation", "summary_proj_to_labels", "summary_first_dropout"):
        config.take(key)
    hidden, heads = config.whole("n_embd"), config.whole("n_head")
    return {
        "family": "gpt",
        "layers": config.whole("n_layer"),
        "hidden_size": hidden,
        "ffn_hidden_size": config.whole("n_inner", 4 * hidden),
        "attention_heads": heads,
        "kv_heads": heads,
        "sequence_length": positions,
        "vocabulary_size": config.whole("vocab_size"),
        "norm_epsilon": config.number("layer_norm_epsilon", 1e-5),
        "activation": _activation(config, "activation_function", "gelu_new"),
    }


def _neox(config: ConfigJson, sequence_length: int | None) -> Plain:
    config.must_be("use_parallel_residual", True, "neox layers compute both parts side by side")
    config.must_be("attention_bias", True, "a neox model has biases everywhere")
    share = config.number("rotary_pct", 0.25)
    heads = config.whole("num_attention_heads")
    plain: Plain = {
        "family": "neox",
        "layers": config.whole("num_hidden_layers"),
        "hidden_size": config.whole("hidden_size"),
        "ffn_hidden_size": config.whole("intermediate_size"),
        "attention_heads": heads,
        "kv_heads": heads,
        "vocabulary_size": config.whole("vocab_size"),
    }
    base = config.number("rotary_emb_base", 1e4)
    return (
        plain
        | sequence(config, sequence_length, None)
        | rotary(config, base, share)
        | {
            "norm_epsilon": config.number("layer_norm_eps", 1e-5),
            "tied_embeddings": config.flag("tie_word_embeddings", False),
            "activation": _activation(config, "hidden_act", "gelu"),
        }
    )


def _activation(config: ConfigJson, key: str, default: str) -> str:
    word = config.word(key, default)
    if word not in _ACTIVATIONS:
        raise config.refuse(key, f"{word}: the engine has {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[word]


def _window(config: ConfigJson, kind: _Kind) -> int | None:
    """The number of tokens that some layer looks back over; None if all layers see all earlier
    tokens."""
    if kind.window is None:
        return None
    used = kind.window
    if not kind.window:
        used = config.flag("use_sliding_window", False)
        config.take("max_window_layers")
    layers = config.take("layer_types", [])
    for layer in layers:
        if layer not in ("full_attention", "sliding_attention"):
            raise config.refuse("layer_types", f"{layer} is not implemented")
    if layers:
        used = "sliding_attention" in layers
    usual = None if config.states("sliding_window") else kind.usual_window
    window = config.take("sliding_window", usual)
    return config.whole("sliding_window", usual) if used and window is not None else None


def sequence(config: ConfigJson, wanted: int | None, window: int | None) -> Plain:
    """The length to train with: at most the window's length, beyond which attention
    would change."""
    longest = config.whole("max_position_embeddings", 2048)
    length = min(longest, window or longest, _SEQUENCE_LENGTH) if wanted is None else wanted
    if window is not None and length > window:
        raise config.refuse(
            "sliding_window",
            f"attention looks back over {window} tokens, and windows are not implemented; "
            f"sequences of up to {window} tokens are the same without: use --sequence-length "
            f"{window} or less",
        )
    if wanted is None and length < longest:
        config.notes.append(
            f"max_position_embeddings is {longest}: sequences have {length} tokens unless "
            "--sequence-length says more"
            + ("" if window is None else f", which sliding_window {window} does not allow")
        )
    if length > longest:
        config.notes.append(
            f"max_position_embeddings is {longest}: sequences of {length} tokens are longer than "
            "the model was made for"
        )
    return {"sequence_length": length} | ({} if window is None else {"sliding_window": window})


def rotary(config: ConfigJson, base: float, share: float = 1.0) -> Plain:
    """The base, scaling and share of a head of rotary positions, from the keys of transformers 4 or
    5."""
    given = {**config.mapping("rope_scaling"), **config.mapping("rope_parameters")}
    key = "rope_parameters" if config.take("rope_parameters") else "rope_scaling"
    share = given.pop("partial_rotary_factor", config.take("partial_rotary_factor", share))
    share = config.as_number("partial_rotary_factor", share)
    base = config.number("rope_theta", base)
    if "rope_theta" in given:
        base = config.as_number(key, given.pop("rope_theta"))
    kind, old = given.pop("rope_type", None), given.pop("type", None)
    kind = kind or old or "default"
    # the parts of each kind: transformers' name → ours
    names = {
        "default": {},
        "linear": {"factor": "factor"},
        "llama3": {
            "factor": "factor",
            "low_freq_factor": "low_frequency_factor",
            "high_freq_factor": "high_frequency_factor",
            "original_max_position_embeddings": "original_length",
        },
    }.get(kind)
    if names is None:
        raise config.refuse(key, f"{kind}: the engine stretches positions as linear and llama3 do")
    if unknown := sorted(given.keys() - names.keys()):
        raise config.refuse(key, f"{unknown[0]} is not a part of {kind} positions")
    if missing := sorted(names.keys() - given.keys()):
        raise config.refuse(key, f"{kind} positions need {missing[0]}")
    plain: Plain = {"rotary_base": base, "rotary_share": share}
    if not names:
        return plain
    scaling: Plain = {"kind": kind}
    scaling |= {name: config.as_number(key, given[theirs]) for theirs, name in names.items()}
    if "original_length" in scaling:
        scaling["original_length"] = int(scaling["original_length"])
    return plain | {"rotary_scaling": scaling}
