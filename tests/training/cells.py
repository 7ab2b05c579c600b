"""Cells small enough to train in a test."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from tests import made_cells
from workflow_lib.records.cell import Cell, Telemetry
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.model import Model

GPT = Model("gpt-test", "gpt", 4, 64, 256, 4, 4, 64, 257, 128)
LLAMA = Model("llama-test", "llama", 4, 64, 192, 4, 2, 64, 257, 128)
MIXTRAL = Model("mixtral-test", "mixtral", 4, 64, 192, 4, 2, 64, 257, 128, 4, 2, 1e6)
NEOX = replace(GPT, name="neox-test", family="neox", rotary_base=1e4, rotary_share=0.25)
#: what Llama 3.2, Qwen2 and Qwen3 have beside Llama 3, and Gemma's feed-forward part, all at once
MODERN = replace(
    LLAMA,
    name="modern-test",
    tied_embeddings=True,
    head_dimension=24,
    qkv_bias=True,
    qk_norm=True,
    rotary_scaling=(8.0, 1.0, 4.0, 32.0),
    norm_epsilon=1e-6,
    activation="gelu_tanh",
    embedding_scale=8.0,
)

#: each family, and each part that models of one family differ in
MODELS = (GPT, NEOX, LLAMA, MIXTRAL, MODERN)

TRAINING = replace(
    made_cells.TRAINING,
    **{"global_batch_size": 4, "precision": "fp32", "learning_rate": 3e-3, "seed": 7},
    **{"warmup_steps": 1, "measured_steps": 4},
)
HARDWARE = replace(made_cells.HARDWARE, platform="local", gpus_per_node=2, airflow=("unknown",) * 2)


def cell(model: Model = LLAMA, degrees: Degrees | None = None, **training: Any) -> Cell:
    """A cell on the CPU with synthetic tokens, on one node that has a GPU for each rank."""
    degrees = degrees or Degrees()
    gpus = max(2, degrees.world_size)
    return made_cells.made_cell(
        id=f"local/{model.name}/test_test_0",
        model=model,
        degrees=degrees,
        training=replace(TRAINING, **training),
        hardware=replace(HARDWARE, gpus_per_node=gpus, airflow=("unknown",) * gpus),
        telemetry=Telemetry("simulated", 20.0, 0.0),
    )


#: what a word of a cell's name says: its model, an option, or an option's number
_MODELS = {"gpt": GPT, "neox": NEOX, "llama": LLAMA, "modern": MODERN, "mixtral": MIXTRAL}
_OPTIONS: dict[str, dict[str, Any]] = {
    **{word: {"backend": word} for word in ("deepspeed", "torch")},
    **{word: {"precision": word} for word in ("fp32", "bf16", "fp8")},
    "tensorwise": {"fp8_recipe": "tensorwise"},
    "gwhp": {"fp8_recipe": "rowwise_with_gw_hp"},
    "overlap": {"overlap": True},
    "sequence": {"sequence_parallel": True},
    "compiled": {"compile": True},
    "full": {"recomputation": "full"},
    "selective": {"recomputation": "selective"},
    "balanced": {"routing": "balanced"},
    "balancing": {"balancing_loss": 0.01},
    "lora": {"workload": "lora", "lora_rank": 4},
    "inference": {"workload": "inference", "generated_tokens": 12, "zero_stage": 0},
    "graphs": {"cuda_graphs": True},
}
_NUMBERS = {
    "zero": "zero_stage",
    "micro": "micro_batch_size",
    "batch": "global_batch_size",
    "tokens": "generated_tokens",
}
_SIZES = {
    "layers": "layers",
    "experts": "experts",
    "length": "sequence_length",
    "ffn": "ffn_hidden_size",
    "multiple": "vocabulary_multiple",
}


def named(name: str, **options: Any) -> Cell:
    """The cell that a name tells: "torch pp2x2 dp2 stages1,2,2,1 layers6 gpt bf16", word by word.

    ``options`` hold where the name says nothing else. Without a word for it the model is LLAMA;
    with EP, which takes DP along, it is MIXTRAL. Raises KeyError for an unknown word.
    """
    degrees: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    model = None
    for word in name.split():
        counted = re.fullmatch(r"([a-z]+)(\d.*)", word)
        if word in _MODELS:
            model = _MODELS[word]
        elif word.startswith("zero-bubble"):
            degrees["schedule"] = word
        elif word in _OPTIONS or not counted:
            options |= _OPTIONS[word]
        else:
            kind, numbers = counted[1], [int(number) for number in re.split("[,x]", counted[2])]
            if kind == "stages":
                degrees["stage_layers"] = tuple(numbers)
            elif kind in _SIZES:
                sizes[_SIZES[kind]] = numbers[0]
            elif kind in _NUMBERS:
                options[_NUMBERS[kind]] = numbers[0]
            else:
                degrees |= zip((kind, "virtual_stages"), numbers, strict=False)
    if "ep" in degrees:
        degrees.setdefault("dp", degrees["ep"])
    model = model or (MIXTRAL if "ep" in degrees else LLAMA)
    if model.experts:
        options.setdefault("routing", "dropless")
    return cell(replace(model, **sizes), Degrees(**degrees), **options)
