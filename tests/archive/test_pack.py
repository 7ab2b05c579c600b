"""What goes into an archive, and what is refused."""

from __future__ import annotations

import shutil
import zipfile
from datetime import date
from pathlib import Path

import pytest

from tests import texts
from tests.archive.sweeps import NAME, Study, write_run, write_study
from tests.conftest import ROOT
from tests.texts import lacking
from workflow_lib import plan
from workflow_lib.analysis.collect import collect
from workflow_lib.archive.__main__ import main
from workflow_lib.archive.bag import ArchiveError, write_bag
from workflow_lib.archive.contents import is_product
from workflow_lib.archive.pack import pack
from workflow_lib.records.files import read_outcome
from workflow_lib.records.outcomes import Outcome
from workflow_lib.records.whole_files import write_json
from workflow_lib.table_files import write_table


def write_plan(study: Study) -> Study:
    write_table(plan.table([study.sweep]), study.results / "sweeps" / NAME / "plan.parquet")
    return study


@pytest.fixture
def planned(tmp_path: Path) -> Study:
    """A sweep with its plan and a run, of which nothing else has been made."""
    study = write_plan(write_study(tmp_path))
    write_run(study.run(0, 1), study.sweep.cells[0].cell, Outcome.COMPLETED)
    return study


def packed(study: Study, **options: object) -> set[str]:
    """Names within the payload of what is packed."""
    chosen = {"published": date(2026, 1, 31), **options}
    target = study.directory / "packed.zip"
    pack(NAME, target, study.config, study.results, ROOT, **chosen)  # type: ignore[arg-type]
    return names(target)


def refused(study: Study, *named: object, **options: object) -> None:
    """It is not packed, and the message names these."""
    with pytest.raises(ArchiveError) as caught:
        packed(study, **options)
    assert lacking(caught.value, *named) == []


def edit(study: Study, old: str, new: str) -> None:
    texts.edit(study.config / "sweeps" / f"{NAME}.yaml", old, new)


def names(archive: Path) -> set[str]:
    """Names within the payload."""
    with zipfile.ZipFile(archive) as source:
        parts = [name.split("/", 2) for name in source.namelist()]
    return {part[2] for part in parts if part[1] == "data"}


def test_an_archive_holds_all_that_the_sweep_is_made_of(study, archive):
    found = names(archive)
    for number in (1, 2):
        directory = study.run(0, number).directory.relative_to(study.directory).as_posix()
        of_run = {name.removeprefix(f"{directory}/") for name in found}
        assert of_run >= {
            *("cell.json", "job.sh", "outcome.json", "environment.json", "summary.json"),
            *("steps/rank1.csv", "telemetry/node1.csv", "logs/training.log"),
            "attempts/1/failure.json",
        }
    ends = [name.rsplit("/")[-1] for name in found]
    assert (ends.count("rank1.json.gz"), ends.count("failure.json")) == (1, 6 + 2)
    checkout_and_sweep = {
        *(f"config/sweeps/{NAME}.yaml", "config/models/gpt3-tiny.yaml", "envs/analysis.txt"),
        *(
            "docs/reference/columns.md",
            "docs/reference/reasons.md",
            "CITATION.cff",
            "versions.json",
        ),
        *(f"results/sweeps/{NAME}/{name}" for name in ("plan.parquet", "report.html")),
    }
    assert checkout_and_sweep <= found


def test_locks_and_what_is_not_of_the_sweep_stay_out(planned):
    other = planned.run(0, 1).directory.parent / "run7" / "cell.json"
    write_json(other, {"of": "another sweep, with more repeats"})
    (planned.config / "platforms" / "key.pem").write_text("a secret", encoding="utf-8")
    (planned.run(0, 1).directory / ".cell.json.1.tmp").write_text("half", encoding="utf-8")
    found = packed(planned)
    assert [name for name in found if "/." in name or "run7" in name or "key" in name] == []


def test_of_the_configuration_it_holds_what_the_sweep_uses_and_nothing_else(tmp_path):
    """As of a checkout, which has platforms and models of others."""
    study = write_study(tmp_path)
    shutil.rmtree(study.config / "models")
    for kind in ("models", "platforms", "data"):
        shutil.copytree(ROOT / "config" / kind, study.config / kind, dirs_exist_ok=True)
    for name in ("config.yaml", "claims.yaml", "sweeps/demo.yaml"):
        shutil.copy(ROOT / "config" / name, study.config / name)
    edit(study, "platforms:", "exclude: [{model: [llama3-tiny], tp: 2}]\nplatforms:")
    found = packed(write_plan(study))
    models, others = ("gpt3-tiny", "llama3-tiny"), ("data/synthetic", "platforms/local")
    used = {*(f"models/{name}" for name in models), *others, f"sweeps/{NAME}"}
    assert {name for name in found if name.startswith("config/")} == {
        f"config/{name}.yaml" for name in used
    }


