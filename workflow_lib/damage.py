"""Files that were made from others and are damaged: found by their checksums, and removed, so that
the workflow makes them again. Their modification times need not tell of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from workflow_lib import results
from workflow_lib.records import (
    TABLES,
    Cell,
    ComparisonPaths,
    OutcomeRecord,
    RecordError,
    RunPaths,
    SweepPaths,
    damaged,
    read_record,
)

#: files that are read at once: on a shared file system each is waited for
_AT_ONCE = 16


def damaged_in_runs(directories: Iterable[Path]) -> list[Path]:
    """What was made of the raw files of runs, and is damaged. Raises OSError."""
    return _each(_of_run, directories)


def damaged_in_sweeps(results_directory: Path, sweeps: Iterable[str]) -> list[Path]:
    """What of sweeps' plans, tables, figures and pages is damaged, with what shows it: no page
    outlives a table that it rests on. Raises OSError.
    """
    found = _each(_of_comparison, results.comparisons(results_directory))
    for name in sweeps:
        paths = results.sweep_paths(results_directory, name)
        pages = [paths.report]
        tables = _there(damaged(paths.table_checksums, [paths.table(table) for table in TABLES]))
        if tables:
            compared = results.comparisons(results_directory, name)
            pages += [ComparisonPaths(each).page for each in compared]
        plan = _there(damaged(paths.plan_checksum, (paths.plan,)))
        amiss = [*plan, *tables, *_figures(paths.figures)]
        found += amiss or damaged(paths.report_checksum, (paths.report,))
        found += pages if amiss else []
    return _there(dict.fromkeys(found))


def damaged_cells(runs: Iterable[tuple[Path, Cell]]) -> list[tuple[Path, Cell]]:
    """Those of ``runs``, each a directory and the cell that was planned, whose ``cell.json`` is
    damaged. Raises OSError.
    """
    chosen = list(runs)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        amiss = pool.map(lambda run: _is_damaged(RunPaths(run[0]), run[1]), chosen)
        return [run for run, is_amiss in zip(chosen, amiss, strict=True) if is_amiss]


def remove(paths: Iterable[Path]) -> None:
    """Remove files, and directories of figures. Raises OSError."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _each(find: Callable[[Path], list[Path]], directories: Iterable[Path]) -> list[Path]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [path for found in pool.map(find, directories) for path in found]


def _of_run(directory: Path) -> list[Path]:
    paths = RunPaths(directory)
    reduced = damaged(paths.reduced_checksums, paths.reduced())
    traced = damaged(paths.trace_checksums, (paths.kernels, paths.trace_times))
    return _there([*reduced, *traced, *_unreadable_outcome(paths)])


def _unreadable_outcome(paths: RunPaths) -> list[Path]:
    """``outcome.json`` where nobody can read it: it is written again from what the job left, and
    nothing trains for it.
    """
    if not paths.outcome.exists():
        return []
    try:
        read_record(paths.outcome, OutcomeRecord)
    except RecordError:
        return [paths.outcome]
    return []


def _figures(directory: Path) -> list[Path]:
    """The whole directory where a figure is damaged or gone: it is made as one."""
    checksums = SweepPaths.figure_checksums(directory)
    return [directory] if damaged(checksums, _files(directory)) else []


def _of_comparison(directory: Path) -> list[Path]:
    paths = ComparisonPaths(directory)
    made = (paths.table, paths.page, *_files(paths.figures))
    found = damaged(paths.checksums, made)
    # A figure that is gone is missed by nobody but the page that shows it.
    outputs = {paths.figures if paths.figures in each.parents else each for each in found}
    return sorted(outputs)


def _there(paths: Iterable[Path]) -> list[Path]:
    """Without those that are gone: Snakemake itself misses these."""
    return [each for each in paths if each.exists()]


def _files(directory: Path) -> list[Path]:
    """What a directory holds, without hidden files."""
    return [each for each in directory.glob("*") if not each.name.startswith(".")]


def _is_damaged(paths: RunPaths, planned: Cell) -> bool:
    if not paths.cell.exists():
        return False
    if paths.cell_checksum.exists():
        return bool(damaged(paths.cell_checksum, (paths.cell,)))
    try:
        return read_record(paths.cell, Cell).id != planned.id
    except RecordError:
        return True
