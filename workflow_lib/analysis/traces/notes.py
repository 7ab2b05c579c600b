"""Collects notes on what was wrong with a trace while it is read."""

from __future__ import annotations


class Notes:
    """Counts of what was left out or repaired, as sentences in the order in which each first
    occurred."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, what: str, count: int = 1) -> None:
        """Count one or more cases; ``what`` is the same text each time."""
        self._counts[what] = self._counts.get(what, 0) + count

    def sentences(self) -> tuple[str, ...]:
        """Each text once, with its count if that is more than one."""
        return tuple(
            what if count == 1 else f"{what} ({count} times)"
            for what, count in self._counts.items()
        )