def test_what_is_made_from_other_files_is_known_by_its_name():
    run = "results/cells/local/tiny/tp1_0/run1"
    products = [
        *("results/sweeps/demo/runs.parquet", "results/sweeps/demo/figures/power.pdf"),
        *(f"{run}/summary.json", f"{run}/steps.parquet", f"{run}/traces/kernels.parquet"),
    ]
    raw = [
        *(f"{run}/traces/rank0.json.gz", f"{run}/outcome.json", f"{run}/attempts/1/summary.json"),
        *("results/data/corpus/tokens.json", "config/sweeps/demo.yaml", "versions.json"),
    ]
    assert [name for name in products + raw if is_product(name)] == products


def test_it_bears_the_day_of_the_last_run_unless_told(planned):
    refused(planned, NAME, "--published 2026-01-31", published=None)
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


def test_a_run_that_was_submitted_and_has_no_end_is_packed_only_where_told(planned):
    paths = planned.run(0, 1)
    paths.outcome.unlink()
    packed(planned)
    write_json(paths.job, {"id": "1"})
    refused(planned, paths.directory, "--cut-off")
    found = packed(planned, cut_off=True)
    run = paths.directory.relative_to(planned.directory).as_posix()
    assert {f"{run}/job.json", f"{run}/steps/rank0.csv"} <= found
    assert f"{run}/outcome.json" not in found


def test_a_link_is_refused_as_it_may_lead_to_anything(planned):
    link = planned.run(0, 1).logs / "more.log"
    link.symlink_to("/etc/hostname")
    refused(planned, link, "link")


def test_tables_that_do_not_know_a_runs_end_are_refused(planned):
    """As where somebody packs while the workflow still trains."""
    sweep = planned.results / "sweeps" / NAME
    collect(sweep / "plan.parquet", planned.results, sweep)
    packed(planned)
    cell = planned.sweep.cells[0].cell
    write_run(planned.run(0, 2), cell, Outcome.TIMEOUT)
    refused(planned, sweep / "runs.parquet", f"run 2 of {cell.id}")


def test_a_plan_of_another_configuration_is_refused(planned):
    edit(planned, "repeats: 2", "repeats: 3")
    refused(planned, "plan.parquet", planned.config, "--config")
    assert not (planned.directory / "packed.zip").exists()


@pytest.mark.parametrize("size", [3, 5])
def test_a_file_that_changes_while_it_is_packed_is_refused(tmp_path, size):
    path = tmp_path / "a.csv"
    path.write_text("four", encoding="utf-8")
    with pytest.raises(ArchiveError, match=f"{size} bytes .* 4:"):
        write_bag(tmp_path / "a.zip", {"a.csv": path}, {"a.csv": size}, {}, {}, 1.7e9)
    assert [each.name for each in tmp_path.iterdir()] == ["a.csv"]


def status_of(arguments: list[str]) -> object:
    try:
        return main(arguments)
    except SystemExit as ended:
        return ended.code


@pytest.fixture
def places(planned: Study) -> list[str]:
    config, results = str(planned.config), str(planned.results)
    return ["--config", config, "--results", results, "--published", "2026-01-31"]


@pytest.mark.parametrize(
    ("arguments", "status", "named"),
    [
        (["pack", "--sweep", "made-op"], 1, [f"'{NAME}'"]),
        (["pack", "--sweep", NAME, "--published", "yesterday"], 2, ["yesterday", "2026-01-31"]),
        (["pack", "--sweep", NAME, "--licence", "free"], 2, ["--licence: free", "CC-BY-4.0"]),
        (["pack", "--sweep", NAME, "--output", "."], 1, ["--output .", f" {NAME}.zip"]),
    ],
)
def test_a_mistake_is_named_with_what_is_right(places, capsys, arguments, status, named):
    found = status_of([arguments[0], *places, *arguments[1:]])
    assert (found, lacking(capsys.readouterr().err, *named)) == (status, [])


def test_what_an_archive_lacks_is_printed(planned, places, capsys):
    assert main(["pack", "--sweep", NAME, *places]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{planned.results}/archives/{NAME}.zip: 1 run, ")
    # There are a plan and a run, and no table nor page.
    made = {part.strip(",:") for part in said[1].split()}
    assert {"runs.parquet", "cells.parquet", "report.html"} <= made
    assert "plan.parquet" not in made
    assert "--licence CC-BY-4.0" in said[2]
    assert main(["pack", "--sweep", NAME, "--licence", "cc-by-4.0", *places]) == 0
    assert "licence" not in capsys.readouterr().out


def test_who_packs_a_sweep_on_text_is_told_that_its_tokens_stay_behind(planned, places, capsys):
    shutil.copy(ROOT / "config/data/python-sources.yaml", planned.config / "data")
    edit(planned, "data: synthetic", "data: python-sources")
    write_run(write_plan(planned).run(0, 1), planned.sweep.cells[0].cell, Outcome.COMPLETED)
    tokens = planned.results / "data/python-sources/tokens.json"
    write_json(tokens, {})
    tokens.with_name("tokens.bin").touch()

    assert main(["pack", "--sweep", NAME, *places]) == 0

    assert " python-sources" in capsys.readouterr().out
    inside = names(planned.results / "archives" / f"{NAME}.zip")
    assert {Path(name).name for name in inside if "tokens" in name} == {"tokens.json"}
