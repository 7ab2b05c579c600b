"""Sees to one run as rule ``run`` and the command line do: to its end, or to a problem in words."""

from __future__ import annotations

import traceback
from pathlib import Path

from workflow_lib import records
from workflow_lib.launch import messages
from workflow_lib.launch.interruption import InterruptedRunError
from workflow_lib.launch.messages import say
from workflow_lib.launch.owner import submit
from workflow_lib.launch.schedulers import choice


def see_to(directory: Path, scheduler: str) -> str | None:
    """Submit the run, or attach to its job, and wait for it. Returns, and says, why it has no
    result; None where it has one.
    """
    try:
        ended = submit.run(directory, scheduler)
    except (
        *(InterruptedRunError, choice.SubmissionError, records.RecordError),
        OSError,
    ) as error:
        problem = str(error)
    else:
        if ended.outcome.is_result:
            return None
        problem = f"{ended.outcome}: {ended.cause}; the evidence is in {directory}"
    say(problem)
    return problem


def see_to_logged(directory: Path, scheduler: str, log: Path) -> str | None:
    """As see_to, in a thread of a process that sees to many runs; what it says goes to ``log`` too,
    and so does an error of ours, which is raised.
    """
    with messages.logged(log):
        try:
            return see_to(directory, scheduler)
        except Exception:
            say(traceback.format_exc())
            raise
