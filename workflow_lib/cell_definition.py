"""Defines a cell: its record, and the digits that tell it from every other cell."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from workflow_lib import gpu_models
from workflow_lib.config import Platform, Protocol
from workflow_lib.records.axes import as_before, fields
from workflow_lib.records.cell import Cell, Data, Hardware, Telemetry
from workflow_lib.records.cell_axes import CELL_FORMAT
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.model import Model
from workflow_lib.records.training import Training
from workflow_lib.study import Study


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
    as it is. (``dataclasses.asdict`` copies every value, which took half of the time of a plan.)
    """
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return dict(value) if isinstance(value, Mapping) else value


def _digits(plain: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits of a SHA-256 over JSON."""
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
