"""Made-up published runs, as a CSV file in the published columns."""

import csv

from research.projection.reading import COLUMNS, read_published

GPT = {
    "source": "MLPerf Training v9",
    "url_or_repo_path": "example.org",
    "date": "2026-01",
    "gpu": "H100",
    "gpus": 64,
    "gpus_per_node": 8,
    "model": "GPT-3 175B",
    "seq_len": 2048,
    "global_batch": 256,
    "micro_batch": 1,
    "tp": 4,
    "cp": 1,
    "pp": 8,
    "virtual_pp": 12,
    "dtype": "BF16",
    "step_time_s": 10.0,
}


def write_rows(path, *rows):
    """Rows that differ from GPT in what is given; returns the path."""
    with path.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.DictWriter(lines, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows({**GPT, **row} for row in rows)
    return path


def runs_of(directory, *rows):
    """The same, read."""
    return read_published(write_rows(directory / "rows.csv", *rows))[0]
