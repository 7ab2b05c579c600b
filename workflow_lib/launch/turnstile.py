"""Lets a user's processes submit one after the other, and makes them wait while Slurm refuses."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import IO

from workflow_lib.launch import interruption
from workflow_lib.launch.board import LONGEST_PERIOD_S
from workflow_lib.launch.messages import say_once
from workflow_lib.safety import private_directory

_LOOK_EVERY_S = 0.25


class Turnstile:
    """A context in which no other process of this user on this machine is.

    Its file's time says until when it is closed. Where the directory cannot be used, everybody
    passes.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "submitting"
        self._stream: IO[str] | None = None

    def __enter__(self) -> Turnstile:
        """Raises InterruptedRunError, and PermissionError where others can write the directory."""
        while True:
            try:
                private_directory(self._path.parent)
                stream = self._path.open("a")
            except PermissionError:
                raise
            except OSError as error:
                say_once(f"{self._path}: {error.strerror}; submitting without taking turns")
                return self
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                closed_for_s = self._path.stat().st_mtime - time.time()
                if not 0 < closed_for_s <= LONGEST_PERIOD_S:
                    self._stream = stream
                    return self
                say_once("Slurm takes no jobs now; waiting until it may be asked again")
            except BlockingIOError:
                pass  # it is another's turn
            except OSError as error:
                say_once(f"{self._path}: {error.strerror}; submitting without taking turns")
                stream.close()
                return self
            stream.close()
            interruption.pause(_LOOK_EVERY_S)

    def close_for(self, seconds: float) -> None:
        """Let nobody pass for that long."""
        if self._stream is not None:
            until = time.time() + seconds
            os.utime(self._path, (until, until))
        else:
            interruption.pause(seconds)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
