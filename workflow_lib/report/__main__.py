"""``python -m workflow_lib.report``: draw a sweep's figures, or write its page."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from workflow_lib.broken_pipe import ends_quietly
from workflow_lib.records.reading import RecordError
from workflow_lib.records.whole_files import report_error
from workflow_lib.report.figures import write_figures_of
from workflow_lib.report.page import write_page


def command_line(prog: str) -> argparse.ArgumentParser:
    """The options of the command, which is called ``prog``."""
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("figures", help="draw every figure as SVG and PDF")
    drawing.add_argument("--tables", type=Path, required=True, help="holds cells.parquet …")
    drawing.add_argument("--output", type=Path, required=True, help="directory for the figures")
    drawing.add_argument("--processes", type=int, default=1, help="that draw at once; 1 if not set")
    writing = commands.add_parser("page", help="write report.html")
    writing.add_argument("--sweep", required=True, help="the sweep's name")
    described = writing.add_mutually_exclusive_group()
    described.add_argument("--description", default="", help="a sentence or two on the sweep")
    described.add_argument(
        "--description-json", dest="description", type=json.loads, help="the same as a JSON string"
    )
    writing.add_argument("--results", type=Path, required=True, help="holds cells/")
    writing.add_argument("--directory", type=Path, required=True, help="tables and figures/")
    return parser


@ends_quietly
def main(
    arguments: Sequence[str] | None = None, prog: str = "python -m workflow_lib.report"
) -> int:
    """Run a command; returns the exit code, 1 after one message on stderr."""
    chosen = command_line(prog).parse_args(arguments)
    try:
        if chosen.command == "figures":
            write_figures_of(chosen.tables, chosen.output, chosen.processes)
        else:
            write_page(chosen.sweep, chosen.description, chosen.results, chosen.directory)
    except (RecordError, OSError) as error:
        return report_error(chosen.command, error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
