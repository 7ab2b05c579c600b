"""Makes a model file's text and its name from a ``config.json``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workflow_lib import formulas
from workflow_lib.config import ModelSpec
from workflow_lib.models import families
from workflow_lib.models.config_json import ConfigJson, ImportRefusedError
from workflow_lib.study import NAME, checked


@dataclass(frozen=True)
class Imported:
    """A model as its file holds it."""

    name: str
    spec: ModelSpec
    #: sentences on what the file leaves out or chose
    notes: tuple[str, ...]
    text: str

    @property
    def summary(self) -> str:
        """The model's size in words."""
        counts = formulas.parameters(self.spec.record(self.name))
        active = f", {_billions(counts.active)} of a token" if self.spec.experts else ""
        return (
            f"{_billions(counts.total)} parameters{active}; sequences of "
            f"{self.spec.sequence_length} tokens"
        )


def import_model(
    path: Path,
    name: str | None = None,
    sequence_length: int | None = None,
    ignored: Sequence[str] = (),
) -> Imported:
    """Read a ``config.json``, or a directory with one, as a model.

    The model's name is that of the directory unless given. Raises OSError, RecordError,
    ImportRefusedError if the engine cannot run the model, and ConfigError if its numbers contradict
    each other.
    """
    config = ConfigJson(path, ignored)
    name = name or _name(config.path)
    if not NAME.fullmatch(name):
        raise ImportRefusedError(
            f"{name!r} cannot be a model's name: use --name with letters, digits, dots and hyphens"
        )
    kind = config.word("model_type", "")
    plain = families.read(config, sequence_length)
    plain = {"description": f"{name}, as its config.json has it (model_type {kind})"} | plain
    spec = checked(str(config.path), ModelSpec, plain)
    return Imported(name, spec, tuple(config.notes), _text(name, spec, plain, config.notes))


def _name(path: Path) -> str:
    """The name of the directory of a config.json, or of the model in transformers' cache."""
    directory = path.resolve().parent
    if directory.parent.name == "snapshots":  # models--<owner>--<name>/snapshots/<commit>
        return directory.parents[1].name.rpartition("--")[2]
    return directory.name


#: for editors, as in the model files of config/models
_SCHEMA = "# yaml-language-server: $schema=../schemas/model.json"


def _text(name: str, spec: ModelSpec, plain: Mapping[str, Any], notes: Sequence[str]) -> str:
    """The model file as YAML, with only the keys whose values make another model than their
    defaults."""
    record, lines = spec.record(name), [_SCHEMA, *(f"# {note}." for note in notes)]
    for key, field in ModelSpec.model_fields.items():
        said = getattr(record, key, getattr(spec, key)) or None
        if key in plain and (field.is_required() or said != (field.default or None)):
            lines.append(f"{key}: {_value(plain[key])}")
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        # YAML 1.1 reads a number without a point as text.
        return re.sub(r"^(\d+)e", r"\1.0e", repr(value))
    return str(value)


def _billions(count: float) -> str:
    return f"{count / 1e9:.4g} B" if count >= 1e9 else f"{count / 1e6:.4g} M"
