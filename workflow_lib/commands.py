"""Runs commands of the site, such as ``squeue``, and reads their output up to a bound.

A site's wrapper of a command may print anything, and may never end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from workflow_lib.records import bounds

#: bytes of one read; pipes of Linux hold 64 KiB
_BLOCK_BYTES = 1 << 16
#: how often a caller that waits for a command is asked whether it still does
_LOOK_EVERY_S = 0.5
#: Variables that are options of Slurm's commands, or that describe an outer allocation: see
#: "ENVIRONMENT VARIABLES" of their manuals. With SQUEUE_PARTITION, for instance, squeue does not
#: list jobs of other partitions.
_OPTIONS = ("SQUEUE_", "SACCT_", "SBATCH_", "SCANCEL_", "SINFO_", "SCONTROL_", "SRUN_", "SLURM_")
#: these say where the cluster is and who asks
_ACCESS = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_SOCKET", "SLURM_SACK_KEY")


class TooMuchError(OSError):
    """A command printed more than the bound, and was killed."""


@dataclass(frozen=True)
class CommandResult:
    """How a command ended, and what it printed. Bytes that are not UTF-8 are replaced."""

    exit_code: int
    output: str
    errors: str

    @property
    def problem(self) -> str:
        """For a command that failed: its error output on one line, else its exit code."""
        return " ".join(self.errors.split()) or f"exit code {self.exit_code}"


class OutputReader:
    """Reads the output of a process until it ends or has printed too much."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """``process`` must have pipes for both output streams, and a process group of its own."""
        self._process = process
        self._read = (bytearray(), bytearray())
        self._too_much = False
        self._threads = []
        for stream, read in zip((process.stdout, process.stderr), self._read, strict=True):
            assert stream is not None
            # A copy of the descriptor, because Popen closes its own, and a thread may still read.
            descriptor = os.dup(stream.fileno())
            thread = threading.Thread(
                target=self._read_stream, args=(descriptor, read), daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def wait(self, timeout_s: float) -> CommandResult:
        """Wait until the process has ended and both streams are closed. Returns its output.

        Raises subprocess.TimeoutExpired, after which wait may be called again, and TooMuchError.
        """
        until_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))
            if thread.is_alive():
                raise subprocess.TimeoutExpired(self._process.args, timeout_s)
        exit_code = self._process.wait(max(0.0, until_s - time.monotonic()))
        if self._too_much:
            raise TooMuchError(
                f"printed over {bounds.COMMAND_BYTES.most >> 20} MiB, more than any answer of it"
            )
        output, errors = (stream.decode("utf-8", "replace") for stream in self._read)
        return CommandResult(exit_code, output, errors)

    def kill(self) -> None:
        """Kill the process and the processes that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _read_stream(self, descriptor: int, read: bytearray) -> None:
        with open(descriptor, "rb", buffering=0) as stream:
            while block := stream.read(_BLOCK_BYTES):
                read += block
                if len(read) > bounds.COMMAND_BYTES.most:
                    self._too_much = True
                    self.kill()
                    return


def slurm_environment() -> dict[str, str]:
    """This process's variables, without those that would change what a command of Slurm does. A
    platform's file has options of jobs in ``sbatch_options`` and their variables in
    ``environment``."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _ACCESS or not name.startswith(_OPTIONS)
    }


def run_slurm(
    command: Sequence[str], timeout_s: float, check: Callable[[], None] = lambda: None
) -> CommandResult:
    """Run a command of Slurm to its end, as :func:`run`, in the :func:`slurm_environment`."""
    return run(command, timeout_s, slurm_environment(), check)


def run(
    command: Sequence[str],
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    check: Callable[[], None] = lambda: None,
) -> CommandResult:
    """Run a command to its end, with the variables ``environment`` or else those of this process.
    Ctrl-C in a terminal does not reach the command. ``check`` is called twice a second.

    Raises OSError if it cannot be started; TooMuchError, which is an OSError;
    subprocess.TimeoutExpired after ``timeout_s`` seconds; and what ``check`` raises. The command is
    killed then.
    """
    until_s = time.monotonic() + timeout_s
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
        env=environment,
    ) as process:
        reader = OutputReader(process)
        try:
            while True:
                try:
                    left_s = max(0.0, until_s - time.monotonic())
                    return reader.wait(min(left_s, _LOOK_EVERY_S))
                except subprocess.TimeoutExpired:
                    if time.monotonic() >= until_s:
                        raise subprocess.TimeoutExpired(command, timeout_s) from None
                check()
        finally:
            if process.poll() is None:
                reader.kill()
