"""``python -m workflow_lib.models``: write a model file from a published configuration."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workflow_lib import formulas
from workflow_lib.config import ModelSpec
from workflow_lib.models import families
from workflow_lib.models.config_json import ConfigJson, ImportRefusedError
from workflow_lib.options import add_config, ends_quietly
from workflow_lib.records import bounds
from workflow_lib.records.reading import RecordError
from workflow_lib.safety import printable
from workflow_lib.study import NAME, ConfigError, checked

#: for editors, as in the model files of config/models
_SCHEMA = "# yaml-language-server: $schema=../schemas/model.json"


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


def _text(name: str, spec: ModelSpec, plain: Mapping[str, Any], notes: Sequence[str]) -> str:
    """The model file as YAML, with only the keys whose values make another model than their
    defaults."""
    record, lines = spec.record(name), [_SCHEMA, *(f"# {note}." for note in notes)]
    for key, field in ModelSpec.model_fields.items():
        value = getattr(record, key, getattr(spec, key)) or None
        if key in plain and (field.is_required() or value != (field.default or None)):
            lines.append(f"{key}: {_value(plain[key])}")
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_value(part)}" for key, part in value.items()) + "}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        # YAML 1.1 reads a number without a point as text.
        return re.sub(r"^(\d+)e", r"\1.0e", repr(value))
    return str(value)


def _billions(count: float) -> str:
    return f"{count / 1e9:.4g} B" if count >= 1e9 else f"{count / 1e6:.4g} M"


@ends_quietly
def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 1 after one message on stderr."""
    parser = argparse.ArgumentParser(prog="python -m workflow_lib.models", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    importing = commands.add_parser("import", help="write config/models/NAME.yaml")
    importing.add_argument("path", type=Path, help="a config.json, or a directory with one")
    importing.add_argument("--name", help="the model's name (default: the directory's)")
    importing.add_argument(
        "--sequence-length", type=int, help="tokens of a training sequence; at most 8192 if not"
    )
    importing.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="KEY",
        help="a key of config.json that changes nothing in what the model computes",
    )
    add_config(importing)
    importing.add_argument("--overwrite", action="store_true", help="replace an existing file")
    chosen = parser.parse_args(arguments)
    try:
        imported = import_model(chosen.path, chosen.name, chosen.sequence_length, chosen.ignore)
        path = _write(imported, chosen.config / "models", chosen.overwrite)
    except (ConfigError, ImportRefusedError, RecordError) as error:
        message = str(error)
    except OSError as error:
        message = f"{error.filename or chosen.path}: {error.strerror}"
    else:
        print(f"{path}: {imported.summary}")
        for note in imported.notes:
            print(printable(f"  {note}"))
        return 0
    print(printable(f"import: {message}", bounds.MESSAGE_LETTERS.most), file=sys.stderr)
    return 1


def _write(imported: Imported, directory: Path, overwrite: bool) -> Path:
    """Write the model file; return its path. Raises OSError, and ImportRefusedError if another file
    has its name."""
    path = directory / f"{imported.name}.yaml"
    if path.exists() and not overwrite and path.read_text(encoding="utf-8") != imported.text:
        raise ImportRefusedError(f"{path} exists with other content; use --name, or --overwrite")
    if not directory.parent.is_dir():
        raise ImportRefusedError(
            f"there is no {directory.parent}/ here: type this in the checkout, or name its "
            "configuration with --config"
        )
    directory.mkdir(exist_ok=True)
    path.write_text(imported.text, encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
