"""Expands a sweep's matrix to cells, and finds out whether each cell can run."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from workflow_lib import gpu_models, pipelines, records, results
from workflow_lib.config import (
    OPTION_DEFAULTS,
    Exclusion,
    MatrixEntry,
    Platform,
    Prediction,
    Protocol,
    SweepSpec,
    TrainingAxes,
    values,
)
from workflow_lib.feasibility import (
    Estimate,
    does_not_fit,
    estimate,
    infeasibility,
    undivided,
)
from workflow_lib.records import Cell, Degrees, Model, Training, bounds
from workflow_lib.records.axes import as_before, fields
from workflow_lib.records.cell_axes import AXES, CELL_FORMAT
from workflow_lib.study import ConfigError, Study, lookup
from workflow_lib.training import capabilities

_LIMITS = ("power_limits_w", "clock_limits_mhz")
_DEGREES = ("tp", "cp", "pp", "dp", "ep", "virtual_stages", "schedule")


@dataclass(frozen=True)
class PlannedCell:
    """A cell with its estimate, or with the reason why it cannot run."""

    cell: Cell
    repeats: int
    estimate: Estimate | None
    #: null if it can run
    reason: str | None
    #: steps of the profiled run; 0 without one
    profiled_steps: int = 0
    #: what it should gain against another cell of its sweep
    prediction: Prediction | None = None

    @property
    def runs(self) -> tuple[int, ...]:
        """The numbers of the cell's runs."""
        return results.run_numbers(self.repeats, self.profiled_steps)

    @property
    def feasible(self) -> bool:
        """Whether the cell can run."""
        return self.reason is None


@dataclass(frozen=True)
class Sweep:
    """A sweep on one platform. It has one directory under results/sweeps.

    A sweep over several platforms becomes one of these for each, named ``<sweep>-<platform>``.
    """

    name: str
    #: the name of the sweep's file
    spec: str
    description: str
    platform: str
    cells: tuple[PlannedCell, ...]
    #: numbers of the entries of ``exclude`` that fit no cell on any of the file's platforms
    idle_exclusions: tuple[int, ...] = ()


def expand_study(study: Study) -> dict[str, Sweep]:
    """Name → sweep, for every sweep of the study on each of its platforms."""
    sweeps = {}
    for name, spec in study.sweeps.items():
        used: set[int] = set()
        of_file = {each: tuple(_expand(study, spec, each, used)) for each in spec.platforms}
        idle = tuple(number for number in range(len(spec.exclude)) if number not in used)
        for platform, planned in of_file.items():
            view = name if len(spec.platforms) == 1 else f"{name}-{platform}"
            sweeps[view] = Sweep(view, name, spec.description, platform, planned, idle)
    return sweeps


def _expand(
    study: Study, spec: SweepSpec, platform_name: str, used: set[int]
) -> Iterator[PlannedCell]:
    """Yield the cells. The numbers of the exclusions that fit one are added to ``used``."""
    seen = set()
    predictions: list[Prediction] = []
    _refuse_too_many(spec, platform_name)
    for entry in spec.matrix:
        if entry.platforms is not None and platform_name not in values(entry.platforms):
            continue
        points = (
            point | {"gpu_order": order}
            for point in _points(entry, spec.training)
            for order in _orders(study, platform_name, point)
        )
        for point in points:
            planned = _plan(study, spec, platform_name, point)
            if entry.predicted is not None:
                planned = dataclasses.replace(planned, prediction=entry.predicted)
                predictions.append(entry.predicted)
            fit = {i for i, each in enumerate(spec.exclude) if _excluded(planned.cell, each)}
            used |= fit
            if fit:
                continue
            if planned.cell.id not in seen:
                seen.add(planned.cell.id)
                yield planned
    _refuse_unfit(predictions, spec, platform_name, seen)


