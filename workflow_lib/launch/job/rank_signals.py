"""Signals between a rank, its watcher and its launcher.

On their own, because the watcher needs them before it may import anything that takes time.
"""

from __future__ import annotations

import signal

#: what asks a rank to end
ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
#: what the watcher hands on to the rank
HANDED_ON = ENDING | {signal.SIGUSR1, signal.SIGUSR2}
