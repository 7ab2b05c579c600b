"""The hook that sees a program's optimizer steps, and the variables that bring it in."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from workflow_lib.records.whole_files import whole_file

FILES = ("sitecustomize.py", "triptych_steps.py")
#: a profiled run's variables: where the rank's trace is written, and how many steps it has
TRACE, PROFILED_STEPS = "TRIPTYCH_TRACE", "TRIPTYCH_PROFILED_STEPS"


def packaged(name: str) -> bytes:
    """A file beside this one, from the directory or the zip that it is in."""
    return bytes(globals()["__loader__"].get_data(str(Path(__file__).parent / name)))


def version() -> str:
    """Eight digits by which two versions of the files differ."""
    return hashlib.sha256(b"".join(map(packaged, FILES))).hexdigest()[:8]


def environment(
    directory: Path, steps: Path, warmup_steps: int, search: str | None
) -> Mapping[str, str]:
    """Put the hook into ``directory``, where others may do the same at once; returns the variables
    of a program that writes its steps to ``steps``. ``search`` is its own PYTHONPATH. Raises
    OSError."""
    for name in FILES:
        with whole_file(directory / name) as draft:
            draft.write_bytes(packaged(name))
    return {
        "PYTHONPATH": f"{directory}{os.pathsep}{search}" if search else str(directory),
        "TRIPTYCH_STEPS": str(steps),
        "TRIPTYCH_WARMUP_STEPS": str(warmup_steps),
    }
