"""Finds damaged files that were made from others, by their checksums, and removes them, so that the
workflow makes them again. Modification times may not show the damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from workflow_lib import results
from workflow_lib.records.cell import Cell
from workflow_lib.records.checksums import damaged
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import OutcomeRecord
from workflow_lib.records.paths import ComparisonPaths, RunPaths, SweepPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.records.tables import TABLES

#: how many files are read at once, because a shared file system answers slowly
_AT_ONCE = 16


def damaged_in_runs(directories: Iterable[Path]) -> list[Path]:
    """The damaged files that were made from the raw files of these runs. Raises OSError."""
    return _of_all(_of_run, directories)


def damaged_in_sweeps(results_directory: Path, sweeps: Iterable[str]) -> list[Path]:
    """The damaged plans, tables, figures and pages of sweeps and comparisons. A page is included if
    anything that it shows is damaged. Raises OSError."""
    broken = _of_all(_of_comparison, results.comparisons(results_directory))
    for name in sweeps:
        paths = results.sweep_paths(results_directory, name)
        pages = [paths.report]
        tables = _there(damaged(paths.table_checksums, [paths.table(table) for table in TABLES]))
        if tables:
            compared = results.comparisons(results_directory, name)
            pages += [ComparisonPaths(directory).page for directory in compared]
        plan = _there(damaged(paths.plan_checksum, (paths.plan,)))
        amiss = [*plan, *tables, *_figures(paths.figures)]
        broken += amiss or damaged(paths.report_checksum, (paths.report,))
        broken += pages if amiss else []
    return _there(dict.fromkeys(broken))


def damaged_cells(runs: Iterable[tuple[Path, Cell]]) -> list[tuple[Path, Cell]]:
    """The runs whose ``cell.json`` is damaged. Each of ``runs`` is a run's directory and its
    planned cell. Raises OSError."""
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


def _of_all(find: Callable[[Path], list[Path]], directories: Iterable[Path]) -> list[Path]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [path for paths in pool.map(find, directories) for path in paths]


def _of_run(directory: Path) -> list[Path]:
    paths = RunPaths(directory)
    reduced = damaged(paths.reduced_checksums, paths.reduced())
    traced = damaged(paths.trace_checksums, (paths.kernels, paths.trace_times))
    return _there([*reduced, *traced, *_unreadable_outcome(paths)])


def _unreadable_outcome(paths: RunPaths) -> list[Path]:
    """``outcome.json`` if it cannot be read. The workflow writes it again from the files that the
    job left, without training again."""
    if not paths.outcome.exists():
        return []
    try:
        read_record(paths.outcome, OutcomeRecord)
    except RecordError:
        return [paths.outcome]
    return []


def _figures(directory: Path) -> list[Path]:
    """The directory of figures if a figure is damaged or missing: all figures are made together."""
    checksums = SweepPaths.figure_checksums(directory)
    return [directory] if damaged(checksums, _files(directory)) else []


def _of_comparison(directory: Path) -> list[Path]:
    """All that a comparison wrote, if any of it is damaged or missing: who asks for its page alone
    has Snakemake look at the page alone."""
    paths = ComparisonPaths(directory)
    made = (paths.table, paths.page, *_files(paths.figures))
    amiss = damaged(paths.checksums, made)
    return _there([paths.table, paths.page, paths.figures]) if amiss else []


def _there(paths: Iterable[Path]) -> list[Path]:
    """The paths that exist. Snakemake itself makes missing files again."""
    return [path for path in paths if path.exists()]


def _files(directory: Path) -> list[Path]:
    """The files of a directory, without hidden ones."""
    return [path for path in directory.glob("*") if not path.name.startswith(".")]


def _is_damaged(paths: RunPaths, planned: Cell) -> bool:
    if not paths.cell.exists():
        return False
    if paths.cell_checksum.exists():
        return bool(damaged(paths.cell_checksum, (paths.cell,)))
    try:
        return read_record(paths.cell, Cell).id != planned.id
    except RecordError:
        return True
