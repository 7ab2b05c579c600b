"""Cells that another program trains: what its command is told, and which cells it cannot run."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from workflow_lib.records.bounds import FACTORS
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.model import Model
from workflow_lib.records.training import Training

#: options that change nothing of what a trainer computes, or that the job sets for it
_OF_NO_TRAINER = ("backend", "weight_decay", "power_limits_w", "clock_limits_mhz")
#: axis → what a trainer does that is not told of it: of an option that has a default, that
_UNTOLD: Mapping[str, Any] = {
    **{name: 1 for name in FACTORS if name != "dp"},
    **{"virtual_stages": 1, "schedule": "1f1b", "stage_layers": (), "gpu_order": ()},
    **{"ep": 1, "gpu_uuids": (), "recomputation": "none", "overlap": False, "data": "synthetic"},
    **{"experts": 0, "experts_per_token": 0},
    **{
        field.name: field.default
        for field in dataclasses.fields(Training)
        if field.default is not dataclasses.MISSING
        and field.name not in _OF_NO_TRAINER
        and not field.name.startswith("trainer")
    },
}
#: what a trainer has to be told, or to accept the value of. Of learning rate, weight decay, and
#: seed it need not: they do not change how it computes
_MUST_BE_TOLD = (
    *("family", "layers", "hidden_size", "ffn_hidden_size", "attention_heads", "kv_heads"),
    *("vocabulary_size", "sequence_length", "steps"),
    *("micro_batch_size", "global_batch_size", "precision", "zero_stage"),
)
_NO_PLACEHOLDERS = ("backend", "warmup_steps", "measured_steps", "generated_tokens", "lora_rank")
#: stand in a planned command for the platform's Python, and for the run's number of steps
PYTHON, STEPS = "{python}", "{steps}"
#: placeholder → what it tells, too
_TELL: Mapping[str, Sequence[str]] = {
    "micro_batches": ("global_batch_size",),
    "model": (*_MUST_BE_TOLD[:8], "experts", "experts_per_token"),
}


def placeholders(
    model: Model, data: str, degrees: Degrees, training: Training
) -> dict[str, str | int | float | bool]:
    """Name → value, of all that a command may be told."""
    values = {
        **_fields(model),
        **_fields(degrees),
        **_fields(training),
        "model": model.name,
        "data": data,
        "ranks": degrees.world_size,
        "micro_batches": training.micro_batches(degrees.dp),
        "tokens_per_step": training.global_batch_size * model.sequence_length,
        "steps": steps_of_a_run(training),
        "python": PYTHON,
    }
    for name in (*_NO_PLACEHOLDERS, *(n for n in values if n.startswith("trainer"))):
        values.pop(name, None)
    return {name: value for name, value in values.items() if isinstance(value, (str, int, float))}


def _fields(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def counted_steps(training: Training, profiled_steps: int = 0) -> int:
    """How many steps of a run are recorded, warm-up included."""
    return training.warmup_steps + (profiled_steps or training.measured_steps)


def steps_of_a_run(training: Training, profiled_steps: int = 0) -> int:
    """How many steps a run's program has to train; the hook does not see the first one."""
    return counted_steps(training, profiled_steps) + (training.trainer_steps == "hook")


def words_of(command: Sequence[str], values: Mapping[str, Any]) -> tuple[str, ...]:
    """The command with its placeholders filled in, booleans as true and false; the job fills in
    PYTHON and STEPS. Raises KeyError for a placeholder that no cell has."""
    words = {name: _word(value) for name, value in values.items()} | {"steps": STEPS}
    return tuple(word.format_map(words) for word in command)


class Trainer(NamedTuple):
    """What a trainer's file says; see config.TrainerSpec."""

    name: str
    command: Sequence[str]
    #: a cell needs one of them to have its values
    accepts: Sequence[Mapping[str, Sequence[Any]]]

    @property
    def placeholders(self) -> frozenset[str]:
        """The names in its command."""
        parsed = (string.Formatter().parse(word) for word in self.command)
        return frozenset(name for parts in parsed for _, name, _, _ in parts if name)


