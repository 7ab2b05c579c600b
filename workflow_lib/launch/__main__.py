"""The commands that rules call: ``render`` a run, and ``run`` it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main() -> int:
    """Returns the exit code: 0 where the run is a result, 1 where it is not."""
    parser = argparse.ArgumentParser(prog="python -m workflow_lib.launch", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    render = commands.add_parser("render", help="write cell.json and job.sh of one run")
    render.add_argument("--config", type=Path, required=True, help="the study's configuration")
    render.add_argument("--results", type=Path, required=True)
    render.add_argument("--root", type=Path, required=True, help="where workflow_lib lies")
    render.add_argument("--cell", required=True, help="the cell's id")
    render.add_argument("--run", type=int, required=True, help="which repeat, from 1")
    run = commands.add_parser("run", help="submit one run, wait for it, say how it ended")
    run.add_argument("directory", type=Path)
    run.add_argument("--scheduler", choices=("slurm", "local"), required=True)
    arguments = parser.parse_args()
    if arguments.command == "render":
        return _render(arguments)
    return _run(arguments)


def _render(arguments: argparse.Namespace) -> int:
    # Imported here, because the process that waits for a run must stay small.
    from workflow_lib import cells, results
    from workflow_lib.launch import render
    from workflow_lib.study import ConfigError, load_study, lookup

    try:
        study = load_study(arguments.config)
        planned, _ = lookup("cell", arguments.cell, cells.merge(cells.expand_study(study).values()))
        if planned.estimate is None or not planned.feasible:
            raise ConfigError(f"{arguments.cell} cannot run: {planned.reason}")
        cell = planned.cell
        directory = results.run_directory(arguments.results.absolute(), cell.id, arguments.run)
        places = render.Places(
            root=arguments.root.absolute(),
            run_directory=directory,
            tokens=results.tokens(arguments.results.absolute(), cell.data),
        )
        platform = study.platforms[cell.hardware.platform]
        script = render.job_script(cell, platform, places, planned.estimate.time_limit_min)
        render.write(cell, script, directory)
    except (ConfigError, render.RenderError, OSError) as error:
        return _fail(error)
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from workflow_lib import records
    from workflow_lib.launch import schedulers, submit

    try:
        ended = submit.run(arguments.directory, arguments.scheduler)
    except (schedulers.SubmissionError, records.RecordError, OSError) as error:
        return _fail(error)
    if ended.outcome.is_result:
        return 0
    return _fail(f"{ended.outcome}: {ended.cause}; the evidence is in {arguments.directory}")


def _fail(problem: object) -> int:
    print(f"triptych: {problem}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
