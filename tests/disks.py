"""File systems that fill up."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[Path]:
    """A file system of 128 KiB; skips the test where it cannot be mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    directory.mkdir(exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(directory)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.decode()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)
