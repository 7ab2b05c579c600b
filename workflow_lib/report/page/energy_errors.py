"""Names the cells whose energy is uncertain, because their load is in step with the sensor."""

from __future__ import annotations

from collections.abc import Sequence

from workflow_lib.report.cells import Row, completed
from workflow_lib.report.numbers import significant

#: a smaller difference between the integral of power and the energy counter is not a finding
_FINDING = 0.002


def energy_errors(
    cells: Sequence[Row], labels: Sequence[str], runs: Sequence[Row]
) -> tuple[str, ...]:
    """A sentence for each cell with runs whose energy may be off by more than 0.2 %: by how much,
    and in how many runs."""
    found = []
    for cell, label in zip(cells, labels, strict=True):
        ended = [run for run in runs if run["cell"] == cell["cell"] and completed(run)]
        shares = [run["energy_error_share"] for run in ended]
        off = [share for share in shares if share is not None and share > _FINDING]
        if off:
            many = "" if len(ended) == 1 else f" in {len(off)} of {len(ended)} runs"
            found.append(
                f"{label} ({cell['model']} on {cell['platform']}): up to "
                f"±{significant(100 * max(off), 2)} %{many}"
            )
    return tuple(found)
