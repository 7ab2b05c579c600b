"""Judges every claim of a ledger, by runs and apart from that by projections: rows of CLAIMS."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from workflow_lib.claims import beside, contrasts, projected, verdicts
from workflow_lib.claims.measured import Measured
from workflow_lib.claims.projected import Cells
from workflow_lib.claims.verdicts import Verdict
from workflow_lib.config import Claim, ClaimTest, Ledger
from workflow_lib.records import CLAIMS
from workflow_lib.report.labels import short_labels

MEASURED, PROJECTED = "measured", "projected"
#: whose claims are about cells of several nodes, as projections are
_PROJECTED_BY = "study"
_COLUMNS = tuple(column.name for column in CLAIMS)


def judge(ledger: Ledger, measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """The rows of CLAIMS, in the order of the ledger, and of cells as in reports."""
    cells = list({cell["cell"]: cell for each in measured for cell in each.side.cells}.values())
    labels = _labels(cells)
    return [row for claim in ledger.claims for row in _of_claim(claim, measured, labels)]


def project(ledger: Ledger, planned: Cells) -> list[dict[str, Any]]:
    """The rows of CLAIMS that projections of planned cells give for the study's claims; none of a
    claim that cannot be projected.
    """
    labels = _labels(planned.rows)
    return [
        row
        for claim in ledger.claims
        if claim.by == _PROJECTED_BY
        for row in _of_tests(
            claim,
            PROJECTED,
            [list(_judged(test, projected.found(test, planned))) for test in claim.tests],
            labels,
        )
    ]


def _labels(cells: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return dict(zip((cell["cell"] for cell in cells), short_labels(cells), strict=True))


def _of_claim(
    claim: Claim, measured: Sequence[Measured], labels: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    tests = [
        list(_judged(test, (beside if test.beside else contrasts).found(test, measured)))
        for test in claim.tests
    ]
    if claim.no_rule is not None:
        known = {"verdict": verdicts.NOT_TESTABLE, "in_words": claim.no_rule}
        yield _row({**_shared(claim, MEASURED, []), **known}, labels)
    yield from _of_tests(claim, MEASURED, tests, labels)


def _shared(claim: Claim, basis: str, by_test: Sequence[Verdict]) -> dict[str, Any]:
    return {
        "claim": claim.id,
        "by": claim.by,
        "says": claim.says,
        "basis": basis,
        "claim_verdict": verdicts.of_claim(by_test),
    }


def _of_tests(
    claim: Claim,
    basis: str,
    tests: Sequence[Sequence[Mapping[str, Any]]],
    labels: Mapping[str, str],
) -> Iterator[dict[str, Any]]:
    """The rows of a claim's tests, with the verdicts of all."""
    by_test = [
        verdicts.of_test(test, [row["verdict"] for row in rows])
        for test, rows in zip(claim.tests, tests, strict=True)
    ]
    shared = _shared(claim, basis, by_test)
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


def _judged(test: ClaimTest, found: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The contrasts of a test with their verdicts."""
    for row in found:
        verdict: Verdict
        verdict, words = verdicts.of_contrast(test, row)
        own = {name: value for name, value in row.items() if name in _COLUMNS}
        yield {**own, "contrast": verdicts.kind_of(test), "verdict": verdict, "in_words": words}


def _row(known: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    row = {**dict.fromkeys(_COLUMNS), **known}
    for end in ("a", "b"):
        for pair in ("", beside.PREFIX):
            cell = row[f"{pair}cell_{end}"]
            if cell is not None:
                row[f"{pair}label_{end}"] = labels[cell]
    # A column of a second side, end or part that does not exist is not missing.
    missing = {
        name: row["in_words"]
        for name in ("estimate", "low", "high", "coverage", "wide_low", "wide_high")
        if row[name] is None
    }
    row["missing_reasons"] = json.dumps(missing, sort_keys=True, ensure_ascii=False)
    return row
