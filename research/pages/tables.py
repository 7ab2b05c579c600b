"""What all pages share: tables, the head of a page of one file of records, and whole texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from matplotlib.figure import Figure

from benchmarks.measuring.pairs import NEW_TOKENS
from workflow_lib.report.figures import style

#: what a page begins with that is made of archives and other records
NOTICE = "<!-- Made by `python -m docs.evidence --write` from evidence/. -->"
#: how launches in turn are compared
RATIOS = (
    "Ratios are geometric means over pairs of launches, with 95 % intervals by Student's t: they "
    "know how launches differ on one host, not how hosts differ."
)


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """The lines of a table."""
    named = tuple(heads)
    return [row(named), "|---" * len(named) + "|", *map(row, rows)]


def row(cells: Iterable[str]) -> str:
    """A line of a table."""
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"


def document(*blocks: str | Iterable[str]) -> str:
    """A page of paragraphs and of blocks of lines, with an empty line between them."""
    return "\n\n".join(b if isinstance(b, str) else "\n".join(b) for b in blocks) + "\n"


def svg(figure: Figure, name: str) -> str:
    """A figure as SVG, within :func:`style.styled`; the same figure gives the same text."""
    with TemporaryDirectory() as directory:
        (path,) = style.save(figure, Path(directory, name), ("svg",))
        return path.read_text(encoding="utf-8")


def head(question: str, first: Mapping[str, Any]) -> str:
    """The heading of a page of records, with their GPUs and their day."""
    return f"# {question}? {first['gpus']} × {first['gpu']}, {first['begun'][:10]}"


def link(name: str) -> str:
    """A link to a file of records, in a sentence."""
    return f"[the records](../../evidence/engine/{name}.jsonl)"


def of_tokens(records: list[dict[str, Any]]) -> str:
    """Whether steps had new tokens, and what follows if they had not."""
    if all(record.get("tokens") == NEW_TOKENS for record in records):
        return "Each step has new tokens."
    losses = sorted(record["loss"] for record in records)
    return (
        "All steps of a launch have the same tokens, which the models learn: after the last step "
        f"the loss is {losses[0]:.2g} to {losses[-1]:.2g} nats. A GPU's power depends on the "
        "numbers that it multiplies (arXiv 2409.18324), and so does its clock at the power cap. "
        "How much these speeds differ from those on new tokens was not measured; newer versions of "
        "the benchmark draw new tokens for each step."
    )
