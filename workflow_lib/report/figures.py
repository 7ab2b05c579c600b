"""Every figure of a sweep: which there are, which are not and why, and how they are written.

A new figure is a module with ``SUBJECT``, ``entries`` and ``why_not``, and a line here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workflow_lib.report import (
    energy_figure,
    microbatch_figure,
    optimisation_figure,
    parallelism_figure,
    pipeline_rank_figure,
    platform_kernels_figure,
    power_figure,
    recomputation_figure,
    slots_figure,
    style,
    temperature_figure,
    throttling_figure,
    traffic_figure,
)
from workflow_lib.report.entry import FigureEntry
from workflow_lib.report.tables import Tables, read_tables

__all__ = ["FigureEntry", "Tables", "figures", "read_tables", "undrawn", "write_figures"]

_KINDS = (
    parallelism_figure,
    energy_figure,
    optimisation_figure,
    microbatch_figure,
    platform_kernels_figure,
    recomputation_figure,
    pipeline_rank_figure,
    traffic_figure,
    temperature_figure,
    throttling_figure,
    power_figure,
    slots_figure,
)


def figures(tables: Tables) -> list[FigureEntry]:
    """The figures that a sweep's tables give, kind by kind."""
    return [entry for kind in _KINDS for entry in kind.entries(tables)]


def undrawn(tables: Tables) -> list[tuple[str, str]]:
    """The kinds of figure that these tables do not give: what each would show, and why not."""
    return [(kind.SUBJECT, kind.why_not(tables)) for kind in _KINDS if not kind.entries(tables)]


def write_figures(
    tables: Tables, output: Path, formats: Sequence[str] = style.FORMATS
) -> list[Path]:
    """Draw every figure into ``output``, as SVG and PDF unless told; returns what was written."""
    output.mkdir(parents=True, exist_ok=True)
    written = []
    for entry in figures(tables):
        with style.styled(entry.stem):
            written += style.save(entry.draw(), output / entry.stem, formats)
    return written
