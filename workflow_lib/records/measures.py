"""Measures: what is measured of a run, declared once.

A measure declares its name, unit and description in tables; its heading, unit and panel on pages;
which direction is better; its sensor, which decides its error; how values of sensors become a value
of the run; where pages show it; and how two sweeps are contrasted by it. Columns of tables, tables
of pages, panels of figures and words of comparisons derive from it. The package needs only the
standard library.

How the readings of a sensor become a measure::

    a column of GPU_SAMPLES, GPU_COUNTERS or HOST_SAMPLES
        ── statistic (mean, peak, …) over the measured steps ──▶ a column of GPUS or NODES
        ── over (mean, max, …) GPUs or nodes ──▶ the column of RUNS
        ── median over completed runs ──▶ the columns of CELLS
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from workflow_lib.records import performance_measures, power_measures
from workflow_lib.records.measure import Contrast, File, Level, Measure, Place, Reading

__all__ = [
    "ESTIMATES",
    "MEASURES",
    "NOT_MEASURES",
    "PROFILED",
    "Contrast",
    "File",
    "Measure",
    "Reading",
    "at_level",
    "inapplicable",
    "read_from",
    "shown_in",
]

#: name → measure, in the order of tables and pages. The reduction of a run computes each of them,
#: or gives null with a reason in missing_reasons
MEASURES: Mapping[str, Measure] = {
    measure.name: measure
    for measure in (
        *performance_measures.TIMES,
        *power_measures.POWER,
        *power_measures.HEAT,
        *performance_measures.USE,
        *performance_measures.SAMPLING,
    )
}
#: name → value of a cell that does not come from its measured runs
PROFILED: Mapping[str, Measure] = {
    measure.name: measure for measure in performance_measures.PROFILED
}
ESTIMATES: Mapping[str, Measure] = {
    measure.name: measure for measure in performance_measures.ESTIMATES
}

#: columns of a sampler's files that do not become a measure of a run → why
NOT_MEASURES: Mapping[tuple[File, str], str] = {
    ("gpu", "lateness_s"): "about the sampler: the validity of telemetry depends on it",
    ("counters", "energy_age_s"): "tells when energy_j was new: energy_j depends on it",
    **dict.fromkeys(
        [("gpu", "read_cost_s"), ("counters", "read_cost_s")],
        "about the sampler: docs/results lists the cost of each reading",
    ),
    **dict.fromkeys(
        [("counters", "gpu_link_received_bytes"), ("counters", "gpu_link_sent_bytes")],
        "ranks count whole steps: steps/links-rank<n>.json",
    ),
    **dict.fromkeys(
        [("counters", "pcie_received_bytes"), ("counters", "pcie_sent_bytes")],
        "read by versions before 0.2: 32-bit counters, which wrap unseen",
    ),
    **dict.fromkeys(
        [
            *(("counters", name) for name in ("sm_active_percent", "sm_occupancy_percent")),
            *(("counters", name) for name in ("tensor_active_percent", "dram_active_percent")),
            *(("counters", f"pcie_{way}_bytes_per_s") for way in ("sent", "received")),
            ("counters", "memory_power_w"),
        ],
        "no archive has them yet: kept in the run's files, for measures that runs will be shown by",
    ),
}


def shown_in(place: Place) -> tuple[Measure, ...]:
    """The measures that a place shows, in order."""
    return tuple(measure for measure in MEASURES.values() if place in measure.places)


def at_level(level: Level) -> tuple[Measure, ...]:
    """The measures that each GPU, or each node, has a value of."""
    return tuple(measure for measure in MEASURES.values() if measure.level == level)


def read_from(*files: File) -> tuple[Measure, ...]:
    """The measures whose readings come from these files of a sampler."""
    return tuple(
        measure
        for measure in MEASURES.values()
        if measure.reading and measure.reading.file in files
    )


def inapplicable(workload: str) -> Collection[str]:
    """The names of measures that do not apply to a workload, and are null in all of its runs."""
    return frozenset(measure.name for measure in MEASURES.values() if not measure.applies(workload))
