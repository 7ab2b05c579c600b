"""Tells for which directory a job script was rendered, whether it still lies there, and which code
it runs.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from workflow_lib.records.paths import RunPaths


def rendered_for(script: Path) -> Path | None:
    """The run directory that the script names; None if it names none, because it was edited.

    Raises FileNotFoundError.
    """
    return _named(script, "\nrun_directory=", "\npython=")


def code_of(script: Path) -> Path | None:
    """The zip of the code that the script runs; None if it names none, as in earlier versions.

    Raises FileNotFoundError.
    """
    return _named(script, "\ncode=", "\nrun_directory=")


def _named(script: Path, before: str, behind: str) -> Path | None:
    """The quoted path between two texts of a script. The path itself may hold line ends."""
    # Bytes that are not UTF-8 are kept as surrogates, so that any path can be compared.
    text = script.read_bytes().decode("utf-8", "surrogateescape")
    quoted = text.partition(before)[2].partition(behind)[0]
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
