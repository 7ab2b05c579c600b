"""Names the cells that were measured under memory pressure, and how torch's allocator was set."""

from __future__ import annotations

from collections.abc import Sequence

from workflow_lib.report.cells import Row, completed
from workflow_lib.words import counted

#: torch's allocator without any setting
_PLAIN = "native"


def short_memory(
    cells: Sequence[Row], labels: Sequence[str], runs: Sequence[Row]
) -> tuple[str, ...]:
    """A sentence for each cell with runs in whose measured steps torch's allocators gave blocks
    back to the driver, or found no memory and tried again."""
    found = []
    for cell, label in zip(cells, labels, strict=True):
        ended = [run for run in runs if run["cell"] == cell["cell"] and completed(run)]
        short = [run for run in ended if run["memory_pressure"]]
        if short:
            retries, frees = (
                max(run[name] or 0 for run in short)
                for name in ("allocator_retries", "allocator_frees")
            )
            found.append(
                f"{label} ({cell['model']} on {cell['platform']}): up to "
                f"{counted(retries, 'allocation')} tried again and {counted(frees, 'block')} given "
                f"back in {len(short)} of {counted(len(ended), 'run')}"
            )
    return tuple(found)


def allocators_set(cells: Sequence[Row], labels: Sequence[str]) -> tuple[str, ...]:
    """A sentence for each cell whose allocator had settings, or was another than torch's usual."""
    return tuple(
        f"{label} ({cell['model']} on {cell['platform']}): {cell['allocator']}"
        for cell, label in zip(cells, labels, strict=True)
        if cell["allocator"] not in (None, _PLAIN)
    )
