"""What rule ``run`` and ``python -m workflow_lib.launch run`` call."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

from workflow_lib import records
from workflow_lib.launch import messages
from workflow_lib.launch.interruption import InterruptedRunError
from workflow_lib.launch.messages import say
from workflow_lib.launch.owner.run_to_end import run_to_end
from workflow_lib.launch.schedulers.refusals import SubmissionError
from workflow_lib.launch.script.render import RenderError


def run(
    directory: Path, scheduler: str, render_anew: Callable[[], None] | None = None
) -> str | None:
    """Submit the run, or attach to its job, and wait for it. Returns, and prints, why it has no
    result; None where it has one. ``render_anew`` is as in run_to_end.
    """
    try:
        ended = run_to_end(directory, scheduler, render_anew)
    except (
        *(InterruptedRunError, SubmissionError, RenderError, records.RecordError),
        OSError,
    ) as error:
        problem = str(error)
    else:
        if ended.outcome.is_result:
            if records.LIMITS_LEFT in ended.cause:
                say(f"{ended.cause}; the evidence is in {directory}")
            return None
        problem = f"{ended.outcome}: {ended.cause}; the evidence is in {directory}"
    say(problem)
    return problem


def run_logged(
    directory: Path, scheduler: str, log: Path, render_anew: Callable[[], None] | None = None
) -> str | None:
    """As run, in one thread of a process that waits for many runs. What it prints goes to ``log``
    too, and so does an error of ours, which is raised.
    """
    with messages.logged(log):
        try:
            return run(directory, scheduler, render_anew)
        except Exception:
            say(traceback.format_exc())
            raise
