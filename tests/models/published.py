"""Configurations as published on huggingface.co, with the totals that are published beside them.

A total is what the page of the model counts in its safetensors files; where the head is the
embedding, it is counted once. Tokens' ids, dtypes and versions, which an import does not read, are
alike in all of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Published(NamedTuple):
    """A config.json, and the parameters of the model."""

    config: dict[str, Any]
    parameters: int


def _config(kind: str, model_type: str, **keys: Any) -> dict[str, Any]:
    """What nearly all files have, and keys that are the model's own or differ."""
    return {
        "architectures": [f"{kind}ForCausalLM"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "model_type": model_type,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.40.1",
        "use_cache": True,
        **keys,
    }


def _sizes(hidden: int, ffn: int, layers: int, heads: int, kv_heads: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
    }


LLAMA = _config(
    "Llama",
    "llama",
    attention_bias=False,
    attention_dropout=0.0,
    mlp_bias=False,
    pretraining_tp=1,
    rms_norm_eps=1e-05,
    rope_scaling=None,
    rope_theta=500000.0,
    vocab_size=128256,
)
LLAMA3_ROPE = {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
QWEN2 = _config(
    "Qwen2",
    "qwen2",
    attention_dropout=0.0,
    max_position_embeddings=32768,
    rms_norm_eps=1e-06,
    rope_theta=1000000.0,
    tie_word_embeddings=True,
    use_mrope=False,
    use_sliding_window=False,
    vocab_size=151936,
)
QWEN3 = _config(
    "Qwen3",
    "qwen3",
    attention_bias=False,
    attention_dropout=0.0,
    head_dim=128,
    max_position_embeddings=40960,
    max_window_layers=36,
    rms_norm_eps=1e-06,
    rope_scaling=None,
    rope_theta=1000000,
    sliding_window=None,
    use_sliding_window=False,
    vocab_size=151936,
)
GEMMA = _config(
    "Gemma",
    "gemma",
    attention_bias=False,
    attention_dropout=0.0,
    head_dim=256,
    hidden_act="gelu",
    hidden_activation=None,
    max_position_embeddings=8192,
    pad_token_id=0,
    rms_norm_eps=1e-06,
    rope_scaling=None,
    rope_theta=10000.0,
    vocab_size=256000,
)
GPT2 = _config(
    "GPT2",
    "gpt2",
    architectures=["GPT2LMHeadModel"],
    activation_function="gelu_new",
    attn_pdrop=0.1,
    embd_pdrop=0.1,
    layer_norm_epsilon=1e-05,
    n_ctx=1024,
    n_embd=768,
    n_head=12,
    n_layer=12,
    n_positions=1024,
    resid_pdrop=0.1,
    summary_activation=None,
    summary_first_dropout=0.1,
    summary_proj_to_labels=True,
    summary_type="cls_index",
    summary_use_proj=True,
    task_specific_params={"text-generation": {"do_sample": True, "max_length": 50}},
    vocab_size=50257,
)
# Neither says that its head is its embedding, and GPT-2 calls its activation otherwise.
del GEMMA["tie_word_embeddings"], GPT2["tie_word_embeddings"], GPT2["hidden_act"]
MISTRAL = _config(
    "Mistral",
    "mistral",
    max_position_embeddings=32768,
    rms_norm_eps=1e-05,
    rope_theta=10000.0,
    sliding_window=4096,
    vocab_size=32000,
    **_sizes(4096, 14336, 32, 32, 8),
)
MIXTRAL = {
    **MISTRAL,
    "architectures": ["MixtralForCausalLM"],
    "attention_dropout": 0.0,
    "model_type": "mixtral",
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "output_router_logits": False,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
}
# Neither a rotary base nor a number of key and value heads was a key at its time.
LLAMA1 = _config(
    "Llama",
    "llama",
    hidden_size=6656,
    intermediate_size=17920,
    max_position_embeddings=2048,
    num_attention_heads=52,
    num_hidden_layers=60,
    pad_token_id=0,
    rms_norm_eps=1e-06,
    vocab_size=32000,
)
NEOX = _config(
    "GPTNeoX",
    "gpt_neox",
    hidden_act="gelu",
    hidden_size=4096,
    intermediate_size=16384,
    layer_norm_eps=1e-05,
    max_position_embeddings=2048,
    num_attention_heads=32,
    num_hidden_layers=32,
    rotary_emb_base=10000,
    rotary_pct=0.25,
    use_parallel_residual=True,
    vocab_size=50432,
)
QWEN3_MOE = {
    **QWEN3,
    "architectures": ["Qwen3MoeForCausalLM"],
    "decoder_sparse_step": 1,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
    **_sizes(2048, 6144, 48, 32, 4),
}
PHI_3_MINI = _config(
    "Phi3",
    "phi3",
    _name_or_path="Phi-3-mini-4k-instruct",
    attention_bias=False,
    attention_dropout=0.0,
    auto_map={
        "AutoConfig": "configuration_phi3.Phi3Config",
        "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
    },
    embd_pdrop=0.0,
    max_position_embeddings=4096,
    original_max_position_embeddings=4096,
    pad_token_id=32000,
    resid_pdrop=0.0,
    rms_norm_eps=1e-05,
    rope_scaling=None,
    rope_theta=10000.0,
    sliding_window=2047,
    vocab_size=32064,
    **_sizes(3072, 8192, 32, 32, 32),
)
PUBLISHED = {
    "llama-30b": Published(LLAMA1, 32_528_943_616),
    "Meta-Llama-3-8B": Published(
        LLAMA | {"max_position_embeddings": 8192} | _sizes(4096, 14336, 32, 32, 8), 8_030_261_248
    ),
    "Llama-3.2-1B": Published(
        LLAMA
        | _sizes(2048, 8192, 16, 32, 8)
        | {
            "head_dim": 64,
            "max_position_embeddings": 131072,
            "rope_scaling": LLAMA3_ROPE,
            "tie_word_embeddings": True,
        },
        1_235_814_400,
    ),
    "Qwen2.5-0.5B": Published(
        QWEN2 | {"max_window_layers": 24, "sliding_window": 32768} | _sizes(896, 4864, 24, 14, 2),
        494_032_768,
    ),
    "Qwen3-8B": Published(QWEN3 | _sizes(4096, 12288, 36, 32, 8), 8_190_735_360),
    "Qwen3-30B-A3B": Published(QWEN3_MOE, 30_532_122_624),
    "Mistral-7B-v0.1": Published(MISTRAL, 7_241_732_096),
    "Mixtral-8x7B-v0.1": Published(MIXTRAL, 46_702_792_704),
    "gemma-7b": Published(GEMMA | _sizes(3072, 24576, 28, 16, 16), 8_537_680_896),
    "pythia-6.9b": Published(NEOX, 6_857_302_016),
    "gpt-neox-20b": Published(
        NEOX
        | {
            "attention_probs_dropout_prob": 0,
            "hidden_act": "gelu_fast",
            "hidden_dropout_prob": 0,
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_attention_heads": 64,
            "num_hidden_layers": 44,
        },
        20_554_567_680,
    ),
    "Phi-3-mini-4k-instruct": Published(PHI_3_MINI, 3_821_079_552),
    "SmolLM2-135M": Published(
        LLAMA
        | _sizes(576, 1536, 30, 9, 3)
        | {
            "bos_token_id": 0,
            "eos_token_id": 0,
            "initializer_range": 0.041666666666666664,
            "is_llama_config": True,
            "max_position_embeddings": 8192,
            "rope_interleaved": False,
            "rope_theta": 100000,
            "tie_word_embeddings": True,
            "vocab_size": 49152,
        },
        134_515_008,
    ),
    "gpt2": Published(GPT2, 124_439_808),
}
