"""The systematic error of energies, in the words of the page and captions."""

from __future__ import annotations

from collections.abc import Iterable

from workflow_lib.report.cells import Row


def systematic_error(runs: Iterable[Row]) -> str:
    """The systematic error of the sensors behind the runs' energies: "±6 % (NVIDIA H200)".

    It is "" if no run has a measured energy: simulated readings have no sensor.
    """
    found: dict[str, set[str]] = {}
    for run in runs:
        if run["energy_j"] is not None and not run["simulated"]:
            share = run["energy_systematic_share"]
            size = "unknown size" if share is None else f"±{100 * share:g} %"
            found.setdefault(size, set()).add(run["gpu_name"] or "unnamed GPU")
    return ", ".join(f"{size} ({'; '.join(sorted(found[size]))})" for size in sorted(found))
