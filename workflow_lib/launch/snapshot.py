"""Keeps the code that jobs run: a zip of modules, from which Python imports them.

A job runs the code that its script was rendered with, whatever becomes of the repository meanwhile.
The zip is named by its content, so the runs of one version share one file.
"""

from __future__ import annotations

import functools
import hashlib
import io
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

from workflow_lib import import_graph
from workflow_lib.launch.job_script import Code, close
from workflow_lib.records.whole_files import whole_file

_PACKAGE = Path(__file__).parents[1]
#: The modules that scripts run. A job's code is these and what they import, no figures.
RUN_BY_JOBS = (
    *("launch.job.node", "launch.job.rank", "node_check"),
    *("telemetry.__main__", "telemetry.limits", "trainers.native.__main__"),
    # The hook is read as a file.
    *("trainers.foreign_rank", "trainers.sitecustomize", "trainers.triptych_steps"),
)


@dataclass(frozen=True)
class Snapshot:
    """The code as it was when it was taken."""

    #: the zip's bytes
    content: bytes
    #: the name of the zip's file, by which two versions of the code differ
    name: str
    #: the commit that was checked out, and whether a tracked file differed from it; null outside of
    #: a git repository
    commit: str | None
    has_changes: bool | None


@functools.cache
def taken() -> Snapshot:
    """The code as it is when this is first called.

    A process that renders for days keeps it: the rest of its code is of that moment, too.
    """
    return take(_PACKAGE)


def take(package: Path) -> Snapshot:
    """The code as it is now below ``package``, a directory of workflow_lib."""
    zipped = io.BytesIO()
    # Not compressed: versions of zlib give other bytes, and so another name, for the same code.
    with zipfile.ZipFile(zipped, "w") as archive:
        for path in import_graph.files_behind(*RUN_BY_JOBS, package=package):
            # ZipInfo's date is always the same.
            name = path.relative_to(package.parent).as_posix()
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes())
    content = zipped.getvalue()
    changes = _git(package, "status", "--porcelain", "-uno")
    return Snapshot(
        content,
        f"{hashlib.sha256(content).hexdigest()}.zip",
        _git(package, "rev-parse", "HEAD") or None,
        None if changes is None else bool(changes),
    )


def write(directory: Path, snapshot: Snapshot | None = None) -> Code:
    """Write the zip to ``directory`` unless it is there: by default that of ``taken``. Raises
    OSError.
    """
    snapshot = snapshot or taken()
    path = directory / snapshot.name
    directory.mkdir(parents=True, exist_ok=True)
    close(directory)
    if not (path.exists() and path.read_bytes() == snapshot.content):
        with whole_file(path, durable=True) as draft:
            draft.write_bytes(snapshot.content)
            draft.chmod(draft.stat().st_mode & 0o444)
    close(path)
    return Code(path, snapshot.commit, snapshot.has_changes)


def _git(package: Path, *arguments: str) -> str | None:
    """What git prints about the repository; None if it is missing or fails."""
    try:
        done = subprocess.run(
            ("git", *arguments),
            cwd=package.parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
