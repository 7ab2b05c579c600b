"""Makes sure that a run's job writes into the run's present directory: results may have been moved
or copied since the script was rendered.
"""

from __future__ import annotations

from workflow_lib.launch.messages import say
from workflow_lib.launch.owner.owned_run import OwnedRun
from workflow_lib.launch.schedulers.refusals import SubmissionError
from workflow_lib.launch.script import place
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


def render_where_it_lies(run: OwnedRun) -> None:
    """Render the script again if it names another directory.

    Raises SubmissionError if this process cannot render, and whatever rendering raises.
    """
    if (origin := place.moved_from(run.paths)) is None:
        return
    if run.render_anew is None:
        raise SubmissionError(moved(run.paths, origin))
    say(f"{run.paths.script} was rendered for {origin}; rendering it again")
    run.render_anew()


def moved(paths: RunPaths, origin: object) -> str:
    """The message for a script that was rendered for another directory than its present one."""
    return (
        f"{paths.script} was rendered for {origin}, from where the results were moved or copied. "
        "Start snakemake, or delete the script, to have it rendered again"
    )
