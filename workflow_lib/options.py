"""What several commands have: options, and a quiet end where nobody reads their output."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add ``--config``, the directory of the study's configuration."""
    parser.add_argument(
        "--config", type=Path, default=Path("config"), help="the configuration (default: config)"
    )


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add ``--results``, the directory that holds cells/ and sweeps/."""
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="where results are (default: results)"
    )


def add_meters(parser: argparse.ArgumentParser) -> None:
    """Add ``--meters``, the file of what meters showed of sensors of power."""
    parser.add_argument(
        "--meters",
        type=Path,
        help="what meters showed of GPUs' sensors of power (default: config/meters.yaml, if there)",
    )


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
