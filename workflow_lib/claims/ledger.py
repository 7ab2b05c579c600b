"""Judges every claim of a ledger: the rows of CLAIMS."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workflow_lib.claims import contrasts, verdicts
from workflow_lib.claims.measured import Measured
from workflow_lib.claims.verdicts import Verdict
from workflow_lib.config import Claim, ClaimTest, Ledger
from workflow_lib.records import CLAIMS
from workflow_lib.report.labels import short_labels

MEASURED = "measured"
_COLUMNS = tuple(column.name for column in CLAIMS)


def judge(ledger: Ledger, measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """The rows of CLAIMS, in the order of the ledger, and of cells as in reports."""
    cells = list({cell["cell"]: cell for each in measured for cell in each.side.cells}.values())
    labels = dict(zip((c["cell"] for c in cells), short_labels(cells), strict=True))
    return [row for claim in ledger.claims for row in _of_claim(claim, measured, labels)]


def _of_claim(
    claim: Claim, measured: Sequence[Measured], labels: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    tests = [list(_of_test(test, measured)) for test in claim.tests]
    by_test = [
        verdicts.of_test(test, [row["verdict"] for row in rows])
        for test, rows in zip(claim.tests, tests, strict=True)
    ]
    shared = {
        "claim": claim.id,
        "by": claim.by,
        "says": claim.says,
        "basis": MEASURED,
        "claim_verdict": verdicts.of_claim(by_test),
    }
    if claim.no_rule is not None:
        known = {"verdict": verdicts.NOT_TESTABLE, "in_words": claim.no_rule}
        yield _row({**shared, **known}, labels)
    for number, (test, rows, verdict) in enumerate(
        zip(claim.tests, tests, by_test, strict=True), start=1
    ):
        of_test = {
            "test": number,
            "part": test.part,
            "measure": test.measure,
            "above": test.above,
            "below": test.below,
            "holds_in": test.holds_in,
            "test_verdict": verdict,
        }
        for row in rows:
            yield _row({**shared, **of_test, **row}, labels)


def _of_test(test: ClaimTest, measured: Sequence[Measured]) -> Iterator[dict[str, Any]]:
    for row in contrasts.found(test, measured):
        verdict: Verdict
        verdict, words = verdicts.of_contrast(test, row)
        own = {name: value for name, value in row.items() if name in _COLUMNS}
        yield {**own, "contrast": verdicts.kind_of(test), "verdict": verdict, "in_words": words}


def _row(known: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    row = {**dict.fromkeys(_COLUMNS), **known}
    for end in ("a", "b"):
        cell = row[f"cell_{end}"]
        if cell is not None:
            row[f"label_{end}"] = labels[cell]
    # A column of a second side, end or part that does not exist is not missing.
    missing = {
        name: row["in_words"]
        for name in ("estimate", "low", "high", "coverage", "wide_low", "wide_high")
        if row[name] is None
    }
    row["missing_reasons"] = json.dumps(missing, sort_keys=True, ensure_ascii=False)
    return row
