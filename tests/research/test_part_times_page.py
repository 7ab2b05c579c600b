"""The page of parts timed alone, and the file that projections read."""

import json
from collections import Counter

from research.pages import engine, part_times
from tests.projection.made_up_times import SIZES, records
from tests.texts import lacking, rows_of


def test_the_page_has_lines_and_every_time_and_says_what_was_refused(tmp_path, monkeypatch):
    bad = records()
    for each in bad:
        if each.get("collective") == "all-to-all" and each["received_bytes"] == SIZES[3]:
            each["repeats_s"] = [0.1]
    told = {"nccl": "2.29.7", "nccl_environment": {"NCCL_NVLS_ENABLE": "0"}}
    path = tmp_path / "parts-two-h200-2026-11-24.jsonl"
    path.write_text("".join(json.dumps(each | told) + "\n" for each in bad), encoding="utf-8")
    monkeypatch.setattr(engine, "RECORDS", tmp_path)

    ((page, text),) = engine.files().items()

    assert page.name == "engine-parts-two-h200-2026-11-24.md"
    shown = ("2 × NVIDIA H200, 2026-11-24", "NCCL 2.29.7", "`NCCL_NVLS_ENABLE=0`")
    assert lacking(text, *shown, "all-to-all of 2 on H200: 64 ") == []
    # A heading and a rule of each table; 5 lines (4 exchanges and the optimiser); 34 times.
    rows = rows_of(text)
    assert Counter(map(len, rows)) == {8: 2 + 5, 7: 2 + 5 * 6 + 4}
    # 1 MiB over 300 GB/s and 20 µs.
    assert ["send/recv", "2", "1", "0.0235", "0.02115–0.03524", "44.63"] in [r[:-1] for r in rows]
    assert ["all-to-all", "2", "4", "0.03398", "0.03058–0.05097", "123.4", "–"] in rows


def test_files_of_records_are_joined_for_projections(tmp_path):
    assert part_times.merged(tmp_path) is None
    for name in ("parts-b.jsonl", "parts-a.jsonl", "two.jsonl"):
        (tmp_path / name).write_text(f"{name}\n", encoding="utf-8")
    assert part_times.merged(tmp_path) == "parts-a.jsonl\nparts-b.jsonl\n"
