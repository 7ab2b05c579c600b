"""Ledgers of one claim, and what was measured, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.comparison.sides import measured as cell_of
from tests.comparison.sides import side
from tests.conftest import ROOT
from workflow_lib.claims.ledger import judge
from workflow_lib.claims.measured import Measured
from workflow_lib.config import Ledger
from workflow_lib.study import checked, load_ledger

SHIPPED = load_ledger(ROOT / "config" / "claims.yaml")
#: by what the runs of a cell differ
NEAR = (0.998, 1.0, 1.002)
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


def claim(name: str) -> Ledger:
    """The shipped ledger with this claim alone."""
    return SHIPPED.model_copy(update={"claims": [c for c in SHIPPED.claims if c.id == name]})


#: a cell's identity, and its measures
Known = tuple[dict[str, Any], dict[str, float]]


def in_turns(*sides: Known) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Cells whose runs took turns, each with its measures times what spreads runs."""
    cells = []
    for number, (known, measures) in enumerate(sides):
        near = NEAR[number % 3 :] + NEAR[: number % 3]
        made = cell_of(
            known, **{name: [of * each for each in near] for name, of in measures.items()}
        )
        for run in made[1]:
            block = run["run"]
            began = 1e9 + 1000 * block + 100 * (number if block % 2 else len(sides) - 1 - number)
            run |= {"order_seed": 0, "order_block": block, "started_unix_s": began}
        cells.append(made)
    return cells


def of_sides(sides: Sequence[Known], later_s: float = 0.0, sweep: str = "made") -> Measured:
    """What a sweep measured of cells in turns, each on the same GPU."""
    cells = in_turns(*sides)
    runs = [run for _, of_cell in cells for run in of_cell]
    for run in runs:
        run["started_unix_s"] += later_s
    gpus = {(run["cell"], run["run"]): frozenset({"GPU-a"}) for run in runs}
    sweeps = {cell["cell"]: [sweep] for cell, _ in cells}
    return Measured(side("measured", *cells, gpus=gpus), sweeps=sweeps)


def verdicts(name: str, *sides: Known) -> dict[str | None, str]:
    """Part → the verdict of a shipped claim's test, and None → that of the claim."""
    rows = judge(claim(name), [of_sides(sides)])
    found = {row["part"]: row["test_verdict"] for row in rows}
    return found | {None: rows[0]["claim_verdict"]}
