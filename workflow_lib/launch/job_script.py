"""Renders a run's job script.

The template holds the job; Python only fills in values. Each value goes through a filter. ``quote``
makes any text one shell word. ``argument`` also refuses text that a program would take for an
option. ``word`` is for ``#SBATCH`` lines, where nothing can be quoted reliably: it refuses all text
that sbatch could misread.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shlex
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import jinja2

from workflow_lib.config import Platform
from workflow_lib.records.cell import Cell
from workflow_lib.records.checksums import write_checksums
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import whole_file, write_json

_WORD = re.compile(r"[A-Za-z0-9_.,:@+/=-]+")
#: --constraint also has operators
_CONSTRAINT = re.compile(r"[A-Za-z0-9_.,:@+&|*()\[\]-]+")
#: node expressions of --exclude; sbatch reads a value with a slash as a file of names
_HOSTS = re.compile(r"[A-Za-z0-9_.,\[\]-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: variables that the script or bash sets itself; a platform's value would not reach the job
_TAKEN = re.compile(
    r"root|code|run_directory|lies_in|python|cell|logs|job|container|on_every_node|on_every_gpu"
    r"|each_rank|here|stage|helper|limits|telemetry|telemetry_exit|training|training_exit|patience"
    r"|PYTHONUNBUFFERED|PYTHONSAFEPATH|SUBMITIT_EXECUTOR|SRUN_CPUS_PER_TASK|CUDA_DEVICE_ORDER"
    r"|TRIPTYCH_.*"
    r"|_|IFS|PWD|OLDPWD|SHLVL|UID|EUID|PPID|GROUPS|DIRSTACK|FUNCNAME|PIPESTATUS|LINENO|SECONDS|RANDOM"
    r"|SRANDOM|EPOCHSECONDS|EPOCHREALTIME|SHELLOPTS|BASHOPTS|BASHPID|BASH_.*"
)

#: read with this module: a process that renders for days goes on with the code that it began with
_TEMPLATE = Path(__file__).with_name("templates").joinpath("job.sh.j2").read_text(encoding="utf-8")

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class RenderError(ValueError):
    """A value cannot be written into a job script."""


@dataclass(frozen=True)
class Code:
    """The code that a job runs: see snapshot."""

    #: the absolute path of the zip
    archive: Path
    #: what git said when the code was taken; null if it said nothing
    commit: str | None
    has_changes: bool | None


@dataclass(frozen=True)
class Places:
    """The absolute paths that a script holds, and its code."""

    #: the repository
    root: Path
    run_directory: Path
    #: tokens.json of the cell's data; null for synthetic tokens
    tokens: Path | None
    code: Code


def job_script(
    cell: Cell,
    platform: Platform,
    places: Places,
    time_limit_min: int,
    profiled_steps: int = 0,
    check: bool = False,
) -> str:
    """The whole text of ``job.sh``.

    ``time_limit_min`` is in minutes. If ``profiled_steps`` is not 0, the script is for the profiled
    run. With ``check`` it checks the cell's nodes in place of running. Raises RenderError for a
    value that cannot be written into the script.
    """
    if ":" in str(places.code.archive):
        raise RenderError(
            f"{str(places.code.archive)!r}: Python's search path cannot hold a path with a colon; "
            "move the results"
        )
    body = _template().render(
        cell=cell,
        platform=platform,
        places=places,
        mounts=_mounted(platform, places),
        python=_interpreter(platform.python, places.root),
        time_limit_min=time_limit_min,
        profiled_steps=profiled_steps,
        check=check,
    )
    return with_checksum(body)


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # shell, not HTML: every value goes through a filter below
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for function in (quote, argument, word, constraint, hosts, variable, mount, mounts):
        environment.filters[function.__name__] = function
    return environment.from_string(_TEMPLATE)


def write(cell: Cell, script: str, directory: Path) -> None:
    """Write ``cell.json`` and ``job.sh`` of a run."""
    write_cell(cell, directory)
    write_script(script, directory)


def write_cell(cell: Cell, directory: Path) -> None:
    """Write ``cell.json`` of a run, and its checksum, into a directory that only its owner may
    write, whatever the umask, because the job runs as the user who submits it.
    """
    paths = RunPaths(directory)
    paths.logs.mkdir(parents=True, exist_ok=True)
    for directory in (paths.directory, paths.logs):
        close(directory)
    write_json(paths.cell, cell)
    close(paths.cell)
    write_checksums(paths.cell_checksum, (paths.cell,))


def write_script(script: str, directory: Path) -> None:
    """Write ``job.sh`` of a run, which only its owner may write."""
    # Replaced, not overwritten: a shell that runs the old file goes on reading it.
    with (
        whole_file(RunPaths(directory).script) as draft,
        open(draft, "w", encoding="utf-8", newline="", opener=_executable) as stream,
    ):
        stream.write(script)


def close(path: Path) -> None:
    """Take write permission for group and others from a file or directory of this user. Files of
    other users are left as they are.
    """
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid == os.getuid() and mode & _OTHERS_WRITE:
        path.chmod(mode & ~_OTHERS_WRITE)


def _executable(path: str, flags: int) -> int:
    """Open a file with mode 755: everybody may read and execute it, and only its owner write it."""
    return os.open(path, flags, 0o755)


def _interpreter(python: str, root: Path) -> str:
    """The interpreter for the script: a bare name is looked up on the PATH, for example in a
    container; a path is relative to ``root``.
    """
    if "/" in python:
        return str(root / python)
    # bash does not look up some words as commands, even if quoted, for example "%1".
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", python):
        raise RenderError(f"{python!r} cannot be looked up as a Python interpreter; give its path")
    return python


def _mounted(platform: Platform, places: Places) -> list[Path]:
    """The directories that a container must see: the repository, the run, its code and tokens,
    and those that the site adds.
    """
    mounted = [places.root]
    needed = [
        places.run_directory,
        places.code.archive.parent,
        *([places.tokens.parent] if places.tokens else []),
    ]
    if platform.container is not None:
        needed += [Path(path) for path in platform.container.mounts]
    for path in needed:
        if not any(path.is_relative_to(known) for known in mounted):
            mounted.append(path)
    return mounted


def quote(value: object) -> str:
    """Any text as one shell word. Raises RenderError for a null byte and for text that is not
    UTF-8.
    """
    text = str(value)
    if "\0" in text:
        raise RenderError(f"{text!r} holds a null byte, which no shell word can")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RenderError(f"{text!r} is not text in UTF-8; rename it") from None
    # sbatch refuses a script with a carriage return at the end of a line, so it is written as \r.
    quoted = shlex.quote(text).replace("\r", "'$'\\r''")
    # The shell does not need these quotes, but shellcheck warns of an unquoted "=" in a value.
    return f"'{text}'" if quoted == text and "=" in text else quoted


def argument(value: object) -> str:
    """A quoted word. Raises RenderError if it begins with "-", as an option does."""
    if str(value).startswith("-"):
        raise RenderError(f"{str(value)!r} begins with a hyphen and would be read as an option")
    return quote(value)


def mount(value: object) -> str:
    """A quoted path for a container's list of mounts, in which colons and commas are separators."""
    text = str(value)
    if not text.startswith("/") or re.search(r"[:,\\\"]", text):
        raise RenderError(
            f"{text!r} cannot be mounted into a container; use an absolute path without colons, "
            "commas, backslashes and double quotes"
        )
    return quote(text)


