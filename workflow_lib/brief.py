"""Runs a Snakemake command and shows its progress in a few lines.

    Snakemake ──▶ its log, in a file
    results/  ──▶ Watcher.look ──▶ a line for each run that ends, and what runs now

Snakemake's output goes to the file. If Snakemake fails, the causes that the file names are shown,
and its end.
"""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.status import Status

from workflow_lib import results, status
from workflow_lib.live import RunNow, Watcher
from workflow_lib.records.nodes import LIMITS_LEFT
from workflow_lib.records.reading import RecordError
from workflow_lib.safety import printable
from workflow_lib.words import counted

#: how often the results are read
_LOOK_EVERY_S = 1.0
#: how many of the log's last lines are shown after a failure
_LINES = 15
#: Snakemake writes all inputs of a rule into one line: so many letters of a line are shown
_LETTERS = 300
#: how many causes are shown after a failure
_CAUSES = 5
_OF_TRIPTYCH = re.compile("triptych: ")
#: what stands between a command's last message and Snakemake's
_NO_CAUSE = re.compile(r"RuleException:$|tee: |\s*$")


class Progress:
    """Prints the progress of some sweeps, and remembers what it has printed."""

    def __init__(self, root: Path, sweeps: Sequence[str], console: Console, began_s: float) -> None:
        """``began_s`` is when Snakemake was started, by the clock of ``now_s`` of :meth:`look`."""
        self._plans = [results.sweep_paths(root, sweep).plan for sweep in sweeps]
        self._watcher = Watcher(root)
        self._console = console
        self._began_s = began_s
        self._printed: set[tuple[str, int]] = set()
        #: the runs that the plans asked for when they were last read; None until all plans exist
        self._planned: set[tuple[str, int]] | None = None
        #: runs that had a result before
        self._old: set[tuple[str, int]] = set()
        #: runs whose end was printed
        self._new: set[tuple[str, int]] = set()

    def look(self, now_s: float, now_unix_s: float) -> str:
        """Print a line for each run that has ended since the last call. Returns what is under way,
        in words."""
        if not all(plan.exists() for plan in self._plans):
            return "planning"
        try:
            planned = status.planned_runs(self._plans)
        except (RecordError, OSError):
            # A plan is being written. If it is damaged, Snakemake reports that.
            return "planning"
        runs = {
            (run.status.cell, run.status.run): run
            for run in self._watcher.look(now_unix_s).runs
            if (run.status.cell, run.status.run) in planned
        }
        ended = {key for key, run in runs.items() if run.status.state in ("finished", "failed")}
        if planned != self._planned:
            # Snakemake replaces the plan of a sweep that was edited. A run that failed before is
            # one to do. Its old end is not printed.
            before = ended - (self._planned or set())
            finished = {key for key in before if runs[key].status.state == "finished"}
            self._old = self._old & planned | finished
            self._new &= planned
            self._printed |= before
            self._planned = planned
            done = len(self._old | self._new)
            here = f", {done} of which are done" if done else ""
            _say(self._console, f"{counted(len(planned), 'run')} to do{here}")
        for key in sorted(
            ended - self._printed, key=lambda run_key: runs[run_key].status.since_unix_s or 0
        ):
            self._printed.add(key)
            self._new.add(key)
            _say(self._console, self._of(runs[key], len(planned), now_s))
        # Forget a run that failed before and now runs again, so that its new end is printed.
        self._printed &= ended
        if len(self._old | self._new) == len(planned) == len(ended):
            return "tables, figures and the report"
        under_way = (
            _step(run) for run in runs.values() if run.status.state in ("running", "ended")
        )
        return ", ".join(under_way) or "starting a run"

    def _of(self, run: RunNow, planned: int, now_s: float) -> str:
        done = len(self._old | self._new)
        line = f"{done:>{len(str(planned))}} of {planned}  {_name(run)}: {run.status.outcome}"
        cause = " ".join((run.status.cause or "").split())
        if run.status.state == "failed" or LIMITS_LEFT in cause:
            return f"{line}: {cause}"
        left_s = (now_s - self._began_s) / len(self._new) * (planned - done)
        return line if done == planned else f"{line}; about {_time(left_s)} left for the others"


