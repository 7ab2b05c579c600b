"""``python -m workflow_lib.analysis``: reduce a run, or collect a plan's runs into tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from workflow_lib.analysis.collect import collect
from workflow_lib.analysis.reduce import reduce_run
from workflow_lib.records import RecordError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code, 1 after one message on stderr."""
    parser = argparse.ArgumentParser(prog="python -m workflow_lib.analysis", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    reducing = commands.add_parser("reduce", help="write summary.json of one run that has ended")
    reducing.add_argument("run", type=Path, help="the run's directory, <cell>/run<k>")
    collecting = commands.add_parser("collect", help="write runs, gpus, overhead and cells.parquet")
    collecting.add_argument("--plan", type=Path, required=True, help="plan.parquet of the sweep")
    collecting.add_argument("--results", type=Path, required=True, help="holds cells/")
    collecting.add_argument("--output", type=Path, required=True, help="directory for the tables")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "reduce":
            reduce_run(chosen.run)
        else:
            collect(chosen.plan, chosen.results, chosen.output)
    except (RecordError, OSError) as error:
        print(f"{chosen.command}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
