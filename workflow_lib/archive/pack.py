"""Packs a sweep: its raw files, configuration, environment, and the files made from them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from workflow_lib import plan, results
from workflow_lib.analysis.collect import of_another_attempt
from workflow_lib.analysis.traces.shortening import shortened
from workflow_lib.archive import croissant, versions
from workflow_lib.archive.bag import FORMAT_LABEL, ArchiveError, write_bag
from workflow_lib.archive.contents import files_of, is_product, runs_of
from workflow_lib.archive.crate import METADATA_NAME, Description, Run, metadata
from workflow_lib.cells import Sweep, expand_study
from workflow_lib.records.files import ARCHIVE_FORMAT, read_outcome
from workflow_lib.records.outcomes import OutcomeRecord
from workflow_lib.records.tables import PLAN, RUNS, TABLES
from workflow_lib.study import load_study, lookup
from workflow_lib.table_files import read_table


@dataclass(frozen=True)
class Packed:
    """Counts of what went into an archive."""

    runs: int
    #: raw files of runs, the configuration, versions, and files that describe the archive
    raw_files: int
    products: int
    bytes_before: int
    #: tables and the page of the sweep that are not there, and so not in the archive
    missing: tuple[str, ...] = ()
    #: text that cells train on, whose tokens are described and not in the archive
    texts: tuple[str, ...] = ()


def pack(
    sweep_name: str,
    archive: Path,
    configuration: Path,
    results_directory: Path,
    checkout: Path,
    licence: str | None = None,
    published: date | None = None,
    cut_off: bool = False,
    short_traces: bool = False,
) -> Packed:
    """Write a sweep's archive, and beside it what describes its tables (see croissant). The same
    files, versions and arguments give the same bytes.

    ``licence`` is an SPDX identifier or an address, for the data. ``published`` is the day of the
    last run unless given. With ``cut_off``, runs without a recorded end are packed as they are.
    With ``short_traces``, traces are without the events that no table is made of (see shortening).

    Raises ConfigError, RecordError, OSError. Raises ArchiveError if a run is under way, or if the
    plan on disk is not that of the configuration, or the tables do not know a run's end.
    """
    study = load_study(configuration)
    sweep = lookup("sweep", sweep_name, expand_study(study))
    of_sweep = results.sweep_paths(results_directory, sweep.name)
    _refuse_old_plan(sweep, configuration, of_sweep.plan)
    ended = [
        (cell, number, read_outcome(paths))
        for cell, number, paths in runs_of(sweep, results_directory)
    ]
    _refuse_old_tables(ended, of_sweep.table("runs"))
    files = files_of(sweep, study, results_directory, checkout, cut_off)
    with TemporaryDirectory() as directory:
        if short_traces:
            files |= _short_traces(files, Path(directory))
        sizes = {name: path.stat().st_size for name, path in files.items()}
        runs = [_run(*run) for run in ended]
        if published is None:
            ends = [run.ended_unix_s for run in runs if run.ended_unix_s is not None]
            if not ends:
                raise ArchiveError(
                    f"no run of {sweep_name} says when it ended; say what day the archive shall "
                    "bear, with --published 2026-01-31"
                )
            published = datetime.fromtimestamp(max(ends), UTC).date()
        used = versions.versions(checkout)
        described = Description(
            sweep.name, sweep.description, sweep.platform, published, licence, runs, used
        )
        crate = metadata(described, {**sizes, versions.NAME: len(_json(used))})
        texts = {versions.NAME: _json(used), METADATA_NAME: _json(crate)}
        information = {
            "Bag-Software-Agent": f"Triptych {used['triptych']}",
            "Bagging-Date": published.isoformat(),
            "External-Description": f"Sweep {sweep.name}: {sweep.description}",
            "External-Identifier": sweep.name,
            FORMAT_LABEL: str(ARCHIVE_FORMAT),
        }
        if short_traces:
            information["Traces"] = "without the events that no table is made of"
        midnight = datetime(published.year, published.month, published.day, tzinfo=UTC).timestamp()
        write_bag(archive, files, sizes, texts, information, midnight)
    (dataset,) = (each for each in crate["@graph"] if each["@id"] == "./")
    croissant.write(archive, dataset, list(files))
    products = sum(is_product(name) for name in files)
    wanted = (*(of_sweep.table(name) for name in TABLES), of_sweep.report)
    missing = tuple(path.name for path in wanted if not path.is_file())
    raw = len(files) + len(texts) - products
    data = (planned.cell.data for planned in sweep.cells)
    trained_on = tuple(sorted({corpus.name for corpus in data if corpus.kind == "text"}))
    return Packed(len(runs), raw, products, sum(sizes.values()), missing, trained_on)


def _short_traces(files: Mapping[str, Path], into: Path) -> dict[str, Path]:
    """Name in the payload → a shorter file, for the traces that can be shortened."""
    shorter: dict[str, Path] = {}
    for name, path in files.items():
        is_trace = path.parent.name == "traces" and path.suffix == ".gz"
        if is_trace and (content := shortened(path)) is not None:
            shorter[name] = into / f"{len(shorter)}.json.gz"
            shorter[name].write_bytes(content)
    return shorter


def _refuse_old_plan(sweep: Sweep, configuration: Path, path: Path) -> None:
    if not read_table(path, PLAN).equals(plan.table([sweep])):
        raise ArchiveError(
            f"{path} is not what {configuration} plans now: it was edited since, or is another "
            "configuration; run the workflow again, or name the right one with --config"
        )


def _refuse_old_tables(runs: Iterable[tuple[str, int, OutcomeRecord | None]], path: Path) -> None:
    """Tables that do not know a run's end say something else than the raw files beside them."""
    if not path.is_file():
        return
    rows = {(row["cell"], row["run"]): row for row in read_table(path, RUNS).iter_rows(named=True)}
    for cell, number, ended in runs:
        row = rows.get((cell, number))
        if ended is None or number == results.PROFILED_RUN:
            continue
        if row is None or of_another_attempt(row, ended):
            raise ArchiveError(
                f"{path} does not know how run {number} of {cell} ended, because it is older; run "
                "the workflow to its end first, or remove that file, and the archive has none"
            )


def _run(cell: str, number: int, ended: OutcomeRecord | None) -> Run:
    if ended is None:
        return Run(cell, number, None, None, None)
    return Run(cell, number, ended.outcome.value, ended.started_unix_s, ended.ended_unix_s)


def _json(content: Mapping[str, object]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
