"""Parts of a benchmark that run one after another, each on its own, and what they print."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


class Log:
    """Tables to standard output at once, and every figure as a JSON line to a file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def row(self, part: str, **values: Any) -> None:
        """Append one JSON line."""
        append(self._path, {"part": part, "unix_time_s": round(time.time(), 3), **values})

    def say(self, text: str = "") -> None:
        """Print a line."""
        print(text, flush=True)

    def table(self, rows: Sequence[Mapping[str, str]]) -> None:
        """Print rows by column: the first column to the left, the others to the right."""
        lines = [list(rows[0]), *(list(row.values()) for row in rows)] if rows else []
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for first, *others in lines:
            cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
            self.say("  ".join([first.ljust(widths[0]), *cells]))


def append(path: Path | None, record: Mapping[str, Any]) -> None:
    """Append a record to a file of JSON lines, if there is one."""
    if path is not None:
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record, default=_plain) + "\n")


def launcher(ranks: int) -> list[str]:
    """The command that runs this program again, as so many ranks of one host."""
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    return [sys.executable, *launch, *sys.argv]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)


def run_parts(parts: Mapping[str, Callable[[], None]], chosen: Sequence[str], log: Log) -> int:
    """Run the chosen parts. One that fails costs the others nothing; returns 1 where any did."""
    failed = []
    for name in chosen:
        log.say(f"\n== {name} ==")
        started = time.monotonic()
        try:
            parts[name]()
        except Exception as error:  # machine time is dear: the other parts still have their turn
            failed.append(name)
            log.say(f"{name} FAILED:\n{traceback.format_exc()}")
            log.row(name, error=f"{type(error).__name__}: {error}")
        log.say(f"-- {name}: {time.monotonic() - started:.1f} s")
    if failed:
        log.say(f"\nfailed: {', '.join(failed)}")
    return int(bool(failed))


def parser(description: str | None, parts: Sequence[str]) -> argparse.ArgumentParser:
    """What both benchmarks are asked for."""
    made = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    made.add_argument("--parts", nargs="+", choices=parts, default=list(parts))
    made.add_argument("--gpus", type=int, help="how many (default: all)")
    made.add_argument("--output", type=Path, help="append every figure to this file of JSON lines")
    made.add_argument("--keep", type=Path, help="a new directory that keeps the sampler's files")
    return made