def _refuse_unfit(
    predictions: Sequence[Prediction], spec: SweepSpec, platform_name: str, cells: Set[str]
) -> None:
    """Raises ConfigError if a prediction is of several cells, or against one that is not there."""
    for prediction in predictions:
        if predictions.count(prediction) > 1:
            raise ConfigError(
                f"the sweep {spec.description!r}: an entry with a prediction makes several cells "
                f"on {platform_name}, expected one: give each of its axes one value"
            )
        if prediction.against not in cells:
            raise ConfigError(
                f"the sweep {spec.description!r} has a prediction against {prediction.against}, "
                f"which is no cell of it on {platform_name}; those are: {', '.join(sorted(cells))}"
            )


def _refuse_too_many(spec: SweepSpec, platform_name: str) -> None:
    """Raise ConfigError if the entries make more cells than allowed, before they are made."""
    points = sum(
        math.prod(map(len, _axes(entry, spec.training).values()))
        for entry in spec.matrix
        if entry.platforms is None or platform_name in values(entry.platforms)
    )
    if points > bounds.CELLS.most:
        raise ConfigError(
            f"the sweep {spec.description!r} makes {points} cells on {platform_name}, more than "
            f"{bounds.CELLS.most}; shorten the lists of its matrix"
        )


def _axes(entry: MatrixEntry, inherited: TrainingAxes) -> dict[str, tuple[Any, ...]]:
    """Axis → its values, for each axis of an entry."""
    axes = {"model": values(entry.models), "gpus": values(entry.gpus)}
    # A list of numbers is one value; a list of words is an axis.
    divided = values(entry.stage_layers)
    axes["stage_layers"] = divided if isinstance(divided[0], str) else (divided,)
    axes |= {degree: values(getattr(entry, degree)) for degree in _DEGREES}
    for option in TrainingAxes.model_fields:
        given = (getattr(entry, option), getattr(inherited, option), OPTION_DEFAULTS.get(option))
        axes[option] = values(next(value for value in given if value is not None))
    return axes


def _points(entry: MatrixEntry, inherited: TrainingAxes) -> Iterator[dict[str, Any]]:
    """The product of an entry's axes: for each point a dictionary of axis → value."""
    axes = _axes(entry, inherited)
    for point in itertools.product(*axes.values()):
        yield {
            **dict(zip(axes, point, strict=True)),
            **{name: getattr(entry, name) for name in ("gpu_order", "gpu_uuids", *_LIMITS)},
        }


