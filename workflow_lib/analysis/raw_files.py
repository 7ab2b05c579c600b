"""Advice about a damaged raw file, which no command makes again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from workflow_lib.records import RecordError, RunPaths, said


@contextmanager
def of_run(paths: RunPaths) -> Iterator[None]:
    """Add advice to a RecordError that is raised inside; only raw files of the run may be read
    there."""
    try:
        yield
    except RecordError as error:
        error.add_note(
            "what was recorded cannot be made again: copy the file back from a backup or an "
            f"archive, or remove {paths.directory}, and the same command trains this run again"
        )
        raise


def in_full(error: Exception) -> str:
    """An error's message with its notes, joined by semicolons."""
    return "; ".join([said(error), *getattr(error, "__notes__", ())])
