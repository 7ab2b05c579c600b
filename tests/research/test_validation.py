"""A validation of made-up rows, from the file to the tables."""

import json
import re

import pytest

from research.projection.__main__ import main
from research.projection.baselines import affine_law, bubble_law, constant_throughput
from research.projection.layouts import assumed_chunks, usable
from research.projection.reading import read_published
from research.projection.splits import Fold, read_splits
from research.projection.validation import not_judged, validate
from research.projection.validation_text import describe
from tests.conftest import ROOT
from tests.research.published_rows import runs_of, write_rows
from tests.texts import lacking

PUBLISHED = ROOT / "research/projection/data/published_runs.csv"


def affine_rows():
    """GPT-3 on TP 4, PP 8, v 12 by the affine law: 0.1·(m + 7/12) + 0.3 s."""
    for gpus in (64, 128, 256, 512):
        m = 256 * 32 / gpus
        yield {"gpus": gpus, "step_time_s": 0.1 * (m + 7 / 12) + 0.3}


def of_rows(directory, *rows):
    runs = runs_of(directory, *rows)
    return runs, usable(runs, assumed_chunks(runs))[0]


def test_two_rows_give_the_affine_law(tmp_path):
    runs, layouts = of_rows(tmp_path, *affine_rows())
    fold = Fold("", tuple(runs[:2]), tuple(runs[2:]))
    found = affine_law(fold, layouts)
    assert found == {run.line: pytest.approx(run.step_time_s, rel=1e-9) for run in runs[2:]}
    # 64 GPUs take 0.1·(128 + 7/12) + 0.3 = 13.158 s; twice the GPUs half of it.
    assert constant_throughput(fold, layouts)[runs[2].line] == pytest.approx(13.1583333 / 4)


def test_a_twin_gives_the_whole_by_the_bubble(tmp_path):
    cut = {"model": "Llama 3.1 405B", "notes": "a; layers=42", "pp": 3, "tp": 8, "virtual_pp": 7}
    runs, layouts = of_rows(
        tmp_path,
        {**cut, "gpus": 24, "global_batch": 63, "step_time_s": 17.30},
        {**cut, "gpus": 72, "global_batch": 63, "pp": 9, "notes": "a"},
    )
    fold = Fold("", tuple(runs[:1]), tuple(runs[1:]))
    # (63 + 8/7) / (63 + 2/7) = 1.01354
    assert bubble_law(fold, layouts) == {runs[1].line: pytest.approx(17.30 * 1.013544, rel=1e-5)}


def test_what_a_held_out_row_took_has_no_part_in_its_prediction(tmp_path):
    rows = list(affine_rows())
    before = validate(write_rows(tmp_path / "a.csv", *rows))
    rows[3]["step_time_s"] = 99.0
    after = validate(write_rows(tmp_path / "b.csv", *rows))

    def predicted(validation):
        strong = validation["splits"]["strong"]
        return [(each["median_s"], each["intervals_s"]) for each in strong["predictions"]]

    assert predicted(before) == predicted(after)
    assert len(predicted(before)) == 2


def predictions(validation):
    """By split and run: what is predicted, with its interval."""
    return {
        (name, each["run"]): (each["median_s"], each["intervals_s"])
        for name, split in validation["splits"].items()
        for each in split.get("predictions", ())
    }


def test_the_order_of_rows_changes_no_digit(tmp_path):
    rows = [
        {**row, **more, "step_time_s": row["step_time_s"] * factor}
        for more, factor in (({}, 1), ({"notes": "a; org X"}, 1.1), ({"dtype": "FP8"}, 0.7))
        for row in affine_rows()
    ]
    one = validate(write_rows(tmp_path / "a.csv", *rows))
    other = validate(write_rows(tmp_path / "b.csv", *rows[::-2], *rows[::2]))
    assert predictions(one) == predictions(other)
    assert predictions(one)
    assert one["splits"]["strong"]["baselines"] == other["splits"]["strong"]["baselines"]


def by_line(rows):
    return {each["line"]: each["reason"] for each in rows}


def wrong(reasons):
    """The word or value of each reason by which it differs from others."""
    words = ("dimensions", "throughput", "'a few'")
    return {line: next(each for each in words if each in why) for line, why in reasons.items()}


def test_every_row_that_is_not_judged_has_a_reason(tmp_path):
    rows = write_rows(
        tmp_path / "rows.csv",
        *affine_rows(),
        {"model": "A model of nobody"},
        {"source": "A page", "model": "Llama 3 8B", "virtual_pp": 1, "step_time_s": ""},
        {"gpus": "a few"},
    )
    validation = validate(rows)
    told = by_line(validation["rows"]["not_judged"])
    judged = {
        each["line"]
        for name in ("weak", "strong", "model", "model-fp8", "site", "layout", "twin")
        for each in validation["splits"][name].get("predictions", ())
    }
    assert sorted([*told, *judged]) == list(range(2, 9))
    assert wrong(told) == {6: "dimensions", 7: "throughput", 8: "'a few'"}
    assert validation["splits"]["weak"]["not_run"]


def test_a_row_that_no_split_names_is_told_the_nearest_rule(tmp_path):
    rows = write_rows(tmp_path / "rows.csv", {"source": "A page", "model": "Mine", "pp": ""})
    (told,) = not_judged(read_published(rows)[0], [], read_splits()[0])
    assert lacking(told.reason, "strong", "source", "'A page'") == []


