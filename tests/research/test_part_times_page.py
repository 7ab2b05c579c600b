"""The page of parts timed alone, and the file that projections read."""

from __future__ import annotations

import json

from research.pages import engine, part_times
from tests.projection.made_up_times import SIZES, records


def test_the_page_has_lines_and_every_time_and_says_what_was_refused(tmp_path, monkeypatch):
    bad = [
        {**each, "repeats_s": [0.1]}
        if each.get("collective") == "all-to-all" and each["received_bytes"] == SIZES[3]
        else each
        for each in records()
    ]
    told = {"nccl": "2.29.7", "nccl_environment": {"NCCL_NVLS_ENABLE": "0"}}
    path = tmp_path / "parts-two-h200-2026-11-24.jsonl"
    path.write_text("".join(json.dumps(each | told) + "\n" for each in bad), encoding="utf-8")
    monkeypatch.setattr(engine, "RECORDS", tmp_path)

    ((page, text),) = engine.files().items()

    assert page.name == "engine-parts-two-h200-2026-11-24.md"
    assert "# Exchanges and the optimiser alone on 2 × NVIDIA H200, 2026-11-24" in text
    assert "NCCL 2.29.7 with `NCCL_NVLS_ENABLE=0`" in text
    assert "Refused: all-to-all of 2 on H200: 64 MiB took" in text
    # A heading and a rule of each table; 5 lines (4 exchanges and the optimiser); 34 times.
    assert sum(line.count("|") == 9 for line in text.splitlines()) == 2 + 5
    assert sum(line.count("|") == 8 for line in text.splitlines()) == 2 + 5 * 6 + 4
    # 1 MiB over 300 GB/s and 20 µs.
    assert "| send/recv | 2 | 1 | 0.0235 | 0.02115–0.03524 | 44.63 |" in text
    assert "| all-to-all | 2 | 4 | 0.03398 | 0.03058–0.05097 | 123.4 | – |" in text


def test_files_of_records_are_joined_for_projections(tmp_path):
    assert part_times.merged(tmp_path) is None
    for name in ("parts-b.jsonl", "parts-a.jsonl", "two.jsonl"):
        (tmp_path / name).write_text(f"{name}\n", encoding="utf-8")
    assert part_times.merged(tmp_path) == "parts-a.jsonl\nparts-b.jsonl\n"
