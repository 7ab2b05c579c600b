"""The command: its table, figures and page, and what it says where it cannot."""

from __future__ import annotations

import re
import time
import xml.dom.minidom
from pathlib import Path

import polars as pl
import pytest

from tests.report import full_matrix
from tests.report.pages import Page
from tests.report.sweep import Planned, write_sweep
from workflow_lib.comparison.__main__ import main
from workflow_lib.comparison.compare import write_page
from workflow_lib.comparison.matching import best_pairs, layout_pairs
from workflow_lib.comparison.sides import Side, read_sides
from workflow_lib.comparison.summary import Labels
from workflow_lib.comparison.verdicts import rows
from workflow_lib.records.files import read_json
from workflow_lib.records.outcomes import Outcome
from workflow_lib.records.paths import ComparisonPaths
from workflow_lib.records.tables import GPUS
from workflow_lib.records.verdict_tables import COMPARISON
from workflow_lib.records.whole_files import write_json
from workflow_lib.table_files import read_table

from .sides import failed, known, measured, write

HOSTILE = "x'\"><script>alert(1)</script>&$(id)"


def values(platform, factor=1.0, gpus=32):
    """Measures of three runs; H100's are ``factor`` of H200's."""
    near = [factor * each for each in (0.99, 1.0, 1.01)]
    return {
        "tokens_per_s": [1000 * each for each in near],
        "tokens_per_s_per_gpu": [1000 * each / gpus for each in near],
        "tokens_per_j": [2 * each for each in near],
        "power_per_gpu_mean_w": [500 * each for each in near],
        "temperature_mean_c": [60 * each for each in near],
        "temperature_peak_c": [75 * each for each in near],
        "energy_systematic_share": [0.06] * 3,
    }


def scale_up_and_out(directory: Path) -> list[str]:
    """H200 on 32 and H100 on 64 GPUs: a deeper pipeline, more replicas, a cell that fails."""
    a = write(
        directory / "sweeps" / "parallelism-h200",
        measured(known("h200", 4, 4, 2), **values("h200")),
        measured(known("h200", 8, 1, 4), **values("h200")),
        measured(known("h200", 2, 8, 2), **values("h200")),
        measured(known("h200", 1, 32, 1, model="gpt3-175b"), **values("h200")),
    )
    b = write(
        directory / "sweeps" / "parallelism-h100",
        measured(known("h100", 4, 8, 2), **values("h100", 1.5, 64)),
        measured(known("h100", 8, 1, 8), **values("h100", 0.5, 64)),
        failed(known("h100", 2, 16, 2), "out_of_memory", f"rank 3 {HOSTILE}"),
        failed(known("h100", 8, 8, 1, model=HOSTILE), "infeasible", "too large"),
    )
    return [str(a), str(b), "--output", str(directory / "out")]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("results")
    assert main(scale_up_and_out(directory)) == 0
    return directory / "out"


def test_the_table_has_what_the_words_are_about(made):
    table = read_table(made / "comparison.parquet", COMPARISON)
    asked = table.filter(pl.col("measure") == "tokens_per_s").sort("match", "model")
    assert asked.select("match", "gpus_a", "gpus_b", "verdict").rows() == [
        ("best", 32, 64, "b_more"),
        ("other_replicas", 32, 64, "a_more"),
        ("other_stages", 32, 64, "b_more"),
    ]
    # Both sides spread alike.
    assert asked["estimate"][2] == pytest.approx(1 / 1.5)
    # scipy.stats.ttest_ind(equal_var=False) of logarithms has 0.65173 and 0.68197; without the
    # drift, of which both sides have the same, the interval ends further up.
    assert asked["low"][2] == pytest.approx(0.651723, rel=1e-4)
    assert asked["high"][2] > 0.68197
    fates = table.filter(pl.col("measure").is_null()).sort("verdict", "cell_a", "cell_b")
    assert fates["verdict"].to_list() == ["no_partner_in_a", "no_partner_in_b", "only_a_completed"]


def test_the_page_says_who_wins_and_with_how_many_gpus(made):
    text = Page((made / "comparison.html").read_text(encoding="utf-8")).text
    assert "Throughput: h100 wins. h200 1,000 tokens/s with 32 GPUs" in text
    assert "h100 1,500 tokens/s with 64 GPUs" in text
    assert "h200 is 33 % slower (95 % interval −37 to " in text
    # The coolest cells are the best, and half as warm here.
    assert "Mean temperature: h100 wins" in text
    assert "only h200 ran: h100 out of memory (rank 3 x" in text
    assert "tp4-pp4|8-dp2" in text


