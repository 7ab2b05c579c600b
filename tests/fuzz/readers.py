"""Every reader of files that may be anybody's: what it reads, and what it may answer.

Each either takes its input, and what it gives is then compared with what another reader of the
format finds, or refuses it by an error for people. Everything else is a fault.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import io
import itertools
import json
import math
import shutil
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import yaml
from hypothesis import strategies as st
from matplotlib.figure import Figure

from tests.analysis.synthetic_run import START, Run
from tests.analysis.traces import kineto
from tests.archive.sweeps import write_study
from tests.conftest import ROOT, load_sound
from tests.fuzz.inputs import as_json, edited, replaced, resealed
from workflow_lib import cells
from workflow_lib.analysis.collect import read_summary
from workflow_lib.analysis.reduce import reduce_run
from workflow_lib.analysis.samples import read_rows
from workflow_lib.analysis.traces.reading import read_trace
from workflow_lib.archive import versions
from workflow_lib.archive.bag import ArchiveError, manifest, write_bag
from workflow_lib.archive.unpacking import unpack
from workflow_lib.launch import evidence
from workflow_lib.records.cell import Cell
from workflow_lib.records.columns import Column
from workflow_lib.records.contract import STEPS, RankRecord
from workflow_lib.records.files import read_record
from workflow_lib.records.nodes import TelemetryStart
from workflow_lib.records.outcomes import (
    EndedRecord,
    ErrorRecord,
    ExitRecord,
    JobRecord,
    Outcome,
    OutcomeRecord,
    SubmissionRecord,
)
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError, read_csv
from workflow_lib.records.telemetry_columns import GPU_COUNTERS, GPU_SAMPLES, HOST_SAMPLES
from workflow_lib.records.whole_files import write_json
from workflow_lib.report import cell_files as page_files
from workflow_lib.report.cell_files import cleaning, tail
from workflow_lib.report.figures.embedding import safe_svg
from workflow_lib.report.figures.environments import environments
from workflow_lib.report.figures.style import save
from workflow_lib.study import ConfigError
from workflow_lib.trainers.native.data import DataError, TokenFile

REFUSALS = (RecordError, ConfigError, ArchiveError, DataError, OSError)


@dataclass(frozen=True)
class Reader:
    """What is read: inputs, and the reader, which raises AssertionError for a wrong value."""

    contents: st.SearchStrategy[bytes]
    read: Callable[[bytes, Path], None]


def all_readers(directory: Path) -> dict[str, Reader]:
    """The readers by name; ``directory`` takes the files that are right."""
    run = Run().write(directory / "cells" / "a" / "b" / "c" / "run1")
    reduce_run(run.directory)
    return {
        **_records(run),
        **_tables(run),
        "configuration": _configuration(directory / "study"),
        "trace": _trace(),
        **_archives(directory),
        **_pages(directory),
        "tokens": _tokens(),
    }


# ------------------------------------------------------------------------------------------ records


def _records(run: RunPaths) -> dict[str, Reader]:
    found: Sequence[tuple[Path, type]] = (
        (run.cell, Cell),
        (run.outcome, OutcomeRecord),
        (run.rank(0), RankRecord),
        (run.telemetry_start("node1"), TelemetryStart),
    )
    made: Sequence[Any] = (
        ErrorRecord(0, "n", START, "setup", Outcome.ERROR, "m", "t\nu"),
        ExitRecord(0, "n", START, 1, None, False, 0),
        JobRecord("slurm", "1", START, "u", "n"),
        EndedRecord("1", ("n",), START, START + 1, 0, 0, None, "00"),
        SubmissionRecord("n", START, "u", 1),
    )
    plain = [(json.loads(path.read_text(encoding="utf-8")), kind) for path, kind in found]
    plain += [(json.loads(json.dumps(dataclasses.asdict(each))), type(each)) for each in made]
    readers = {}
    for seed, kind in plain:
        readers[f"record-{kind.__name__}"] = Reader(
            st.one_of(replaced([seed], as_json), edited([as_json(seed)])), _of_kind(kind)
        )
    summary = json.loads(run.summary.read_text(encoding="utf-8"))
    readers["summary"] = Reader(
        st.one_of(replaced([summary], as_json), edited([as_json(summary)])), _read_summary
    )
    return readers


def _of_kind(kind: type) -> Callable[[bytes, Path], None]:
    def read(content: bytes, directory: Path) -> None:
        path = directory / "record.json"
        path.write_bytes(content)
        record = read_record(path, kind)
        found, expected = _plain(record), json.loads(content)
        assert found.keys() >= expected.keys()
        for key, value in expected.items():
            assert _same(found[key], value), f"{key} is {found[key]!r}, written as {value!r}"
        for number in _numbers(found):
            assert math.isfinite(number)

    return read


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, enum.Enum) else value


def _same(found: Any, written: Any) -> bool:
    if isinstance(written, dict):
        return isinstance(found, dict) and all(
            key in found and _same(found[key], value) for key, value in written.items()
        )
    if isinstance(written, list):
        return len(found) == len(written) and all(map(_same, found, written))
    return bool(found == written and isinstance(found, bool) == isinstance(written, bool))


def _numbers(plain: Any) -> Any:
    if isinstance(plain, dict | list):
        for item in plain.values() if isinstance(plain, dict) else plain:
            yield from _numbers(item)
    elif isinstance(plain, int | float):
        yield plain


def _read_summary(content: bytes, directory: Path) -> None:
    path = directory / "summary.json"
    path.write_bytes(content)
    assert read_summary(path) == json.loads(content)


# ------------------------------------------------------------------------------------------- tables


def _tables(run: RunPaths) -> dict[str, Reader]:
    kinds = {
        "gpu": (run.gpu_samples("node1"), GPU_SAMPLES),
        "counters": (run.gpu_counters("node1"), GPU_COUNTERS),
        "host": (run.host_samples("node1"), HOST_SAMPLES),
        "steps": (run.rank_steps(0), STEPS),
    }
    readers = {}
    for name, (path, columns) in kinds.items():
        head = b"".join(path.read_bytes().splitlines(keepends=True)[:6])
        readers[f"csv-{name}"] = Reader(edited([head]), _of_columns(columns))
    return readers


def _of_columns(columns: Sequence[Column]) -> Callable[[bytes, Path], None]:
    required = (columns[0].name,)

    def read(content: bytes, directory: Path) -> None:
        path = directory / "samples.csv"
        path.write_bytes(content)
        frame = streamed = None
        refusals: list[Exception] = []
        try:
            frame = read_rows(path, columns, required)
        except RecordError as error:
            refusals.append(error)
        try:
            streamed = [row for _, row in read_csv(path, columns)]
        except RecordError as error:
            refusals.append(error)
        if frame is not None:
            text = content[: content.rindex(b"\n") + 1].decode("utf-8")
            lines = [line.removesuffix("\r").split(",") for line in text.split("\n")[1:-1]]
            assert frame.height == len(lines)
            for row, line in zip(frame.rows(), lines, strict=True):
                for value, field, column in zip(row, line, columns, strict=True):
                    expected = None if field == "" else column.type(field)
                    assert value == expected, f"{column.name}: {value!r} of {field!r}"
        if frame is not None and streamed is not None:
            assert [tuple(row.values()) for row in streamed] == frame.rows()
        if refusals:
            raise refusals[0]

    return read


# ------------------------------------------------------------------------------------ configuration


def _configuration(directory: Path) -> Reader:
    study = write_study(directory)
    files = sorted(study.config.rglob("*.yaml"))
    names = [path.relative_to(study.config).as_posix() for path in files]
    texts = [path.read_bytes() for path in files]
    plain = [yaml.safe_load(text) for text in texts]

    def read(content: bytes, scratch: Path) -> None:
        # Which file it is in the place of.
        number, content = content[0] % len(names), content[1:]
        config = scratch / "config"
        if not config.exists():
            shutil.copytree(study.config, config)
        path = config / names[number]
        path.write_bytes(content)
        try:
            loaded = load_sound(config)
            for sweep in itertools.islice(cells.expand_study(loaded).values(), 3):
                for planned in sweep.cells[:20]:
                    _check_cell(planned, scratch)
        finally:
            path.write_bytes(texts[number])

    def write(number: int) -> Callable[[Any], bytes]:
        return lambda value: (
            bytes([number]) + yaml.dump(value, allow_unicode=True).encode("utf-8", "surrogatepass")
        )

    numbered = [bytes([number]) + text for number, text in enumerate(texts)]
    changed = (replaced([each], write(number)) for number, each in enumerate(plain))
    return Reader(
        st.one_of(*changed, edited(numbered).filter(lambda content: len(content) > 0)), read
    )


def _check_cell(planned: cells.PlannedCell, scratch: Path) -> None:
    """What can run is written, and read as what was written."""
    if planned.feasible:
        path = scratch / "planned.json"
        write_json(path, planned.cell)
        assert read_record(path, Cell) == planned.cell
        assert planned.estimate is not None
        assert all(map(math.isfinite, _numbers(dataclasses.asdict(planned.estimate))))


# ------------------------------------------------------------------------------ traces and archives


def _trace() -> Reader:
    events = [
        kineto.step(1, 0, 500),
        kineto.launch(1, 5),
        kineto.kernel(kineto.GEMM, 10, 60, correlation=5),
        kineto.collective(60, 90, [0, 1]),
    ]
    text = kineto.text(events, baseTimeNanoseconds=1_700_000_000_000_000_000).encode()
    plain = {"traceEvents": events, "baseTimeNanoseconds": 17}
    packed = kineto.gzip.compress(text)

    def read(content: bytes, directory: Path) -> None:
        path = directory / "trace.json.gz"
        path.write_bytes(content)
        trace = read_trace(path)
        late = trace.kernels.filter(pl.col("end_ns") < pl.col("start_ns"))
        assert late.is_empty()
        if not trace.notes:
            assert trace.bytes_read > 0

    return Reader(st.one_of(edited([text, packed]), replaced([plain], as_json)), read)


def _archives(directory: Path) -> dict[str, Reader]:
    archive = directory / "bag.zip"
    texts = {"config/a.yaml": "name: a\n", "results/b.csv": "time,power\n1,2\n" * 4}
    write_bag(archive, {}, {}, texts, {"External-Identifier": "made-up"}, 1.7e9)
    content = archive.read_bytes()
    stored = io.BytesIO()
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(stored, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    seeds = [content, stored.getvalue()]
    told = dict(versions.versions(ROOT))

    def read_versions(content: bytes, scratch: Path) -> None:
        path = scratch / "versions.json"
        path.write_bytes(content)
        for line in versions.differences(versions.read_versions(path), told):
            assert len(line) < 1000

    return {
        "archive": Reader(st.one_of(edited(seeds), edited(seeds).map(resealed)), _read_archive),
        "versions": Reader(
            st.one_of(replaced([told], as_json), edited([as_json(told)])), read_versions
        ),
    }


def _read_archive(content: bytes, directory: Path) -> None:
    archive, into = directory / "hostile.zip", directory / "inside" / "into"
    archive.write_bytes(content)
    before = set(directory.iterdir()) | {into.parent}
    try:
        bag = unpack(archive, into, lambda name: True, 1e9)
        names = {p.relative_to(into).as_posix(): p for p in into.rglob("*") if p.is_file()}
        assert names.keys() == bag.checksums.keys()
        checksums = {name: _sha256(path.read_bytes()) for name, path in names.items()}
        assert manifest(checksums) == manifest(bag.checksums)
    finally:
        shutil.rmtree(into.parent, ignore_errors=True)
        assert set(directory.iterdir()) | {into.parent} == before


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# -------------------------------------------------------------------------------------------- pages


def _pages(directory: Path) -> dict[str, Reader]:
    drawn = Figure(figsize=(2, 1))
    drawn.add_axes((0.1, 0.1, 0.8, 0.8)).text(0.5, 0.5, "a & <b>")
    (figure,) = save(drawn, directory / "figure", ["svg"])
    environment = {
        "recorded_unix_s": START,
        "environment_variables": {"A": "b"},
        "gpus": [{"a": 1}],
    }
    log = (
        b"[rank1]:[E1 x.cpp:1] Watchdog caught collective operation timeout: (OpType=ALLREDUCE)\n"
        b'File "/a/workflow_lib/trainers/native/x.py", line 1, in f\nexport TOKEN=abcdefghij\n'
    )
    return {
        "figure": Reader(edited([figure.read_bytes()]), _read_figure),
        "environment": Reader(
            st.one_of(replaced([environment], as_json), edited([as_json(environment)])),
            _read_environment,
        ),
        "log": Reader(edited([log, log * 20]), _read_log),
    }


def _read_figure(content: bytes, directory: Path) -> None:
    path = directory / "figure.svg"
    path.write_bytes(content)
    text, size = safe_svg(path, "f")
    assert all(map(math.isfinite, size))
    lowered = text.lower()
    assert not any(each in lowered for each in ("<script", "javascript:", "<!", "<?"))


def _read_environment(content: bytes, directory: Path) -> None:
    run = RunPaths(directory / "cells" / "a" / "b" / "c" / "run1")
    run.directory.mkdir(parents=True, exist_ok=True)
    run.environment.write_bytes(content)
    environments([{"cell": "a/b/c", "run": 1, "outcome": "completed"}], directory)
    for _, rows in page_files.environment(run, cleaning({})) or ():
        assert all(isinstance(text, str) for row in rows for text in row)


def _read_log(content: bytes, directory: Path) -> None:
    run = RunPaths(directory / "logged")
    run.logs.mkdir(parents=True, exist_ok=True)
    log = run.logs / "training.log"
    log.write_bytes(content)
    evidence.stopped_by_watchdog(run)
    evidence.collective_of(content.decode("utf-8", "replace"))
    shown = tail(log, cleaning({"MY_TOKEN": "abcdefghij"}))
    assert "abcdefghij" not in shown
    assert shown.replace("\n", "").isprintable()


def _tokens() -> Reader:
    plain = {"dtype": "uint16", "tokens": 64, "vocabulary_size": 100, "sources": ["a"]}

    def read(content: bytes, directory: Path) -> None:
        description = directory / "tokens.json"
        description.write_bytes(content)
        (directory / "tokens.bin").write_bytes(bytes(range(64)) * 2)
        source = TokenFile(description, 50_000, 8)
        ids = source.sequence(1, 2, 3, 8)
        assert ids.size == 8
        assert 0 <= ids.min() <= ids.max() < 50_000

    return Reader(st.one_of(replaced([plain], as_json), edited([as_json(plain)])), read)
