"""What a command of the job said when it failed, before its launcher said that it failed.

A log of several nodes ends with what srun or torchrun made of a failure: "Exited with exit code 1".
The cause stands above: the first sentence of what failed itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from workflow_lib.launch.end.logs import ends_of

#: nodes that a sentence names
_NAMED = 4

#: how the sentence begins of what failed, by who says it
_OWN = (
    # The sampler (workflow_lib/telemetry/__main__.py) and what sets limits (limits.py there), which
    # name their node.
    re.compile(r"^(?:telemetry|GPU limits) on (?P<node>\S+): (?P<said>.+)"),
    # The script, of its node.
    re.compile(r"^triptych: on (?P<node>\S+): (?P<said>.+)"),
    # This project's commands.
    re.compile(r"^triptych: (?P<said>.+)"),
    # Apptainer, and its predecessor; and what of them begins a container, in colours.
    re.compile(r"^FATAL:\s+(?P<said>.+)"),
    re.compile(r"^ERROR  : (?P<said>.+)"),
    # In the container, of Python.
    re.compile(r"^env: (?P<said>.+)"),
    # Pyxis, which prints enroot's log.
    re.compile(r"^slurmstepd: error: pyxis:\s+\[ERROR\] (?P<said>.+)"),
    # Lmod, whose sentence begins in this line, and Environment Modules.
    re.compile(r"^Lmod has detected the following error:\s+(?P<said>.+)"),
    re.compile(r"^(?:\S+:)?ERROR:(?:\d+:)?\s*(?P<said>(?:Unable|Cannot|Module|Couldn't) .+)"),
    # Slurm, of a program that it could not start.
    re.compile(r"^slurmstepd: error: (?P<said>(?:execve\(\)|couldn't chdir|task_p_pre_launch).+)"),
    re.compile(r"^srun: error: (?P<said>Unable to (?:create step|allocate|confirm).+)"),
    # Bash, of a line of the script.
    re.compile(r"^\S*(?:slurm_script|\.sh): line \d+: (?P<said>.+)"),
)
#: pyxis' own sentences, of which enroot's log has the reason
_OF_PYXIS = re.compile(r"^slurmstepd: error: pyxis: (?P<said>\S.+)")
#: a terminal's colours, which some programs write into files, too
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_TRACEBACK = "Traceback (most recent call last):"
#: a launcher's words of what it started, and of what it did then
_LAUNCHER = re.compile(
    r"srun: |slurmstepd: |[EWI]\d{4} .*torch/distributed/|torch\.distributed\.elastic\.|"
    r"(?:error_file|traceback|exitcode|rank|host|time) +: "
)
#: srun, of tasks that ended by themselves
_EXITED = re.compile(r"^srun: error: (\S+): tasks? [\d,\[\]-]+: Exited with exit code")


class OwnWords(NamedTuple):
    """A sentence, and the nodes that it is of, as far as the log names them."""

    said: str
    nodes: tuple[str, ...]

    @property
    def where(self) -> str:
        """The nodes as they go behind a verb: " on a, b"; empty where none is named."""
        named = [*self.nodes[:_NAMED]]
        if len(self.nodes) > _NAMED:
            named.append(f"{len(self.nodes) - _NAMED} more")
        return f" on {', '.join(named)}" if named else ""


def own_words(log: Path) -> OwnWords:
    """The first sentence of what failed; where none is known as such, the last line that is no
    launcher's.
    """
    try:
        lines = [line.strip() for line in _COLOURS.sub("", ends_of(log)).splitlines()]
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        return OwnWords(f"{log} is missing" if missing else str(error), ())
    exited = dict.fromkeys(match[1] for line in lines if (match := _EXITED.match(line)))
    found = list(_sentences(lines))
    if found:
        first = found[0][0]
        nodes = dict.fromkeys(node for said, node in found if said == first and node)
        return OwnWords(_with_others(first, found), tuple(nodes or exited))
    telling = [line for line in lines if any(map(str.isalnum, line))]
    own = [line for line in telling if not _LAUNCHER.match(line)]
    last = (own or telling or [f"{log} is empty"])[-1]
    return OwnWords(last, tuple(exited))


def _with_others(first: str, found: list[tuple[str, str | None]]) -> str:
    """The first sentence, and what other nodes said instead."""
    others = dict.fromkeys(pair for pair in found if pair[0] != first and pair[1])
    return "; ".join([first, *(f"on {node}: {said}" for said, node in [*others][:_NAMED])])


def _sentences(lines: list[str]) -> Iterator[tuple[str, str | None]]:
    """Each sentence of what failed, with its node where it names one, in the log's order."""
    of_pyxis = None
    for number, line in enumerate(lines):
        match = next((found for each in _OWN if (found := each.match(line))), None)
        if match is not None:
            yield match["said"], match.groupdict().get("node")
        elif line.startswith(_TRACEBACK):
            error = _exception(lines, number + 1)
            if error is not None and not _LAUNCHER.match(error):
                yield error, None
        elif of_pyxis is None and (pyxis := _OF_PYXIS.match(line)):
            of_pyxis = pyxis["said"]
    if of_pyxis is not None:
        yield of_pyxis, None


def _exception(lines: list[str], start: int) -> str | None:
    """The line that ends a traceback; ranks' tracebacks may lie in each other."""
    for line in lines[start:]:
        if re.match(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Warning)\b", line):
            return line
    return None
