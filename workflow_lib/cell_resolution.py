"""Resolves a point of a matrix to degrees and training options.

Two points that would run the same become the same cell.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from workflow_lib import feasibility
from workflow_lib.config import OF_A_WORKLOAD, Platform, Protocol, TrainingAxes
from workflow_lib.records import axes
from workflow_lib.records.bounds import FACTORS
from workflow_lib.records.degrees import DEGREES, Degrees
from workflow_lib.records.model import Model
from workflow_lib.records.training import NATIVE, Training
from workflow_lib.trainers import capabilities


def for_each_gpu(limits: int | tuple[int, ...] | None, gpus: int, platform: Platform) -> Any:
    """The limits of a node's GPUs; a single number is repeated for each GPU that is used."""
    if isinstance(limits, int):
        return (limits,) * (gpus // -(-gpus // platform.gpus_per_node))
    return limits or ()


def gpus_of(point: Mapping[str, Any], platform: Platform) -> int:
    """The number of GPUs of a point: the given one, or all GPUs of its nodes."""
    nodes = min(point["nodes"] or platform.nodes, platform.nodes)
    return point["gpus"] or nodes * platform.gpus_per_node


def degrees_of(point: Mapping[str, Any], gpus: int, model: Model) -> Degrees:
    """The degrees of a point, with "rest" resolved. If the other degrees do not divide the GPUs,
    undivided says so later. With "auto", stages are even here: the division by work needs the
    training options.
    """
    given = {key: point[key] for key in (*DEGREES, "stage_layers", "gpu_order", "gpu_uuids")}
    if isinstance(given["stage_layers"], str):
        given["stage_layers"] = ()
    for rest in FACTORS:
        if given[rest] == "rest":
            others = math.prod(given[name] for name in FACTORS if name != rest)
            given[rest] = max(gpus // others, 1)
    if given["pp"] == 1:
        given["schedule"] = "1f1b"  # without a pipeline the schedule has no meaning
    return plainest(Degrees(**given), model)


def undivided(point: Mapping[str, Any], gpus: int) -> str | None:
    """Why the other degrees do not divide the GPUs, if one degree is "rest"; else None."""
    degrees = {name: point[name] for name in FACTORS}
    given = {name: degree for name, degree in degrees.items() if degree != "rest"}
    return None if given == degrees else feasibility.undivided(given, gpus)


def plainest(degrees: Degrees, model: Model) -> Degrees:
    """The degrees without lists of layers and GPUs that equal the defaults, so that both give the
    same cell.
    """
    even = dataclasses.replace(degrees, stage_layers=())
    if degrees.stage_layers == even.layers_of_stages(model.layers):
        degrees = even
    if degrees.gpu_order == tuple(range(len(degrees.gpu_order))):
        degrees = dataclasses.replace(degrees, gpu_order=())
    return degrees


def training_of(
    point: Mapping[str, Any], degrees: Degrees, model: Model, protocol: Protocol
) -> Training:
    """The training options of a point. Options that have no meaning in its cell get their defaults,
    so that two cells that would run the same have the same name.
    """
    options = {option: point[option] for option in TrainingAxes.model_fields}
    wanted = options.pop("backend")
    workload = options["workload"]
    if degrees.tp == 1 or workload == "inference":
        options["sequence_parallel"] = False
    if not model.experts:
        options["routing"] = None
    if not model.experts or workload == "inference":
        options["balancing_loss"] = 0.0
    for field in axes.fields(Training):
        if OF_A_WORKLOAD.get(field.name, workload) != workload:
            options[field.name] = field.default
    training = Training(**options, **protocol.fields_of(Training))
    if training.trainer != NATIVE:
        return dataclasses.replace(training, backend="own")
    training = capabilities.with_backend(degrees, training, model, wanted)
    if training.backend == "deepspeed" and training.precision == "bf16" and degrees.dp == 1:
        # With one replica, DeepSpeed runs ZeRO-1 for both stages 0 and 1.
        training = dataclasses.replace(training, zero_stage=max(training.zero_stage, 1))
    return training
