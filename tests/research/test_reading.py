"""Files of published runs as strangers write them."""

from __future__ import annotations

import csv

import pytest

from research.projection.__main__ import main
from research.projection.layouts import assumed_chunks, usable
from research.projection.reading import COLUMNS, read_published
from tests.research.published_rows import GPT, runs_of, write_rows
from workflow_lib.projection.machines import published_machine
from workflow_lib.records import RecordError


def reasons(path):
    return {each.line: each.reason for each in read_published(path)[1]}


def reasons_of_layouts(directory, *rows):
    runs = runs_of(directory, *rows)
    return {each.line: each.reason for each in usable(runs, assumed_chunks(runs))[1]}


def test_a_spreadsheets_file_is_read_like_any_other(tmp_path):
    plain = write_rows(tmp_path / "plain.csv", {}, {"gpus": 128})
    other = tmp_path / "other.csv"
    with other.open("w", newline="", encoding="utf-8-sig") as lines:
        writer = csv.DictWriter(lines, [*reversed(COLUMNS), "extra"], restval="")
        writer.writeheader()
        writer.writerow({**GPT, "gpu": " NVIDIA H100 ", "dtype": "bf16", "extra": "x"})
        writer.writerow({**GPT, "gpus": 128, "dtype": "bfloat16"})
    assert read_published(other) == read_published(plain)


def test_a_row_that_is_wrong_is_named_and_the_others_are_read(tmp_path):
    path = write_rows(
        tmp_path / "rows.csv",
        {},
        {"step_time_s": "12,910.0"},
        {"gpus": "12.5"},
        {"tp": "0"},
        {"gpus": "1e30"},
        {"gpus": ""},
        {},
    )
    with path.open("a") as lines:
        lines.write("MLPerf,x,2026\n\n" + "," * 30 + "x\n")
    assert len(read_published(path)[0]) == 1
    advice = (
        "expected a number above 0 such as 1024 or 12.9, without unit or separators of thousands; "
        "leave it empty if the source does not state it"
    )
    counted = "and the heading has 25: expected as many, with a field that holds a comma in quotes"
    assert reasons(path) == {
        3: f"step_time_s is '12,910.0', {advice}",
        4: "gpus is '12.5', expected a whole number of at most 1073741824",
        5: f"tp is '0', {advice}",
        6: "gpus is '1e30', expected a whole number of at most 1073741824",
        7: "its number of GPUs is not stated",
        8: "it repeats an earlier row",
        9: f"it has 3 fields, {counted}",
        11: f"it has 31 fields, {counted}",
    }


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has no column 'source', 'url_or_repo_path'"),
        (",".join(COLUMNS).encode(), "has no row; expected at least one row"),
        (",".join(COLUMNS).encode() + b"\n1,2\n", "has its line 2: it has 2 fields"),
        (",".join(COLUMNS).encode("utf-16"), "is not text in UTF-8; save it as CSV in UTF-8"),
        (",".join(COLUMNS).encode() + b'\n"' + b"x" * 200_000, "line 2: is not CSV: field larger"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_message(tmp_path, capsys, content, said):
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    assert main(["validate", str(path), "--output", str(tmp_path / "out")]) == 1
    assert said in capsys.readouterr().err
    with pytest.raises(RecordError):
        read_published(path)


def test_a_time_in_another_unit_is_not_used(tmp_path):
    # 256 · 2 048 tokens in 10 s on 64 GPUs are 819.2 tokens/s and GPU.
    path = write_rows(
        tmp_path / "rows.csv",
        {"tokens_per_s_per_gpu": 819.2},
        {"tokens_per_s_per_gpu": 819.2, "step_time_s": 10_000},
    )
    assert reasons(path) == {
        3: "step_time_s is 10000, but global_batch, seq_len and tokens_per_s_per_gpu give 10 s: "
        "expected seconds, and tokens per second and GPU"
    }


def test_a_time_that_the_gpus_cannot_have_taken_is_not_used(tmp_path):
    """By hand, for 524 288 tokens on 64 H100 of 989.4 TFLOP/s: 96 layers of 12 · 12 288² weights
    and a head of 51 200 · 12 288 take 6 FLOPs each, and attention 6 · 96 · 2 048 · 12 288, which
    are 1.0620e12 a token. With 32 · 4 = 128 micro-batches the bubble adds 7/12 of 128: 8.833 s."""
    time = 524_288 * 6 * (96 * 12 * 12_288**2 + 51_200 * 12_288 + 96 * 2_048 * 12_288)
    time *= (128 + 7 / 12) / 128 / (64 * 989.4e12)
    assert time == pytest.approx(8.833, abs=1e-3)
    found = reasons_of_layouts(
        tmp_path,
        {"step_time_s": time * 1.01},
        {"step_time_s": time / 2},
        {"step_time_s": time * 1000},
    )
    assert set(found) == {3, 4}
    assert found[3].startswith("its step of 4.416 s would be 2 of its GPUs' peak, expected 0.01 to")


def test_sizes_that_no_model_has_are_named(tmp_path):
    found = reasons_of_layouts(
        tmp_path,
        {"notes": "NeMo; layers=0"},
        {"notes": "NeMo; layers=99999999999"},
        {"virtual_pp": 1_000_000_000},
        {"model": "Mine", "notes": "NeMo; hidden 64, layers 2; heads 0"},
        {"model": "Mine", "notes": "hidden 64, layers 2"},
        {"gpu": "MI300X"},
    )
    assert found == {
        2: "its notes say 0 layers, and the model has 96",
        3: "its notes say 99999999999 layers, and the model has 96",
        4: "96 layers on 8 pipeline ranks of 1000000000 chunks",
        5: "the model's dimensions are not known",
        6: "the model's dimensions are not known",
        7: "its GPU is MI300X: peaks are known of A100 40GB, A100 80GB, H100, H100 500 W, H200, "
        "MI250",
    }


def test_a_card_of_the_same_name_with_another_peak_is_not_known():
    assert published_machine("H100 PCIe") is None
    assert published_machine("H200 NVL") is None
    assert published_machine("h100 sxm").gpu == "H100"
    assert published_machine("H100 (96GB, 500 W)").gpu == "H100 500 W"
