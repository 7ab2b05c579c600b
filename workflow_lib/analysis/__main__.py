"""``python -m workflow_lib.analysis``: reduce runs, analyse a run's traces, or collect runs into
tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from workflow_lib.analysis.collect import collect
from workflow_lib.analysis.reduce import reduce_runs
from workflow_lib.analysis.samples import in_full
from workflow_lib.analysis.traces.groups import INTER_NODE, INTRA_NODE
from workflow_lib.analysis.traces.of_run import analyse_run, described
from workflow_lib.records import bounds
from workflow_lib.records.reading import RecordError
from workflow_lib.safety import printable


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code, 1 after one message on stderr."""
    parser = argparse.ArgumentParser(prog="python -m workflow_lib.analysis", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    reducing = commands.add_parser(
        "reduce", help="write summary.json, steps.parquet and series.parquet of runs that ended"
    )
    reducing.add_argument(
        "runs", type=Path, nargs="+", metavar="run", help="a run's directory, <cell>/run<k>"
    )
    reducing.add_argument("--processes", type=int, default=1, help="for several runs; 1 by default")
    tracing = commands.add_parser("traces", help="write tables of a profiled run's traces")
    tracing.add_argument("run", type=Path, help="the run's directory, with traces in its traces/")
    for fabric in ("intra-node", "inter-node"):
        tracing.add_argument(
            f"--{fabric}-gb-per-s",
            type=float,
            help="the link's peak in one direction, for shares (default: the cell's)",
        )
    tracing.add_argument("--quiet", action="store_true", help="print nothing")
    collecting = commands.add_parser("collect", help="write the tables of a sweep")
    collecting.add_argument("--plan", type=Path, required=True, help="plan.parquet of the sweep")
    collecting.add_argument("--results", type=Path, required=True, help="holds cells/")
    collecting.add_argument("--output", type=Path, required=True, help="directory for the tables")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "reduce":
            problems = reduce_runs(chosen.runs, chosen.processes)
            for problem in problems:
                print(printable(f"reduce: {problem}", bounds.MESSAGE_LETTERS.most), file=sys.stderr)
            return 1 if problems else 0
        if chosen.command == "traces":
            given = {INTRA_NODE: chosen.intra_node_gb_per_s, INTER_NODE: chosen.inter_node_gb_per_s}
            peaks = {fabric: peak * 1e9 for fabric, peak in given.items() if peak is not None}
            analysis = analyse_run(chosen.run, peaks)
            if not chosen.quiet:
                print(described(analysis))
        else:
            collect(chosen.plan, chosen.results, chosen.output)
    except (RecordError, OSError) as error:
        message = f"{chosen.command}: {in_full(error)}"
        print(printable(message, bounds.MESSAGE_LETTERS.most), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
