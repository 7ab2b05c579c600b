"""Names the cells whose memory was short while they were measured."""

from __future__ import annotations

from collections.abc import Sequence

from workflow_lib.report.cells import Row, completed
from workflow_lib.words import counted


def short_memory(
    cells: Sequence[Row], labels: Sequence[str], runs: Sequence[Row]
) -> tuple[str, ...]:
    """A sentence for each cell with runs in whose measured steps torch's allocators gave blocks
    back to the driver, or found no memory and tried again."""
    found = []
    for cell, label in zip(cells, labels, strict=True):
        ended = [run for run in runs if run["cell"] == cell["cell"] and completed(run)]
        retries = [int(run["allocator_retries"] or 0) for run in ended]
        frees = [int(run["allocator_frees"] or 0) for run in ended]
        short = sum(any(each) for each in zip(retries, frees, strict=True))
        if short:
            found.append(
                f"{label} ({cell['model']} on {cell['platform']}): up to "
                f"{counted(max(retries), 'allocation')} tried again and "
                f"{counted(max(frees), 'block')} given back in {short} of "
                f"{counted(len(ended), 'run')}"
            )
    return tuple(found)