def refusal(
    trainer: Trainer, model: Model, data: str, degrees: Degrees, training: Training
) -> str | None:
    """Why a trainer cannot run a cell: the command does not name an axis, and the cell's value is
    none that the trainer has by itself. None if it can."""
    file = f"config/trainers/{trainer.name}.yaml"
    values = placeholders(model, data, degrees, training)
    names = values.keys() | _UNTOLD.keys()
    named = trainer.placeholders.union(*trainer.accepts)
    if wrong := sorted(named - names):
        near = difflib.get_close_matches(wrong[0], sorted(names), n=3, cutoff=0.4)
        advice = f"; did you mean {', '.join(near)}?" if near else ""
        return f"{file}: no cell has {wrong[0]!r}{advice}"
    records = (model, degrees, training)
    sets = [_unlike(trainer, accepts, values, records) for accepts in trainer.accepts or [{}]]
    if {} in sets:
        return None
    if len(sets) == 1:
        axis, (possible, value) = next(iter(sets[0].items()))
        tells = [axis, *(name for name, of in _TELL.items() if axis in of)]
        words = " or ".join(f"{{{name}}}" for name in tells)
        return (
            f"trainer {trainer.name} {_has(axis, possible)}, and the cell asks for {_word(value)}: "
            f"if the program can do it, put {words} into its command, or its values under accepts, "
            f"in {file}"
        )
    lacking = "; ".join(
        " and ".join(_has(axis, possible) for axis, (possible, _) in unlike.items())
        for unlike in sets
    )
    asks = {axis: _word(value) for unlike in sets for axis, (_, value) in unlike.items()}
    return (
        f"none of the {len(sets)} sets of values under accepts in {file} fits, as the trainer "
        f"{lacking}; the cell asks for {', '.join(map(' '.join, asks.items()))}"
    )


def _unlike(
    trainer: Trainer, accepts: Mapping[str, Sequence[Any]], values: Mapping[str, Any], records: Any
) -> dict[str, tuple[Sequence[Any], Any]]:
    """Axis → the values that a trainer has, and another that the cell asks for."""
    placeholders = trainer.placeholders | (accepts.keys() & {"model"})
    named = placeholders.union(*(axes for name, axes in _TELL.items() if name in placeholders))
    unlike: dict[str, tuple[Sequence[Any], Any]] = {}
    for axis in dict.fromkeys((*_UNTOLD, *_MUST_BE_TOLD, *accepts)):
        value = values[axis] if axis in values else _of(axis, *records)
        if value is None or (axis == "zero_stage" and records[1].copies == 1):
            continue
        if axis in accepts:
            possible = tuple(accepts[axis])
        elif axis in named:
            continue
        else:
            possible = (_UNTOLD[axis],) if axis in _UNTOLD else ()
        if value not in possible:
            unlike[axis] = possible, value
    return unlike


def _has(axis: str, possible: Sequence[Any]) -> str:
    if possible == (None,):
        return f"has no {axis}"
    if not possible:
        return f"is not told {axis}"
    return f"has {axis} {' or '.join(map(_word, possible))}"


def _word(value: Any) -> str:
    """A value as a command has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _of(axis: str, *records: Any) -> Any:
    return next(getattr(record, axis) for record in records if hasattr(record, axis))


def digits_of(files: Sequence[str], root: Path) -> tuple[str, ...]:
    """Each file below ``root`` and eight digits of its SHA-256, as ``train.py=1a2b3c4d``. Raises
    OSError."""
    texts = ((file, (root / file).read_bytes()) for file in files)
    return tuple(f"{file}={hashlib.sha256(text).hexdigest()[:8]}" for file, text in texts)


def definition(spec: Mapping[str, Any], files: Sequence[str]) -> str:
    """Eight digits over what a trainer's file says of cells, and over the digits of its files."""
    text = json.dumps([spec, *files], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
