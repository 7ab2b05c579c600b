"""Judges every claim of a ledger, by runs and apart from that by projections: rows of CLAIMS."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from workflow_lib.claims import contrasts, projected, ratio_of_ratios, verdicts
from workflow_lib.claims.measured import Measured
from workflow_lib.claims.projected import Cells
from workflow_lib.claims.verdicts import Verdict
from workflow_lib.config import Claim, ClaimTest, Ledger
from workflow_lib.intervals.differences import COVERAGE
from workflow_lib.projection.planned import COVERAGE as PROJECTED_COVERAGE
from workflow_lib.records import cell_axes
from workflow_lib.records.labels import labels, shared
from workflow_lib.records.reasons import Reason, missing
from workflow_lib.records.verdict_tables import CLAIMS
from workflow_lib.report.figures.cell_names import Row, marked

MEASURED, PROJECTED = "measured", "projected"
#: whose claims are about cells of several nodes, as projections are
_PROJECTED_BY = "study"
#: gives the contrasts of a test, with intervals of a coverage
Contrasts = Callable[[ClaimTest, float], Iterable[Mapping[str, Any]]]
_COLUMNS = tuple(column.name for column in CLAIMS)


def judge(ledger: Ledger, measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """The rows of CLAIMS, in the order of the ledger, and of cells as in reports."""
    cells = {cell["cell"]: cell for group in measured for cell in group.side.cells}
    return [row for claim in ledger.claims for row in _of_claim(claim, measured, cells)]


def project(ledger: Ledger, planned: Cells) -> list[dict[str, Any]]:
    """The rows of CLAIMS that projections of planned cells give for the study's claims; none of a
    claim that cannot be projected.
    """
    # What has not run was under no pressure.
    cells = {cell["cell"]: {**cell, "memory_pressure": False} for cell in planned.rows}
    return [
        row
        for claim in ledger.claims
        if claim.by == _PROJECTED_BY
        for row in _of_tests(
            claim,
            PROJECTED,
            lambda test, coverage: projected.project_test(test, planned, coverage),
            PROJECTED_COVERAGE,
            cells,
        )
    ]


def _of_claim(
    claim: Claim, measured: Sequence[Measured], cells: Mapping[str, Row]
) -> Iterator[dict[str, Any]]:
    if claim.no_rule is not None:
        verdict = {"verdict": verdicts.NOT_TESTABLE, "in_words": claim.no_rule}
        yield _row({**_of_all(claim, MEASURED, []), **verdict}, cells)

    def contrasts_of(test: ClaimTest, coverage: float) -> Iterable[Mapping[str, Any]]:
        evaluate = ratio_of_ratios.evaluate_test if test.beside else contrasts.evaluate_test
        return evaluate(test, measured, coverage)

    yield from _of_tests(claim, MEASURED, contrasts_of, COVERAGE, cells)


def _of_all(claim: Claim, basis: str, by_test: Sequence[Verdict]) -> dict[str, Any]:
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
    contrasts_of: Contrasts,
    coverage: float,
    cells: Mapping[str, Row],
) -> Iterator[dict[str, Any]]:
    """The rows of a claim's tests, with the verdicts of all.

    Where one contrast of many may decide a test, its interval has to hold at the coverage at which
    all of the claim's intervals hold together in as many cases as one should alone: Bonferroni's
    inequality, which needs no independence.
    """
    tests = [[_judged(test, row) for row in contrasts_of(test, coverage)] for test in claim.tests]
    count = sum(row.get("wide_low") is not None for rows in tests for row in rows)
    together = 1 - (1 - coverage) / max(count, 1)
    if count > 1:
        for test, rows in zip(claim.tests, tests, strict=True):
            for row, wider in zip(rows, contrasts_of(test, together), strict=True):
                row |= _deciding(test, row, wider, count)
    by_test = [
        verdicts.of_test(test, [(row["verdict"], row["deciding_verdict"]) for row in rows])
        for test, rows in zip(claim.tests, tests, strict=True)
    ]
    of_all = _of_all(claim, basis, by_test)
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
        named = [_row({**of_all, **of_test, **row}, cells) for row in rows]
        _tell_apart(named, cells)
        yield from named


def _judged(test: ClaimTest, contrast: Mapping[str, Any]) -> dict[str, Any]:
    """A contrast with its verdict, which alone decides if there is no other."""
    verdict, words = verdicts.of_contrast(test, contrast)
    row = {name: value for name, value in contrast.items() if name in _COLUMNS}
    row |= {"contrast": verdicts.kind_of(test), "verdict": verdict, "in_words": words}
    return {**row, "deciding_verdict": verdict, "deciding_coverage": row.get("coverage")}


def _deciding(
    test: ClaimTest, row: Mapping[str, Any], wider: Mapping[str, Any], count: int
) -> dict[str, Any]:
    """The columns of a contrast among others, by its interval at the coverage of all together."""
    verdict, _ = verdicts.of_contrast(test, wider)
    deciding = {"deciding_verdict": verdict, "deciding_coverage": wider.get("coverage")}
    if verdict == row["verdict"] or row["verdict"] not in verdicts.decided_by_one(test):
        return deciding
    return {**deciding, "in_words": f"{row['in_words']}; {verdicts.among(test, wider, count)}"}


def _tell_apart(rows: Sequence[dict[str, Any]], cells: Mapping[str, Row]) -> None:
    """Add to what the cells of a pair share that in which contrasts of a test differ whose names
    are alike, such as their data."""
    alike: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["cell_a"] is not None:
            names = (f"{name}_{end}" for name in ("label", "platform") for end in ("a", "b"))
            of_names = (row["model"], row["shared"], *map(row.get, names))
            alike.setdefault((*of_names, row["beside_cell_a"]), []).append(row)
    for several in alike.values():
        added: list[list[str]] = [[] for _ in several]
        for end in ("a", "b"):
            ids = [row[f"cell_{end}"] for row in several]
            if len({*ids}) > 1 and None not in ids:
                told = cell_axes.differences([cells[cell] for cell in ids])
                for words, of_row in zip(added, told, strict=True):
                    words += (each for each in of_row if each not in words)
        for row, words in zip(several, added, strict=True):
            row["shared"] = " ".join(filter(None, (row["shared"], ", ".join(words)))) or None


def _row(columns: Mapping[str, Any], cells: Mapping[str, Row]) -> dict[str, Any]:
    row = {**dict.fromkeys(_COLUMNS), **columns}
    for which in ("", ratio_of_ratios.PREFIX):
        ends = {end: cells[cell] for end in ("a", "b") if (cell := row[f"{which}cell_{end}"])}
        pair = list(ends.values())
        row[f"{which}shared"] = shared(pair) or None
        for end, label in zip(ends, marked(pair, labels(pair)), strict=True):
            row[f"{which}label_{end}"] = label
    # A column of a second side, end or part that does not exist is not missing.
    nulls = {
        name: Reason("as_the_verdict", why=row["in_words"])
        for name in ("estimate", "low", "high", "coverage", "wide_low", "wide_high")
        if row[name] is None
    }
    return row | missing(nulls)
