"""What goes into an archive, and what is refused."""

from __future__ import annotations

import shutil
import zipfile
from datetime import date
from pathlib import Path

import pytest

from tests.archive.sweeps import NAME, Study, write_run, write_study
from tests.conftest import ROOT
from workflow_lib import plan
from workflow_lib.analysis.collect import collect
from workflow_lib.archive.__main__ import main
from workflow_lib.archive.bag import ArchiveError, write_bag
from workflow_lib.archive.contents import is_product
from workflow_lib.archive.pack import Packed, pack
from workflow_lib.records import Outcome, read_outcome, write_json
from workflow_lib.table_files import write_table


@pytest.fixture
def planned(tmp_path: Path) -> Study:
    """A sweep with its plan and a run, of which nothing else has been made."""
    study = write_study(tmp_path)
    write_table(plan.table([study.sweep]), study.results / "sweeps" / NAME / "plan.parquet")
    write_run(study.run(0, 1), study.sweep.cells[0].cell, Outcome.COMPLETED)
    return study


def packed(study: Study, **options: object) -> Packed:
    chosen = {"published": date(2026, 1, 31), **options}
    target = study.directory / "packed.zip"
    return pack(NAME, target, study.config, study.results, ROOT, **chosen)  # type: ignore[arg-type]


def names(archive: Path) -> list[str]:
    """Names within the payload."""
    with zipfile.ZipFile(archive) as source:
        parts = [name.split("/", 2) for name in source.namelist()]
    return [part[2] for part in parts if part[1] == "data"]


def test_an_archive_holds_all_that_the_sweep_is_made_of(study: Study, archive: Path) -> None:
    found = names(archive)
    for number in (1, 2):
        run = study.run(0, number)
        directory = run.directory.relative_to(study.directory).as_posix()
        for part in (
            "cell.json",
            "job.sh",
            "outcome.json",
            "environment.json",
            "summary.json",
            "steps/rank1.csv",
            "telemetry/node1.csv",
            "logs/training.log",
            "attempts/1/failure.json",
        ):
            assert f"{directory}/{part}" in found
    assert sum(name.endswith("traces/rank1.json.gz") for name in found) == 1
    assert sum(name.endswith("failure.json") for name in found) == 6 + 2
    for name in (
        f"config/sweeps/{NAME}.yaml",
        "config/models/gpt3-tiny.yaml",
        "envs/analysis.txt",
        "docs/reference/columns.md",
        "docs/reference/reasons.md",
        "CITATION.cff",
        "versions.json",
        f"results/sweeps/{NAME}/plan.parquet",
        f"results/sweeps/{NAME}/report.html",
    ):
        assert name in found


def test_locks_and_what_is_not_of_the_sweep_stay_out(planned: Study) -> None:
    other = planned.run(0, 1).directory.parent / "run7" / "cell.json"
    write_json(other, {"of": "another sweep, with more repeats"})
    (planned.config / "platforms" / "key.pem").write_text("a secret", encoding="utf-8")
    (planned.run(0, 1).directory / ".cell.json.1.tmp").write_text("half", encoding="utf-8")
    packed(planned)
    found = names(planned.directory / "packed.zip")
    assert [name for name in found if "/." in name or "run7" in name or "key" in name] == []


