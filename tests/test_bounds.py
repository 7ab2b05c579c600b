"""What is beyond a bound is refused in one sentence, at once, whoever made it."""

import gzip
import json
import os
import re
import sys
import time
import zipfile

import pytest

from tests import programs
from tests.analysis.synthetic_run import Run
from tests.conftest import load_sound
from workflow_lib.analysis.reduce import reduce_run
from workflow_lib.analysis.traces.reading import read_trace
from workflow_lib.archive import versions
from workflow_lib.archive.bag import ArchiveError, write_bag
from workflow_lib.archive.unpacking import unpack
from workflow_lib.records import bounds
from workflow_lib.records.cell import Cell
from workflow_lib.records.files import read_json, read_record
from workflow_lib.records.reading import RecordError
from workflow_lib.study import ConfigError

BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "over 100000 values"),
        ("a: &a [*a]", "an alias"),
        ("[" * 5000, "more than 16"),
        ("a: " + "9" * 5000, "4300 digits"),
        ("a: b\n" * 60_000, "over 256 KiB"),
        ("a: b\0", "not valid YAML"),
    ],
    ids=["aliases", "cycle", "depth", "number", "size", "null"],
)
def test_yaml_that_would_take_for_ever_is_refused(study_directory, text, said):
    (study_directory / "models" / "hostile.yaml").write_text(text, encoding="utf-8")
    began_s = time.process_time()
    with pytest.raises(ConfigError, match=r"models/hostile\.yaml: ") as caught:
        load_sound(study_directory)
    assert said in str(caught.value)
    assert time.process_time() - began_s < 20


@pytest.mark.parametrize(
    ("file", "key", "new", "said"),
    [
        ("sweeps/smoke.yaml", "repeats", "repeats: 1000000000", "less than or equal to 1000"),
        ("sweeps/parallelism.yaml", "dp", "dp: 1000000000000", "less than or equal to 1000000"),
        ("models/llama3-8b.yaml", "layers", "layers: 1000000000", "less than or equal to 100000"),
    ],
)
def test_counts_beyond_any_machine_are_refused(study_directory, edit, file, key, new, said):
    text = (study_directory / file).read_text(encoding="utf-8")
    found = re.search(rf"\b{key}: *[^\s,}}]+", text)
    assert found is not None
    edit(file, found[0], new)
    with pytest.raises(ConfigError, match=said):
        load_sound(study_directory)


def test_a_matrix_that_multiplies_beyond_bounds_is_refused_before_it_does(study_directory, edit):
    path = study_directory / "sweeps" / "smoke.yaml"
    text = path.read_text(encoding="utf-8")
    for each in path.parent.iterdir():
        each.unlink()
    numbers = list(range(1, 101))
    path.write_text(
        f"{text.partition('matrix:')[0]}matrix:\n  - {{models: llama3-8b, tp: {numbers}, "
        f"pp: {numbers}, ep: {numbers}}}\n",
        encoding="utf-8",
    )
    began_s = time.process_time()
    with pytest.raises(ConfigError, match=r" 1000000 cells .* more than 20000"):
        load_sound(study_directory)
    assert time.process_time() - began_s < 20


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "more than 16 deep"),
        ('{"a": 1e999}', "a is a number too large"),
        ('{"a": NaN}', "NaN is no number of JSON"),
        ('{"a": [9223372036854775808]}', r"a\[0\] is 9223372036854775808, which 64 bits do not"),
        ('{"a": ' + "9" * 5000 + "}", "not readable as JSON"),
        ('"\\ud800"', "not text in UTF-8"),
        (" " * (9 << 20), "over 8192 KiB"),
        ("[" + "0," * 4_100_000 + "0]", "over 4000000 values|over 8192 KiB"),
    ],
    ids=["depth", "infinite", "nan", "65 bits", "digits", "surrogate", "size", "values"],
)
def test_json_that_no_record_is_is_refused(tmp_path, text, said):
    path = tmp_path / "record.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecordError, match=rf"record\.json: .*({said})"):
        read_json(path)


def test_a_pipe_in_the_place_of_a_record_is_refused_and_not_waited_for(tmp_path):
    path = tmp_path / "record.json"
    os.mkfifo(path)
    with pytest.raises(RecordError, match=r"record\.json: .* pipe"):
        read_json(path)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("id", "../../../etc/passwd", "id is '../../../etc/passwd', expected three names"),
        ("id", "a/b/..", "id is 'a/b/..', expected three names of directories"),
        ("nodes", 0, "Cell.nodes is 0, expected 1 to 1e"),
        ("nodes", 3, "2 ranks do not fit 3 nodes of 2 GPUs"),
    ],
)
def test_a_cell_that_cannot_be_is_refused(tmp_path, key, value, said):
    paths = Run().write(tmp_path / "run1")
    plain = json.loads(paths.cell.read_text(encoding="utf-8"))
    paths.cell.write_text(json.dumps(plain | {key: value}), encoding="utf-8")
    with pytest.raises(RecordError) as caught:
        read_record(paths.cell, Cell)
    assert said in str(caught.value)


