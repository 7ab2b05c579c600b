"""Expands a sweep's matrix to cells, and finds out whether each cell can run.

The axes of each entry are multiplied out to points; ``cell_definition`` makes a cell of each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workflow_lib import pipelines, results
from workflow_lib.cell_definition import (
    cell_of,
    degrees_of,
    for_each_gpu,
    gpus_of,
    hardware_of,
    plainest,
    training_of,
    undivided,
)
from workflow_lib.config import (
    Exclusion,
    MatrixEntry,
    Prediction,
    SweepSpec,
    TrainerSpec,
    TrainingAxes,
    option_of,
    values,
)
from workflow_lib.feasibility import Estimate, does_not_fit, estimate, infeasibility
from workflow_lib.records import bounds
from workflow_lib.records.cell import Cell
from workflow_lib.records.cell_axes import AXES
from workflow_lib.records.degrees import DEGREES, Degrees
from workflow_lib.records.model import Model
from workflow_lib.records.training import NATIVE, Training
from workflow_lib.study import ConfigError, Files, Study, check_references, lookup
from workflow_lib.trainers import foreign

__all__ = ["PlannedCell", "Sweep", "Views", "expand_study", "hardware_of", "merge", "view_of"]

_LIMITS = ("power_limits_w", "clock_limits_mhz")
#: what all cells of an entry have alike
_OF_ENTRY = ("nodes", "gpu_order", "gpu_uuids", *_LIMITS, "cool_down")


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

    @property
    def can_run(self) -> bool:
        """Whether any cell of it can run."""
        return any(planned.feasible for planned in self.cells)


class Views(Files[Sweep]):
    """Name → sweep, for those without a mistake; ``bad`` has the others, a file that cannot be read
    by its own name."""

    #: every mistake in the study's files, in words
    mistakes: tuple[str, ...] = ()

    def __missing__(self, name: str) -> Sweep:
        files = (file for file in self.bad if name == file or name.startswith(f"{file}-"))
        return super().__missing__(max(files, key=len, default=name))


def view_of(name: str, spec: SweepSpec, platform: str) -> str:
    """What a sweep, by its file's name, is called on one of its platforms."""
    is_one = len(spec.platforms) == 1 and not spec.is_for_all
    return name if is_one else f"{name}-{platform}"


def expand_study(study: Study) -> Views:
    """Every sweep of the study on each of its platforms. A mistake, which names the file, is raised
    where that sweep is looked up."""
    sweeps, mistakes = Views(), study.mistakes
    sweeps.bad |= study.sweeps.bad
    for name, spec in study.sweeps.items():
        used: set[int] = set()
        of_file: dict[str, tuple[str, tuple[PlannedCell, ...]]] = {}
        for platform in study.platforms_of(spec):
            view = view_of(name, spec, platform)
            try:
                check_references(spec, study)
                of_file[view] = (platform, tuple(_expand(study, spec, platform, used)))
            except ConfigError as error:
                path = study.directory / "sweeps" / f"{name}.yaml"
                is_other_file = error in mistakes
                sweeps.bad[view] = error if is_other_file else ConfigError(f"{path}: {error}")
        whole = len(of_file) == len(study.platforms_of(spec))
        idle = tuple(n for n in range(len(spec.exclude)) if whole and n not in used)
        for view, (platform, planned) in of_file.items():
            sweeps[view] = Sweep(view, name, spec.description, platform, planned, idle)
    # Told once, however many sweeps need the file.
    sweeps.mistakes = tuple(dict.fromkeys(map(str, (*mistakes, *sweeps.bad.values()))))
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
        ordered = (
            point | {"gpu_order": order}
            for point in _points(spec, entry)
            for order in _orders(study, platform_name, point)
        )
        for point in ordered:
            planned = _plan(study, spec, platform_name, point)
            if entry.predicted is not None:
                planned = dataclasses.replace(planned, prediction=entry.predicted)
                predictions.append(entry.predicted)
            fit = {i for i, out in enumerate(spec.exclude) if _is_excluded(planned.cell, out)}
            used |= fit
            if fit:
                continue
            if planned.cell.id not in seen:
                seen.add(planned.cell.id)
                yield planned
    _refuse_unfit(predictions, spec, platform_name, seen)


def _refuse_too_many(spec: SweepSpec, platform_name: str) -> None:
    """Raise ConfigError if the entries make more cells than allowed, before they are made."""
    points = sum(
        math.prod(map(len, _axes(spec, entry).values()))
        for entry in spec.matrix
        if entry.platforms is None or platform_name in values(entry.platforms)
    )
    if points > bounds.CELLS.most:
        raise ConfigError(
            f"it makes {points} cells on {platform_name}, more than "
            f"{bounds.CELLS.most}; shorten the lists of its matrix"
        )


def _axes(spec: SweepSpec, entry: MatrixEntry) -> dict[str, tuple[Any, ...]]:
    """Axis → its values, for each axis of an entry."""
    axes = {"model": values(entry.models), "data": spec.data_of(entry), "gpus": values(entry.gpus)}
    # A list of numbers is one value; a list of words is an axis.
    divided = values(entry.stage_layers)
    axes["stage_layers"] = divided if isinstance(divided[0], str) else (divided,)
    axes |= {degree: values(getattr(entry, degree)) for degree in DEGREES}
    for option in TrainingAxes.model_fields:
        axes[option] = values(option_of(entry, spec.training, option))
    return axes


