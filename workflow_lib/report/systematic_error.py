"""The systematic error of energies, in the words of the page and captions."""

from __future__ import annotations

from collections.abc import Iterable

from workflow_lib.report.cells import Row
from workflow_lib.report.numbers import significant


def systematic_error(runs: Iterable[Row]) -> str:
    """How far the sensors behind the runs' energies may be off, at most: "±12 % (NVIDIA H200)".

    It is "" if no run has a measured energy: simulated readings have no sensor.
    """
    largest: dict[str, float] = {}
    for run in runs:
        if (share := run["energy_systematic_share"]) is not None and not run["simulated"]:
            name = run["gpu_name"] or "unnamed GPU"
            largest[name] = max(share, largest.get(name, 0.0))
    return ", ".join(
        f"±{significant(100 * largest[name], 2)} % ({name})" for name in sorted(largest)
    )
