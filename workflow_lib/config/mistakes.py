"""Explains mistakes in configuration files in words of YAML and of the configuration."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from workflow_lib.config import sbatch
from workflow_lib.config.fields import TEXT, Strict
from workflow_lib.config.models import ModelSpec
from workflow_lib.config.platforms import Platform
from workflow_lib.records import bounds, shown

Location = tuple[str | int, ...]

#: pydantic's type errors → what was expected, in words of YAML
_TYPES: Mapping[str, str] = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "keys and values",
    "mapping_type": "keys and values",
    "model_type": "keys and values",
    "model_attributes_type": "keys and values",
}

_PATTERNS: Mapping[str, str] = {
    TEXT: "one line of text without control characters",
    sbatch.WORD: "a word of letters, digits and _.,:@+- that begins with a letter or digit",
    sbatch.CONSTRAINT: "Slurm features, of letters, digits and _.,:@+&|*()[]-",
    sbatch.HOSTS: "names of nodes as Slurm writes them, such as node7 or node[1-3]",
    sbatch.OPTION: "the long name of an option of sbatch without its hyphens, such as wckey",
}


_NUMBER = re.compile(r"[+-]?(0|[1-9][0-9]*)(\.[0-9]+)?")
#: the unit that ends a duration's key → how many seconds it has
_UNITS_S = {"_min": 60, "_s": 1}


def told(error: ValidationError, kind: type[Strict]) -> list[str]:
    """Each mistake as a line ``key: what is wrong; what to do``, one for each key."""
    grouped: dict[Location, list[dict[str, Any]]] = {}
    for each in error.errors():
        plain = dict(each)
        grouped.setdefault(_location(plain), []).append(plain)
    # If a value may be a scalar or a list, pydantic reports errors of both. The list's are deeper.
    deepest = [
        location
        for location in grouped
        if not any(o != location and o[: len(location)] == location for o in grouped)
    ]
    return [_told(kind, location, grouped[location]) for location in deepest]


#: names that only a suffix tells from a wrong one: with more of them, valid names are listed
_RELATED = 4


def nearest(name: str, valid: Iterable[str]) -> str:
    """A remedy for a wrong name: a similar valid name, else those that only a suffix tells from it,
    else a list of valid ones.

    Names with different numbers are not similar: h100 is not suggested for h1000. The suffix is
    that of a view: the sweep "lora" has the views "lora-h200" and "lora-h100".
    """
    known = sorted(valid)
    for close in difflib.get_close_matches(name, known, n=3, cutoff=0.75):
        numbers = re.findall(r"\d+", name), re.findall(r"\d+", close)
        if numbers[0] == numbers[1] or not all(numbers):
            return f"did you mean {close!r}?"
    related = [one for one in known if f"{one}-".startswith(f"{name}-")]
    related = related or [one for one in known if name.startswith(f"{one}-")]
    if 0 < len(related) <= _RELATED:
        return f"did you mean {' or '.join(map(repr, related))}?"
    return listed(known)


def listed(valid: Iterable[str]) -> str:
    """A remedy for a wrong name: a list of up to 20 valid ones."""
    known = sorted(valid)
    more = f" and {len(known) - 20} more" if len(known) > 20 else ""
    return f"valid: {', '.join(known[:20]) or 'none'}{more}"


def in_yaml(value: object) -> str:
    """A value in words of YAML: "nothing", "true", "the text 'a'"."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text {shown(value)}"
    if isinstance(value, (list, tuple)):
        return f"the list {shown([*value])}"
    return "keys and values" if isinstance(value, dict) else shown(value)


def _told(kind: type[Strict], location: Location, errors: Sequence[Mapping[str, Any]]) -> str:
    key = ".".join(str(part)[: bounds.VALUE_LETTERS.most] for part in location) or "(whole file)"
    types = [error for error in errors if error["type"] in _TYPES]
    others = [error for error in errors if error not in types]
    # An error about a value of the right type says more than an error about its type.
    first = next((error for error in others if error["type"] != "literal_error"), errors[0])
    value, message = first["input"], str(first["msg"]).removeprefix("Value error, ")
    match first["type"]:
        case "extra_forbidden":
            return f"{key}: unknown key; {_remedy(kind, location)}"
        case "missing":
            return f"{key}: missing; this key is required"
        case "value_error":
            return f"{key}: {message}" if location else message
        case "string_pattern_mismatch" if pattern := _PATTERNS.get(first["ctx"]["pattern"]):
            return f"{key}: expected {pattern}, not {shown(value)}"
        case "too_short" if not value:
            return f"{key}: the list is empty; give it a value, or leave the key out"
        case found if found not in _TYPES and found != "literal_error":
            message = message.replace("Input should be", "must be").replace("Tuple", "the list")
            return f"{key}: {message}, not {_plain(value)}"
    literals = [str(error["ctx"]["expected"]).replace("True", "true") for error in others]
    expected = list(dict.fromkeys([*literals, *(_TYPES[error["type"]] for error in types)]))
    words = " or ".join([*(each.replace(" or ", ", ") for each in expected[:-1]), expected[-1]])
    return f"{key}: expected {words}, not {in_yaml(value)}{_hint(location[-1], value, words)}"


