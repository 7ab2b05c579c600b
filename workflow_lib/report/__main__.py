"""``python -m workflow_lib.report``: draw a sweep's figures, or write its page, or that of measured
commands: ``triptych report DIR…``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from workflow_lib.options import ends_quietly
from workflow_lib.records.reading import RecordError
from workflow_lib.records.whole_files import report_error
from workflow_lib.report import measured
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
    of_commands = commands.add_parser("measured", help="write the page of measured commands")
    of_commands.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="of runs")
    of_commands.add_argument(
        "--output", type=Path, default=Path("measured.html"), help="the page; measured.html here"
    )
    return parser


@ends_quietly
def main(
    arguments: Sequence[str] | None = None, prog: str = "python -m workflow_lib.report"
) -> int:
    """Run a command; returns the exit code, 1 after one message on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] not in ("figures", "page", "measured", "-h", "--help"):
        words.insert(0, "measured")
    chosen = command_line(prog).parse_args(words)
    try:
        if chosen.command == "figures":
            write_figures_of(chosen.tables, chosen.output, chosen.processes)
        elif chosen.command == "measured":
            print(measured.write_page(chosen.directories, chosen.output))
        else:
            write_page(chosen.sweep, chosen.description, chosen.results, chosen.directory)
    except (RecordError, OSError) as error:
        return report_error(chosen.command, error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
