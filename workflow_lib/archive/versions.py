"""Versions of the code and the packages that make tables, figures and pages from raw files."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path

import workflow_lib
from workflow_lib.records import bounds
from workflow_lib.records.files import read_json
from workflow_lib.records.reading import RecordError, shown

NAME = "versions.json"
#: how many letters of a name or version from another user's file are shown
_LONGEST = bounds.VALUE_LETTERS.most
#: packages of envs/analysis.txt that calculate, draw or write
_PACKAGES = (
    "contourpy",
    "fonttools",
    "isal",
    "jinja2",
    "markupsafe",
    "matplotlib",
    "msgspec",
    "numpy",
    "pillow",
    "polars",
    "pydantic",
    "pyyaml",
)


def versions(checkout: Path | None) -> dict[str, str | None]:
    """Versions of this code, of Python and of packages; None for a package that is missing."""
    by_name: dict[str, str | None] = {
        "triptych": workflow_lib.__version__,
        "commit": _commit(checkout),
        "code_sha256": _code_sha256(),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    for name in _PACKAGES:
        try:
            by_name[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            by_name[name] = None
    return by_name


def read_versions(path: Path) -> dict[str, str | None]:
    """Read ``versions.json`` of an archive. Raises OSError; RecordError if it is not valid."""
    plain = read_json(path)
    if not isinstance(plain, dict):
        raise RecordError(f"{path}: {shown(plain)}, expected the version of each package")
    for name, version in plain.items():
        if not isinstance(version, str | None):
            raise RecordError(f"{path}: {shown(name)} is {shown(version)}, expected a version")
    return plain


def differences(there: Mapping[str, str | None], here: Mapping[str, str | None]) -> list[str]:
    """A line for each name whose version differs between ``there`` and ``here``."""
    return [
        f"{name[:_LONGEST]} is {here.get(name) or 'not here'}, and was "
        f"{(there.get(name) or 'not there')[:_LONGEST]}"
        for name in sorted({*there, *here})
        if here.get(name) != there.get(name)
    ]


def _commit(checkout: Path | None) -> str | None:
    """The commit that is checked out; None outside of a git repository."""
    if checkout is None:
        return None
    command = ("git", "-C", str(checkout), "rev-parse", "HEAD")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _code_sha256() -> str:
    """The SHA-256 over the package's modules and templates, which also shows uncommitted edits."""
    package = Path(workflow_lib.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".j2"):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(package).as_posix()}\n{len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()
