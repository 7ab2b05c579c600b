"""Watches training, and stops a run early if it can no longer become a result.

::

    what happened                       the run is stopped after
    the samplers ended                  one check
    limits of GPUs were given back      one check
    a node writes no samples            60 s: a shared file system may delay them that long
    a GPU failed, and no step ends      30 s
    a rank died, and no step ends       30 s: its launcher may wait for a controller that is away
    no step ends                        120 s, or ten times the slowest step if that is longer
    the first two steps do not end      1800 s: the model is built and compiled then

The run is checked every 5 s. If the job is suspended, this process is suspended too, and that time
does not count.

Only the first rank's steps are read: no rank of a run can step for long without the others.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from workflow_lib import results
from workflow_lib.launch import gpu_faults
from workflow_lib.launch.processes import is_running
from workflow_lib.records.cell import Cell
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import Outcome, StopRecord, SuspensionRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import write_json


@dataclass(frozen=True)
class Patience:
    """How long each sign of progress may be missing, in s."""

    look_every_s: float = 5.0
    samples_s: float = 60.0
    fault_s: float = 30.0
    #: the variable TRIPTYCH_HUNG_AFTER_S sets it, if exported before submitting
    hung_s: float = float(os.environ.get("TRIPTYCH_HUNG_AFTER_S", "120"))
    #: a step may take this many times the slowest step so far, if that is longer than ``hung_s``
    slowest_steps: float = 10.0
    start_s: float = 1800.0
    #: how long the launcher may take to end its ranks: torch.distributed.run needs 30 s for one
    #: that hangs
    end_s: float = 40.0


class _SinceChange:
    """For how long a value has been the same, in time that this process was not suspended."""

    def __init__(self) -> None:
        self._value: object = None
        self._changed_s = 0.0

    def seconds(self, value: object, now_s: float) -> float:
        """Note the value. Returns for how many s it has been the same; 0 if it has just changed."""
        if value != self._value:
            self._value, self._changed_s = value, now_s
        return now_s - self._changed_s


class Watch:
    """What has been observed of one run's training so far."""

    def __init__(self, paths: RunPaths, samplers: int, patience: Patience) -> None:
        """``samplers`` is the process id of the samplers' launcher. Raises RecordError."""
        self._paths = paths
        self._samplers = samplers
        self._patience = patience
        self._cell = read_record(paths.cell, Cell)
        # A profiled run is not measured. If sampling rates alternate, some blocks have no samples.
        self._is_measured = not results.is_profiled(paths.directory)
        self._samples_s = patience.samples_s + self._cell.telemetry.block_s
        self._nodes = {node: _SinceChange() for node in paths.sampled_nodes()}
        self._stepped = _SinceChange()
        self._steps = 0
        self._slowest_step_s = 0.0
        self._seen_s = 0.0
        self._still_s = 0.0

    @property
    def rank_died(self) -> bool:
        """Whether a rank has died, and no step has ended since. Its own record says how."""
        return self._still_s >= self._patience.fault_s and any(self._paths.exits.glob("*.json"))

    def look(self, passed_s: float) -> StopRecord | None:
        """Check the run, ``passed_s`` s after the last check. Returns why to stop it, or None."""
        self._seen_s += passed_s
        steps = self._steps_done()
        before_s = self._stepped.seconds(self._steps, self._seen_s)
        still_s = self._still_s = self._stepped.seconds(steps, self._seen_s)
        if steps > self._steps >= 2:
            self._slowest_step_s = max(self._slowest_step_s, before_s / (steps - self._steps))
        self._steps = steps
        training = self._cell.training
        has_all = steps >= training.warmup_steps + training.measured_steps
        if training.sets_limits and not has_all and (cause := gpu_faults.not_kept(self._paths)):
            return _stop(Outcome.ERROR, cause)
        if self._is_measured and not has_all and (cause := self._of_telemetry()):
            return _stop(Outcome.TELEMETRY_INVALID, cause)
        limit_s = self._patience.start_s
        if steps >= 2 and not has_all:
            slowest_s = self._patience.slowest_steps * self._slowest_step_s
            limit_s = max(self._patience.hung_s, slowest_s)
        if still_s >= min(limit_s, self._patience.fault_s):
            faults, _ = gpu_faults.find(self._paths)
            if faults and not has_all:
                after = f"no step ended for {still_s:.0f} s after it"
                return _stop(Outcome.NODE_FAILURE, f"{faults[0]}; {after}")
        if still_s >= limit_s:
            return _stop(Outcome.ERROR, self._hung(steps, still_s))
        return None

    def _of_telemetry(self) -> str:
        """Why telemetry can no longer cover the run; empty if it still can."""
        if not is_running(self._samplers):
            return "telemetry ended while training ran"
        for node, change in self._nodes.items():
            path = self._paths.gpu_samples(node)
            size = path.stat().st_size if path.exists() else 0
            silent_s = change.seconds(size, self._seen_s)
            if silent_s >= self._samples_s:
                return f"no sample of {node} came for {silent_s:.0f} s while training ran ({path})"
        return ""

    def _hung(self, steps: int, still_s: float) -> str:
        """The cause if no step ends, with the ranks that have done fewer steps than the first."""
        cause = f"training hung: no step ended for {still_s:.0f} s after {steps} steps"
        ranks = range(1, self._cell.degrees.world_size)
        behind = [rank for rank in ranks if self._steps_done(rank) < steps]
        if behind:
            cause += f"; rank {behind[0]} is behind the first one"
            cause += f", and {len(behind) - 1} more" if len(behind) > 1 else ""
        return cause

    def _steps_done(self, rank: int = 0) -> int:
        """How many steps a rank has written: the lines of its file without the header."""
        try:
            return max(0, self._paths.rank_steps(rank).read_bytes().count(b"\n") - 1)
        except FileNotFoundError:
            return 0