def test_an_emulated_side_is_named_on_the_page_in_its_figures_and_in_the_table(tmp_path):
    sides = [
        write(
            tmp_path / platform,
            measured(known(platform, 4, 4, 2) | {"emulated": words}, **values(platform)),
        )
        for platform, words in (("h200", None), ("h100", f"two daemons {HOSTILE}"))
    ]
    assert main([*map(str, sides), "--output", str(tmp_path / "out")]) == 0
    source = (tmp_path / "out" / "comparison.html").read_text(encoding="utf-8")
    told = f"The nodes or links of h100 are emulated: two daemons {HOSTILE}."
    assert f"EMULATED nodes or links. {told}" in Page(source).text
    assert "<script>alert" not in source
    table = read_table(tmp_path / "out" / "comparison.parquet", COMPARISON)
    assert set(table["emulated_a"]) == {None}
    assert set(table["emulated_b"]) == {f"two daemons {HOSTILE}"}
    drawn = [path.read_text("utf-8") for path in (tmp_path / "out" / "figures").glob("*.svg")]
    assert drawn
    assert all("EMULATED nodes or links" in figure for figure in drawn)


def test_the_page_is_whole_and_holds_no_markup_of_others(made):
    source = (made / "comparison.html").read_text(encoding="utf-8")
    page = Page(source)
    assert "<script>alert" not in source
    assert [tag for tag, _ in page.tags if tag in ("link", "iframe", "object", "embed")] == []
    addresses = [v for _, kept in page.tags for k, v in kept.items() if k in ("src", "href")]
    assert [address for address in addresses if address and not address.startswith("#")] == []
    ids = [kept["id"] for _, kept in page.tags if "id" in kept]
    assert len(ids) == len(set(ids))
    assert {a[1:] for a in addresses if a} <= set(ids)


def test_figures_are_vectors_of_a_column_in_both_formats(made):
    drawn = sorted(path.name for path in (made / "figures").iterdir())
    assert "other-stages-llama3-70b-all.svg" in drawn
    assert [name for name in drawn if name.endswith(".pdf")] == [
        f"{name.removesuffix('.svg')}.pdf" for name in drawn if name.endswith(".svg")
    ]
    svg = (made / "figures" / "other-stages-llama3-70b-all.svg").read_text(encoding="utf-8")
    xml.dom.minidom.parseString(svg)
    assert re.search(r'width="241(\.\d+)?pt"', svg)  # 3.35 inches
    assert "tp4-pp4|8-dp2" in svg
    assert "h100: out of memory" in svg


def test_the_same_tables_give_the_same_bytes_wherever_they_lie(made, tmp_path):
    # A figure of an earlier comparison goes.
    old = tmp_path / "out" / "figures" / "other-stages-gone-all.svg"
    old.parent.mkdir(parents=True)
    old.touch()
    assert main(scale_up_and_out(tmp_path)) == 0
    once, again = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (made, tmp_path / "out")
    )
    assert once == again


def test_two_dates_say_what_else_has_changed(tmp_path):
    cell = Planned(outcomes=[Outcome.COMPLETED] * 3)
    then, now = (write_sweep(tmp_path / date, [cell]) for date in ("then", "now"))
    for path in (tmp_path / "now").rglob("environment.json"):
        record = read_json(path)
        write_json(path, {**record, "packages": {"torch": "2.14.0"}, "node": "elsewhere1"})
    output = tmp_path / "out"
    command = [str(then), str(now), "--output", str(output)]
    assert main([*command, "--names", "then", "now"]) == 0
    text = Page((output / "comparison.html").read_text(encoding="utf-8")).text
    section = text[text.index("Besides the platform, these differ") :]
    assert "packages.torch 2.13.0 2.14.0" in section
    # Which node a run was on is its own.
    assert "elsewhere1" not in section
    assert "2023-11-14 22:13 UTC to 2023-11-14 22:13 UTC" in text
    assert "both sides show the same runs" in text
    sides = read_sides(then, now)
    assert [side.name for side in sides] == ["A", "B"]
    for each in sides:
        assert each.gpus_of_runs(each.runs) == [{f"GPU-1-{gpu}" for gpu in range(8)}] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("one", "one"), "A and B are both"),
        (("one", "nowhere"), "B is {}/nowhere, which has no cells.parquet"),
        (("one", "nowhere"), "results/sweeps/<sweep>; {} has near, old, one, other"),
        (
            ("one", "other"),
            "no cell of A corresponds to one of B: model is llama3-70b in A and gpt3",
        ),
        (("one", "old"), "it was written by another version"),
        (("one", "near", "--names", "x", "x"), "do not tell two sides apart"),
        (("one", "near", "--pair", "tp2", "tp9"), "'tp9' is in the id of 0 cells of B"),
    ],
)
def test_what_cannot_be_compared_is_explained(tmp_path, capsys, arguments, message):
    write(tmp_path / "one", measured(known(), tokens_per_s=[1.0]))
    write(tmp_path / "near", measured(known("h100"), tokens_per_s=[1.0]))
    write(tmp_path / "other", measured(known("h100", model="gpt3-175b"), tokens_per_s=[1.0]))
    write(tmp_path / "old", measured(known("h100"), tokens_per_s=[1.0]))
    frame = pl.read_parquet(tmp_path / "old" / "cells.parquet")
    frame.drop("tokens_per_s").write_parquet(tmp_path / "old" / "cells.parquet")
    a, b, *more = arguments
    command = [str(tmp_path / a), str(tmp_path / b), *more, "--output", str(tmp_path / "out")]
    assert main(command) == 1
    error = capsys.readouterr().err
    assert message.format(tmp_path) in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


