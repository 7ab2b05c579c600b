"""What was packed is rebuilt elsewhere, byte for byte, with nothing but what analysis needs."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

import matplotlib
import pytest

from tests.archive.sweeps import NAME, Study, finish, write_study
from tests.conftest import ROOT
from tests.texts import lacking
from workflow_lib.archive.__main__ import main
from workflow_lib.archive.contents import is_product
from workflow_lib.archive.pack import pack
from workflow_lib.archive.rebuild import described, rebuild

#: what a laptop has: no training, no workflow; and a file system that lists names backwards
_ELSEWHERE = """
import os, runpy, sys

for name in ("torch", "deepspeed", "snakemake", "submitit"):
    sys.modules[name] = None  # to import it fails, as where it is not installed

scandir, listdir = os.scandir, os.listdir

class Backwards:
    def __init__(self, path):
        with scandir(path) as entries:
            self.entries = iter(sorted(entries, key=lambda entry: entry.name, reverse=True))
    def __enter__(self): return self
    def __exit__(self, *ended): pass
    def close(self): pass
    def __iter__(self): return self.entries
    def __next__(self): return next(self.entries)

os.scandir = lambda path=".": Backwards(path)
os.listdir = lambda path=".": sorted(listdir(path), reverse=True)
runpy.run_module("workflow_lib.archive", run_name="__main__", alter_sys=True)
"""


def files_below(directory: Path) -> set[str]:
    return {
        path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()
    }


def shown(names):
    """Without hidden files: locks, and checksums of what is made."""
    return {name for name in names if not Path(name).name.startswith(".")}


def test_elsewhere_at_another_time_as_another_user_everything_is_the_same(study, archive, tmp_path):
    into = tmp_path / "else where" / "rebuilt"
    done = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE, "rebuild", str(archive), "--into", str(into)],
        cwd=tmp_path,
        env={
            **{"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "17"},
            **{"HOME": str(tmp_path), "USER": "somebody else", "TZ": "Pacific/Chatham"},
            **{"LC_ALL": "C", "SOURCE_DATE_EPOCH": "1", "POLARS_MAX_THREADS": "1"},
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    made = {f"results/{name}" for name in files_below(study.results)}
    products = {name for name in made if is_product(name)}
    assert f"{len(products)} of {len(products)}" in done.stdout
    kinds = {Path(name).suffix for name in products}
    assert kinds == {".parquet", ".json", ".svg", ".pdf", ".html"}
    rebuilt = {name for name in files_below(into) if name.startswith("results/")}
    assert shown(rebuilt) == shown(made)
    for name in products:
        assert (into / name).read_bytes() == (study.directory / name).read_bytes(), name


def test_the_same_sweep_is_packed_into_the_same_bytes(study, archive, tmp_path):
    os.utime(study.run(0, 1).cell)
    again = pack_to(tmp_path / archive.name, study)
    assert again.read_bytes() == archive.read_bytes()


def pack_to(path: Path, study: Study) -> Path:
    pack(NAME, path, study.config, study.results, ROOT, published=date(2026, 1, 31))
    return path


def test_of_shortened_traces_everything_is_made_again(study, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    archive, into = tmp_path / "short.zip", tmp_path / "rebuilt"
    options = ["--config", str(study.config), "--results", str(study.results), "--short-traces"]
    options += ["--published", "2026-01-31"]
    assert main(["pack", "--sweep", NAME, "--output", str(archive), *options]) == 0
    assert rebuild(archive, into, ROOT, 1e9).whole
    traces = sorted(into.rglob("rank*.json.gz"))
    assert [gzip.decompress(path.read_bytes()).count(b"aten::mm") for path in traces] == [0, 0]


def test_what_differs_is_named_with_what_may_be_why(tmp_path):
    """The archive of somebody whose page was another, and whose matplotlib was."""
    study = write_study(tmp_path / "here")
    finish(study)
    directory = study.results / "sweeps" / NAME
    with (directory / "report.html").open("a", encoding="utf-8") as stream:
        stream.write("<!-- edited -->")
    (directory / "cells.parquet").unlink()
    (directory / "older.parquet").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("importlib.metadata.version", lambda name: "0.1")
        archive = pack_to(tmp_path / "edited.zip", study)
    into = tmp_path / "rebuilt"
    rebuilt = rebuild(archive, into, ROOT, 1e9)
    files = ("report.html", "cells.parquet", "older.parquet")
    names = [f"results/sweeps/{NAME}/{name}" for name in files]
    assert [rebuilt.different, rebuilt.new, rebuilt.missing] == [(name,) for name in names]
    assert not rebuilt.whole
    said = described(rebuilt, into)
    assert lacking(said, *names) == []
    assert re.search(f"matplotlib .*{re.escape(matplotlib.__version__)}.* 0.1$", said, re.MULTILINE)


def test_an_archive_of_the_evidence_without_tables_leads_to_make_evidence(
    tmp_path, monkeypatch, capsys
):
    """One that holds only raw files and the plan, as most of evidence/ do."""
    study = write_study(tmp_path / "here")
    finish(study)
    files = [path for path in study.results.rglob("*") if path.is_file()]
    made = [
        path
        for path in files
        if is_product(f"results/{path.relative_to(study.results).as_posix()}")
        and path.name != "plan.parquet"
    ]
    for path in made:
        path.unlink()
    monkeypatch.chdir(tmp_path)
    Path("evidence").mkdir()
    pack_to(Path("evidence/mine.zip"), study)
    assert main(["rebuild", "mine"]) == 1
    said = capsys.readouterr().out
    assert "1 of 1 " in said
    # Each by its name would hide the rest.
    assert re.findall(r"(\d+) files$", said, re.MULTILINE) == [str(len(made))]
    assert not [path.name for path in made if path.name in said]
    assert "make evidence" in said


@pytest.mark.long
def test_what_pack_printed_is_rebuilt_by_name_by_path_and_again(
    study, tmp_path, monkeypatch, capsys
):
    """As one types it: make archive, then make rebuild with what that printed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").symlink_to(study.results)
    packing = ["pack", "--sweep", NAME, "--config", str(study.config), "--published", "2026-01-31"]
    assert main(packing) == 0
    archive, _, told = capsys.readouterr().out.splitlines()[0].partition(" ")
    assert archive == f"results/archives/{NAME}.zip:"
    runs, raw, products = (int(number) for number in re.findall(r"(\d+) (?:run|raw|made)", told))

    assert main(["rebuild", NAME]) == 0
    said = capsys.readouterr().out
    # Both count alike.
    assert re.findall(r"\b\d+\b", said)[:4] == [str(n) for n in (runs, raw, products, products)]
    assert f"rebuilt/{NAME}:" in said

    assert main(["rebuild", NAME]) == 1
    ways = ("--again", "AGAIN=1", "--into", "INTO=PLACE")
    assert lacking(capsys.readouterr().err, f"rebuilt/{NAME} ", *ways) == []
    left = tmp_path / "rebuilt" / NAME / "left.txt"
    left.touch()
    for name in (archive, f"{NAME}.zip", f"results/archives/{NAME}.zip"):
        assert main(["rebuild", name, "--again"]) == 0, name
        assert not left.exists()


