"""Runs one run for rule ``run`` and for ``python -m workflow_lib.launch run``."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

from workflow_lib import records
from workflow_lib.launch import messages
from workflow_lib.launch.interruption import InterruptedRunError
from workflow_lib.launch.messages import say
from workflow_lib.launch.owner import other_users
from workflow_lib.launch.owner.run_to_end import run_to_end
from workflow_lib.launch.schedulers.refusals import SubmissionError
from workflow_lib.launch.script.render import RenderError


def run(
    directory: Path, scheduler: str, render_anew: Callable[[], None] | None = None
) -> str | None:
    """Submit the run, or find its job, and wait for it.

    Prints and returns why the run has no result; returns None if it has one. A result that this
    user cannot write down is none for what comes after. ``render_anew`` is as in run_to_end.
    """
    why_only_read = other_users.why_only_read(directory)
    try:
        ended = run_to_end(directory, scheduler, render_anew)
    except (
        *(InterruptedRunError, SubmissionError, RenderError, records.RecordError),
        OSError,
    ) as error:
        problem = records.said(error)
    else:
        problem = f"{ended.outcome}: {ended.cause}; the evidence is in {directory}"
        if ended.outcome.is_result and not (why_only_read and _is_unwritten(directory)):
            if records.LIMITS_LEFT in ended.cause:
                say(problem)
            return None
    if why_only_read:
        problem += f". {why_only_read}"
    say(problem)
    return problem


def _is_unwritten(directory: Path) -> bool:
    return not records.RunPaths(directory).outcome.exists()


def run_logged(
    directory: Path, scheduler: str, log: Path, render_anew: Callable[[], None] | None = None
) -> str | None:
    """As run, for one thread of a process that waits for many runs. Messages also go to ``log``. So
    does the traceback of an unexpected error, which is raised again.
    """
    with messages.logged(log):
        try:
            return run(directory, scheduler, render_anew)
        except Exception:
            say(traceback.format_exc())
            raise