METERS = """
gpus:
  GPU-a: {gain: -0.04, uncertainty: 0.005, offset_w: 0.0, source: a meter of our own}
  GPU-b: {gain: 0.02, uncertainty: 0.005, offset_w: 0.0, source: the same}
"""


def test_a_file_of_meters_narrows_what_sensors_may_do(tmp_path):
    sweeps = []
    for platform, uuid in (("h200x1", "GPU-a"), ("h100x1", "GPU-b")):
        cell = known(platform, tp=1, pp=1, dp=1) | {"gpus": 1}
        gpus = [
            {
                **dict.fromkeys(column.name for column in GPUS),
                **{"cell": cell["cell"], "run": run, "node": "n", "gpu": 0, "gpu_uuid": uuid},
                **{"simulated": False, "power_mean_w": 500.0 * factor, "power_peak_w": 600.0},
            }
            for run, factor in enumerate((0.99, 1.0, 1.01), start=1)
        ]
        sweeps.append(
            write(tmp_path / platform, measured(cell, **values(platform, gpus=1)), gpus=gpus)
        )
    path = tmp_path / "meters.yaml"
    path.write_text(METERS, encoding="utf-8")
    output = tmp_path / "out"
    assert main([*map(str, sweeps), "--output", str(output), "--meters", str(path)]) == 0
    of_tokens = pl.col("measure") == "tokens_per_j"
    row = read_table(output / "comparison.parquet", COMPARISON).row(
        by_predicate=of_tokens & (pl.col("match") == "same_layout"), named=True
    )
    # Energies as read are equal; those of GPU-a are 4 ± 0.5 % too small, and of GPU-b 2 ± 0.5 % too
    # large. So A's true efficiency is smaller: 0.955/1.025 to 0.965/1.015.
    assert (row["sensors_low"], row["sensors_high"]) == pytest.approx(
        (0.955 / 1.025, 0.965 / 1.015)
    )


def test_a_wrong_file_of_meters_is_refused(tmp_path, capsys):
    path = tmp_path / "meters.yaml"
    path.write_text(METERS.replace("0.02", "2"), encoding="utf-8")
    assert main(["a", "b", "--output", str(tmp_path / "out"), "--meters", str(path)]) == 1
    assert "meters.yaml: gpus.GPU-b.gain" in capsys.readouterr().err


def test_the_studys_matrix_is_compared_in_seconds(tmp_path):
    whole = full_matrix.full_matrix(points=1)
    sides = [
        Side(
            platform,
            platform,
            tuple(cell for cell in whole.cells if cell["platform"] == platform),
            tuple(run for run in whole.runs if run["platform"] == platform),
        )
        for platform in ("h200", "h100")
    ]
    began = time.process_time()
    cells = [side.cells for side in sides]
    pairs = layout_pairs(*cells) + best_pairs(*cells)
    found = rows(pairs, *sides)
    paths = ComparisonPaths(tmp_path)
    write_page(*sides, found, Labels(*sides), [], paths.page)
    assert time.process_time() - began < 10
    assert paths.page.stat().st_size < 2e6
    in_pairs = [
        cell["cell"] for pair in pairs if pair.measure is None for cell in (pair.a, pair.b) if cell
    ]
    # Every cell is in one pair, or is listed to have none.
    assert sorted(in_pairs) == sorted(cell["cell"] for of_side in cells for cell in of_side)
