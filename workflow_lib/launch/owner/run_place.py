"""Makes sure that a run's job writes into the run's present directory, and runs the present code:
results may have been moved or copied since the script was rendered, and code changed.
"""

from __future__ import annotations

from collections.abc import Callable

from workflow_lib.launch.messages import say
from workflow_lib.launch.schedulers.refusals import SubmissionError
from workflow_lib.launch.script import place, snapshot
from workflow_lib.records import RunPaths


def check_known(paths: RunPaths, job: str) -> None:
    """Check ``job``, which this directory's records name, if the results were moved or copied.

    Raises SubmissionError if this directory is a copy: the job writes into the original. If the
    directory was moved, the job stops when it begins, so the caller can wait for it.
    """
    if not paths.script.exists() or (origin := place.moved_from(paths)) is None:
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
    origin, code = place.moved_from(paths), place.code_of(paths.script)
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
