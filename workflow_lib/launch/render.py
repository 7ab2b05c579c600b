"""Renders a run's job script.

The template holds the job; Python only fills in values, and each goes through a filter: ``quote``
makes any text one word of the shell, ``word`` refuses what an ``#SBATCH`` line, where nothing can be
quoted reliably, could misread.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import jinja2

from workflow_lib import records
from workflow_lib.config import Platform
from workflow_lib.launch import seal
from workflow_lib.records import Cell, RunPaths

_INTERPRETER = "#!/usr/bin/env bash"
_WORD = re.compile(r"[A-Za-z0-9_.,:@+&|*()\[\]/=-]+")


class RenderError(ValueError):
    """A value cannot be written into a job script."""


@dataclass(frozen=True)
class Places:
    """The absolute paths that a script holds."""

    #: the repository
    root: Path
    run_directory: Path
    #: tokens.json of the cell's data; null for synthetic tokens
    tokens: Path | None


def job_script(cell: Cell, platform: Platform, places: Places, time_limit_min: int) -> str:
    """The whole text of ``job.sh``. Raises RenderError for a value that no quoting can carry."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("workflow_lib.launch"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # shell, not HTML: every value goes through a filter below
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = quote
    environment.filters["word"] = word
    template = environment.get_template("job.sh.j2")
    python = Path(platform.python)
    # A bare name is looked up on the path, as in a container; anything else lies in the repository.
    interpreter = platform.python if len(python.parts) == 1 else str(places.root / python)
    body = template.render(
        cell=cell, platform=platform, places=places, python=interpreter, time_limit_min=time_limit_min
    )
    return seal.seal(_INTERPRETER, body)


def write(cell: Cell, script: str, directory: Path) -> None:
    """Write ``cell.json`` and ``job.sh`` of a run."""
    paths = RunPaths(directory)
    paths.logs.mkdir(parents=True, exist_ok=True)
    records.write_json(paths.cell, cell)
    paths.script.write_text(script, encoding="utf-8")
    paths.script.chmod(0o755)


def quote(value: object) -> str:
    """Any text as one word of the shell. A null byte cannot be carried and is refused."""
    text = str(value)
    if "\0" in text:
        raise RenderError(f"{text!r} holds a null byte, which no shell word can")
    return shlex.quote(text)


def word(value: object) -> str:
    """A value of an ``#SBATCH`` line, unchanged."""
    text = str(value)
    if not _WORD.fullmatch(text):
        raise RenderError(
            f"{text!r} cannot be written into an #SBATCH line; use letters, digits and _.,:@+-"
        )
    return text
