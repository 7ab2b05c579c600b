"""A wall clock that a test sets while programs run: wall_clock.c, loaded before the C library."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


class WallClock:
    """The clock of all programs that have its variables, and of what they start."""

    def __init__(self, directory: Path) -> None:
        """Skips the test without gcc."""
        if shutil.which("gcc") is None:
            pytest.skip("setting a program's clock needs gcc")
        library, source = directory / "wall_clock.so", Path(__file__).with_name("wall_clock.c")
        flags = ("-shared", "-fPIC", "-Wall", "-Werror")
        subprocess.run(["gcc", *flags, "-o", library, source, "-ldl"], check=True)
        self._offset = directory / "offset"
        self.variables = {"LD_PRELOAD": str(library), "WALL_CLOCK_OFFSET": str(self._offset)}

    def set_ahead(self, seconds: int) -> None:
        """Have it so many seconds ahead of the true one from now on."""
        new = self._offset.with_suffix(".new")
        new.write_text(f"{seconds}\n", encoding="utf-8")
        new.replace(self._offset)
