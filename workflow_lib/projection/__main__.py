"""``python -m workflow_lib.projection``: what a model needs on more GPUs, and how wrong that is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from workflow_lib.projection.validation import Peer, validate
from workflow_lib.projection.validation_page import describe, write_validation
from workflow_lib.records import RecordError, bounds
from workflow_lib.safety import printable


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code, 1 after one message on stderr."""
    parser = argparse.ArgumentParser(prog="python -m workflow_lib.projection", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_validate(commands)
    chosen = parser.parse_args(arguments)
    try:
        chosen.run(chosen)
    except (RecordError, OSError) as error:
        print(printable(f"projection: {error}", bounds.MESSAGE_LETTERS.most), file=sys.stderr)
        return 1
    return 0


def _add_validate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("validate", help="predict published runs from others")
    parser.add_argument("rows", type=Path, help="a CSV file of published runs")
    parser.add_argument("--output", type=Path, required=True, help="directory for what is written")
    parser.add_argument(
        "--calculon", type=Path, help="a checkout of Calculon, to be run on the same rows"
    )
    parser.add_argument(
        "--calculon-python",
        default=sys.executable,
        help="a Python that has what Calculon imports (pandas, psutil)",
    )
    parser.set_defaults(run=_validate)


def _validate(chosen: argparse.Namespace) -> None:
    peer = Peer(chosen.calculon, chosen.calculon_python) if chosen.calculon else None
    validation = validate(chosen.rows, peer)
    page = write_validation(validation, chosen.output)
    print(describe(validation))
    print(f"\n{page}")


if __name__ == "__main__":
    sys.exit(main())
