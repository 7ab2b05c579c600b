"""Tells for which directory a job script was rendered, and whether it still lies there."""

from __future__ import annotations

import shlex
from pathlib import Path

from workflow_lib.records import RunPaths

#: what stands before and behind the quoted path, which may hold line ends itself
_BEFORE, _BEHIND = "\nrun_directory=", "\npython="


def rendered_for(script: Path) -> Path | None:
    """The run's directory that the script names; None where it names none, as one that was edited.

    Raises FileNotFoundError.
    """
    # Bytes that are no text come back as they were, so that any path can be compared.
    text = script.read_bytes().decode("utf-8", "surrogateescape")
    quoted = text.partition(_BEFORE)[2].partition(_BEHIND)[0]
    try:
        # A carriage return as render.quote wrote it, which shlex does not read.
        words = shlex.split(quoted.replace("'$'\\r''", "\r"))
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
