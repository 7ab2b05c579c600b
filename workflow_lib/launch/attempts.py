"""Keeps what earlier attempts of a run left, when it is tried again."""

from __future__ import annotations

from workflow_lib.records import RunPaths


def has_evidence(paths: RunPaths) -> bool:
    """Whether an attempt has got so far as to leave anything."""
    return any(
        path.exists() for path in (paths.ended, paths.environment, paths.outcome, paths.failure)
    )


def set_aside(paths: RunPaths) -> None:
    """Move everything but the cell and its script into ``attempts/<next number>/``."""
    paths.attempts.mkdir(exist_ok=True)
    names = (path.name for path in paths.attempts.iterdir())
    number = 1 + max((int(name) for name in names if name.isdecimal()), default=0)
    target = paths.attempts / str(number)
    target.mkdir()
    keep = {paths.cell, paths.script, paths.attempts, paths.lock}
    for path in sorted(paths.directory.iterdir()):
        # A hidden file is a neighbour's, half written.
        if path not in keep and not path.name.startswith("."):
            path.rename(target / path.name)
