"""Commands whose output is read in part, as by ``head``."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec

_Arguments = ParamSpec("_Arguments")

#: the exit status of a process that the signal SIGPIPE ends, in a shell's words
_ENDED_BY_SIGPIPE = 128 + 13


def ends_quietly(main: Callable[_Arguments, int]) -> Callable[_Arguments, int]:
    """A command's ``main`` that ends without a traceback if whoever reads its output has left."""

    @functools.wraps(main)
    def until_nobody_reads(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> int:
        try:
            code = main(*arguments, **named)
            sys.stdout.flush()  # what is still in the buffer would fail at exit
        except BrokenPipeError:
            # Python flushes standard output once more as it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _ENDED_BY_SIGPIPE
        return code

    return until_nobody_reads