def _say(console: Console, text: str) -> None:
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def _step(run: RunNow) -> str:
    done, asked = run.status.steps_done, run.steps_asked
    if done is None:
        return f"{_name(run)} starts"
    return f"{_name(run)}, step {done}" + ("" if asked is None else f" of {asked}")


def _name(run: RunNow) -> str:
    """Model, cell and run, without the platform and the cell's digest."""
    _, model, cell = run.status.cell.split("/")
    name = f"{model} {cell.rpartition('_')[0]}"
    return name if run.status.run == 1 else f"{name} run {run.status.run}"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _causes(log: Sequence[str]) -> list[str]:
    """Why jobs failed, by the lines of Snakemake's log: what a rule's own code raised, and the last
    message of a command. The end of the log may be all about what came after."""
    messages: dict[str, None] = {}
    for number, line in enumerate(log):
        if line.startswith("CalledProcessError in file "):
            # Only just before: runs that go on say things, too.
            before = (
                earlier
                for earlier in log[max(0, number - 4) : number]
                if not _NO_CAUSE.match(earlier)
            )
            messages |= dict.fromkeys(list(before)[-1:])
        elif re.match(r"\w+(Error|Exception) in file ", line):
            after = log[number + 1 :]
            lines = itertools.takewhile(lambda later: not later.startswith("  File "), after)
            messages[" ".join(lines)] = None
    causes = [cause for message in messages if (cause := _OF_TRIPTYCH.sub("", message))]
    more = len(causes) - _CAUSES
    return causes[:_CAUSES] + ([f"and {more} more, in the log"] if more > 0 else [])


def follow(command: Sequence[str], root: Path, sweeps: Sequence[str], cwd: Path) -> int:
    """Run Snakemake's ``command`` in ``cwd`` and show its progress. Returns its exit code.

    ``sweeps`` are the sweeps that it runs, and ``root`` is the results directory. Its log is
    ``root/logs/snakemake-<first sweep>.log``. Ctrl-C and other signals are passed on to Snakemake,
    and this function waits for its end.
    """
    log = root / "logs" / f"snakemake-{sweeps[0]}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    console = Console()
    _say(console, f"Snakemake's log: {log}")
    began_s = time.monotonic()
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []
    stopped_by: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        stopped_by.append(number)
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    # Before Snakemake starts: a signal must not end this process and leave Snakemake behind.
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, pass_on)
    with log.open("wb") as output:
        # In a session of its own, so that a signal reaches it only once, from this process.
        child = subprocess.Popen(
            command, cwd=cwd, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    for number in early:
        child.send_signal(number)
    progress = Progress(root, sweeps, console, began_s)
    stopping = False
    try:
        with Status("planning", console=console) as shown:
            while True:
                try:
                    code = child.wait(_LOOK_EVERY_S)
                except subprocess.TimeoutExpired:
                    code = None
                if stopped_by and not stopping:
                    stopping = True
                    name = signal.Signals(stopped_by[0]).name
                    message = "stopping; waits for Snakemake, which ends the jobs under way"
                    _say(console, f"{name}: {message}")
                under_way = progress.look(time.monotonic(), time.time())
                if code is not None:
                    break
                shown.update(f"{under_way} ({_time(time.monotonic() - began_s)})")
    except BaseException:
        # Snakemake must not go on unseen.
        child.terminate()
        child.wait()
        raise
    took = _time(time.monotonic() - began_s)
    if code == 0:
        _say(console, f"done in {took}")
        for sweep in sweeps:
            _say(console, f"look at {results.sweep_paths(root, sweep).report}")
        return 0
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    end = [line if len(line) <= _LETTERS else f"{line[:_LETTERS]} …" for line in lines[-_LINES:]]
    text = "".join(f"  {line}\n" for line in _causes(lines))
    text += f"The end of {log}:\n" + "\n".join(f"  {line}" for line in end)
    print(
        printable(
            f"triptych: Snakemake ended with exit code {code} after {took}. What is measured "
            f"stays; the same command goes on.\n{text}"
        ),
        file=sys.stderr,
    )
    return code if code > 0 else 128 - code
