"""``python -m workflow_lib.comparison A B``: compare two sweeps, or commands that were measured.

Of sweeps ``comparison.parquet``, ``figures/`` and ``comparison.html`` are written below --output;
of commands a table is printed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from workflow_lib.comparison import measured
from workflow_lib.comparison.compare import compare
from workflow_lib.options import add_meters, ends_quietly
from workflow_lib.records.reading import RecordError
from workflow_lib.records.whole_files import report_error
from workflow_lib.safety import printable
from workflow_lib.study import ConfigError, load_meters


def command_line(prog: str) -> argparse.ArgumentParser:
    """The options of the command, which is called ``prog``."""
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    parser.add_argument("a", type=Path, help="a sweep, or measured runs: a directory")
    parser.add_argument("b", type=Path, help="the directory to compare it with")
    parser.add_argument("--output", type=Path, help="directory for what is written of sweeps")
    parser.add_argument(
        "--names",
        nargs=2,
        metavar=("A", "B"),
        help="names of the sides (default: their platforms or directories)",
    )
    parser.add_argument(
        "--pair",
        nargs=2,
        action="append",
        default=[],
        metavar=("CELL_A", "CELL_B"),
        help="compare these two as well, whatever they are: parts of ids; may be repeated",
    )
    add_meters(parser)
    return parser


@ends_quietly
def main(
    arguments: Sequence[str] | None = None, prog: str = "python -m workflow_lib.comparison"
) -> int:
    """Run the command; returns the exit code, 1 after one message on stderr."""
    parser = command_line(prog)
    chosen = parser.parse_args(arguments)
    try:
        if measured.holds_runs(chosen.a) and measured.holds_runs(chosen.b):
            print(printable(measured.compare(chosen.a, chosen.b)))
            return 0
        if chosen.output is None:
            for side in (chosen.a, chosen.b):
                if not measured.holds_runs(side) and not (side / "cells.parquet").is_file():
                    parser.error(f"{side} has no measured command, and no tables of a sweep")
            parser.error("sweeps need --output")
        errors = load_meters(chosen.meters)
        page = compare(chosen.a, chosen.b, chosen.output, chosen.names, chosen.pair, errors)
    except (ConfigError, RecordError, OSError) as error:
        return report_error("comparison", error)
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