def test_an_archive_that_is_not_there_is_answered_with_those_that_are(
    archive, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evidence").mkdir()
    shutil.copy(archive, tmp_path / "evidence" / "mine.zip")
    assert main(["rebuild", "yours"]) == 1
    assert lacking(capsys.readouterr().err, "'yours'", "evidence", "mine") == []


@pytest.mark.parametrize("link", [False, True])
def test_nothing_but_an_earlier_rebuild_is_replaced(archive, tmp_path, capsys, link):
    into = tmp_path / "into"
    if link:
        assert main(["rebuild", str(archive), "--into", str(tmp_path / "rebuilt")]) == 0
        into.symlink_to(tmp_path / "rebuilt")
    else:
        into.mkdir()
        (into / "thesis.tex").write_text("years", encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))
    assert main(["rebuild", str(archive), "--into", str(into), "--again"]) == 1
    error = capsys.readouterr().err
    assert f"{into} exists" in error
    # What is no rebuild is not to be replaced, so --again is not named.
    assert "--again" not in error
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.long
def test_a_damaged_archive_replaces_nothing(archive, tmp_path):
    into = tmp_path / "into"
    assert main(["rebuild", str(archive), "--into", str(into)]) == 0
    before = files_below(into)
    damaged = tmp_path / "damaged.zip"
    damaged.write_bytes(archive.read_bytes()[:-100])
    assert main(["rebuild", str(damaged), "--into", str(into), "--again"]) == 1
    assert files_below(into) == before
