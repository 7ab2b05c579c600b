"""Digests of what archives make: columns that change, come and go are told apart."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from docs import digests

RESULTS = "one/results/sweeps/one"
RUN = "one/results/cells/h200/model/cell/run1"

COLUMN = "runs.parquet, column"


@pytest.fixture
def rebuilt(tmp_path: Path) -> Path:
    """An archive with a table, a summary, a figure, and files that are not compared."""
    (tmp_path / RESULTS / "figures").mkdir(parents=True)
    (tmp_path / RUN).mkdir(parents=True)
    write(tmp_path, {"power_w": [690.5, None], "loss": [2.5, 2.25]}, {"power_w": "no sensor"})
    (tmp_path / RUN / "summary.json").write_text('{"outcome": "completed"}')
    (tmp_path / RESULTS / "figures" / "power.svg").write_text("<svg/>")
    for name in ("report.html", "figures/power.pdf", ".made.sha256"):
        (tmp_path / RESULTS / name).write_text("not compared")
    return tmp_path


def write(
    rebuilt: Path,
    columns: dict[str, list[float | None]],
    reasons: dict[str, str],
    code: str = "not_read",
) -> None:
    codes = dict.fromkeys(reasons, code)
    table = pl.DataFrame(columns).with_columns(
        missing_reasons=pl.Series(["{}", json.dumps(reasons)]),
        missing_codes=pl.Series(["{}", json.dumps(codes)]),
    )
    table.write_parquet(rebuilt / RESULTS / "runs.parquet")


def test_columns_keys_and_figures_are_compared_and_nothing_else(rebuilt):
    assert list(digests.digests(rebuilt)) == [
        ("power.svg", ""),
        ("runs.parquet", "loss"),
        ("runs.parquet", "power_w"),
        ("summary.json", "outcome"),
    ]


def test_what_is_written_is_read(rebuilt, tmp_path):
    made = digests.digests(rebuilt)
    digests.write(tmp_path / "products.csv", made)
    assert digests.read(tmp_path / "products.csv") == made


def test_a_new_column_hides_no_changed_one(rebuilt):
    before = digests.digests(rebuilt)
    columns: dict[str, list[float | None]] = {
        "power_w": [690.6, None],
        "loss": [2.5, 2.25],
        "heat_c": [None, None],
    }
    write(rebuilt, columns, {"power_w": "no sensor", "heat_c": "no sensor"})
    (rebuilt / RESULTS / "figures" / "power.svg").unlink()
    assert digests.differences(before, digests.digests(rebuilt)) == [
        f"{word} of one"
        for word in ("gone: power.svg", f"new: {COLUMN} heat_c", f"changed: {COLUMN} power_w")
    ]


def test_another_reason_code_or_type_is_a_change(rebuilt):
    before = digests.digests(rebuilt)
    write(rebuilt, {"power_w": [690.5, None], "loss": [2.5, 2.25]}, {"power_w": "lost"})
    changed = digests.differences(before, digests.digests(rebuilt))
    assert changed == [f"changed: {COLUMN} power_w of one"]
    before = digests.digests(rebuilt)
    write(rebuilt, {"power_w": [690.5, None], "loss": [2.5, 2.25]}, {"power_w": "lost"}, "never")
    changed = digests.differences(before, digests.digests(rebuilt))
    assert changed == [f"changed: {COLUMN} power_w of one"]
    path = rebuilt / RESULTS / "runs.parquet"
    pl.read_parquet(path).with_columns(pl.col("loss").cast(pl.Float32)).write_parquet(path)
    changed = digests.differences(before, digests.digests(rebuilt))
    assert f"changed: {COLUMN} loss of one" in changed
