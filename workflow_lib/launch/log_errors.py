"""Finds in a log the first error message of the command that failed.

A job's log ends with the message of the launcher, srun or torchrun: "Exited with exit code 1". The
cause stands above it: the first error message of the command itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: how much of a log's beginning and of its end is read, in bytes: logs grow with every step
_END = 65536


def tail(log: Path) -> str:
    """The last 64 KiB of a log as text. Raises OSError."""
    with log.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - _END))
        return stream.read().decode("utf-8", "replace")


def head_and_tail(log: Path) -> str:
    """The first and the last 64 KiB of a log as text, in whole lines; a shorter log whole.

    Raises OSError.
    """
    with log.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        if size <= 2 * _END:
            return stream.read().decode("utf-8", "replace")
        first = stream.read(_END).rpartition(b"\n")[0]
        stream.seek(size - _END)
        return (first + b"\n" + stream.read().partition(b"\n")[2]).decode("utf-8", "replace")


#: how many nodes a sentence names at most
_NAMED = 4

#: how error messages begin, by the program that writes them
_ERRORS = (
    # The sampler (workflow_lib/telemetry/__main__.py) and the command that sets limits
    # (workflow_lib/telemetry/limits.py). Both name their node.
    re.compile(r"^(?:telemetry|GPU limits) on (?P<node>\S+): (?P<message>.+)"),
    # The job script, which names its node.
    re.compile(r"^triptych: on (?P<node>\S+): (?P<message>.+)"),
    # This project's commands.
    re.compile(r"^triptych: (?P<message>.+)"),
    # Apptainer and Singularity; their container runtime writes the second form, in colours.
    re.compile(r"^FATAL:\s+(?P<message>.+)"),
    re.compile(r"^ERROR  : (?P<message>.+)"),
    # env in the container, if it cannot start Python.
    re.compile(r"^env: (?P<message>.+)"),
    # Pyxis, which prints enroot's log.
    re.compile(r"^slurmstepd: error: pyxis:\s+\[ERROR\] (?P<message>.+)"),
    # Lmod, whose message begins in this line, and Environment Modules.
    re.compile(r"^Lmod has detected the following error:\s+(?P<message>.+)"),
    re.compile(r"^(?:\S+:)?ERROR:(?:\d+:)?\s*(?P<message>(?:Unable|Cannot|Module|Couldn't) .+)"),
    # Slurm, if it could not start a program.
    re.compile(
        r"^slurmstepd: error: (?P<message>(?:execve\(\)|couldn't chdir|task_p_pre_launch).+)"
    ),
    re.compile(r"^srun: error: (?P<message>Unable to (?:create step|allocate|confirm).+)"),
    # Ranks, before they train; and argparse.
    re.compile(r"^training: (?P<message>.+)"),
    re.compile(r"^\S+\.py: error: (?P<message>.+)"),
    # Python, if it could not start a program.
    re.compile(r"^\S*python[\d.]*: (?P<message>(?:No module named|can't open file) .+)"),
    # Bash, about a line of the job script.
    re.compile(r"^\S*(?:slurm_script|\.sh): line \d+: (?P<message>.+)"),
)
#: messages of pyxis itself; enroot's log, which it prints, has the reason
_PYXIS_ERROR = re.compile(r"^slurmstepd: error: pyxis: (?P<message>\S.+)")
#: terminal colours, which some programs also write into files
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
#: how torch begins the lines of a rank's traceback
_RANK = re.compile(r"^\[rank\d+\]: ?")
_TRACEBACK = "Traceback (most recent call last):"
#: lines that launchers write about the commands that they started
_LAUNCHER = re.compile(
    r"srun: |slurmstepd: |[EWI]\d{4} .*torch/distributed/|torch\.distributed\.elastic\.|"
    r"(?:error_file|traceback|exitcode|rank|host|time) *: |"
    # torch.distributed.run's list of failures
    r"\[\d+\]:|Failures:|Root Cause|<NO_OTHER_FAILURES>|\S+ FAILED$"
)
#: srun's line about tasks that exited by themselves
_EXITED = re.compile(r"^srun: error: (\S+): tasks? [\d,\[\]-]+: Exited with exit code")


#: what NCCL or RCCL writes where NCCL_DEBUG is WARN or more, after a time, a process and a place
_NCCL_WARNING = re.compile(r"[NR]CCL WARN (?P<message>\S.*)")


class LogError(NamedTuple):
    """An error message, and the nodes that it came from, as far as the log names them."""

    message: str
    nodes: tuple[str, ...]

    @property
    def where(self) -> str:
        """The nodes as a phrase to append: " on a, b"; empty if no node is named."""
        named = [*self.nodes[:_NAMED]]
        if len(self.nodes) > _NAMED:
            named.append(f"{len(self.nodes) - _NAMED} more")
        return f" on {', '.join(named)}" if named else ""


def first_error(log: Path) -> LogError:
    """The first error message in a log; if no line looks like one, the last line that no launcher
    wrote. If the log cannot be read, the message says so.
    """
    try:
        plain = _COLOURS.sub("", head_and_tail(log)).splitlines()
        lines = [_RANK.sub("", line).strip() for line in plain]
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        return LogError(f"{log} is missing" if missing else str(error), ())
    exited = dict.fromkeys(match[1] for line in lines if (match := _EXITED.match(line)))
    messages = list(_messages(lines))
    if messages:
        first = messages[0][0]
        nodes = dict.fromkeys(node for message, node in messages if message == first and node)
        return LogError(_with_others(first, messages), tuple(nodes or exited))
    readable = [line for line in lines if any(map(str.isalnum, line))]
    program = [line for line in readable if not _LAUNCHER.match(line)]
    last = (program or readable or [f"{log} is empty"])[-1]
    return LogError(last, tuple(exited))


def nccl_warning(log: Path) -> str | None:
    """The first warning of NCCL or RCCL in a log; None if there is none or the log cannot be read.

    The exceptions of torch.distributed name a class of errors and refer to it: "invalid usage (run
    with NCCL_DEBUG=WARN for details)".
    """
    try:
        match = _NCCL_WARNING.search(_COLOURS.sub("", head_and_tail(log)))
    except OSError:
        return None
    return match["message"].strip() if match else None


def _with_others(first: str, messages: list[tuple[str, str | None]]) -> str:
    """The first message, and the different messages of other nodes."""
    others = dict.fromkeys(pair for pair in messages if pair[0] != first and pair[1])
    return "; ".join([first, *(f"on {node}: {message}" for message, node in [*others][:_NAMED])])


def _messages(lines: list[str]) -> Iterator[tuple[str, str | None]]:
    """Each error message, with its node if it names one, in the log's order."""
    pyxis_error = None
    for number, line in enumerate(lines):
        match = next(filter(None, (pattern.match(line) for pattern in _ERRORS)), None)
        if match is not None:
            yield match["message"], match.groupdict().get("node")
        elif line.startswith(_TRACEBACK):
            error = _exception(lines, number + 1)
            if error is not None and not _LAUNCHER.match(error):
                yield error, None
        elif pyxis_error is None and (pyxis := _PYXIS_ERROR.match(line)):
            pyxis_error = pyxis["message"]
    if pyxis_error is not None:
        yield pyxis_error, None


def _exception(lines: list[str], start: int) -> str | None:
    """The line that ends a traceback. Lines of other ranks' tracebacks may stand in between."""
    for line in lines[start:]:
        if re.match(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Warning)\b", line):
            return line
    return None
