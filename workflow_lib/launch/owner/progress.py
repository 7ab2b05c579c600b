"""Prints a run's progress whenever it has changed."""

from __future__ import annotations

from pathlib import Path

from workflow_lib.launch.messages import say
from workflow_lib.records import JobState, RunPaths


class Progress:
    """The progress of one run, and what was last printed of it."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._shown = ""
        self._steps_read = 0
        self._steps = -1  # the first line holds the columns' names

    def tell(self, state: JobState | None) -> None:
        """Print the progress if it has changed. ``state`` is the scheduler's state of the job."""
        now = self._now(state)
        if now != self._shown:
            say(now)
            self._shown = now

    def _now(self, state: JobState | None) -> str:
        steps = self._paths.rank_steps(0)
        if steps.exists():
            return f"training: {max(self._count(steps), 0)} steps done"
        self._steps_read, self._steps = 0, -1
        if any(self._paths.telemetry.glob("*.ready")):
            return "telemetry is ready; idle baseline, then training starts"
        if self._paths.environment.exists():
            return "the job has started"
        if state is None:
            return "waiting for the job to start"
        why = f": {state.reason}" if state.reason else ""
        return f"waiting for the job to start ({state.state}{why})"

    def _count(self, steps: Path) -> int:
        """How many steps the file holds. Only text that was added since the last call is read."""
        with steps.open("rb") as stream:
            stream.seek(self._steps_read)
            while text := stream.read(65536):
                self._steps += text.count(b"\n")
                self._steps_read += len(text)
        return self._steps