def test_rows_that_are_only_fitted_are_not_judged_and_help(tmp_path):
    known, new = list(affine_rows())[:2], list(affine_rows())[2:]
    elsewhere = {**new[0], "notes": "a; org another"}
    useless = [
        {**known[0], "gpus": "a few"},
        {**known[1], "notes": "b; org another", "step_time_s": "", "tokens_per_s_per_gpu": ""},
        {**known[0], "notes": "c; org another", "model": "Unheard of"},
    ]
    others = write_rows(
        *(tmp_path / "known.csv", *known, {**new[0], "step_time_s": 99.0}, elsewhere), *useless
    )
    rows = write_rows(tmp_path / "new.csv", *new)
    assert "not_run" in validate(rows)["splits"]["strong"]
    validation = validate(rows, also_fit=others)
    # The row that is to be judged is not fitted, even if the other file has another time of it.
    assert validation["rows"]["also_fitted"] == 3
    told = by_line(validation["rows"]["not_fitted"])
    assert wrong(told) == {6: "'a few'", 7: "throughput", 8: "dimensions"}
    assert lacking(describe(validation), told[7], told[8]) == []
    strong = validation["splits"]["strong"]
    assert [each["line"] for each in strong["predictions"]] == [2, 3]
    both = validate(write_rows(tmp_path / "both.csv", *known, elsewhere, *new))
    assert both["splits"]["strong"]["predictions"][0]["median_s"] == pytest.approx(
        strong["predictions"][0]["median_s"], rel=1e-12
    )


def test_the_command_writes_a_file_and_prints_tables(tmp_path, capsys):
    rows = write_rows(tmp_path / "rows.csv", *affine_rows())
    assert main(["validate", str(rows), "--output", str(tmp_path / "out")]) == 0
    validation = json.loads((tmp_path / "out" / "validation.json").read_text())
    strong = validation["splits"]["strong"]
    assert strong["errors"]["rows"] == 2
    assert strong["baselines"]["affine"]["errors"]["mape"] == pytest.approx(0, abs=1e-9)
    assert validation["splits"]["own"]["not_run"]
    assert len(validation["splits_sha256"]) == 64
    printed = capsys.readouterr().out
    assert "affine" in printed
    assert validation["splits"]["own"]["not_run"] in printed


def test_a_file_with_other_columns_is_refused(tmp_path, capsys):
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n1,2\n")
    assert main(["validate", str(path), "--output", str(tmp_path)]) == 1
    assert "'source'" in capsys.readouterr().err


def test_a_published_layout_fits_or_does_not(tmp_path):
    # All of 175 billion parameters on 4 GPUs: 18 bytes each are 788 GB a GPU.
    large = {"gpus": 4, "pp": 1, "virtual_pp": "", "step_time_s": "", "notes": "x; OOM"}
    rows = write_rows(tmp_path / "rows.csv", {"recompute": "full"}, large)
    confusion = validate(rows)["splits"]["memory"]["confusion"]
    ran, failed = "perhaps_ran", "no_out_of_memory"
    assert {name: count for name, count in confusion.items() if count} == {ran: 1, failed: 1}


def test_rows_that_say_too_little_or_nonsense_are_named(tmp_path):
    runs, layouts = of_rows(
        tmp_path,
        {"recompute": "some of it"},
        {"gpus": 8192, "global_batch": 64},
        {"tp": ""},
        {"gpus": 48, "dp": 2},
        {"model": "A model of nobody"},
        {},
    )
    _, unusable = usable(runs, assumed_chunks(runs))
    named = (["'some of it'"], ["256", "0.25"], ["layout"], ["32", "48 GPUs"], ["dimensions"])
    for values, each in zip(named, unusable, strict=True):
        assert lacking(each.reason, *values) == []
    assert list(layouts) == [7]


@pytest.mark.long
def test_the_page_has_what_published_rows_give(tmp_path):
    arguments = ["validate", str(PUBLISHED), "--output", str(tmp_path)]
    assert main(arguments) == 0
    splits = json.loads((tmp_path / "validation.json").read_text())["splits"]
    page = (ROOT / "docs/explanation/projection.md").read_text("utf-8").partition("| split |")[2]
    told = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()[2:]]
    of_split = ("weak", "strong", "model", "model-fp8", "site", "twin", "layout")
    for name, (_, rows, mape, most, holds, *_) in zip(of_split, told, strict=False):
        errors, interval = splits[name]["errors"], splits[name]["intervals"]["90%"]
        assert int(rows) == errors["rows"]
        for shown, share in ((mape, errors["mape"]), (most, errors["maximum"])):
            assert float(shown.removesuffix(" %")) / 100 == pytest.approx(share, rel=0.02)
        assert holds.startswith(f"{100 * interval['covered']:.0f} % "), name
    memory = [
        tuple(map(int, re.findall(r"(\d+) (?:right|perhaps|wrong)", each))) for each in told[7]
    ]
    for found, name in zip(
        filter(None, memory), ("confusion", "confusion_where_recomputation_is_stated"), strict=True
    ):
        counts = splits["memory"][name]
        assert found == (counts["yes_ran"], counts["perhaps_ran"], counts["no_ran"])
