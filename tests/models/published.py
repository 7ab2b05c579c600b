"""Configurations as published on huggingface.co, with the totals that are published beside them.

A total is what the page of the model counts in its safetensors files; where the head is the
embedding, it is counted once.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Published(NamedTuple):
    """A config.json, and the parameters of the model."""

    config: dict[str, Any]
    parameters: int


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "mlp_bias": False,
    "model_type": "llama",
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}
LLAMA3_ROPE = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 32768,
    "model_type": "qwen2",
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.1",
    "use_cache": True,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
GEMMA = {
    "architectures": ["GemmaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "head_dim": 256,
    "hidden_act": "gelu",
    "hidden_activation": None,
    "initializer_range": 0.02,
    "max_position_embeddings": 8192,
    "model_type": "gemma",
    "num_attention_heads": 8,
    "num_hidden_layers": 18,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.38.0.dev0",
    "use_cache": True,
    "vocab_size": 256000,
}
GPT2 = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}


def _sizes(hidden: int, ffn: int, layers: int, heads: int, kv_heads: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
    }


MISTRAL = {
    "architectures": ["MistralForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.34.0.dev0",
    "use_cache": True,
    "vocab_size": 32000,
    **_sizes(4096, 14336, 32, 32, 8),
}
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
LLAMA2 = {
    **LLAMA,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 4096,
    "vocab_size": 32000,
}
# Neither a rotary base nor a number of key and value heads was a key at its time.
for _key in ("rope_theta", "attention_bias", "mlp_bias", "attention_dropout"):
    del LLAMA2[_key]
LLAMA1 = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 6656,
    "intermediate_size": 17920,
    "initializer_range": 0.02,
    "max_position_embeddings": 2048,
    "model_type": "llama",
    "num_attention_heads": 52,
    "num_hidden_layers": 60,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.28.0.dev0",
    "use_cache": True,
    "vocab_size": 32000,
}
NEOX = {
    "architectures": ["GPTNeoXForCausalLM"],
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_act": "gelu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 16384,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.24.0",
    "use_cache": True,
    "use_parallel_residual": True,
    "vocab_size": 50432,
}
QWEN3_MOE = {
    **QWEN3,
    "architectures": ["Qwen3MoeForCausalLM"],
    "decoder_sparse_step": 1,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
}
PHI_3_MINI = {
    "_name_or_path": "Phi-3-mini-4k-instruct",
    "architectures": ["Phi3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {
        "AutoConfig": "configuration_phi3.Phi3Config",
        "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
    },
    "bos_token_id": 1,
    "embd_pdrop": 0.0,
    "eos_token_id": 32000,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 4096,
    "model_type": "phi3",
    "original_max_position_embeddings": 4096,
    "pad_token_id": 32000,
    "resid_pdrop": 0.0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "sliding_window": 2047,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.2",
    "use_cache": True,
    "vocab_size": 32064,
    **_sizes(3072, 8192, 32, 32, 32),
}
LONG = {"max_position_embeddings": 131072}

PUBLISHED = {
    "llama-30b": Published(LLAMA1, 32_528_943_616),
    "Llama-2-7b-hf": Published(LLAMA2 | _sizes(4096, 11008, 32, 32, 32), 6_738_415_616),
    "Meta-Llama-3-8B": Published(
        LLAMA | {"max_position_embeddings": 8192} | _sizes(4096, 14336, 32, 32, 8), 8_030_261_248
    ),
    "Llama-3.1-70B": Published(
        LLAMA | LONG | {"rope_scaling": LLAMA3_ROPE} | _sizes(8192, 28672, 80, 64, 8),
        70_553_706_496,
    ),
    "Llama-3.2-1B": Published(
        LLAMA
        | LONG
        | _sizes(2048, 8192, 16, 32, 8)
        | {
            "head_dim": 64,
            "rope_scaling": {**LLAMA3_ROPE, "factor": 32.0},
            "tie_word_embeddings": True,
        },
        1_235_814_400,
    ),
    "Llama-3.2-3B": Published(
        LLAMA
        | LONG
        | _sizes(3072, 8192, 28, 24, 8)
        | {
            "head_dim": 128,
            "rope_scaling": {**LLAMA3_ROPE, "factor": 32.0},
            "tie_word_embeddings": True,
        },
        3_212_749_824,
    ),
    "Qwen2.5-0.5B": Published(
        QWEN2 | {"max_window_layers": 24, "sliding_window": 32768} | _sizes(896, 4864, 24, 14, 2),
        494_032_768,
    ),
    "Qwen2.5-7B": Published(
        QWEN2
        | _sizes(3584, 18944, 28, 28, 4)
        | LONG
        | {
            "max_window_layers": 28,
            "sliding_window": 131072,
            "tie_word_embeddings": False,
            "vocab_size": 152064,
        },
        7_615_616_512,
    ),
    "Qwen3-4B": Published(
        QWEN3 | {"hidden_size": 2560, "intermediate_size": 9728, "tie_word_embeddings": True},
        4_022_468_096,
    ),
    "Qwen3-8B": Published(QWEN3 | {"hidden_size": 4096, "intermediate_size": 12288}, 8_190_735_360),
    "Qwen3-30B-A3B": Published(QWEN3_MOE, 30_532_122_624),
    "Mistral-7B-v0.1": Published(MISTRAL, 7_241_732_096),
    "Mixtral-8x7B-v0.1": Published(MIXTRAL, 46_702_792_704),
    "gemma-2b": Published(GEMMA | {"hidden_size": 2048, "intermediate_size": 16384}, 2_506_172_416),
    "gemma-7b": Published(
        GEMMA | _sizes(3072, 24576, 28, 16, 16),
        8_537_680_896,
    ),
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
    "phi-4": Published(
        LLAMA
        | _sizes(5120, 17920, 40, 40, 10)
        | {
            "model_type": "phi3",
            "architectures": ["Phi3ForCausalLM"],
            "embd_pdrop": 0.0,
            "max_position_embeddings": 16384,
            "original_max_position_embeddings": 16384,
            "resid_pdrop": 0.0,
            "rope_theta": 250000,
            "sliding_window": None,
            "vocab_size": 100352,
        },
        14_659_507_200,
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
    "gpt2-xl": Published(GPT2 | {"n_embd": 1600, "n_head": 25, "n_layer": 48}, 1_557_611_200),
}
