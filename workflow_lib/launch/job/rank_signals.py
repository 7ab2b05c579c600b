"""Signals between a rank, its watcher and its launcher.

They have a module of their own because the watcher needs them before its slower imports.
"""

from __future__ import annotations

import signal

#: signals that ask a rank to end
ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
#: signals that the watcher passes on to the rank
HANDED_ON = ENDING | {signal.SIGUSR1, signal.SIGUSR2}
