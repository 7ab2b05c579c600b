"""Building a made-up sweep's page, and reading it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from workflow_lib.report.__main__ import main
from workflow_lib.report.figures import read_tables, write_figures

from .sweep import Planned, write_sweep


class Page(HTMLParser):
    """Tags with their attributes, and the text outside style and script."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.pieces: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("style", "script"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open:
            self.pieces.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.pieces))


def draw(directory: Path) -> None:
    write_figures(read_tables(directory), directory / "figures", formats=("svg",))


def build(
    tmp_path: Path, cells: list[Planned], *extra: str, overhead: Sequence[dict[str, Any]] = ()
) -> Page:
    """Write a sweep, its figures and its page."""
    directory = write_sweep(tmp_path, cells, overhead)
    draw(directory)
    return again(tmp_path, *extra)


def write(results: Path, directory: Path, *extra: str) -> int:
    command = ["page", "--sweep", "made-up", "--results", str(results)]
    return main([*command, "--directory", str(directory), *extra])


def again(results: Path, *extra: str) -> Page:
    """Write the page of the sweep that lies there."""
    directory = results / "sweeps" / "made-up"
    assert write(results, directory, *extra) == 0
    return Page((directory / "report.html").read_text(encoding="utf-8"))
