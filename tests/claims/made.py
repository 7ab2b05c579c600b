"""Ledgers of one claim, and what was measured, in memory."""

from __future__ import annotations

from typing import Any

from tests.comparison.sides import side
from workflow_lib.claims.ledger import judge
from workflow_lib.claims.measured import Measured
from workflow_lib.config import Ledger
from workflow_lib.study import checked

CLAIM = {
    "id": "X1",
    "by": "triptych",
    "says": "The first is more than the second.",
    "needs": "Any GPU.",
    "would_test": "Any sweep.",
}


def ledger(*tests: dict[str, Any], **claim: Any) -> Ledger:
    """A ledger of one claim with these tests."""
    return checked(
        "claims.yaml",
        Ledger,
        {"description": "Made up.", "claims": [{**CLAIM, "tests": list(tests), **claim}]},
    )


def measured(*cells: tuple[dict[str, Any], list[dict[str, Any]]], **other: Any) -> Measured:
    """What one sweep measured of some cells."""
    return Measured(
        side("measured", *cells), sweeps={c["cell"]: ["made"] for c, _ in cells}, **other
    )


def judged(test: dict[str, Any], *cells: Any, **other: Any) -> list[dict[str, Any]]:
    """The rows by which one test is judged."""
    return judge(ledger(test), [measured(*cells, **other)])
