"""Tells for which directory a job script was rendered, and whether it still lies there."""

from __future__ import annotations

import shlex
from pathlib import Path

from workflow_lib.records import RunPaths

#: the text before and behind the quoted path; the path itself may hold line ends
_BEFORE, _BEHIND = "\nrun_directory=", "\npython="


def rendered_for(script: Path) -> Path | None:
    """The run directory that the script names; None if it names none, because it was edited.

    Raises FileNotFoundError.
    """
    # Bytes that are not UTF-8 are kept as surrogates, so that any path can be compared.
    text = script.read_bytes().decode("utf-8", "surrogateescape")
    quoted = text.partition(_BEFORE)[2].partition(_BEHIND)[0]
    try:
        # shlex cannot read a carriage return as render.quote writes it.
        words = shlex.split(quoted.replace("'$'\\r''", "\r"))
    except ValueError:
        return None
    return Path(words[0]) if len(words) == 1 else None


def moved_from(paths: RunPaths) -> Path | None:
    """The run's directory when its script was rendered, if the run has another one now; else None.

    Another path to the same directory, such as a link, does not count. Raises FileNotFoundError if
    there is no script.
    """
    origin = rendered_for(paths.script)
    if origin is None or (origin.exists() and origin.samefile(paths.directory)):
        return None
    return origin
