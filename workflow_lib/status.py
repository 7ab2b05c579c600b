"""The status of every run: planned, queued, running, or how it ended. Needs no Snakemake or Slurm.

``python -m workflow_lib.status`` prints a table; ``--json`` prints a line of JSON for each run. It
only reads the files of runs, so it works during and after a workflow. ``--again`` turns results
into failures, so that the next invocation of the workflow runs them again.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import functools
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tabulate import tabulate

from workflow_lib import results, table_files
from workflow_lib.analysis.parquet_check import check_readable
from workflow_lib.options import add_results, ends_quietly
from workflow_lib.records import bounds
from workflow_lib.records.files import read_if_there, read_json, read_outcome
from workflow_lib.records.outcomes import EndedRecord, JobRecord, Outcome, OutcomeRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError, end_of_file
from workflow_lib.records.tables import PLAN
from workflow_lib.records.whole_files import error_text, report_error
from workflow_lib.safety import printable
from workflow_lib.words import counted

#: States in the order in which a run passes through them. ended: its job has an end record, and
#: its outcome is not judged yet. again: it was a result, and is to be run again.
STATES = ("planned", "queued", "running", "ended", "failed", "again", "finished")
#: a cause is cut to this many letters in the table; --json has it whole
_CAUSE_WIDTH = 160

T = TypeVar("T")


@dataclass(frozen=True)
class RunStatus:
    """The status of a run."""

    cell: str
    run: int
    state: str
    #: whether a sweep's plan asks for it
    planned: bool
    #: null until the run has ended
    outcome: str | None
    cause: str | None
    nodes: tuple[str, ...]
    job_id: str | None
    #: when the state began; null for a planned run
    since_unix_s: float | None
    #: number of the present or latest attempt, from 1
    attempt: int
    #: steps that rank 0 has done; null before training
    steps_done: int | None
    #: the log to read first; null if there is none
    log: str | None
    directory: str

    @property
    def state_or_outcome(self) -> str:
        """How the run ended, if it has a judged outcome that still counts; else its state."""
        return self.state if self.outcome is None or self.state == "again" else self.outcome


def find(root: Path) -> tuple[list[RunStatus], list[str]]:
    """Every run of the results directory ``root``: planned ones, and those on disk; and what cannot
    be read of plans and of runs that are therefore left out."""
    planned, problems = planned_by_any(plans_of(root))
    runs, unreadable = read_runs(root, planned, status)
    return runs, problems + unreadable


def read_runs(
    root: Path, planned: Set[tuple[str, int]], read: Callable[[str, int, Path, bool], T]
) -> tuple[list[T], list[str]]:
    """What ``read`` makes of every run, planned or on disk, by its cell, number, directory and
    whether it is planned; and why the runs that are left out cannot be read."""
    runs, problems = [], []
    for cell, run in sorted(planned | runs_on_disk(root)):
        try:
            directory = results.run_directory(root, cell, run)
            runs.append(read(cell, run, directory, (cell, run) in planned))
        except (RecordError, OSError) as error:
            problems.append(error_text(error))
    return runs, problems


def plans_of(root: Path) -> list[Path]:
    """The plans of all sweeps in the results directory ``root``."""
    return sorted(root.glob(str(results.sweep_paths(Path(), "*").plan)))


def planned_runs(plans: Sequence[Path]) -> set[tuple[str, int]]:
    """Cell and number of every run that plans ask for. Raises records.RecordError."""
    check_readable(plans)
    return {
        (row["cell"], run)
        for path in plans
        for row in table_files.read_table(path, PLAN).iter_rows(named=True)
        if row["feasible"]
        for run in results.run_numbers(row["repeats"], row["profiled_steps"])
    }


def planned_by_any(plans: Iterable[Path]) -> tuple[set[tuple[str, int]], list[str]]:
    """The runs that the readable ones of plans ask for; and why the others cannot be read."""
    planned: set[tuple[str, int]] = set()
    problems = []
    for plan in plans:
        try:
            planned |= planned_runs([plan])
        except (RecordError, OSError) as error:
            problems.append(error_text(error))
    return planned, problems


def runs_on_disk(root: Path) -> set[tuple[str, int]]:
    """Cell and number of every run that was rendered."""
    cells = root / "cells"
    return {
        (str(path.parent.parent.relative_to(cells)), results.run_number(path.parent))
        for path in cells.glob("*/*/*/run*/cell.json")
        if path.parent.name.removeprefix("run").isdecimal()
    }


def status(cell: str, run: int, directory: Path, planned: bool) -> RunStatus:
    """The status of the run in ``directory``. Raises records.RecordError if a file is damaged."""
    paths = RunPaths(directory)
    job = read_if_there(paths.job, JobRecord)
    ended = read_if_there(paths.ended, EndedRecord)
    outcome = read_outcome(paths)
    state, since = _state(paths, job, ended, outcome)
    record = outcome or ended
    return RunStatus(
        cell=cell,
        run=run,
        state=state,
        planned=planned,
        outcome=outcome.outcome.value if outcome else None,
        cause=outcome.cause if outcome else None,
        nodes=record.nodes if record else tuple(paths.sampled_nodes()),
        job_id=job.job_id if job else (record.job_id if record else None),
        since_unix_s=since,
        attempt=1 + sum(1 for _ in paths.attempts.glob("*")),
        steps_done=_steps_done(paths),
        log=_log(paths, outcome),
        directory=str(directory),
    )


def _state(
    paths: RunPaths, job: JobRecord | None, ended: EndedRecord | None, outcome: OutcomeRecord | None
) -> tuple[str, float | None]:
    """The state, and when it began, in Unix time."""
    if outcome is not None:
        finished = paths.outcome.exists()
        written = paths.outcome if finished else paths.failure
        since = outcome.ended_unix_s or written.stat().st_mtime
        if not finished and outcome.outcome.is_result:
            return "again", since
        return "finished" if finished else "failed", since
    if ended is not None:
        return "ended", ended.ended_unix_s
    if paths.environment.exists():
        return "running", read_json(paths.environment)["recorded_unix_s"]
    return ("queued", job.submitted_unix_s) if job is not None else ("planned", None)


def _steps_done(paths: RunPaths) -> int | None:
    """The number of rank 0's last step plus 1, because steps are numbered from 0; None before the
    first file of steps."""
    try:
        end = end_of_file(paths.rank_steps(0), 2 * bounds.LINE_BYTES.most)
    except FileNotFoundError:
        return None
    lines = end.split(b"\n")[:-1]  # the text after the last newline is being written
    number = lines[-1].partition(b",")[0] if lines else b""
    # The header's first field is not a number.
    return int(number) + 1 if number.isdigit() and len(number) < 10 else 0


def _log(paths: RunPaths, outcome: OutcomeRecord | None) -> str | None:
    """The log that says most about the run's state, or why it failed; None if there is none."""
    invalid = outcome is not None and outcome.outcome is Outcome.TELEMETRY_INVALID
    names = ("telemetry.log", "training.log") if invalid else ("training.log", "telemetry.log")
    files = [paths.logs / name for name in names]
    return next((str(path) for path in files if path.exists() and path.stat().st_size), None)


