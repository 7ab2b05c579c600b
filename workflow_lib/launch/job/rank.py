"""Starts one rank and watches over it.

    python -m workflow_lib.launch.job.rank RUN_DIRECTORY ARGUMENTS…

starts the rank: this Python with ARGUMENTS. srun or torch.distributed.run starts this command once
for each rank. It exits with the rank's exit code, or with 128 + the number of the signal that ended
the rank. A process that was killed, or crashed, cannot record how it ended. This watcher records it
in ``exits/rank<n>.json`` before the launcher sees the failure and ends the other ranks.
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
    """Run a rank to its end. Returns its exit code, or 128 + the number of its signal."""
    if len(arguments) < 2:
        asked = arguments in (["-h"], ["--help"])
        print(__doc__, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    # Some launchers ignore SIGCHLD, which this process inherits: its child's status would be lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON | {signal.SIGCHLD})
    own = os.getpid()
    process = os.fork()
    if process == 0:
        _become(arguments[1:], own, usual)
    # Imported only now, so that the rank does not wait for it.
    from workflow_lib.launch.job import rank_watch

    return rank_watch.watch(process, arguments[0])


def _become(arguments: list[str], parent: int, signals: set[signal.Signals | int]) -> NoReturn:
    """Become the rank, in the new process. The kernel ends the rank when its watcher ends."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:  # else the watcher ended before prctl took effect
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)
            os.execv(sys.executable, [sys.executable, *arguments])
    except OSError as error:
        sys.stderr.write(f"{sys.executable}: {error.strerror}\n")
        sys.stderr.flush()
    os._exit(127)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
