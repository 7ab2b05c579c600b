"""Starts one rank and watches over it.

    python -m workflow_lib.launch.job.rank RUN_DIRECTORY ARGUMENTS…

runs this Python with ARGUMENTS, as srun and torch.distributed.run start it, and exits as that does,
with 128 + its number after a signal. A process that was killed, or crashed, leaves no record of
itself; this one does, in ``exits/rank<n>.json``, before its launcher learns of it and ends others.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import NoReturn

from workflow_lib.launch.job.rank_signals import HANDED_ON

#: <linux/prctl.h>: the signal that a process gets when the one that started it ends
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Run a rank to its end. Returns the exit code, as a shell would give it."""
    if len(arguments) < 2:
        asked = arguments in (["-h"], ["--help"])
        print(__doc__, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    # Some launchers have children reaped unseen, which would be inherited.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON | {signal.SIGCHLD})
    own = os.getpid()
    process = os.fork()
    if process == 0:
        _become(arguments[1:], own, usual)
    # Only now, as the rank need not wait for what this process needs.
    from workflow_lib.launch.job import rank_watch

    return rank_watch.watch(process, arguments[0])


def _become(arguments: list[str], parent: int, signals: set[signal.Signals | int]) -> NoReturn:
    """In the new process: become the rank, which ends when its watcher does."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:  # else it ended before it was asked for
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)
            os.execv(sys.executable, [sys.executable, *arguments])
    except OSError as error:
        sys.stderr.write(f"{sys.executable}: {error.strerror}\n")
        sys.stderr.flush()
    os._exit(127)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