def _points(spec: SweepSpec, entry: MatrixEntry) -> Iterator[dict[str, Any]]:
    """The product of an entry's axes: for each point a dictionary of axis → value."""
    axes = _axes(spec, entry)
    for point in itertools.product(*axes.values()):
        yield {
            **dict(zip(axes, point, strict=True)),
            **{name: getattr(entry, name) for name in _OF_ENTRY},
        }


def _is_excluded(cell: Cell, exclusion: Exclusion) -> bool:
    """Whether an exclusion matches the cell."""
    for name, wanted in exclusion:
        if wanted is None:
            continue
        if AXES[name].of(cell) not in values(wanted):
            return False
    return True


def _refuse_unfit(
    predictions: Sequence[Prediction], spec: SweepSpec, platform_name: str, cells: Set[str]
) -> None:
    """Raises ConfigError if a prediction is of several cells, or against one that is not there."""
    for prediction in predictions:
        if predictions.count(prediction) > 1:
            raise ConfigError(
                "an entry with a prediction makes several cells "
                f"on {platform_name}, expected one: give each of its axes one value"
            )
        if prediction.against not in cells:
            raise ConfigError(
                f"a prediction is against {prediction.against}, "
                f"which is no cell of it on {platform_name}; those are: {', '.join(sorted(cells))}"
            )


def _orders(
    study: Study, platform_name: str, point: Mapping[str, Any]
) -> Iterator[tuple[int, ...]]:
    """The orders of a node's GPUs for a point: the given order; or, if it is "rotated", one order
    for each stage of a node. From one order to the next, each stage moves on to the GPUs of the
    next stage."""
    if point["gpu_order"] != "rotated":
        yield point["gpu_order"]
        return
    platform = lookup("platform", platform_name, study.platforms)
    gpus = gpus_of(point, platform)
    degrees = degrees_of(
        {**point, "gpu_order": ()}, gpus, study.models[point["model"]].record("any")
    )
    nodes = -(-gpus // platform.gpus_per_node)
    ranks = gpus // nodes
    stages = max(degrees.pp // nodes, 1)
    for turn in range(stages if ranks % stages == 0 else 1):
        yield tuple((rank + turn * (ranks // stages)) % ranks for rank in range(ranks))


def _plan(
    study: Study, spec: SweepSpec, platform_name: str, point: Mapping[str, Any]
) -> PlannedCell:
    platform = lookup("platform", platform_name, study.platforms)
    gpus = gpus_of(point, platform)
    model = study.models[point["model"]].record(point["model"])
    degrees = degrees_of(point, gpus, model)
    protocol = spec.protocol_of(point["cool_down"])
    training = training_of(point, degrees, model, protocol)
    limits = {name: for_each_gpu(point[name], gpus, platform) for name in _LIMITS}
    training = dataclasses.replace(training, **limits)
    trainer = None
    if training.trainer != NATIVE:
        trainer = study.trainers[training.trainer]
        root = study.directory.parent
        training = _with_command(trainer, root, training, degrees, model, point["data"])
    if point["stage_layers"] == "auto":
        divided = pipelines.layers_by_work(model, degrees, training)
        degrees = plainest(dataclasses.replace(degrees, stage_layers=divided), model)
    workload = (model, point["data"], degrees, training)
    cell = cell_of(study, protocol, platform_name, *workload, gpus)
    reason = undivided(point, gpus) or infeasibility(cell, platform, gpus)
    if trainer is not None:
        stated = foreign.Trainer(training.trainer, trainer.command, trainer.accepts)
        reason = reason or foreign.refusal(stated, model, point["data"], degrees, training)
    if reason is None:
        cost = estimate(cell, platform)
        reason = does_not_fit(cell, platform, cost)
    else:
        cost = None
    return PlannedCell(cell, spec.repeats, cost, reason, spec.protocol.profiled_steps)


def _with_command(
    trainer: TrainerSpec, root: Path, training: Training, degrees: Degrees, model: Model, data: str
) -> Training:
    """The training with what its trainer's file says, whose programs are below ``root``. Raises
    ConfigError."""
    name = training.trainer
    # Path.is_file raises of a word that is too long.
    others = [word for word in trainer.command if word not in trainer.files]
    unlisted = [word for word in others if os.path.isfile(os.path.join(root, word))]  # noqa: PTH113, PTH118
    if unlisted:
        raise ConfigError(
            f"config/trainers/{name}.yaml: {unlisted[0]} is in the command and not under files, so "
            "that a change of it would be seen nowhere; add it there"
        )
    # The program, or its interpreter's script: other words may be anything.
    missing = [word for word in others[:2] if re.fullmatch(r"[\w.][\w./-]*\.(py|sh)", word)]
    if missing:
        raise ConfigError(
            f"config/trainers/{name}.yaml: {missing[0]} is in the command, and is no file; "
            "name files from the directory that has config/, or by their whole paths"
        )
    spec = trainer.model_dump(mode="json", exclude={"description", "differs"})
    try:
        files = foreign.digits_of(trainer.files, root)
    except OSError as error:
        raise ConfigError(
            f"config/trainers/{name}.yaml: files: {error.filename}: {error.strerror}; name files "
            "from the directory that has config/"
        ) from None
    training = dataclasses.replace(
        training,
        trainer_definition=foreign.definition(spec, files),
        trainer_steps=trainer.steps,
        trainer_differs=trainer.differs,
        trainer_files=files,
    )
    known = foreign.placeholders(model, data, degrees, training)
    with contextlib.suppress(KeyError):  # which makes the cell infeasible, with the reason
        words = foreign.words_of(trainer.command, known)
        training = dataclasses.replace(training, trainer_command=words)
    return training


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
