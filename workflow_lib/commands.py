"""Runs commands of the site, such as ``squeue``, and reads no more than a bound of what they print.

A site's wrapper of a command may print anything, and never end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from workflow_lib.records import bounds

#: what is read at once; pipes of Linux hold 64 KiB
_BLOCK_BYTES = 1 << 16


class TooMuchError(OSError):
    """A command printed more than any of its answers can be, and was killed."""


@dataclass(frozen=True)
class Answer:
    """How a command ended, and what it printed; a wrapper may print in another encoding."""

    exit_code: int
    output: str
    errors: str

    @property
    def problem(self) -> str:
        """Of one that failed: what it said, on one line, or its exit code where that is nothing."""
        return " ".join(self.errors.split()) or f"exit code {self.exit_code}"


class Listener:
    """Reads what a process prints, until it ends or has printed too much."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """``process`` has pipes for both its streams, and a process group of its own."""
        self._process = process
        self._read = (bytearray(), bytearray())
        self._too_much = False
        self._threads = []
        for stream, read in zip((process.stdout, process.stderr), self._read, strict=True):
            assert stream is not None
            # Of its own, as Popen closes its streams while something may still print to them.
            descriptor = os.dup(stream.fileno())
            thread = threading.Thread(target=self._listen, args=(descriptor, read), daemon=True)
            thread.start()
            self._threads.append(thread)

    def wait(self, timeout_s: float) -> Answer:
        """What the process printed, once it has ended and closed both streams.

        Raises subprocess.TimeoutExpired, after which one may wait again, and TooMuchError.
        """
        until_s = time.monotonic() + timeout_s
        for each in self._threads:
            each.join(max(0.0, until_s - time.monotonic()))
            if each.is_alive():
                raise subprocess.TimeoutExpired(self._process.args, timeout_s)
        exit_code = self._process.wait(max(0.0, until_s - time.monotonic()))
        if self._too_much:
            raise TooMuchError(
                f"printed over {bounds.COMMAND_BYTES.most >> 20} MiB, more than any answer of it"
            )
        output, errors = (each.decode("utf-8", "replace") for each in self._read)
        return Answer(exit_code, output, errors)

    def kill(self) -> None:
        """End the process, and what it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _listen(self, descriptor: int, read: bytearray) -> None:
        with open(descriptor, "rb", buffering=0) as stream:
            while block := stream.read(_BLOCK_BYTES):
                read += block
                if len(read) > bounds.COMMAND_BYTES.most:
                    self._too_much = True
                    self.kill()
                    return


def run(
    command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> Answer:
    """Run a command to its end, with variables beside those that there are. A terminal's Ctrl-C is
    for the process that asks.

    Raises OSError where it cannot be started, TooMuchError, which is one, and
    subprocess.TimeoutExpired.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
        env=os.environ | (environment or {}),
    ) as process:
        listener = Listener(process)
        try:
            return listener.wait(timeout_s)
        finally:
            if process.poll() is None:
                listener.kill()
