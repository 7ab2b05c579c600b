"""Checks that no other user can have written a script before it is submitted: a job runs as the
user who submits it.
"""

from __future__ import annotations

import grp
import os
import stat
from pathlib import Path

from workflow_lib.launch.schedulers.refusals import SubmissionError
from workflow_lib.launch.script import place
from workflow_lib.records import RunPaths, user_name


def check(paths: RunPaths) -> None:
    """Raise SubmissionError if another user than this one and root may have written the run's
    script, its cell, the code that it runs, or a directory that holds them. Raises
    FileNotFoundError.
    """
    code = place.code_of(paths.script)
    # A script whose code is gone is rendered again.
    held = (code.parent, code) if code is not None and code.exists() else ()
    for path in (paths.directory, paths.script, paths.cell, *held):
        found = path.stat()
        if found.st_uid not in (os.getuid(), 0):
            raise SubmissionError(
                f"{path} belongs to {user_name(found.st_uid)}, and a job runs as you. Delete "
                f"{paths.directory} to have its script rendered again as yours, or have its owner "
                "run snakemake"
            )
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            who = "everybody" if found.st_mode & stat.S_IWOTH else f"group {_group(found.st_gid)}"
            raise SubmissionError(_writable(path, who, paths))


def _writable(path: Path, who: str, paths: RunPaths) -> str:
    return (
        f"{who} may write {path}, and so have a job run as you. Delete {paths.script} to have it "
        "rendered again and closed; or, if you trust these files, `chmod go-w` the file and the "
        "run's directory"
    )


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