def mounts(paths: Iterable[Path]) -> str:
    """Several paths in the form of pyxis. Each is the same in the container as on the host."""
    for path in paths:
        mount(path)
    return quote(",".join(f"{path}:{path}" for path in paths))


def word(value: object) -> str:
    """A value of an ``#SBATCH`` line, unchanged."""
    return _matching(_WORD, value, "letters, digits and _.,:@+/=-")


def constraint(value: object) -> str:
    """The value of ``--constraint``, unchanged."""
    return _matching(_CONSTRAINT, value, "letters, digits and _.,:@+&|*()[]-")


def hosts(expressions: Iterable[str]) -> str:
    """The value of ``--exclude``: expressions such as "node[1-3]", divided by commas."""
    return _matching(_HOSTS, ",".join(expressions), "letters, digits and _.,[]-")


def _matching(pattern: re.Pattern[str], value: object, valid: str) -> str:
    text = str(value)
    if not pattern.fullmatch(text):
        raise RenderError(f"{text!r} cannot be written into an #SBATCH line; use {valid}")
    return text


def variable(value: object) -> str:
    """The name of an environment variable that a platform sets."""
    text = str(value)
    if not _VARIABLE.fullmatch(text):
        raise RenderError(f"{text!r} cannot name a variable; use letters, digits and _")
    if _TAKEN.fullmatch(text):
        raise RenderError(
            f"a platform's environment cannot set {text}: the job script or bash does that itself"
        )
    return text


INTERPRETER = "#!/usr/bin/env bash"
#: a comment in the script's second line, by which an edit by hand shows
_PREFIX = b"# sha256 of all lines below: "


def with_checksum(body: str) -> str:
    """The whole script: the interpreter's line, the checksum, and ``body``."""
    return f"{INTERPRETER}\n{_PREFIX.decode()}{_digest(body.encode()).decode()}\n{body}"


def is_intact(script: Path) -> bool:
    """Whether the script's body still has the checksum in its second line.

    Raises FileNotFoundError.
    """
    # Read as bytes: reading as text would hide line ends that an editor changed.
    head, prefix, rest = script.read_bytes().partition(_PREFIX)
    digest, _, body = rest.partition(b"\n")
    return bool(prefix) and head == INTERPRETER.encode() + b"\n" and digest == _digest(body)


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()
