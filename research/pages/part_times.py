"""The pages of parts timed alone: records of ``research/parts_on_gpus.py``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from research.pages.tables import document, head, link, table
from workflow_lib.projection.part_times import (
    MOST_OFF,
    OPTIMISER,
    Line,
    PartTime,
    Rates,
    describe,
    read_parts,
)

NAMES = "parts-*.jsonl"


def merged(directory: Path) -> str | None:
    """All records of a directory, as projections read them; None if there are none."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(directory.glob(NAMES))]
    return "".join(texts) or None


def page(note: str, path: Path, records: Sequence[dict[str, Any]]) -> str:
    """The page of one file: each time, and the lines through them."""
    first = records[0]
    rates = Rates(read_parts(path))
    rows = [
        _row(time, off)
        for key, times in rates.groups.items()
        for time, off in zip(times, _residuals(rates.lines.get(key), len(times)), strict=True)
    ]
    return document(
        note,
        head("How long do exchanges and the optimiser take alone", first),
        f"`research/parts_on_gpus.py`, torch {first['torch']}, NCCL {first['nccl']}"
        f"{_environment(first)}. Exchanges are in bf16, and groups of a size exchange at once. The "
        "optimiser is the engine's, with the clipping of gradients before it. Times are medians "
        f"over {rates.times[0].repeats} repeats of one launch, each on the slowest rank, with the "
        "shortest and the longest. Bytes are those that a rank receives, and of the optimiser 26 "
        f"for each weight. The raw data are {link(path.stem)}.",
        "## Lines",
        "A line is latency + bytes over a rate, with 90 % intervals. All sizes count alike. If a "
        f"size is more than {100 * MOST_OFF:.0f} % off, the smallest are left out in turn, and if "
        "that does not help, the line is refused. "
        "[Projections](../explanation/projection.md) of this workflow's stack use these lines.",
        describe(rates),
        "## Times",
        table(("part", "ranks", "MiB", "ms", "shortest–longest", "GB/s", "off its line, %"), rows),
    )


def _environment(record: dict[str, Any]) -> str:
    set_there = record["nccl_environment"]
    if not set_there:
        return ""
    return " with " + ", ".join(f"`{name}={value}`" for name, value in set_there.items())


def _residuals(line: Line | None, count: int) -> Sequence[float | None]:
    residuals = () if line is None else line.residuals
    # Of the largest: a line may leave the smallest out.
    return [*[None] * (count - len(residuals)), *residuals]


def _row(each: PartTime, off: float | None) -> tuple[str, ...]:
    return (
        f"{each.part} with clipping" if each.part == OPTIMISER else each.part,
        *(str(each.ranks), f"{each.bytes / 2**20:.4g}", f"{1e3 * each.seconds:.4g}"),
        f"{1e3 * each.least_s:.4g}–{1e3 * each.most_s:.4g}",
        f"{each.bytes / each.seconds / 1e9:.4g}",
        "–" if off is None else f"{100 * off:+.1f}",
    )
