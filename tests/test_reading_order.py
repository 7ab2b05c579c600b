"""The page that says in which order to read names files and directories that are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_path_of_the_reading_order_is_there():
    text = (ROOT / "docs" / "reading-order.md").read_text(encoding="utf-8")
    named = [path for path in re.findall(r"`([\w./*-]+/[\w./*-]*)`", text) if path != "launch/"]
    assert len(named) > 20
    assert [path for path in named if not list(ROOT.glob(path.rstrip("/")))] == []


def test_eight_files_are_short_enough_to_read():
    text = (ROOT / "docs" / "reading-order.md").read_text(encoding="utf-8")
    table = text.partition("## Where an answer is")[0]
    files = {ROOT / path for path in re.findall(r"`([\w./-]+\.(?:py|smk|j2|yaml))`", table)}
    assert sum(path.read_text(encoding="utf-8").count("\n") for path in files) < 2500
