"""Makes a cell of a point of a matrix: its degrees and training options, its record, and the digits
that tell it from every other cell. Two points that would run the same become the same cell."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from workflow_lib import feasibility, gpu_models
from workflow_lib.config import ONLY_WITH, Platform, Protocol, TrainingAxes
from workflow_lib.records.axes import as_before, fields
from workflow_lib.records.bounds import FACTORS
from workflow_lib.records.cell import Cell, Data, Hardware, Telemetry
from workflow_lib.records.cell_axes import CELL_FORMAT
from workflow_lib.records.degrees import DEGREES, Degrees
from workflow_lib.records.model import Model
from workflow_lib.records.training import NATIVE, Training
from workflow_lib.study import Study
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
    training options."""
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
    same cell."""
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
    so that two cells that would run the same have the same name."""
    options = {option: point[option] for option in TrainingAxes.model_fields}
    wanted = options.pop("backend")
    workload = options["workload"]
    if degrees.tp == 1 or workload == "inference":
        options["sequence_parallel"] = False
    if not model.experts:
        options["routing"] = None
    if not model.experts or workload == "inference":
        options["balancing_loss"] = 0.0
    for field in fields(Training):
        if field.name in ONLY_WITH:
            other, value = ONLY_WITH[field.name]
            if point[other] != value:
                options[field.name] = field.default
    training = Training(**options, **protocol.fields_of(Training))
    if training.trainer != NATIVE:
        return dataclasses.replace(training, backend="own")
    training = capabilities.with_backend(degrees, training, model, wanted)
    if training.backend == "deepspeed" and training.precision == "bf16" and degrees.dp == 1:
        # With one replica, DeepSpeed runs ZeRO-1 for both stages 0 and 1.
        training = dataclasses.replace(training, zero_stage=max(training.zero_stage, 1))
    return training


def cell_of(
    study: Study,
    protocol: Protocol,
    platform_name: str,
    model: Model,
    data_name: str,
    degrees: Degrees,
    training: Training,
    gpus: int,
) -> Cell:
    """The cell with its id."""
    platform = study.platforms[platform_name]
    data = study.data[data_name]
    defined = data.model_dump(mode="json", exclude={"description"})
    draft = Cell(
        id="",
        model=model,
        degrees=degrees,
        training=training,
        data=Data(name=data_name, kind=data.kind, definition=_digits(defined)),
        hardware=hardware_of(platform_name, platform),
        telemetry=_telemetry(platform, protocol),
        nodes=-(-gpus // platform.gpus_per_node),
        software=_software(platform),
        format=CELL_FORMAT,
    )
    digest = _digest(draft, defined)
    name = f"{degrees.name}_{training.name}_{digest}"
    return dataclasses.replace(draft, id=f"{platform_name}/{model.name}/{name}")


def hardware_of(name: str, platform: Platform) -> Hardware:
    """The hardware of a platform's nodes, with known peaks of its GPU model."""

    def scaled(value: float | None, factor: float) -> float | None:
        return None if value is None else value * factor

    def peak(precision: str, given_tflops: float | None) -> float | None:
        known = gpu_models.peak_flops_per_s(gpu_models.named(platform.gpu), precision)
        return scaled(given_tflops, 1e12) if known is None else known

    gigabytes = platform.gpu_memory_gb
    alike = {field.name for field in fields(Hardware)} & Platform.model_fields.keys()
    return Hardware(
        **{field: getattr(platform, field) for field in alike},
        platform=name,
        gpu_memory_bytes=None if gigabytes is None else int(gigabytes * 1e9),
        peak_bf16_flops_per_s=peak("bf16", platform.peak_bf16_tflops),
        peak_fp32_flops_per_s=peak("fp32", platform.peak_fp32_tflops),
        intra_node_bytes_per_s=scaled(platform.link_gb_per_s, 1e9),
        inter_node_bytes_per_s=scaled(platform.network.gbit_per_s or None, 1e9 / 8),
        peak_fp8_flops_per_s=peak("fp8", platform.peak_fp8_tflops),
    )


def _telemetry(platform: Platform, protocol: Protocol) -> Telemetry:
    if platform.idle_temperature_c is None:
        protocol = protocol.model_copy(update={"cool_down": None})
    given = {"source": platform.telemetry, **protocol.fields_of(Telemetry)}
    if "sample_rate_hz" not in given:
        given["sample_rate_hz"] = max(protocol.interleaved_rates_hz)
    if protocol.cool_down is not None and platform.idle_temperature_c is not None:
        given["cool_down_to_c"] = platform.idle_temperature_c + protocol.cool_down.within_c
    return Telemetry(**given)


def _software(platform: Platform) -> dict[str, str]:
    """The environment variables, modules and container of the job, which may change results."""
    software = {f"environment.{name}": value for name, value in platform.environment.items()}
    software |= {f"module.{i}": module for i, module in enumerate(platform.modules)}
    if platform.container is not None:
        software["container"] = f"{platform.container.runtime}:{platform.container.image}"
    return dict(sorted(software.items()))


def _digest(cell: Cell, data: Mapping[str, Any]) -> str:
    """Eight digits that identify the cell: they differ for cells that differ in anything that can
    change a result.

    Values that only the analysis uses (peaks, links, power limits, airflow) are left out, so that a
    correction of them does not require new runs. Fields that later formats introduced are left out
    while they have their defaults, so that older cells keep their digits.
    """
    plain = {name: _shallow(value) for name, value in _shallow(cell).items()}
    del plain["format"]
    for part in plain.keys() - {"software"}:
        if isinstance(plain[part], dict):
            record = getattr(cell, part)
            for name in as_before(record) | _of_analysis(record.__class__):
                del plain[part][name]
    plain |= {f"hardware.{name}": value for name, value in plain.pop("hardware").items()}
    plain["data"] = {"name": cell.data.name, **data}
    return _digits(plain)


@functools.cache
def _of_analysis(record: type) -> frozenset[str]:
    """The names of a record's fields that only the analysis uses."""
    return frozenset(field.name for field in fields(record) if field.axis.role == "analysis")


def _shallow(value: Any) -> Any:
    """A record as a dictionary of its fields' values, another mapping as a copy, and anything else
    as it is. (``dataclasses.asdict`` copies every value, which took half of the time of a plan.)"""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return dict(value) if isinstance(value, Mapping) else value


def _digits(plain: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits of a SHA-256 over JSON."""
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
