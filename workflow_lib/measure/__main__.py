"""``triptych measure [options] -- COMMAND …``: run a command, and measure what it takes.

Put these words before a command that trains, in a batch script or on a workstation. All GPUs of the
job are sampled, on all of its nodes. The command's exit code, output and environment stay its own;
--steps hook adds two variables, which say where steps are written.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from workflow_lib import audit
from workflow_lib.audit import DamagedError
from workflow_lib.measure import (
    attach,
    conclude,
    disclose,
    export,
    ingest,
    preflight,
    sampling,
    site,
    summary,
)
from workflow_lib.measure.allocation import find_allocation
from workflow_lib.measure.command import Command
from workflow_lib.measure.log_steps import PATTERNS, LogSteps, PatternError, compiled, own_log
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import write_json
from workflow_lib.trainers import hook

#: so much may be unseen at the end of a job that was killed whole
_LOST_S = 1.0


def command_line(prog: str) -> argparse.ArgumentParser:
    """The options of the command, which is called ``prog``."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=__doc__,
        epilog=f"Other commands, each with --help: {', '.join(sorted({*COMMANDS} - {'sample'}))}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # What is behind the command's own name may begin alike.
        allow_abbrev=False,
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="the run's directory (default: triptych-<job>)"
    )
    conclude.add_steps(parser)
    parser.add_argument("--tokens", type=conclude.count, metavar="N", help="of the whole command")
    parser.add_argument(
        "--steps",
        default="auto",
        choices=("auto", "none", "log", "hook"),
        help="how steps are seen: by lines of the log that the output goes to, or by torch's "
        "optimizer hook and triptych_steps; auto is the log, where the output goes to a file",
    )
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="the program's log, with its steps"
    )
    conclude.add_pattern(parser)
    conclude.add_records(parser)
    conclude.add_sampling(parser)
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="-- COMMAND …", help="what to run"
    )
    return parser


def main(arguments: Sequence[str] | None = None, prog: str = "triptych measure") -> int:
    """Measure a command, and end as it ends; returns only if nothing was started."""
    parser = command_line(prog)
    options = parser.parse_args(arguments)
    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    if not words:
        parser.error("give the command after --, as in: triptych measure -- python3 train.py")
    allocation = find_allocation(os.environ)
    if allocation.is_other_task:
        conclude.say("one of several tasks, of which the first measures. Put measure before srun")
        Command(words, os.environ).wait().follow()
    no_log = options.records or options.steps in ("none", "hook")
    log = None if no_log else options.log or own_log()
    stamp = allocation.job_id or time.strftime("%Y%m%d-%H%M%S")
    known = summary.nothing_told(
        # Arguments may hold secrets, so that only the program's own name is written.
        Path(words[0]).name,
        job_id=allocation.job_id,
        warmup_steps=options.warmup_steps,
        tokens_per_step=options.tokens_per_step,
        tokens=options.tokens,
    )
    samplers = None
    try:
        if options.pattern:
            compiled(options.pattern)
        if log is None and (options.pattern or options.steps == "log") and not options.records:
            raise PatternError("the output goes to no file with steps; name one with --log")
        paths = sampling.new_directory(options.output or Path(f"triptych-{stamp}"))
        follower = log and LogSteps(log, paths.steps, options.pattern, options.warmup_steps)
        environment = _environment(options, paths)
        samplers = sampling.Samplers(paths.directory, allocation, options.rate, options.simulate)
        samplers.wait_until_ready()
        # So that `conclude` can sum up what is left of a job that is killed whole.
        known["started_unix_s"] = time.time()
        write_json(paths.measured, summary.unfinished(known))
    except PatternError as error:
        parser.error(f"nothing was started: {error}")
    except OSError as error:
        conclude.say(f"{error.filename}: {error.strerror}; the command runs, and is not measured")
        if samplers:
            samplers.stop()
        Command(words, os.environ).wait().follow()
    if samplers.problem:
        conclude.say(f"{samplers.problem}; the command runs all the same")
    command = Command(words, environment)
    if follower:
        follower.start()
    end = command.wait()
    try:
        if follower:
            follower.stop()
        samplers.stop()
        if end.problem:
            conclude.say(f"{words[0]}: {end.problem}")
        known.update(
            started_unix_s=end.started_unix_s,
            ended_unix_s=end.ended_unix_s
            if samplers.problem
            else _seen_end_unix_s(end.ended_unix_s, paths),
            exit_code=end.exit_code,
            signal=end.signal,
        )
        problems = (
            samplers.problem,
            follower.problem if follower else "",
            f"the command did not start: {end.problem}" if end.problem else "",
        )
        conclude.conclude(paths, known, options.records, filter(None, problems))
        if why := _no_steps(options, log, paths):
            conclude.say(why)
    except Exception as error:  # whatever fails here, the command's end stays its own
        conclude.say(f"the summary failed: {type(error).__name__}: {error}; see {paths.directory}")
    end.follow()
    return end.exit_code


