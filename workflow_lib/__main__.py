"""``triptych COMMAND …``: one name for all commands.

Each command is the ``main`` of a module, which ``python -m workflow_lib.MODULE`` calls as well. A
module is imported only when its command is called, because some libraries take a second to import.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import workflow_lib
from workflow_lib.config.mistakes import nearest
from workflow_lib.options import ends_quietly


class Command(NamedTuple):
    """A command: its module, and what it does."""

    module: str
    about: str
    #: the subcommand of the module that is called; "" if the module has one command
    word: str = ""


COMMANDS = {
    "plan": Command("plan", "what would run, what it would cost, and what cannot run"),
    "check": Command("check", "whether a platform's jobs will start, before one does"),
    "run": Command("run", "run sweeps, with Snakemake; in a clone of the repository"),
    "status": Command("status", "where every run is, and why runs failed"),
    "watch": Command("watch", "runs in the terminal as they go: steps, speed, power, heat"),
    "metrics": Command("metrics", "the same as OpenMetrics text, for Prometheus"),
    "report": Command("report.__main__", "draw the figures of a sweep's tables, or write its page"),
    "compare": Command("comparison.__main__", "two sweeps side by side"),
    "archive": Command("archive.__main__", "pack a sweep into one file, or rebuild it from that"),
    "measure": Command("measure.__main__", "run a command of yours, and measure what it takes"),
    "attach": Command("measure.attach", "measure a job of Slurm that runs already"),
    "conclude": Command("measure.conclude", "sum up what is left of a measured command"),
    "ingest": Command("measure.ingest", "a measured run from a recording of nvidia-smi or DCGM"),
    "preflight": Command("measure.preflight", "whether a node's GPUs are fit, in a minute"),
    "site": Command("measure.site", "measure every job: Slurm's Prolog and Epilog"),
    "export": Command("measure.export", "a run as a timeline for Perfetto, or for Prometheus"),
    "disclose": Command("measure.disclose", "what disclosures ask about a training's energy"),
    "audit": Command("audit", "energy and validity of runs, again from their raw files"),
    "project": Command("projection.__main__", "what a model would do on more GPUs", "project"),
    "slots": Command(
        "placement.__main__",
        "GPUs that are slow or hot, by a sweep or by all measured jobs",
        "slots",
    ),
    "place": Command("placement.__main__", "whether to place a cell by its GPUs", "place"),
    "meter": Command("meter", "how far GPUs' sensors of power are off a meter of yours"),
    "claims": Command("claims.__main__", "verdicts on claims, by sweeps"),
}
SHELLS = ("bash", "zsh")


def command_line(prog: str) -> argparse.ArgumentParser:
    """The parser of ``triptych`` itself; a command's own options are left to the command."""
    width = max(map(len, COMMANDS))
    listed = [f"  {name:{width}}  {command.about}" for name, command in COMMANDS.items()]
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Measures distributed training: power, performance and thermals.",
        epilog="\n".join(["commands, each with --help:", *listed]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=workflow_lib.__version__)
    parser.add_argument(
        "--print-completion", choices=SHELLS, help="print what has a shell complete commands"
    )
    parser.add_argument("command", nargs="?", metavar="COMMAND", help="what to do: see below")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="…", help="its own options")
    return parser


def completion(shell: str) -> str:
    """The script with which a shell completes commands, options and files. Raises ImportError."""
    import shtab

    whole = argparse.ArgumentParser(prog="triptych")
    whole.add_argument("--version", action="store_true", help="print the version")
    commands = whole.add_subparsers()
    for name, command in COMMANDS.items():
        own: argparse.ArgumentParser = _module(command).command_line(f"triptych {name}")
        if command.word:
            own = _subcommands(own)[command.word]
        for parser in (own, *_subcommands(own).values()):
            _complete_files(parser, shtab.FILE)
        commands.add_parser(name, help=command.about, parents=[own], add_help=False)
    return str(shtab.complete(whole, shell))


def _subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    choices = [
        action.choices
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    return choices[0] if choices else {}


def _complete_files(parser: argparse.ArgumentParser, files: Any) -> None:
    for action in parser._actions:
        if action.type is Path:
            action.complete = files  # type: ignore[attr-defined]  # where shtab looks


def _module(command: Command) -> Any:
    return importlib.import_module(f"workflow_lib.{command.module}")


@ends_quietly
def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    parser = command_line("triptych")
    chosen = parser.parse_args(arguments)
    if chosen.print_completion:
        try:
            print(completion(chosen.print_completion))
        except ImportError as error:
            print(f"triptych: {error}; completion needs it: pip install shtab", file=sys.stderr)
            return 1
        return 0
    if chosen.command is None:
        parser.print_help()
        return 0
    if chosen.command not in COMMANDS:
        parser.error(
            f"no command is called {chosen.command!r}; {nearest(chosen.command, COMMANDS)}"
        )
    command = COMMANDS[chosen.command]
    # Messages show the command's name as prog; for a subcommand, argparse appends its word.
    prog = "triptych" if command.word else f"triptych {chosen.command}"
    word = [command.word] if command.word else []
    return int(_module(command).main([*word, *chosen.rest], prog=prog))


if __name__ == "__main__":
    sys.exit(main())
