"""A Snakemake workflow as a process that is watched: what it said when, and what it costs."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from research.measuring.marked_processes import Cost, Mark


class Workflow:
    """One ``snakemake``, its lines with the times at which they came."""

    def __init__(
        self, command: Sequence[str], directory: Path, environment: Mapping[str, str]
    ) -> None:
        """Start it in a session of its own."""
        self._mark = Mark()
        self.lines: list[tuple[float, str]] = []
        self.process = subprocess.Popen(
            command,
            cwd=directory,
            env=self._mark.environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.time(), line.rstrip("\n")))

    def cost(self) -> Cost:
        """What it and all that it started on this machine cost now."""
        return self._mark.cost()

    def text(self) -> str:
        """All that it has said."""
        return "\n".join(line for _, line in self.lines)

    def runs(self) -> bool:
        """True. Raises RuntimeError, with the last that it said, where it has ended."""
        if self.process.poll() is not None:
            raise RuntimeError(f"snakemake ended by itself:\n{self.text()[-3000:]}")
        return True

    def close(self) -> None:
        """End it and all that it started here; its jobs go on."""
        self._mark.kill()
        self.process.wait()
        self._reader.join(5)


def failures(lines: Sequence[tuple[float, str]]) -> dict[str, float]:
    """Output file → when Snakemake said that the job that makes it failed (Unix s)."""
    found: dict[str, float] = {}
    failed_at: float | None = None
    for at, line in lines:
        if line.startswith("Error in rule "):
            failed_at = at
        elif failed_at is not None and (output := re.match(r"\s+output: (\S+)", line)):
            found.setdefault(output.group(1).rstrip(","), failed_at)
            failed_at = None
    return found