def _seen_end_unix_s(ended: float, paths: RunPaths) -> float:
    """The command's end; of a job that Slurm ends whole, the last that all samplers saw, which it
    ends with the command."""
    try:
        _, last = summary.covered_unix_s(paths)
    except (DamagedError, OSError, ValueError):
        return ended
    return last if 0 < ended - last < _LOST_S else ended


def _no_steps(options: argparse.Namespace, log: Path | None, paths: RunPaths) -> str:
    """Why no step counts though steps were asked for; "" if some do, or were not asked for."""
    asked = options.steps in ("hook", "log") or options.pattern or log or options.tokens_per_step
    record = summary.read_json(paths.measured)
    if not asked or record["invalid"] or "counted_steps" in record["values"]:
        return ""
    if record["rung"] != summary.NO_STEPS:
        return f"all steps that were seen are warm-up: --warmup-steps is {options.warmup_steps}"
    if options.steps == "hook":
        return "no steps were seen: no process of the command took a step of a torch optimizer"
    if options.records:  # which have words of their own
        return ""
    if log is None:
        return (
            "no steps were seen, as the output goes to no file: add --steps hook, which needs "
            "none, or send it to one, as in > train.log"
        )
    if not log.exists():
        return (
            f"no steps were seen: {log} does not exist; --log names a file that the command writes"
        )
    looked_for = options.pattern or f"a step as {', '.join(PATTERNS)} write it: give --pattern"
    return f"no steps were seen: no line of {log} has {looked_for}, or --steps hook"


def _environment(options: argparse.Namespace, paths: RunPaths) -> Mapping[str, str]:
    if options.steps != "hook":
        return os.environ
    directory = paths.directory / "hook"
    directory.mkdir()
    search = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        **hook.environment(directory, paths.steps, options.warmup_steps, search),
    }


def _sample(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="triptych sample")
    parser.add_argument("--rate", type=float)
    parser.add_argument("--simulate", type=int)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("directory", type=Path)
    options = parser.parse_args(arguments)
    if options.alone:
        sampling.leave_parent()
    return sampling.sample(options.directory, options.rate, options.simulate)


def _print_steps(_: Sequence[str]) -> int:
    print(hook.packaged("triptych_steps.py").decode(), end="")
    return 0


#: of the zipapp; "steps" prints the module that tells steps in a program's own code
COMMANDS = {
    "sample": _sample,
    "attach": attach.main,
    "conclude": conclude.main,
    "disclose": disclose.main,
    "export": export.main,
    "ingest": ingest.main,
    "preflight": preflight.main,
    "site": site.main,
    "steps": _print_steps,
    "audit": audit.main,
    "measure": main,
}


def run(arguments: Sequence[str]) -> int:
    """One of the commands of the zipapp; ``measure`` if none is named."""
    if arguments and arguments[0] in COMMANDS:
        return COMMANDS[arguments[0]](arguments[1:])
    if arguments and not arguments[0].startswith("-"):
        known = ", ".join(sorted(COMMANDS))
        command_line("triptych").error(
            f"{arguments[0]!r} is no command of the one file; these are: {known}. Others, such as "
            "report and compare, come with `pip install` of the package"
        )
    return main(arguments)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
