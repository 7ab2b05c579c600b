"""Tells for which directory a job script was rendered, and whether it still lies there."""

from __future__ import annotations

import shlex
from pathlib import Path

from workflow_lib.records import RunPaths

_PREFIX = "run_directory="


def rendered_for(script: Path) -> Path | None:
    """The run's directory that the script names; None where it names none, as one that was edited.

    Raises FileNotFoundError.
    """
    # Bytes that are no text come back as they were, so that any path can be compared.
    text = script.read_bytes().decode("utf-8", "surrogateescape")
    # As render.quote wrote a carriage return, which shlex does not read.
    lines = (line.replace("'$'\\r''", "\r") for line in text.split("\n"))
    quoted = next((line for line in lines if line.startswith(_PREFIX)), None)
    if quoted is None:
        return None
    try:
        words = shlex.split(quoted.removeprefix(_PREFIX))
    except ValueError:
        return None
    return Path(words[0]) if len(words) == 1 else None


def moved_from(paths: RunPaths) -> Path | None:
    """Where the run lay when its script was rendered, if that is another directory than now.

    Results that are reached by another path, as through a link, have not moved. Raises
    FileNotFoundError where there is no script.
    """
    origin = rendered_for(paths.script)
    if origin is None or (origin.exists() and origin.samefile(paths.directory)):
        return None
    return origin
