"""``python -m workflow_lib.models``: write a model file from a published configuration."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from workflow_lib.models.config_json import ImportRefusedError
from workflow_lib.models.model_file import Imported, import_model
from workflow_lib.options import add_config, ends_quietly
from workflow_lib.records import bounds
from workflow_lib.records.reading import RecordError
from workflow_lib.safety import printable
from workflow_lib.study import ConfigError


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
