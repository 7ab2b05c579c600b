"""Runs the command that is measured, so that it notices nothing.

The command is a child in the process group of this process, with its standard streams, its
environment and its signal mask. Signals that reach this process alone are passed on. Those of the
terminal, and those that Slurm sends to every process of a step, have reached the command already.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

_PASSED_ON = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
#: the kernel's own signals, as those of a terminal's keys (sigaction(2))
_SI_KERNEL = 0x80
_PR_SET_PDEATHSIG = 1
#: shells' exit codes for a command that is not there, and for one that cannot be run
_NOT_THERE, _NOT_RUNNABLE = 127, 126


class CommandEnd(NamedTuple):
    """How the command ended, by the wall clock."""

    started_unix_s: float
    ended_unix_s: float
    #: as a shell has it: 128 + n for signal n
    exit_code: int
    signal: int | None = None
    #: why it never began; "" if it did
    problem: str = ""

    def follow(self) -> NoReturn:
        """End this process as the command ended."""
        if self.signal is not None:
            # Without a core dump of this process, beside the command's own.
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if self.signal not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(self.signal, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [self.signal])
            os.kill(os.getpid(), self.signal)
        os._exit(self.exit_code)


class Command:
    """A command that has been started."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it. No thread may run yet, because this forks."""
        self._watched = {*_PASSED_ON, signal.SIGCHLD}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._watched)
        reading, writing = os.pipe()
        self._started_unix_s = time.time()
        self.pid = os.fork()
        if self.pid == 0:
            _become(words, environment, before, writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as stream:
            # Closed by exec, so that nothing is read unless it fails.
            failed = stream.read()
        self._error = int(failed) if failed else 0

    def wait(self) -> CommandEnd:
        """Wait for its end, and pass signals on meanwhile. They stay blocked afterwards."""
        while True:
            received = signal.sigtimedwait(self._watched, 1.0)
            if (
                received is not None
                and received.si_signo != signal.SIGCHLD
                and not _reached_all(received)
            ):
                os.kill(self.pid, received.si_signo)
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                return self._end(status)

    def _end(self, status: int) -> CommandEnd:
        now = time.time()
        if self._error:
            code = _NOT_THERE if self._error == errno.ENOENT else _NOT_RUNNABLE
            return CommandEnd(self._started_unix_s, now, code, problem=os.strerror(self._error))
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            return CommandEnd(self._started_unix_s, now, 128 + number, number)
        return CommandEnd(self._started_unix_s, now, os.WEXITSTATUS(status))


def end_with_parent() -> None:
    """Have the kernel ask this process to end once its parent has, even if that is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _become(
    words: Sequence[str], environment: Mapping[str, str], mask: Iterable[int], writing: int
) -> None:
    """Become the command, in a child of this process. Ends the child if that fails."""
    try:
        end_with_parent()
        # Python ignores these; what is ignored stays so in the command.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvpe(words[0], list(words), dict(environment))
    except OSError as error:
        os.write(writing, str(error.errno).encode())
    finally:
        os._exit(_NOT_THERE)


def _reached_all(received: signal.struct_siginfo) -> bool:
    """Whether a signal was sent to the command as well."""
    if received.si_code == _SI_KERNEL:
        return True
    try:
        sender = Path(f"/proc/{received.si_pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return False
    return sender == "slurmstepd"