def _stop(outcome: Outcome, cause: str) -> StopRecord:
    return StopRecord(outcome, f"the run was stopped early: {cause}", time.time())


class _Suspensions:
    """Records how long the job was suspended. Slurm, or a shell, resumes the job's processes with
    SIGCONT, which this process gets as well.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._went_on = False
        self._since_unix_s: float | None = None
        self._seconds = 0.0
        signal.signal(signal.SIGCONT, self._on_signal)

    def note(self, seconds: float) -> None:
        """Record a suspension if SIGCONT came: the last sleep took ``seconds`` s too long."""
        if not self._went_on:
            return
        self._went_on = False
        if self._since_unix_s is None:
            self._since_unix_s = time.time() - seconds
        self._seconds += max(0.0, seconds)
        record = SuspensionRecord(self._since_unix_s, self._seconds)
        try:
            write_json(self._paths.suspended, record)
        except OSError as error:
            print(f"triptych: {self._paths.suspended}: {error}", file=sys.stderr, flush=True)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._went_on = True


def watch(
    paths: RunPaths,
    samplers: int,
    training: int,
    patience: Patience,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Watch until training ends. If the run can no longer become a result, record why and end it.

    ``samplers`` and ``training`` are the process ids of their launchers. If the job's script is
    gone, training is ended and nothing recorded: samplers end with the script, and are not why.
    """
    script = os.getppid()
    watching = Watch(paths, samplers, patience)
    suspended = _Suspensions(paths)
    stop = None
    while stop is None:
        before_s = time.monotonic()
        sleep(patience.look_every_s)
        suspended.note(time.monotonic() - before_s - patience.look_every_s)
        if not is_running(training):
            return
        if os.getppid() != script:
            _end(training, patience)
            return
        # If this process was suspended or starved of CPU, it saw nothing in that time.
        passed_s = min(time.monotonic() - before_s, 2 * patience.look_every_s)
        stop = watching.look(passed_s)
        if watching.rank_died:
            _end(training, patience)
            return
    print(f"triptych: {stop.cause}", file=sys.stderr, flush=True)
    try:
        write_json(paths.stopped, stop)
    except OSError as error:  # for example a full file system, which may be the cause
        print(f"triptych: {paths.stopped}: {error}", file=sys.stderr, flush=True)
    _end(training, patience)


def _end(training: int, patience: Patience) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline_s = time.monotonic() + patience.end_s
        if is_running(training):
            os.kill(training, number)
        while is_running(training) and time.monotonic() < deadline_s:
            time.sleep(0.1)
