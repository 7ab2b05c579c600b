"""The cells that the engine is measured with, by set."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from research.plain import PLAIN
from workflow_lib import pipelines
from workflow_lib.cells import hardware_of
from workflow_lib.records.cell import Cell, Data, Telemetry
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.model import Model
from workflow_lib.study import load_study
from workflow_lib.trainers import capabilities

CONFIG = Path(__file__).resolve().parents[2] / "config"


#: model, its layers (0: all), degrees, training options; ``stage_layers`` may be "auto"
Recipe = tuple[str, int, dict[str, Any], dict[str, Any]]


def option_sets(gpus: int) -> dict[str, list[Recipe]]:
    """The cells by set."""
    half = max(1, gpus // 2)
    tensor, pipeline, sharded = {"tp": gpus}, {"pp": gpus}, {"dp": gpus}
    dense = [
        (tensor, {"recomputation": "full"}),
        (tensor, {"recomputation": "none", "backend": "torch", "overlap": True}),
        ({"tp": half, "pp": 2}, {"recomputation": "full"}),
        (pipeline, {"recomputation": "full"}),
        (pipeline, {"recomputation": "full", "backend": "torch", "overlap": True}),
        (sharded, {"recomputation": "full", "zero_stage": 3}),
        (sharded, {"recomputation": "full", "zero_stage": 3, "backend": "torch"}),
    ]
    experts = [
        ({"dp": gpus, "ep": gpus}, {"recomputation": "full", "routing": "balanced"}),
        ({"dp": gpus, "ep": gpus}, {"recomputation": "full", "backend": "torch"}),
        ({"tp": 2, "dp": half, "ep": half}, {"recomputation": "full", "routing": "balanced"}),
        ({"dp": half, "pp": 2, "ep": half}, {"recomputation": "full", "routing": "balanced"}),
        ({"tp": gpus}, {"recomputation": "full", "routing": "balanced"}),
    ]
    best = {"backend": "torch", "compile": True, "overlap": gpus > 1, "recomputation": "none"}
    whole = [
        ({"dp": gpus}, {**best}),
        ({"dp": gpus}, {"zero_stage": 3, **best}),
        ({"dp": gpus}, {"zero_stage": 2, **best}),
        ({"dp": gpus}, {"zero_stage": 3, **best, "micro_batch_size": 2}),
        ({"dp": gpus}, {"zero_stage": 3, **best, "compile": False}),
        ({"dp": gpus}, {"zero_stage": 2, "overlap": gpus > 1, "recomputation": "none"}),
    ]
    twins = {"gpt3-175b": dense, "llama3-70b": dense} | dict.fromkeys(
        ("mixtral-8x7b", "mixtral-8x22b"), experts
    )
    sets: dict[str, list[Recipe]] = {
        "llama3-8b": [("llama3-8b", 0, *one) for one in whole],
        "llama3-8b-8l": [("llama3-8b", 8, *one) for one in whole],
        **{name: [(name, 8, *one) for one in of_kind] for name, of_kind in twins.items()},
    }
    pairs = [
        ({"dp": gpus}, {"zero_stage": 3, "backend": "torch"}),
        ({"dp": gpus}, {"zero_stage": 1, "backend": "torch"}),
        ({"dp": gpus}, {"zero_stage": 3}),
        ({"tp": gpus}, {"backend": "torch"}),
        ({"pp": gpus}, {"backend": "torch"}),
        ({"pp": half, "dp": 2, "virtual_stages": 2}, {"backend": "torch"}),
    ]
    sets["overlap"] = [
        ("llama3-8b", 8, degrees, {**options, "overlap": overlap})
        for degrees, options in pairs
        for overlap in (False, True)
    ]
    by_work = {"pp": gpus, "stage_layers": "auto"}
    sets["pipelines"] = [
        ("llama3-8b", 0, degrees, {"backend": "torch", "overlap": overlap})
        for degrees, overlap in (
            ({"pp": gpus}, False),
            (by_work, False),
            (by_work, True),
            ({**by_work, "virtual_stages": 2}, True),
            ({**by_work, "schedule": "zero-bubble"}, True),
            ({**by_work, "virtual_stages": 2, "schedule": "zero-bubble"}, True),
            ({**by_work, "virtual_stages": 2, "schedule": "zero-bubble-v"}, True),
        )
    ]
    sets["context"] = [
        (
            *(model, 8, {"cp": cp, "dp": gpus // cp}),
            {"zero_stage": 3, "recomputation": "full", "backend": "torch", "overlap": True},
        )
        for model in ("llama3-8b", "llama3-8b-32k")
        for cp in dict.fromkeys((1, half, gpus))
    ]
    sets["fp8"] = [
        (
            *("llama3-8b", 8, degrees),
            {**options, "backend": "torch", "compile": True, "overlap": True, "precision": each},
        )
        for degrees, options in (({"dp": gpus}, {"zero_stage": 3}), ({"pp": gpus}, {}))
        for each in ("bf16", "fp8")
    ]
    spread = {"dp": gpus, "ep": gpus}
    sets["experts"] = [
        ("mixtral-8x7b", 8, spread, {"backend": "torch", **options, "overlap": overlap})
        for options in (
            {"recomputation": "full", "routing": "balanced"},
            {"compile": True, "routing": "balanced"},
            {"recomputation": "full"},
        )
        for overlap in (False, True)
    ]
    sets["twins"] = [one for name in twins for one in sets[name]]
    return sets


def say(text: str) -> None:
    """Print a line where this process launches others, which need not say it again."""
    if "RANK" not in os.environ:
        print(text)


def make_cells(options_given: argparse.Namespace, gpus: int) -> Iterator[Cell]:
    """The cells of the sets on ``gpus`` GPUs; those that no backend can run are left out aloud."""
    study, platform = load_study(CONFIG), options_given.platform
    seen: set[str] = set()
    for name in options_given.sets:
        for model_name, layers, degrees, options in option_sets(gpus)[name]:
            model: Model = study.models[model_name].record(model_name)
            layers = options_given.layers or layers or model.layers
            model = dataclasses.replace(model, layers=layers)
            divided = degrees.get("stage_layers")
            degree = Degrees(**degrees | {"stage_layers": ()})
            if degree.world_size != gpus:
                say(f"{model.name} {degree.name}: needs {degree.world_size} GPUs, not {gpus}")
                continue
            plain = {
                "global_batch_size": 4 * gpus,
                "warmup_steps": options_given.warmup,
                "measured_steps": options_given.steps,
                "sequence_parallel": degree.tp > 1,
                "routing": "dropless" if model.experts else None,
            }
            training = dataclasses.replace(PLAIN, **plain | options)
            if divided == "auto":
                layers_of_stages = pipelines.layers_by_work(model, degree, training)
                degree = dataclasses.replace(degree, stage_layers=layers_of_stages)
            if reason := capabilities.refusal(degree, training, model):
                say(f"{model.name} {degree.name} {training.name}: {reason}")
                continue
            identity = f"{platform}/{model.name}-{model.layers}l/{degree.name}_{training.name}_0"
            if identity in seen:
                continue  # with few GPUs two layouts can be the same
            seen.add(identity)
            yield Cell(
                id=identity,
                model=model,
                degrees=degree,
                training=training,
                data=Data("synthetic", "synthetic"),
                hardware=hardware_of(platform, study.platforms[platform]),
                telemetry=Telemetry("nvidia", 10.0, 0.0),
                nodes=1,
                software={},
            )