@pytest.mark.parametrize("words", ["two\n# daemons", "\x1b[2J", "", "a" * 5_000])
def test_a_cell_of_which_something_else_than_a_line_is_emulated_is_refused(tmp_path, words):
    paths = Run().write(tmp_path / "run1")
    plain = json.loads(paths.cell.read_text(encoding="utf-8"))
    plain["hardware"]["emulated"] = words
    paths.cell.write_text(json.dumps(plain), encoding="utf-8")
    with pytest.raises(RecordError, match=r"hardware\.emulated is"):
        read_record(paths.cell, Cell)
    plain["hardware"]["emulated"] = "two daemons"
    paths.cell.write_text(json.dumps(plain), encoding="utf-8")
    assert read_record(paths.cell, Cell).emulated == "two daemons"


def test_a_field_of_a_csv_file_longer_than_any_is_refused(tmp_path):
    paths = Run().write(tmp_path / "run1")
    with paths.gpu_samples("node1").open("a", encoding="utf-8") as stream:
        stream.write("x" * 200_000 + "\n")
    with pytest.raises(RecordError, match=r"node1\.csv:\d+: over 65536 bytes"):
        reduce_run(paths.directory)


def test_a_trace_that_unpacks_to_a_bomb_is_not_read_to_its_end(tmp_path):
    path = tmp_path / "rank0.json.gz"
    with gzip.open(path, "wb") as stream:
        stream.write(b'{"traceEvents": [')
        for _ in range(60):
            stream.write(b'{"a": 1},' * 200_000)
    most = bounds.TRACE_RATIO_FREE_BYTES + path.stat().st_size * bounds.TRACE_RATIO.most
    trace = read_trace(path)
    assert any("unpacks to more" in note for note in trace.notes)
    assert trace.bytes_read <= most < 60 * 9 * 200_000


def test_a_trace_of_damaged_events_is_given_up(tmp_path):
    path = tmp_path / "rank0.json"
    path.write_bytes(b'{"traceEvents": [' + b'{"a": x}, ' * 400_000 + b'{"a": 1}]}')
    began_s = time.process_time()
    trace = read_trace(path)
    assert time.process_time() - began_s < 20
    assert any("events are damaged" in note for note in trace.notes)


def test_an_archive_that_unpacks_to_a_bomb_is_refused(tmp_path):
    archive = tmp_path / "bomb.zip"
    write_bag(archive, {}, {}, {"a.csv": "0" * (200 << 20)}, {}, 1.7e9)
    with pytest.raises(ArchiveError, match="over 100 times"):
        unpack(archive, tmp_path / "into", lambda name: True, 1e11)
    assert not (tmp_path / "into").exists()


def test_an_archive_whose_files_lie_too_deep_is_refused(tmp_path):
    archive = tmp_path / "deep.zip"
    with zipfile.ZipFile(archive, "w") as target:
        target.writestr("a/" * 2000 + "b", "")
    with pytest.raises(ArchiveError, match="over 32 directories"):
        unpack(archive, tmp_path / "into", lambda name: True, 1e9)


@pytest.mark.parametrize(
    ("plain", "said"),
    [([], "expected the version of each package"), ({"polars": 1}, "'polars' is 1, expected a")],
)
def test_versions_that_are_none_are_refused(tmp_path, plain, said):
    path = tmp_path / "versions.json"
    path.write_text(json.dumps(plain), encoding="utf-8")
    with pytest.raises(RecordError, match=said):
        versions.read_versions(path)


def test_what_a_record_quotes_obeys_no_terminal(tmp_path):
    run = Run().write(tmp_path / "cells" / "a" / "b" / "\x1b[31mc" / "run1")
    run.cell.write_text('{"\x9b31m": 1}', encoding="utf-8")
    command = [sys.executable, "-m", "workflow_lib.analysis", "reduce"]
    done = programs.run([*command, run.directory])
    assert done.returncode == 1
    assert done.stderr.removesuffix("\n").isprintable()
    assert "Traceback" not in done.stderr


def test_every_bound_has_words(tmp_path):
    for name, bound in bounds.all_bounds().items():
        assert bound.most > 0, name
        assert bound.what, name
