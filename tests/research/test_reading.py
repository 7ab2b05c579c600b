"""Files of published runs as strangers write them."""

import csv

import pytest

from research.projection.__main__ import main
from research.projection.layouts import assumed_chunks, usable
from research.projection.reading import COLUMNS, read_published
from tests.research.published_rows import GPT, runs_of, write_rows
from tests.texts import lacking, numbers
from workflow_lib.projection.machines import machine_names, published_machine
from workflow_lib.records.reading import RecordError

HEADING = ",".join(COLUMNS)


def reasons(path):
    return {each.line: each.reason for each in read_published(path)[1]}


def lacking_by_line(reasons, named):
    """What reasons do not name of what those of the same lines should."""
    assert list(reasons) == list(named)
    missing = {line: lacking(reasons[line], *values) for line, values in named.items()}
    return {line: values for line, values in missing.items() if values}


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
    named = {
        3: ["step_time_s", "'12,910.0'"],
        4: ["gpus", "'12.5'", 1073741824],
        5: ["tp", "'0'"],
        6: ["gpus", "'1e30'", 1073741824],
        7: ["GPUs"],
        8: ["repeats"],
        9: [" 3 ", " 25"],
        11: [" 31 ", " 25"],
    }
    assert lacking_by_line(reasons(path), named) == {}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", ["'source'", "'url_or_repo_path'"]),
        (HEADING.encode(), ["no row"]),
        (HEADING.encode() + b"\n1,2\n", ["line 2:", " 2 fields"]),
        (HEADING.encode("utf-16"), ["CSV in UTF-8"]),
        (HEADING.encode() + b'\n"' + b"x" * 200_000, ["line 2:", "field larger"]),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_message(tmp_path, capsys, content, named):
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    assert main(["validate", str(path), "--output", str(tmp_path / "out")]) == 1
    assert lacking(capsys.readouterr().err, path, *named) == []
    with pytest.raises(RecordError):
        read_published(path)


def test_a_time_in_another_unit_is_not_used(tmp_path):
    # 256 · 2 048 tokens in 10 s on 64 GPUs are 819.2 tokens/s and GPU.
    rate = {"tokens_per_s_per_gpu": 819.2}
    path = write_rows(tmp_path / "rows.csv", rate, {**rate, "step_time_s": 10_000})
    named = ("step_time_s", 10000, "tokens_per_s_per_gpu", " 10 s")
    assert lacking_by_line(reasons(path), {3: named}) == {}


def test_a_time_that_the_gpus_cannot_have_taken_is_not_used(tmp_path):
    """By hand, for 524 288 tokens on 64 H100 of 989.4 TFLOP/s: 96 layers of 12 · 12 288² weights
    and a head of 51 200 · 12 288 take 6 FLOPs each, and attention 6 · 96 · 2 048 · 12 288, which
    are 1.0620e12 a token. With 32 · 4 = 128 micro-batches the bubble adds 7/12 of 128: 8.833 s."""
    time = 524_288 * 6 * (96 * 12 * 12_288**2 + 51_200 * 12_288 + 96 * 2_048 * 12_288)
    time *= (128 + 7 / 12) / 128 / (64 * 989.4e12)
    assert time == pytest.approx(8.833, abs=1e-3)
    times = (time * 1.01, time / 2, time * 1000)
    found = reasons_of_layouts(tmp_path, *({"step_time_s": each} for each in times))
    assert set(found) == {3, 4}
    assert numbers(found[3])[:3] == [4.416, 2, 0.01]


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
    assert {line: numbers(found.pop(line)) for line in (2, 3, 4)} == {
        2: [0, 96],
        3: [99999999999, 96],
        4: [96, 8, 1000000000],
    }
    gpus = ["MI300X", ", ".join(machine_names())]
    assert lacking_by_line(found, {5: ["dimensions"], 6: ["dimensions"], 7: gpus}) == {}


def test_a_card_of_the_same_name_with_another_peak_is_not_known():
    assert published_machine("H100 PCIe") is None
    assert published_machine("H200 NVL") is None
    assert published_machine("A100 80GB PCIe") is None
    assert published_machine("A100-PCIE-40GB") is None
    assert published_machine("A100-SXM4-80GB").gpu == "A100 80GB"
    assert published_machine("h100 sxm").gpu == "H100"
    assert published_machine("H100 (96GB, 500 W)").gpu == "H100 500 W"
