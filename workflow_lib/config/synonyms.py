"""Names of other programs for the keys of the configuration, to explain unknown keys."""

from __future__ import annotations

from collections.abc import Mapping

#: key → its names in Hugging Face, Megatron-LM, DeepSpeed, torchtitan, PyTorch and Slurm
_CALLED: Mapping[str, str] = {
    # models
    "layers": "num_hidden_layers num_layers n_layers n_layer decoder_layers",
    "hidden_size": "n_embd d_model dim model_dim embedding_size width",
    "ffn_hidden_size": "intermediate_size n_inner d_ff ffn_dim ffn_size hidden_dim "
    "moe_intermediate_size moe_ffn_hidden_size",
    "attention_heads": "num_attention_heads n_heads n_head num_heads heads",
    "kv_heads": "num_key_value_heads num_kv_heads n_kv_heads num_query_groups",
    "sequence_length": "max_position_embeddings n_positions n_ctx seq_len seq_length seqlen "
    "max_seq_len context_length context block_size",
    "vocabulary_size": "vocab_size n_vocab padded_vocab_size",
    "vocabulary_multiple": "make_vocab_size_divisible_by",
    "experts": "num_local_experts num_experts n_routed_experts n_experts",
    "experts_per_token": "num_experts_per_tok moe_top_k router_topk moe_router_topk top_k topk",
    "rotary_base": "rope_theta rotary_emb_base rope_base",
    "family": "model_type architecture architectures",
    # sweeps
    "models": "model",
    "platforms": "platform",
    "model": "models",
    "platform": "platforms",
    "repeats": "runs repetitions replicates trials",
    "data": "dataset",
    "matrix": "cells grid configurations",
    "exclude": "skip exclusions",
    "warmup_steps": "warmup warmup_iters warmup_iterations",
    "measured_steps": "steps num_steps max_steps iterations iters train_iters train_steps",
    "sample_rate_hz": "sample_rate sampling_rate sampling_rate_hz rate_hz hz",
    "idle_baseline_s": "idle idle_s baseline_s baseline",
    "profiled_steps": "profile profile_steps",
    "global_batch_size": "batch_size batch gbs train_batch_size total_batch_size",
    "micro_batch_size": "mbs micro_batch microbatch_size train_micro_batch_size_per_gpu "
    "per_device_train_batch_size local_batch_size",
    "learning_rate": "lr max_lr",
    "weight_decay": "wd",
    "precision": "dtype torch_dtype param_dtype mixed_precision",
    "zero_stage": "zero zero_optimization zero_level fsdp",
    "recomputation": "activation_checkpointing gradient_checkpointing checkpointing recompute "
    "recompute_granularity activation_recomputation",
    "compile": "torch_compile",
    "cuda_graphs": "cuda_graph use_cuda_graph enable_cuda_graph",
    "seed": "random_seed rng_seed",
    "backend": "engine framework",
    "workload": "task mode",
    "generated_tokens": "max_new_tokens new_tokens",
    "lora_rank": "lora_r rank r",
    "balancing_loss": "router_aux_loss_coef aux_loss_coeff moe_aux_loss_coeff",
    "gpus": "num_gpus n_gpus ngpus gpu_count world_size ranks devices",
    "tp": "tensor_parallel tensor_parallel_size tensor_parallel_degree tp_size "
    "tensor_model_parallel_size",
    "cp": "context_parallel context_parallel_size context_parallel_degree cp_size",
    "pp": "pipeline_parallel pipeline_parallel_size pipeline_parallel_degree pp_size "
    "pipeline_model_parallel_size",
    "dp": "data_parallel data_parallel_size data_parallel_degree dp_size "
    "data_parallel_replicate_degree data_parallel_shard_degree",
    "ep": "expert_parallel expert_parallel_size expert_parallel_degree ep_size "
    "expert_model_parallel_size",
    "virtual_stages": "vpp virtual_pipeline_model_parallel_size interleave_size",
    "schedule": "pipeline_schedule pipeline_parallel_schedule",
    # platforms
    "nodes": "num_nodes n_nodes nnodes node_count",
    "gpus_per_node": "gpus num_gpus n_gpus gpu_count num_gpus_per_node nproc_per_node",
    "gpu": "gpu_model gpu_name accelerator device",
    "gpu_memory_gb": "gpu_memory memory_gb vram_gb vram",
    "memory_per_node_gb": "mem memory host_memory_gb ram_gb",
    "cpus_per_gpu": "cpus cpus_per_task cores_per_gpu",
    "partition": "queue partitions",
    "time_limit_max_min": "time time_limit time_limit_min walltime max_time",
    "power_limit_w": "power_limit power_cap power_cap_w tdp tdp_w",
    "idle_temperature_c": "idle_temperature idle_temp_c",
    "expected_mfu": "mfu",
    "python": "interpreter python_path",
    "modules": "module environment_modules",
    "container": "image container_image",
    "environment": "env env_vars environment_variables variables",
    "sbatch_options": "sbatch sbatch_args extra_args extra_sbatch",
    "exclude_nodes": "exclude nodes_exclude exclude_hosts",
    # data
    "sources": "files file paths path corpus",
    "maximum_tokens": "max_tokens token_limit",
    # config.yaml
    "results_directory": "results output output_directory results_dir",
    "config_directory": "config config_dir",
    "sweeps": "sweep",
}


def meant(word: str) -> tuple[str, ...]:
    """The keys that a word of another program may mean; several if kinds of files differ."""
    plain = word.lower().replace("-", "_")
    return tuple(key for key, words in _CALLED.items() if plain in words.split())


#: all keys that have synonyms
KEYS = tuple(_CALLED)
