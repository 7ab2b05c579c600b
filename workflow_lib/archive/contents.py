"""Chooses the files of a sweep's archive, and tells which of them are made from others."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from workflow_lib import plan, results
from workflow_lib.analysis.collect import collect
from workflow_lib.analysis.reduce import reduce_runs
from workflow_lib.analysis.traces.of_run import analyse_run
from workflow_lib.archive.bag import ArchiveError
from workflow_lib.cells import Sweep
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.report.figures import write_figures_of
from workflow_lib.report.page import write_page
from workflow_lib.study import Study

#: directories of an archive's payload
CONFIGURATION, RESULTS = "config", "results"
#: files of the checkout that explain the archive, or list the packages of its environment
_OF_CHECKOUT = (
    "CITATION.cff",
    "docs/reference/columns.md",
    "docs/reference/files.md",
    "docs/reference/reasons.md",
    "envs/*.txt",
    "envs/*.yaml",
)
_PRODUCT = re.compile(
    rf"{RESULTS}/(sweeps/.+|cells/([^/]+/){{3}}run\d+/(summary\.json|([^/]+/)?[^/]+\.parquet))"
)


def is_product(name: str) -> bool:
    """Whether the file of this name in the payload is made from others: a plan, a summary, a table,
    a figure, the page. Hidden files are not products; archives do not hold them.
    """
    return bool(_PRODUCT.fullmatch(name)) and "/." not in name


def runs_of(sweep: Sweep, results_directory: Path) -> list[tuple[str, int, RunPaths]]:
    """The cell, number and paths of each run of a sweep that exists."""
    return [
        (planned.cell.id, run, RunPaths(directory))
        for planned in sweep.cells
        if planned.feasible
        for run in planned.runs
        if (directory := results.run_directory(results_directory, planned.cell.id, run)).is_dir()
    ]


def files_of(
    sweep: Sweep,
    study: Study,
    results_directory: Path,
    checkout: Path,
    cut_off: bool = False,
) -> dict[str, Path]:
    """Name in the payload → file, for every file of a sweep's archive. Of the configuration it has
    only the files that the sweep uses.

    Raises ArchiveError if a run is under way, unless ``cut_off`` is true; if something is neither a
    file nor a directory; and if a name is not UTF-8.
    """
    files: dict[str, Path] = {}
    for pattern in _OF_CHECKOUT:
        for path in checkout.glob(pattern):
            files[path.relative_to(checkout).as_posix()] = path
    for path in study.files_of(sweep.spec, sweep.platform):
        files[f"{CONFIGURATION}/{path.as_posix()}"] = study.directory / path
    for name in study.sweeps[sweep.spec].other_trainers:
        for file in study.trainers[name].files:
            files[file] = study.directory.parent / file
    directories = [results.sweep_paths(results_directory, sweep.name).directory]
    for cell, run, paths in runs_of(sweep, results_directory):
        if not cut_off:
            _refuse_under_way(cell, run, paths)
        directories.append(paths.directory)
    for planned in sweep.cells:
        if tokens := results.tokens(results_directory, planned.cell.data):
            files[f"{RESULTS}/{tokens.relative_to(results_directory).as_posix()}"] = tokens
    for directory in directories:
        for path in _regular_files(directory):
            files[f"{RESULTS}/{path.relative_to(results_directory).as_posix()}"] = path
    _refuse_unreadable_names(files)
    return {name: path for name, path in files.items() if path.is_file()}


def _regular_files(directory: Path) -> Iterator[Path]:
    """The regular files below a directory. Hidden files are left out: these are locks and files
    that are being written. Raises ArchiveError for a link or a device.
    """
    for path in directory.rglob("*"):
        kind = path.lstat().st_mode
        if any(part.startswith(".") for part in path.relative_to(directory).parts):
            continue
        if stat.S_ISREG(kind):
            yield path
        elif not stat.S_ISDIR(kind):
            raise ArchiveError(
                f"{path} is a link or no file; an archive holds files alone, as what a link leads "
                "to may be anything: put the file in its place, or remove it"
            )


def _refuse_under_way(cell: str, run: int, paths: RunPaths) -> None:
    ended = paths.outcome.is_file() or paths.failure.is_file()
    if not ended and (paths.job.is_file() or paths.submission.is_file()):
        raise ArchiveError(
            f"{paths.directory}: run {run} of {cell} was submitted, and nothing says how it ended; "
            "run the workflow to its end first, or say --cut-off where its machine is gone"
        )


def _refuse_unreadable_names(names: Iterable[str]) -> None:
    for name in names:
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            raise ArchiveError(f"{name!r}: its name is not UTF-8; rename it") from None


#: how many processes reduce runs at most: each takes 0.2 GB of memory
_MOST_PROCESSES = 4


def make_products(sweep: Sweep, results_directory: Path) -> None:
    """Write plan, summaries, tables, figures and page of a sweep.

    Raises RecordError and OSError if raw files are damaged or missing.
    """
    paths = results.sweep_paths(results_directory, sweep.name)
    plan.write(plan.table([sweep]), paths.plan)
    cores = os.cpu_count() or 1
    measured = []
    for _, run, of_run in runs_of(sweep, results_directory):
        if of_run.outcome.is_file() and run == results.PROFILED_RUN:
            analyse_run(of_run.directory)
        elif of_run.outcome.is_file():
            measured.append(of_run.directory)
    if problems := reduce_runs(measured, min(cores, _MOST_PROCESSES)):
        raise RecordError("\n".join(problems))
    collect(paths.plan, results_directory, paths.directory)
    write_figures_of(paths.directory, paths.figures, cores)
    write_page(sweep.name, sweep.description, results_directory, paths.directory)