def select(
    runs: Iterable[RunStatus],
    states: Sequence[str] = (),
    outcomes: Sequence[str] = (),
    cells: Sequence[str] = (),
    nodes: Sequence[str] = (),
) -> list[RunStatus]:
    """The runs that match one of the values of each option that is given. Cells are beginnings of
    ids, or patterns as ``h200/*``."""
    return [
        run
        for run in runs
        if (not states or run.state in states)
        and (not outcomes or run.outcome in outcomes)
        and (not cells or any(fnmatch.fnmatchcase(run.cell, f"{one}*") for one in cells))
        and (not nodes or not set(nodes).isdisjoint(run.nodes))
    ]


def run_again(runs: Iterable[RunStatus]) -> list[RunStatus]:
    """Turn the results among the runs into failures. Returns the runs that the workflow will run
    again, which include failed ones.

    The files of a run stay in its directory until its next attempt begins, which moves them to
    ``attempts/``.
    """
    chosen = [run for run in runs if run.state in ("finished", "again", "failed")]
    for run in chosen:
        paths = RunPaths(Path(run.directory))
        if run.state == "finished":
            paths.outcome.rename(paths.failure)
    return [
        dataclasses.replace(run, state="again") if run.state == "finished" else run
        for run in chosen
    ]


def describe(runs: Sequence[RunStatus], now_unix_s: float) -> str:
    """The runs as a table, and the number of runs in each state or with each outcome."""
    rows = [
        [
            run.cell,
            results.run_name(run.run),
            run.state_or_outcome,
            ago(run.since_unix_s, now_unix_s),
            run.job_id or "",
            " ".join(run.nodes),
            _what(run),
        ]
        for run in runs
    ]
    headers = ["cell", "run", "state", "for", "job", "nodes", "what"]
    counts = Counter(run.state_or_outcome for run in runs)
    states = ", ".join(f"{name} {number}" for name, number in sorted(counts.items()))
    failed = [
        f"{run.directory}: read {run.log}" for run in runs if run.state == "failed" and run.log
    ]
    parts = [tabulate(rows, headers, disable_numparse=True), "\n".join(failed)]
    if not runs:
        return "no run fits the choice"
    return "\n\n".join([*filter(None, parts), f"{counted(len(runs), 'run')}: {states}"])


