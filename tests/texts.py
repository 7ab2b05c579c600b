"""What a text or a page holds, apart from its wording, and files that hold another one."""

from __future__ import annotations

import re
from pathlib import Path


def edit(path: Path, old: str, new: str) -> None:
    """Replace a text in a file, which must hold it."""
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{path} does not hold {old!r}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def lacking(text: object, *values: object) -> list[str]:
    """Of these values, those that the text does not hold."""
    return [str(value) for value in values if str(value) not in str(text)]


def numbers(text: str) -> list[float]:
    """The numbers of a text that stand alone."""
    return [float(each) for each in re.findall(r"\b\d+(?:\.\d+)?\b", text)]


def rows_of(page: str) -> list[list[str]]:
    """The cells of each line of a page's tables, with headings and rules."""
    lines = [line for line in page.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