def _plain(value: object) -> str:
    return (
        in_yaml(value) if isinstance(value, (bool, list, tuple, dict, type(None))) else shown(value)
    )


def _hint(key: str | int, value: object, expected: str) -> str:
    """What to write instead, for common mistakes; else empty."""
    before = "- " if isinstance(key, int) else f"{key}: "
    plain = shown(value).strip("'")
    match value:
        case str() if "number" in expected and _NUMBER.fullmatch(value):
            return f"; leave out the quotes: {before}{plain}"
        case str() if "number" in expected and (seconds := sbatch.seconds(value)) is not None:
            for unit, unit_s in _UNITS_S.items():
                if str(key).endswith(unit):
                    return f"; write {before}{-(-seconds // unit_s)}"
        case "true" | "false" if expected.startswith("true"):
            return f"; leave out the quotes: {before}{plain}"
        case str() if "a list" in expected and re.fullmatch(r"[\w.+-]+(, *[\w.+-]+)+", value):
            return f"; write a list: {before}[{plain}]"
        case str() if f"'{value.lower()}'" in expected:
            return f"; write {before}{plain.lower()}"
        case "none" | "None" if expected == "a list":
            return f"; for none write {before}[]"
        case bool() if expected == "text":
            return "; YAML reads yes, no, on and off as true and false: put it in quotes"
        case int() | float() if expected == "text":
            return f'; put it in quotes: {before}"{plain}"'
        case str() | int() | float() if expected == "a list":
            return f"; write a list: {before}[{plain}]"
        case str() | int() | float() if expected == "keys and values":
            return f", as in {before}{{key: value}}"
        case dict() if expected == "a list":
            return "; begin each of its entries with a hyphen and a blank"
        case [str() | int() | float() as only] if "a list" not in expected:
            return f"; give one value: {before}{shown(only).strip(chr(39))}"
    return ""


def _location(error: Mapping[str, Any]) -> Location:
    """Where in the file an error is, without parts that pydantic adds for a union's branches."""
    found: Location = error["loc"]
    # The last part of an unknown key's location is the key itself, whatever it looks like.
    parts = len(found) - (error["type"] == "extra_forbidden")
    return (*(part for part in found[:parts] if not _is_type_tag(part)), *found[parts:])


def _is_type_tag(part: str | int) -> bool:
    """Whether pydantic, not the file, put this part into an error's location (a union's branch)."""
    tags = ("int", "str", "bool", "float", "constrained-int", "constrained-float")
    return isinstance(part, str) and bool(
        re.search(r"[\[(]", part) or part in (*tags, "constrained-str")
    )


# ------------------------------------------------------------------------------------ unknown keys


def _remedy(kind: type[Strict], location: Location) -> str:
    """What to do about an unknown key: another place where it is valid; else a key of the same
    meaning; else a similar key.
    """
    key, here = str(location[-1]), _model_at(kind, location[:-1])
    valid, elsewhere = [*here.model_fields], _places(kind)
    if key in elsewhere:
        return f"it belongs in {elsewhere[key]}"
    for ours in _meant(key):
        if ours in valid:
            return f"did you mean {ours!r}?"
    for ours in _meant(key):
        if ours in elsewhere:
            return f"did you mean {ours!r} in {elsewhere[ours]}?"
    for ours in (key, *_meant(key)):
        for name, file in (("model", ModelSpec), ("platform", Platform)):
            if ours in file.model_fields and here is not file:
                guess = "" if ours == key else f"did you mean {ours!r}? "
                return f"{guess}it belongs in the file of a {name}, config/{name}s/<name>.yaml"
    return nearest(key, valid)


def _model_at(kind: type[Strict], location: Location) -> type[Strict]:
    """The model at a place in the file."""
    model = kind
    for part in location:
        if isinstance(part, str):
            model = _models(model, part)[0]
    return model


def _places(kind: type[Strict], path: str = "") -> dict[str, str]:
    """Key → the place in this kind of file where it is valid; the first one if there are more."""
    found: dict[str, str] = {}
    for name in kind.model_fields:
        for inner in _models(kind, name):
            for key in inner.model_fields:
                found.setdefault(key, f"{path}{name}")
            for key, place in _places(inner, f"{path}{name}.").items():
                found.setdefault(key, place)
    if not path:
        for key in kind.model_fields:
            found[key] = "the file itself, without indentation"
    return found


def _models(kind: type[Strict], field: str) -> list[type[Strict]]:
    """The models that a field is made of."""
    annotation = kind.model_fields[field].annotation
    return [a for a in _flatten(annotation) if isinstance(a, type) and issubclass(a, Strict)]


def _flatten(annotation: Any) -> list[Any]:
    arguments = getattr(annotation, "__args__", ())
    return [annotation] + [leaf for argument in arguments for leaf in _flatten(argument)]


#: key → its names in Hugging Face, Megatron-LM, DeepSpeed, torchtitan, PyTorch and Slurm
SYNONYMS: Mapping[str, str] = {
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


def _meant(word: str) -> tuple[str, ...]:
    """The keys that a word of another program may mean; several if kinds of files differ."""
    plain = word.lower().replace("-", "_")
    return tuple(key for key, words in SYNONYMS.items() if plain in words.split())
