"""Sees to it that a run's job writes where the run lies: results may have been moved or copied
since its script was rendered.
"""

from __future__ import annotations

from workflow_lib.launch.messages import say
from workflow_lib.launch.owner.owned_run import OwnedRun
from workflow_lib.launch.schedulers.refusals import SubmissionError
from workflow_lib.launch.script import place
from workflow_lib.records import RunPaths


def check_known(paths: RunPaths, job: str) -> None:
    """Raise SubmissionError where ``job``, which this directory knows of, is the job of the run
    that this directory was copied from. Of a run that was moved, it is waited for: it stops when it
    begins.
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
    """Have the script rendered again where it names another directory.

    Raises SubmissionError where whoever waits cannot render, and what rendering raises.
    """
    if (origin := place.moved_from(run.paths)) is None:
        return
    if run.render_anew is None:
        raise SubmissionError(moved(run.paths, origin))
    say(f"{run.paths.script} was rendered for {origin}; rendering it again")
    run.render_anew()


def moved(paths: RunPaths, origin: object) -> str:
    """What is said of a script that was not rendered for where it lies."""
    return (
        f"{paths.script} was rendered for {origin}, from where the results were moved or copied. "
        "Start snakemake, or delete the script, to have it rendered again"
    )
