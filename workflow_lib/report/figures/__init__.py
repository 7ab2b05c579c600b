"""All figures of a sweep: which can be drawn, why others cannot, and how they are written.

A new kind of figure is a :class:`FigureKind` in a module, and a line here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workflow_lib.records.checksums import write_checksums
from workflow_lib.records.paths import SweepPaths
from workflow_lib.report.figures import (
    energy,
    gpu_maps,
    kernels,
    memory,
    microbatch,
    optimisation,
    parallelism,
    pipeline_ranks,
    power,
    slots,
    style,
    throttling,
)
from workflow_lib.report.figures.kind import FigureEntry, FigureKind
from workflow_lib.report.figures.tables import Tables, read_tables
from workflow_lib.table_files import process_pool

__all__ = [
    "KINDS",
    "FigureEntry",
    "FigureKind",
    "Tables",
    "figures",
    "figures_and_gaps",
    "read_tables",
    "write_figures",
    "write_figures_of",
]

#: how many figures a process draws in the time that another takes to start
_FIGURES_A_PROCESS = 10

#: all kinds of figures, in the order of the page
KINDS: tuple[FigureKind, ...] = (
    parallelism.KIND,
    energy.KIND,
    optimisation.KIND,
    microbatch.KIND,
    memory.KIND,
    kernels.KERNEL_CLASSES,
    kernels.RECOMPUTATION,
    pipeline_ranks.KIND,
    gpu_maps.TRAFFIC,
    gpu_maps.TEMPERATURE,
    throttling.KIND,
    power.KIND,
    slots.KIND,
)


def figures(tables: Tables) -> list[FigureEntry]:
    """The figures that can be drawn from a sweep's tables, kind by kind."""
    return figures_and_gaps(tables)[0]


def figures_and_gaps(tables: Tables) -> tuple[list[FigureEntry], list[tuple[str, str]]]:
    """:func:`figures`, and the kinds that cannot be drawn: what each would show, and why not. At
    once, because each takes seconds for a large study."""
    all_entries: list[FigureEntry] = []
    missing = []
    for kind in KINDS:
        if entries := kind.entries(tables):
            all_entries += entries
        else:
            missing.append((kind.subject, kind.why_not(tables)))
    return all_entries, missing


def write_figures(
    tables: Tables,
    output: Path,
    formats: Sequence[str] = style.FORMATS,
    share: slice = slice(None),
) -> list[Path]:
    """Draw figures into ``output``, as SVG and PDF unless ``formats`` says otherwise; return the
    paths.

    ``share`` selects some of the figures; all are drawn by default.
    """
    output.mkdir(parents=True, exist_ok=True)
    written = []
    for entry in figures(tables)[share]:
        with style.styled(entry.stem):
            written += style.save(entry.draw(), output / entry.stem, formats)
    return written


def write_figures_of(directory: Path, output: Path, processes: int) -> list[Path]:
    """Draw all figures of the tables in a directory, with as many of ``processes`` as save time;
    return the paths.

    Raises as :func:`read_tables` does; an error in another process is raised here as well.
    """
    tables = read_tables(directory)
    processes = min(processes, -(-len(figures(tables)) // _FIGURES_A_PROCESS))
    written = _written(tables, directory, output, processes)
    write_checksums(SweepPaths.figure_checksums(output), written)
    return written


def _written(tables: Tables, directory: Path, output: Path, processes: int) -> list[Path]:
    if processes < 2:
        return write_figures(tables, output)
    with process_pool(processes) as pool:
        shares = [
            pool.submit(_write_share, directory, output, slice(number, None, processes))
            for number in range(processes)
        ]
        return sorted(path for share in shares for path in share.result())


def _write_share(directory: Path, output: Path, share: slice) -> list[Path]:
    return write_figures(read_tables(directory), output, share=share)
