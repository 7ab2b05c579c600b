"""Keeps the code that jobs run: a zip of modules, from which Python imports them.

A job runs the code that its script was rendered with, whatever becomes of the repository meanwhile.
The zip is named by its content, so the runs of one version share one file.
"""

from __future__ import annotations

import functools
import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

from workflow_lib import records
from workflow_lib.launch.script.render import close

_PACKAGE = Path(__file__).parents[2]
#: What jobs import, below the package. Nothing else counts: an edit of a figure is no other code.
PARTS = (
    *("__init__.py", "formulas.py", "gpu_models.py", "results.py", "safety.py", "words.py"),
    *("launch/__init__.py", "launch/attempts.py", "launch/gpu_faults.py", "launch/gpu_limits.py"),
    *("launch/job", "launch/processes.py", "launch/run_owner.py"),
    *("memory", "records", "telemetry", "training"),
)


@functools.cache
def taken() -> bytes:
    """The zip of the code as it is when this is first called.

    A process that renders for days keeps it: the rest of its code is of that moment, too.
    """
    content = io.BytesIO()
    # Not compressed: versions of zlib give other bytes, and so another name, for the same code.
    with zipfile.ZipFile(content, "w") as archive:
        for path in _modules():
            # ZipInfo's date is always the same.
            name = path.relative_to(_PACKAGE.parent).as_posix()
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes())
    return content.getvalue()


@functools.cache
def name() -> str:
    """The name of the zip's file, by which two versions of the code differ."""
    return f"{hashlib.sha256(taken()).hexdigest()}.zip"


def write(directory: Path) -> Path:
    """Write the zip to ``directory`` unless it is there; returns its path. Raises OSError."""
    path = directory / name()
    directory.mkdir(parents=True, exist_ok=True)
    close(directory)
    if not (path.exists() and path.read_bytes() == taken()):
        with records.whole_file(path, durable=True) as draft:
            draft.write_bytes(taken())
            draft.chmod(0o444)
    return path


def _modules() -> Iterator[Path]:
    for part in PARTS:
        path = _PACKAGE / part
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))