def test_of_the_configuration_it_holds_what_the_sweep_uses_and_nothing_else(
    tmp_path: Path,
) -> None:
    """As of a checkout, which has platforms and models of others."""
    study = write_study(tmp_path)
    shutil.rmtree(study.config / "models")
    for kind in ("models", "platforms", "data"):
        shutil.copytree(ROOT / "config" / kind, study.config / kind, dirs_exist_ok=True)
    for name in ("config.yaml", "claims.yaml", "sweeps/demo.yaml"):
        shutil.copy(ROOT / "config" / name, study.config / name)
    sweep = study.config / "sweeps" / f"{NAME}.yaml"
    text = sweep.read_text(encoding="utf-8")
    sweep.write_text(f"{text}exclude: [{{model: [llama3-tiny], tp: 2}}]\n", encoding="utf-8")
    write_table(plan.table([study.sweep]), study.results / "sweeps" / NAME / "plan.parquet")
    packed(study)
    found = {n for n in names(study.directory / "packed.zip") if n.startswith("config/")}
    assert found == {
        "config/data/synthetic.yaml",
        "config/models/gpt3-tiny.yaml",
        "config/models/llama3-tiny.yaml",
        "config/platforms/local.yaml",
        f"config/sweeps/{NAME}.yaml",
    }


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("results/sweeps/demo/runs.parquet", True),
        ("results/sweeps/demo/figures/power.pdf", True),
        ("results/cells/local/tiny/tp1_0/run1/summary.json", True),
        ("results/cells/local/tiny/tp1_0/run1/steps.parquet", True),
        ("results/cells/local/tiny/tp1_0/run0/traces/kernels.parquet", True),
        ("results/cells/local/tiny/tp1_0/run0/traces/rank0.json.gz", False),
        ("results/cells/local/tiny/tp1_0/run1/outcome.json", False),
        ("results/cells/local/tiny/tp1_0/run1/attempts/1/summary.json", False),
        ("results/data/corpus/tokens.json", False),
        ("config/sweeps/demo.yaml", False),
        ("versions.json", False),
    ],
)
def test_what_is_made_from_other_files_is_known_by_its_name(name: str, product: bool) -> None:
    assert is_product(name) is product


def test_it_bears_the_day_of_the_last_run_unless_told(planned: Study) -> None:
    with pytest.raises(ArchiveError, match=r"says when it ended.*--published 2026-01-31"):
        packed(planned, published=None)
    paths = planned.run(0, 1)
    ended = read_outcome(paths)
    assert ended is not None
    # 1 700 000 000 is 2023-11-14 22:13:20 UTC.
    write_json(paths.outcome, {**vars(ended), "ended_unix_s": 1.7e9})
    packed(planned, published=None)
    with zipfile.ZipFile(planned.directory / "packed.zip") as source:
        information = source.read("packed/bag-info.txt").decode()
        dates = {entry.date_time for entry in source.infolist()}
    assert "Bagging-Date: 2023-11-14\n" in information
    assert dates == {(2023, 11, 14, 0, 0, 0)}


def test_a_run_under_way_is_refused(planned: Study) -> None:
    paths = planned.run(0, 1)
    paths.outcome.unlink()
    packed(planned)  # never submitted
    write_json(paths.job, {"id": "1"})
    with pytest.raises(ArchiveError, match=r"run 1 of local/.* was submitted.*--cut-off"):
        packed(planned)


def test_a_run_that_was_cut_off_is_packed_as_it_lies_where_told(planned: Study) -> None:
    paths = planned.run(0, 1)
    paths.outcome.unlink()
    write_json(paths.job, {"id": "1"})
    packed(planned, cut_off=True)
    found = names(planned.directory / "packed.zip")
    run = paths.directory.relative_to(planned.directory).as_posix()
    assert {f"{run}/job.json", f"{run}/steps/rank0.csv"} <= set(found)
    assert f"{run}/outcome.json" not in found


def test_a_link_is_refused_as_it_may_lead_to_anything(planned: Study, tmp_path: Path) -> None:
    link = planned.run(0, 1).logs / "more.log"
    link.symlink_to("/etc/hostname")
    with pytest.raises(ArchiveError, match=r"more\.log is a link or no file"):
        packed(planned)