def _what(run: RunStatus) -> str:
    attempt = f"attempt {run.attempt}" if run.attempt > 1 else ""
    steps = f"{counted(run.steps_done, 'step')} done" if run.steps_done is not None else ""
    parts = [attempt, steps] if run.cause is None else [_shortened(run.cause)]
    if run.state == "again":
        parts = [f"was {run.outcome}; the workflow will run it again"]
    return ", ".join(filter(None, [*parts, "" if run.planned else "no sweep's plan has it now"]))


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    # Its end has the log's words.
    half = _CAUSE_WIDTH // 2
    return text if len(text) <= _CAUSE_WIDTH else f"{text[: half - 1]}…{text[-half:]}"


def ago(since_unix_s: float | None, now_unix_s: float) -> str:
    """The time since then in words, in the largest unit that fits; "" for None."""
    if since_unix_s is None:
        return ""
    seconds = max(now_unix_s - since_unix_s, 0.0)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def command_line(prog: str) -> argparse.ArgumentParser:
    """The options of the command, which is called ``prog``."""
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    add_results(parser)
    parser.add_argument("--json", action="store_true", help="a line of JSON for each run")
    repeated = functools.partial(parser.add_argument, action="append", default=[])
    repeated("--state", choices=STATES, help="only runs in this state; may be given again")
    outcomes = [outcome.value for outcome in Outcome]
    repeated("--outcome", choices=outcomes, help="only runs that ended so; may be given again")
    repeated("--cell", help="only these cells: the beginning of an id, or a pattern with *")
    repeated("--node", help="only runs on this node; may be given again")
    parser.add_argument(
        "--again", action="store_true", help="have the workflow run the chosen results again"
    )
    return parser


@ends_quietly
def main(
    arguments: Sequence[str] | None = None, prog: str = "python -m workflow_lib.status"
) -> int:
    """Print the status; returns the exit code: 1 if something could not be read."""
    options = command_line(prog).parse_args(arguments)
    if not results.may_list(options.results):
        message = f"{options.results} is not a directory that you may read; give --results"
        print(printable(f"triptych: {message}"), file=sys.stderr)
        return 1
    chosen = (options.state, options.outcome, options.cell, options.node)
    if options.again and not any(chosen):
        print(
            "triptych: --again wants a choice: --outcome, --cell, --node or --state "
            "(--cell '*' is everything)",
            file=sys.stderr,
        )
        return 1
    try:
        every, problems = find(options.results)
        runs = select(every, *chosen)
        if options.again and not runs:
            print("triptych: no run fits the choice, so none will run again", file=sys.stderr)
            return 1
        if options.again:
            runs = run_again(runs)
    except (RecordError, OSError) as error:
        return report_error("triptych", error)
    for problem in problems:
        line = printable(f"triptych: left out: {problem}", bounds.MESSAGE_LETTERS.most)
        print(line, file=sys.stderr)
    if options.json:
        for run in runs:
            print(json.dumps(dataclasses.asdict(run)))
        return int(bool(problems))
    if runs or any(chosen):
        text = describe(runs, time.time())
    else:
        text = f"{options.results} holds no run, and no plan of one"
    print(printable(text))
    if options.again:
        print(
            "A snakemake command whose sweeps ask for these runs them again; each keeps this "
            "attempt's files."
        )
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
