"""Writes numbers with their nouns, for messages, plans and pages."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """A number of things: "1 run", "2 runs"."""
    return f"{number} {thing}{'' if number == 1 else 's'}"
