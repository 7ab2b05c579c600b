"""The samplers of a measured command: one a node, each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import workflow_lib
from workflow_lib.measure.allocation import Allocation, sampler_environment
from workflow_lib.measure.command import end_with_parent
from workflow_lib.records.paths import RunPaths, node_name
from workflow_lib.telemetry.devices.amd import AmdSource
from workflow_lib.telemetry.devices.host import Host
from workflow_lib.telemetry.devices.nvidia import NvidiaSource
from workflow_lib.telemetry.files import leave_mark
from workflow_lib.telemetry.sampler import Sampler
from workflow_lib.telemetry.simulated import SimulatedSource
from workflow_lib.telemetry.source import DEVICES, READINGS, Source, TelemetryError

#: how long the command waits for samplers to begin, and they have to end
READY_S, END_S = 30.0, 15.0
_LOOK_EVERY_S = 0.02


class ConstantRate(NamedTuple):
    """One rate throughout; see telemetry.schedule.Rates."""

    sample_rate_hz: float
    interleaved_rates_hz: Sequence[float] = ()
    block_s: float = 60.0


class NoGpus:
    """The source of a node without GPUs, of which only the host is read."""

    name = "none"
    gpus: Sequence[Mapping[str, Any]] = ()
    others: Sequence[Mapping[str, Any]] = ()
    energy_in_steps: Sequence[int] = ()

    def __init__(self) -> None:
        self.missing = dict.fromkeys((*READINGS, "power_mw", "event"), "this node has no GPUs")
        self.errors: Counter[str] = Counter()

    def events(self) -> Sequence[tuple[int, str, int | None]]:
        """No events."""
        return ()

    def power_limits_w(self) -> Sequence[float | None]:
        """No limits."""
        return ()

    def close(self) -> None:
        """Nothing to close."""

    def _no_gpu(self, gpu: int, *_: Any) -> Any:
        raise IndexError(f"there is no GPU {gpu}")

    read = read_counters = read_energy = power_samples = _no_gpu


def open_job_source(node: str, simulated_gpus: int) -> Source:
    """The GPUs of the node that the job has; simulated ones if ``simulated_gpus`` is not 0.

    Raises TelemetryError if the node has GPUs that cannot be read, or that are shared.
    """
    if simulated_gpus:
        return SimulatedSource(node, simulated_gpus)
    for vendor, opened in (("nvidia", NvidiaSource), ("amd", _open_amd)):
        try:
            return opened()
        except TelemetryError:
            if any(Path("/dev").glob(DEVICES[vendor])):
                raise
    return NoGpus()


def _open_amd() -> Source:
    try:
        return AmdSource(1)
    except TelemetryError as error:
        # Packages of two dies, as an MI250's, contradict what is assumed here first.
        with suppress(TelemetryError):
            return AmdSource(2)
        raise error


def leave_parent() -> None:
    """Go on as a child of nobody who waits, so that the sampler outlives who started it."""
    parent = os.getpid()
    if os.fork():
        os._exit(0)
    # A sampler ends once its parent has gone, so it begins after that.
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_S)


def sample(directory: Path, rate_hz: float, simulated_gpus: int) -> int:
    """Sample this node until told to stop. Returns the exit code."""
    node = node_name()
    paths = RunPaths(directory)
    try:
        with (
            closing(open_job_source(node, simulated_gpus)) as source,
            closing(Host(job_id=os.environ.get("SLURM_JOB_ID"))) as host,
        ):
            Sampler(paths, node, ConstantRate(rate_hz), source, host).run()
    except (TelemetryError, OSError) as error:
        print(f"triptych on {node}: {error}", file=sys.stderr, flush=True)
        leave_mark(paths.telemetry_failed(node))
        return 1
    return 0


class Samplers:
    """The running samplers of an allocation."""

    def __init__(
        self, directory: Path, allocation: Allocation, rate_hz: float, simulated_gpus: int
    ) -> None:
        """Start them. :attr:`problem` says why there are none, if there are none."""
        self._paths = RunPaths(directory)
        self._nodes = allocation.nodes
        self.problem = ""
        logs = self._paths.logs
        logs.mkdir(parents=True, exist_ok=True)
        self._log = logs / "samplers.log"
        words = [
            *(*allocation.prefix, *own_words(), "sample"),
            *(f"--rate={rate_hz:g}", f"--simulate={simulated_gpus}", str(directory)),
        ]
        package = str(Path(workflow_lib.__file__).parents[1])
        in_zip = not Path(workflow_lib.__file__).exists()
        environment = sampler_environment(
            os.environ, allocation.job_id, None if in_zip else package
        )
        self._process: subprocess.Popen[bytes] | None = None
        with self._log.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    preexec_fn=end_with_parent,
                    # Ctrl-C ends the command, and then the samplers, not all at once.
                    start_new_session=True,
                )
            except OSError as error:
                self.problem = f"{words[0]} cannot be started: {error.strerror}"

    def wait_until_ready(self) -> None:
        """Wait until each node's first readings are on disk, or until one has failed."""
        until_s = time.monotonic() + READY_S
        while not self.problem and time.monotonic() < until_s:
            marks = list(self._paths.telemetry.glob("*.ready"))
            if len(marks) >= self._nodes:
                return
            if any(self._paths.telemetry.glob("*.failed")) or self.ended:
                self.problem = self._last_words() or "a sampler ended at once"
            time.sleep(_LOOK_EVERY_S)
        self.problem = self.problem or f"samplers were not ready after {READY_S:g} s"

    @property
    def ended(self) -> bool:
        """Whether none runs any more."""
        return self._process is None or self._process.poll() is not None

    def stop(self) -> None:
        """Have them read everything once more, write it, and end."""
        if self._process is None:
            return
        leave_mark(self._paths.telemetry_stop)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.problem = self.problem or f"samplers did not end within {END_S:g} s"
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.returncode and not self.problem:
            self.problem = self._last_words() or f"samplers ended with {self._process.returncode}"

    def _last_words(self) -> str:
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            return ""
        own = [line for line in lines if line.startswith("triptych")]
        return (own or lines or [""])[-1]


def new_directory(wanted: Path) -> RunPaths:
    """A run's directory that has no run yet: ``wanted``, or with a number, as of a job that runs
    again. Raises OSError."""
    names = (wanted, *(Path(f"{wanted}-{number}") for number in range(2, 10_000)))
    paths = next(p for p in map(RunPaths, map(Path.absolute, names)) if not p.telemetry.exists())
    for path in (paths.steps, paths.telemetry):
        path.mkdir(parents=True, exist_ok=True)
    return paths


def own_words() -> list[str]:
    """What calls this program again, on any node that sees its files."""
    file = Path(sys.argv[0])
    if file.suffix == ".pyz":
        return [sys.executable, str(file.absolute())]
    return [sys.executable, "-m", "workflow_lib.measure"]
