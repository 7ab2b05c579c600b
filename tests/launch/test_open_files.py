"""A process that waits for hundreds of runs may open more files; its jobs keep the user's limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def limits(program: str, soft: int) -> list[str]:
    """What a program prints that was started with a limit of open files."""
    limited = f'ulimit -S -n {soft}; exec "$@"'
    command = ["sh", "-c", limited, "sh", sys.executable, "-c", program]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()


def test_the_limit_is_raised_and_what_is_submitted_has_the_users():
    program = """
import resource, subprocess
from workflow_lib.launch import open_files
shell = ["sh", "-c", 'ulimit -S -n; echo "$0" "$1"', "an", "argument"]
subprocess.run(open_files.as_found(shell), check=True)
open_files.raise_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
subprocess.run(open_files.as_found(shell), check=True)
"""
    before, *words, raised, after, name, argument = limits(program, 64)
    assert words == ["an", "argument"]
    assert (before, after, name, argument) == ("64", "64", "an", "argument")
    assert int(raised) > 64


def test_a_limit_that_is_high_enough_stays():
    program = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from workflow_lib.launch import open_files
open_files.raise_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    assert limits(program, 256) == ["256", "256"]


def test_so_many_runs_fit_as_files_may_be_open():
    program = """
from workflow_lib.launch import open_files
print(open_files.most_runs())
"""
    # 256 less 96, by 4; and none where there is only room for Snakemake.
    assert limits(program, 256) == ["40"]
    assert limits(program, 99) == ["0"]