def _orders(
    study: Study, platform_name: str, point: Mapping[str, Any]
) -> Iterator[tuple[int, ...]]:
    """The orders of a node's GPUs for a point: the given order; or, if it is "rotated", one order
    for each stage of a node. From one order to the next, each stage moves on to the GPUs of the
    next stage.
    """
    if point["gpu_order"] != "rotated":
        yield point["gpu_order"]
        return
    platform = lookup("platform", platform_name, study.platforms)
    gpus = point["gpus"] or platform.nodes * platform.gpus_per_node
    degrees = _degrees({**point, "gpu_order": ()}, gpus, study.models[point["model"]].record("any"))
    nodes = -(-gpus // platform.gpus_per_node)
    ranks = gpus // nodes
    stages = max(degrees.pp // nodes, 1)
    for turn in range(stages if ranks % stages == 0 else 1):
        yield tuple((rank + turn * (ranks // stages)) % ranks for rank in range(ranks))


def _excluded(cell: Cell, exclusion: Exclusion) -> bool:
    """Whether an exclusion matches the cell."""
    for name, wanted in exclusion:
        if wanted is None:
            continue
        axis = AXES[name]
        # A list means any of its values, unless the axis's value is a list itself.
        any_of = [axis.stored(wanted)] if axis.field.is_nested else values(wanted)
        if axis.of(cell) not in any_of:
            return False
    return True


def _plan(
    study: Study, spec: SweepSpec, platform_name: str, point: Mapping[str, Any]
) -> PlannedCell:
    platform = lookup("platform", platform_name, study.platforms)
    gpus = point["gpus"] or platform.nodes * platform.gpus_per_node
    model = study.models[point["model"]].record(point["model"])
    degrees = _degrees(point, gpus, model)
    training = _training(point, degrees, model, spec.protocol)
    limits = {name: _for_each_gpu(point[name], gpus, platform) for name in _LIMITS}
    training = dataclasses.replace(training, **limits)
    if point["stage_layers"] == "auto":
        divided = pipelines.layers_by_work(model, degrees, training)
        degrees = _plainest(dataclasses.replace(degrees, stage_layers=divided), model)
    cell = _cell(study, spec, platform_name, model, degrees, training, gpus)
    reason = _undivided(point, gpus) or infeasibility(cell, platform, gpus)
    if reason is None:
        cost = estimate(cell, platform)
        reason = does_not_fit(cell, platform, cost)
        return PlannedCell(cell, spec.repeats, cost, reason, spec.protocol.profiled_steps)
    return PlannedCell(cell, spec.repeats, None, reason, spec.protocol.profiled_steps)


def _for_each_gpu(limits: int | tuple[int, ...] | None, gpus: int, platform: Platform) -> Any:
    """The limits of a node's GPUs; a single number is repeated for each GPU that is used."""
    if isinstance(limits, int):
        return (limits,) * (gpus // -(-gpus // platform.gpus_per_node))
    return limits or ()


def _degrees(point: Mapping[str, Any], gpus: int, model: Model) -> Degrees:
    """The degrees of a point, with "rest" resolved. If the other degrees do not divide the GPUs,
    _undivided says so later. With "auto", stages are even here: the division by work needs the
    training options.
    """
    given = {key: point[key] for key in (*_DEGREES, "stage_layers", "gpu_order", "gpu_uuids")}
    if isinstance(given["stage_layers"], str):
        given["stage_layers"] = ()
    for rest, other in (("pp", "dp"), ("dp", "pp")):
        if given[rest] == "rest":
            given[rest] = max(gpus // (given["tp"] * given["cp"] * given[other]), 1)
    if given["pp"] == 1:
        given["schedule"] = "1f1b"  # without a pipeline the schedule has no meaning
    return _plainest(Degrees(**given), model)


def _undivided(point: Mapping[str, Any], gpus: int) -> str | None:
    """Why the other degrees do not divide the GPUs, if one degree is "rest"; else None."""
    degrees = {name: point[name] for name in ("tp", "cp", "pp", "dp")}
    given = {name: degree for name, degree in degrees.items() if degree != "rest"}
    return None if given == degrees else undivided(given, gpus)


def _plainest(degrees: Degrees, model: Model) -> Degrees:
    """The degrees without lists of layers and GPUs that equal the defaults, so that both give the
    same cell.
    """
    even = dataclasses.replace(degrees, stage_layers=())
    if degrees.stage_layers == even.layers_of_stages(model.layers):
        degrees = even
    if degrees.gpu_order == tuple(range(len(degrees.gpu_order))):
        degrees = dataclasses.replace(degrees, gpu_order=())
    return degrees


def _training(
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
    if workload != "lora":
        options["lora_rank"] = 0
    if workload != "inference":
        options["generated_tokens"] = 0
    training = Training(
        **options, warmup_steps=protocol.warmup_steps, measured_steps=protocol.measured_steps
    )
    training = capabilities.with_backend(degrees, training, model, wanted)
    if training.backend == "deepspeed" and training.precision == "bf16" and degrees.dp == 1:
        # With one replica, DeepSpeed runs ZeRO-1 for both stages 0 and 1.
        training = dataclasses.replace(training, zero_stage=max(training.zero_stage, 1))
    return training


def _cell(
    study: Study,
    spec: SweepSpec,
    platform_name: str,
    model: Model,
    degrees: Degrees,
    training: Training,
    gpus: int,
) -> Cell:
    platform = study.platforms[platform_name]
    data = study.data[spec.data]
    defined = data.model_dump(mode="json", exclude={"description"})
    draft = Cell(
        id="",
        model=model,
        degrees=degrees,
        training=training,
        data=records.Data(name=spec.data, kind=data.kind, definition=_digits(defined)),
        hardware=hardware_of(platform_name, platform),
        telemetry=_telemetry(platform, spec.protocol),
        nodes=-(-gpus // platform.gpus_per_node),
        software=_software(platform),
        format=CELL_FORMAT,
    )
    digest = _digest(draft, defined)
    name = f"{degrees.name}_{training.name}_{digest}"
    return dataclasses.replace(draft, id=f"{platform_name}/{model.name}/{name}")


def hardware_of(name: str, platform: Platform) -> records.Hardware:
    """The hardware of a platform's nodes, with known peaks of its GPU model."""

    def scaled(value: float | None, factor: float) -> float | None:
        return None if value is None else value * factor

    def peak(precision: str, given_tflops: float | None) -> float | None:
        known = gpu_models.peak_flops_per_s(gpu_models.named(platform.gpu), precision)
        return scaled(given_tflops, 1e12) if known is None else known

    gigabytes = platform.gpu_memory_gb
    return records.Hardware(
        platform=name,
        gpu=platform.gpu,
        gpus_per_node=platform.gpus_per_node,
        gpus_per_package=platform.gpus_per_package,
        gpu_memory_bytes=None if gigabytes is None else int(gigabytes * 1e9),
        peak_bf16_flops_per_s=peak("bf16", platform.peak_bf16_tflops),
        peak_fp32_flops_per_s=peak("fp32", platform.peak_fp32_tflops),
        power_limit_w=platform.power_limit_w,
        airflow=platform.airflow,
        intra_node_bytes_per_s=scaled(platform.link_gb_per_s, 1e9),
        inter_node_bytes_per_s=scaled(platform.network.gbit_per_s or None, 1e9 / 8),
        peak_fp8_flops_per_s=peak("fp8", platform.peak_fp8_tflops),
    )


def _telemetry(platform: Platform, protocol: Protocol) -> records.Telemetry:
    rates = protocol.interleaved_rates_hz
    cool_down_to_c, cool_down_limit_s = None, 0.0
    if protocol.cool_down is not None and platform.idle_temperature_c is not None:
        cool_down_to_c = platform.idle_temperature_c + protocol.cool_down.within_c
        cool_down_limit_s = protocol.cool_down.limit_s
    return records.Telemetry(
        source=platform.telemetry,
        sample_rate_hz=protocol.sample_rate_hz or max(rates),
        idle_baseline_s=protocol.idle_baseline_s,
        interleaved_rates_hz=rates,
        block_s=protocol.block_s or 0.0,
        cool_down_to_c=cool_down_to_c,
        cool_down_limit_s=cool_down_limit_s,
    )


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
    plain = dataclasses.asdict(cell)
    del plain["format"]
    for part in plain.keys() - {"software"}:
        if isinstance(plain[part], dict):
            for name in as_before(getattr(cell, part)):
                del plain[part][name]
    hardware = plain.pop("hardware")
    for field in fields(records.Hardware):
        if field.axis.role != "analysis" and field.name in hardware:
            plain[f"hardware.{field.name}"] = hardware[field.name]
    plain["data"] = {"name": cell.data.name, **data}
    return _digits(plain)


def _digits(plain: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits of a SHA-256 over JSON."""
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def merge(sweeps: Iterable[Sweep]) -> dict[str, tuple[PlannedCell, tuple[str, ...]]]:
    """Id → cell and the names of the sweeps that ask for it, for every cell of the sweeps.

    If sweeps ask for different numbers of repeats or of profiled steps, the cell gets the largest.
    """
    merged: dict[str, tuple[PlannedCell, tuple[str, ...]]] = {}
    for sweep in sweeps:
        for planned in sweep.cells:
            known, names = merged.get(planned.cell.id, (planned, ()))
            best = dataclasses.replace(
                known,
                repeats=max(known.repeats, planned.repeats),
                profiled_steps=max(known.profiled_steps, planned.profiled_steps),
                prediction=known.prediction or planned.prediction,
            )
            merged[planned.cell.id] = (best, (*names, sweep.name))
    return merged