def test_tables_that_do_not_know_a_runs_end_are_refused(planned: Study) -> None:
    """As where somebody packs while the workflow still trains."""
    collect(
        planned.results / "sweeps" / NAME / "plan.parquet",
        planned.results,
        planned.results / "sweeps" / NAME,
    )
    packed(planned)
    write_run(planned.run(0, 2), planned.sweep.cells[0].cell, Outcome.TIMEOUT)
    with pytest.raises(ArchiveError, match=r"runs.parquet does not know how run 2 of .* ended"):
        packed(planned)


def test_a_plan_of_another_configuration_is_refused(planned: Study) -> None:
    path = planned.config / "sweeps" / f"{NAME}.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("repeats: 2", "repeats: 3"), encoding="utf-8")
    with pytest.raises(ArchiveError, match=r"is not what .* plans now"):
        packed(planned)
    assert not (planned.directory / "packed.zip").exists()


@pytest.mark.parametrize("size", [3, 5])
def test_a_file_that_changes_while_it_is_packed_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.csv"
    path.write_text("four", encoding="utf-8")
    with pytest.raises(ArchiveError, match=f"held {size} bytes and then 4"):
        write_bag(tmp_path / "a.zip", {"a.csv": path}, {"a.csv": size}, {}, {}, 1.7e9)
    assert [each.name for each in tmp_path.iterdir()] == ["a.csv"]


def test_mistakes_are_one_message(
    planned: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--config", str(planned.config), "--results", str(planned.results)]
    assert main(["pack", "--sweep", "made-op", *places]) == 1
    assert "did you mean 'made-up'?" in capsys.readouterr().err
    assert main(["rebuild", str(tmp_path / "none.zip"), "--into", str(tmp_path / "x")]) == 1
    assert "none.zip" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["pack", "--sweep", NAME, "--published", "yesterday", *places])
    assert "yesterday is not a day, as in 2026-01-31" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["pack", "--sweep", NAME, "--licence", "free", *places])
    assert "free is no licence that SPDX knows: give an identifier" in capsys.readouterr().err
    assert main(["pack", "--sweep", NAME, "--published", "2026-01-31", *places]) == 0
    said = capsys.readouterr().out
    assert f"{planned.results}/archives/{NAME}.zip: 1 run, " in said
    assert "--licence CC-BY-4.0" in said
    # The fixture has a plan and a run, and no table nor page.
    assert "It lacks runs.parquet, cells.parquet, " in said
    licensed = ["--licence", "cc-by-4.0", "--published", "2026-01-31"]
    assert main(["pack", "--sweep", NAME, *licensed, *places]) == 0
    assert "names no licence" not in capsys.readouterr().out
    assert ", report.html: for these, run the workflow to its end and pack again" in said


def test_who_packs_a_sweep_on_text_is_told_that_its_tokens_stay_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path)
    shutil.copy(ROOT / "config/data/python-sources.yaml", study.config / "data")
    file = study.config / "sweeps" / f"{NAME}.yaml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("data: synthetic", "data: python-sources"), encoding="utf-8")
    write_table(plan.table([study.sweep]), study.results / "sweeps" / NAME / "plan.parquet")
    write_run(study.run(0, 1), study.sweep.cells[0].cell, Outcome.COMPLETED)
    tokens = study.results / "data/python-sources/tokens.json"
    write_json(tokens, {})
    tokens.with_name("tokens.bin").touch()
    places = ["--config", str(study.config), "--results", str(study.results)]

    assert main(["pack", "--sweep", NAME, "--published", "2026-01-31", *places]) == 0

    assert "It holds no tokens of python-sources, only their checksums" in capsys.readouterr().out
    inside = names(study.results / "archives" / f"{NAME}.zip")
    assert "results/data/python-sources/tokens.json" in inside
    assert "results/data/python-sources/tokens.bin" not in inside


def test_a_directory_as_output_is_refused_with_a_file_to_name(tmp_path, capsys) -> None:
    assert main(["pack", "--sweep", "demo", "--output", str(tmp_path)]) == 1
    assert f"is a directory; name a file, as in {tmp_path}/demo.zip" in capsys.readouterr().err
