"""Shows runs in the terminal as they go: steps, speed, power, heat, throttling, and failures.

It only reads files and does not ask Slurm, so it works on every machine that has the results
directory. It ends with Ctrl-C. If its output is not a terminal, it prints one frame and ends.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from workflow_lib import results
from workflow_lib.live import FRESH_S, NodeNow, RunNow, Snapshot, Watcher
from workflow_lib.options import add_results
from workflow_lib.safety import printable
from workflow_lib.status import RunStatus, ago
from workflow_lib.words import counted

#: how many failed runs, the latest first, and how many problems are shown
_SHOWN = 10
#: width of a frame in letters if the output is not a terminal
_PRINTED_WIDTH = 160
_REASONS = {"power_cap": "power cap", "thermal": "heat", "power_brake": "power brake"}


def frame(snapshot: Snapshot, root: Path) -> RenderableType:
    """A snapshot as rich shows it in the terminal."""
    now = snapshot.taken_unix_s
    running = [run for run in snapshot.runs if run.status.state in ("running", "ended")]
    failed = [run.status for run in snapshot.runs if run.status.state == "failed"]
    parts: list[RenderableType] = [_headline(snapshot, root)]
    if running:
        parts.append(_text("\nunder way", "bold"))
    for run in running:
        parts += [Padding(_of_run(run, now), (0, 0, 0, 2)), Padding(_nodes(run, now), (0, 0, 0, 4))]
    if failed:
        parts.append(_text("\nfailed", "bold"))
    latest = sorted(failed, key=lambda failure: failure.since_unix_s or 0.0, reverse=True)
    parts += [Padding(_of_failure(failure, now), (0, 0, 0, 2)) for failure in latest[:_SHOWN]]
    if len(failed) > _SHOWN:
        more = counted(len(failed) - _SHOWN, "more run")
        parts.append(Text(f"  {more} failed: triptych status --state failed"))
    for problem in snapshot.problems[:_SHOWN]:
        parts.append(_text(f"cannot be read: {problem}", "red"))
    return Group(*parts)


def _headline(snapshot: Snapshot, root: Path) -> Text:
    states = Counter(run.status.state_or_outcome for run in snapshot.runs)
    parts = [f"{state} {number}" for state, number in sorted(states.items())]
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.taken_unix_s))
    runs = counted(len(snapshot.runs), "run")
    if unreadable := len(snapshot.problems):
        parts.append(f"{counted(unreadable, 'file')} cannot be read")
    summary = ", ".join(parts) or "nothing was planned here"
    return _text(f"{clock}  {root}  {runs}: {summary}", "bold")


def _of_run(run: RunNow, now_unix_s: float) -> Text:
    """A run's name, progress and speed."""
    status = run.status
    done = "no step" if status.steps_done is None else f"step {status.steps_done}"
    parts = [
        done if run.steps_asked is None else f"{done} of {run.steps_asked}",
        "" if run.tokens_per_s is None else f"{run.tokens_per_s:,.0f} tokens/s",
        f"job {status.job_id}" if status.job_id else "",
        f"{status.state} for {ago(status.since_unix_s, now_unix_s)}",
    ]
    return _text(f"{_name(status)}: {', '.join(filter(None, parts))}")


def _nodes(run: RunNow, now_unix_s: float) -> RenderableType:
    """A table with a row for each node: power of its GPUs, highest temperature, and throttling."""
    if not run.nodes:
        return Text("no sampler yet")
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    for node in run.nodes:
        name = node.node if node.source != "simulated" else f"{node.node} (simulated)"
        table.add_row(_text(name), *_of_node(node, now_unix_s))
    return table


def _of_node(node: NodeNow, now_unix_s: float) -> list[Text]:
    if node.sampled_unix_s is None or now_unix_s - node.sampled_unix_s > FRESH_S:
        since = ago(node.sampled_unix_s, now_unix_s)
        message = f"no reading for {since}" if since else "no reading yet"
        return [Text("– W"), Text("– °C"), _text(message, "yellow")]
    power, hottest = node.gpu_power_w, node.hottest_c
    return [
        _text("– W" if power is None else f"{power:,.0f} W"),
        _text("– °C" if hottest is None else f"{hottest:.0f} °C"),
        _held(node),
    ]


def _held(node: NodeNow) -> Text:
    """How many GPUs are throttled for each reason."""
    known = [gpu.throttled for gpu in node.gpus if gpu.throttled is not None]
    if not known:
        return Text("throttling not known")
    counts = {reason: sum(throttled[reason] for throttled in known) for reason in _REASONS}
    parts = [
        f"{_REASONS[reason]} on {number} of {counted(len(known), 'GPU')}"
        for reason, number in counts.items()
        if number
    ]
    slowed = counts["thermal"] or counts["power_brake"]
    return _text(", ".join(parts) or "not throttled", "red" if slowed else "")


def _of_failure(status: RunStatus, now_unix_s: float) -> Text:
    """A run that failed, when, and its cause."""
    cause = " ".join((status.cause or "").split())
    since = ago(status.since_unix_s, now_unix_s)
    return _text(f"{_name(status)}, {since} ago: {status.outcome}: {cause}")


def _name(status: RunStatus) -> str:
    run = "profiled" if status.run == results.PROFILED_RUN else f"run {status.run}"
    return f"{status.cell} {run}"


def _text(text: str, style: str = "") -> Text:
    """Text in which brackets are not markup and control characters are escaped."""
    return Text(printable(text), style=style)


def command_line(prog: str) -> argparse.ArgumentParser:
    """The options of the command, which is called ``prog``."""
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    add_results(parser)
    parser.add_argument(
        "--every", type=_seconds, default=5.0, metavar="S", help="look again every so many seconds"
    )
    parser.add_argument("--once", action="store_true", help="print one frame and end")
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds") from None
    if not seconds >= 1:
        raise argparse.ArgumentTypeError(f"{text} is too often; 1 is the least")
    return seconds


def main(arguments: Sequence[str] | None = None, prog: str = "python -m workflow_lib.watch") -> int:
    """Show runs until Ctrl-C; returns the exit code."""
    options = command_line(prog).parse_args(arguments)
    root: Path = options.results
    if not results.may_list(root):
        message = f"{root} is not a directory that you may read; give --results"
        print(printable(f"triptych: {message}"), file=sys.stderr)
        return 1
    watcher = Watcher(root)
    if options.once or not sys.stdout.isatty():
        console = Console(width=None if sys.stdout.isatty() else _PRINTED_WIDTH)
        console.print(frame(watcher.look(time.time()), root))
        return 0
    try:
        with Live(screen=True, auto_refresh=False) as live:
            while True:
                live.update(frame(watcher.look(time.time()), root), refresh=True)
                time.sleep(options.every)
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
