"""Measures: what is measured of a run, declared once.

A measure says what it is in tables (name, unit, description), what people read (heading, unit,
panel of a figure), which direction is better, which sensor it is read from and so which error it
has, how the figures of sensors make that of a run, where it is shown, and how two sweeps are
contrasted by it. Columns of tables, tables of pages, panels of figures and words of comparisons
derive from it. It needs nothing but the standard library.

The way of a measure that is read from a sensor::

    a column of GPU_SAMPLES, GPU_COUNTERS or HOST_SAMPLES
        ── statistic (mean, peak, …) over the measured steps ──▶ a column of GPUS or NODES
        ── over (mean, max, …) GPUs or nodes ──▶ the column of RUNS
        ── median over completed runs ──▶ the columns of CELLS
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from workflow_lib.records.measures import heat, power, time, use, watching
from workflow_lib.records.measures.cells import ESTIMATES, PROFILED
from workflow_lib.records.measures.measure import Contrast, File, Level, Measure, Place, Reading

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

#: what reduce computes of one run, or null with a reason in missing_reasons; in the order in which
#: tables and pages have them
MEASURES: Mapping[str, Measure] = {
    each.name: each for part in (time, power, heat, use, watching) for each in part.MEASURES
}

#: columns of a sampler's files that are no measure of a run, and why
NOT_MEASURES: Mapping[tuple[File, str], str] = {
    ("gpu", "lateness_s"): "about the sampler: telemetry's validity judges it",
    ("gpu", "read_cost_s"): "about the sampler: docs/results has it by reading",
    ("counters", "read_cost_s"): "about the sampler: docs/results has it by reading",
    **dict.fromkeys(
        [("counters", "gpu_link_received_bytes"), ("counters", "gpu_link_sent_bytes")],
        "ranks count whole steps: steps/links-rank<n>.json",
    ),
    **dict.fromkeys(
        [("counters", "pcie_received_bytes"), ("counters", "pcie_sent_bytes")],
        "read by versions before 0.2: counters of 32 bits, whose turns nobody sees",
    ),
}


def shown_in(place: Place) -> tuple[Measure, ...]:
    """The measures that a place shows, in order."""
    return tuple(each for each in MEASURES.values() if place in each.places)


def at_level(level: Level) -> tuple[Measure, ...]:
    """The measures of which each GPU, or each node, has a figure."""
    return tuple(each for each in MEASURES.values() if each.level == level)


def read_from(*files: File) -> tuple[Measure, ...]:
    """The measures whose readings lie in a sampler's files of some kinds."""
    return tuple(each for each in MEASURES.values() if each.reading and each.reading.file in files)


def inapplicable(workload: str) -> Collection[str]:
    """The names of measures that mean nothing for a workload, and are null in all of its runs."""
    return frozenset(each.name for each in MEASURES.values() if not each.applies(workload))
