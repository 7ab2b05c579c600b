"""Makes sure that a run's job writes into the run's present directory, and runs the present code:
results may have been moved or copied since the script was rendered, and code changed.
"""

from __future__ import annotations

import grp
import os
import shlex
import stat
from collections.abc import Callable
from pathlib import Path

from workflow_lib.launch import snapshot
from workflow_lib.launch.messages import say
from workflow_lib.launch.schedulers.refusals import SubmissionError
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import user_name


def check_known(paths: RunPaths, job: str) -> None:
    """Check ``job``, which this directory's records name, if the results were moved or copied.

    Raises SubmissionError if this directory is a copy: the job writes into the original. If the
    directory was moved, the job stops when it begins, so the caller can wait for it.
    """
    if not paths.script.exists() or (origin := moved_from(paths)) is None:
        return
    if not origin.exists():
        say(f"{paths.directory} was moved from {origin}, for which {job} was submitted")
        return
    raise SubmissionError(
        f"{paths.directory} was copied from {origin} after {job} was submitted, which writes "
        "there. Wait for it there; or delete the copy, and snakemake runs the cell here, too"
    )


def render_if_stale(paths: RunPaths, render_anew: Callable[[], None] | None) -> None:
    """Render the script again if it names another directory, or runs other code than this process.

    Raises SubmissionError if this process cannot render, and whatever rendering raises.
    """
    origin, code = moved_from(paths), code_of(paths.script)
    if origin is not None:
        why = f"was rendered for {origin}, from where the results were moved or copied"
    elif code is None or code.name != snapshot.taken().name:
        why = "was rendered by another version of the code"
    elif not code.exists():
        why = f"runs the code in {code}, which is gone"
    else:
        return
    if render_anew is None:
        raise SubmissionError(
            f"{paths.script} {why}. Start snakemake, or delete the script, to have it rendered "
            "again"
        )
    say(f"{paths.script} {why}; rendering it again")
    render_anew()


def check(paths: RunPaths) -> None:
    """Raise SubmissionError if another user than this one and root may have written the run's
    script, its cell, the code that it runs, or a directory that holds them. Raises
    FileNotFoundError.
    """
    code = code_of(paths.script)
    # A script whose code is gone is rendered again.
    code_files = (code.parent, code) if code is not None and code.exists() else ()
    for path in (paths.directory, paths.script, paths.cell, *code_files):
        status = path.stat()
        if status.st_uid not in (os.getuid(), 0):
            raise SubmissionError(
                f"{path} belongs to {user_name(status.st_uid)}, and a job runs as you. Delete "
                f"{paths.directory} to have its script rendered again as yours, or have its owner "
                "run snakemake"
            )
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            who = "everybody" if status.st_mode & stat.S_IWOTH else f"group {_group(status.st_gid)}"
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
