"""Three commands. ``render`` writes a run's job script; a rule calls it. ``run`` does what rule run
does. ``array`` submits many runs as job arrays.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from workflow_lib.launch.messages import say
from workflow_lib.options import add_config, add_results


def main() -> int:
    """Run one command. Returns the exit code: 0 if it succeeded, which for ``run`` means that the
    run has a result; 130 if Ctrl-C ended it, 143 if SIGTERM did; else 1.
    """
    parser = argparse.ArgumentParser(prog="python -m workflow_lib.launch", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    render = commands.add_parser("render", help="write cell.json and job.sh of one run")
    render.add_argument("--config", type=Path, required=True, help="the study's configuration")
    render.add_argument("--results", type=Path, required=True)
    render.add_argument("--root", type=Path, required=True, help="where workflow_lib lies")
    render.add_argument("--cell", required=True, help="the cell's id")
    render.add_argument(
        "--run", type=int, required=True, help="which repeat, from 1; 0 is profiled"
    )
    run = commands.add_parser("run", help="submit one run, wait for it, say how it ended")
    run.add_argument("directory", type=Path)
    run.add_argument("--scheduler", choices=("slurm", "local"), required=True)
    array = commands.add_parser("array", help="submit rendered runs of sweeps as job arrays")
    add_config(array)
    add_results(array)
    array.add_argument("--sweep", nargs="+", required=True, help="for example parallelism-h200")
    array.add_argument(
        "--at-once", type=_positive, required=True, help="tasks of an array that may run at a time"
    )
    array.add_argument(
        "--order-seed", type=int, default=0, help="of the random order, as in config.yaml"
    )
    arguments = parser.parse_args()
    commanded = {"render": _render, "run": _run, "array": _array}
    return commanded[arguments.command](arguments)


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def _render(arguments: argparse.Namespace) -> int:
    from workflow_lib import cells
    from workflow_lib.launch.job_script import RenderError
    from workflow_lib.launch.rendering import render_run
    from workflow_lib.study import ConfigError, load_study, lookup

    try:
        study = load_study(arguments.config)
        planned, _ = lookup("cell", arguments.cell, cells.merge(cells.expand_study(study).values()))
        render_run(study, planned, arguments.run, arguments.results, arguments.root)
    except (ConfigError, RenderError, OSError) as error:
        return _fail(error)
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from workflow_lib.launch import interruption, run_to_end

    with interruption.signals_noted():
        if run_to_end.run(arguments.directory, arguments.scheduler) is None:
            return 0
        return interruption.exit_code() or 1


def _array(arguments: argparse.Namespace) -> int:
    from workflow_lib import cells, order, results
    from workflow_lib.launch import array, interruption
    from workflow_lib.launch.job_script import RenderError
    from workflow_lib.launch.rendering import render_run
    from workflow_lib.launch.schedulers.refusals import SubmissionError
    from workflow_lib.records.reading import RecordError
    from workflow_lib.study import ConfigError, load_study, lookup

    try:
        study = load_study(arguments.config)
        sweeps = cells.expand_study(study)
        chosen = cells.merge(lookup("sweep", name, sweeps) for name in arguments.sweep)
        runs = {
            (planned.cell.id, run): planned
            for planned, _ in chosen.values()
            if planned.feasible
            for run in planned.runs
        }
        directories = {
            results.run_directory(arguments.results.absolute(), *run): (run, place)
            for run, place in order.places(list(runs), arguments.order_seed).items()
        }

        def render_anew(directory: Path) -> None:
            (cell, run), _ = directories[directory]
            root = Path(__file__).parent.parent.parent
            render_run(study, runs[cell, run], run, arguments.results, root)

        order.write_all((directory, place) for directory, (_, place) in directories.items())
        with interruption.signals_noted():
            array.submit_all(
                directories, arguments.results.absolute(), arguments.at_once, render_anew
            )
    except interruption.InterruptedRunError as error:
        say(f"{error}; arrays that were submitted go on")
        return interruption.exit_code() or 1
    except (ConfigError, RenderError, SubmissionError, RecordError, OSError) as error:
        return _fail(error)
    return 0


def _fail(error: Exception) -> int:
    from workflow_lib.records.whole_files import error_text

    say(error_text(error))
    return 1


if __name__ == "__main__":
    sys.exit(main())
