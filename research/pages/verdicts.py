"""docs/results/claims.md, and the findings that README.md opens with: from the rebuilt evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from research.pages import findings, in_step, sweeps, triptych
from workflow_lib.cells import expand_study
from workflow_lib.claims import measured, page
from workflow_lib.claims.ledger import judge, project
from workflow_lib.claims.projected import cells_of
from workflow_lib.claims.verdicts import IN_WORDS, amount, measure_of
from workflow_lib.config import ClaimTest
from workflow_lib.report.figures.cell_names import PRESSED, Row
from workflow_lib.study import load_ledger, load_study
from workflow_lib.words import counted

CHECKOUT = Path(__file__).parents[2]
NAME = "claims.md"
README = CHECKOUT / "README.md"
LEDGER = CHECKOUT / "config" / "claims.yaml"

_NOTICE = (
    "<!-- Made by `python -m docs.evidence --write` from config/claims.yaml and the archives in "
    "evidence/. -->"
)
#: where README.md holds what is made here
_BEGIN, _END = "<!-- findings: made by `python -m docs.evidence --write` -->", "<!-- /findings -->"
_PICTURE = "<!-- picture: made by `python -m docs.evidence --write` -->", "<!-- /picture -->"
#: the claims that the README tells of: one that sets pairs beside each other, and one of ours
_TOLD_OF_PAIRS, _TOLD = "R2", "T25"
#: the pages of sweeps that have none of their own name
_PAGES = {findings.LAYOUTS: findings.NAME, findings.OVERLAP: findings.NAME}


def rows_of(rebuilt: Path) -> list[Row]:
    """The rows of CLAIMS by every sweep of the rebuilt evidence."""
    return list(judge(load_ledger(LEDGER), measured.read(findings.sweeps_of(rebuilt))))


def claims_page(rows: Sequence[Row]) -> str:
    """The ledger, with links to the pages of the sweeps that show the cells."""

    def link(sweep: str, cell: str) -> str:
        return _PAGES.get(sweep) or sweeps.page_of(sweep)

    ledger = load_ledger(LEDGER)
    planned = cells_of(expand_study(load_study(LEDGER.parent)).values())
    return page.markdown(ledger, rows, link, _NOTICE, project(ledger, planned))


def readme(rebuilt: Path, rows: Sequence[Row]) -> str:
    """README.md with its picture and findings made anew. Raises ValueError where it has no place
    for them."""
    text = README.read_text(encoding="utf-8")
    text = _between(text, _PICTURE, triptych.embedded(rebuilt))
    return _between(text, (_BEGIN, _END), _findings(rebuilt, rows))


def _between(text: str, lines: tuple[str, str], made: str) -> str:
    """A text with what is made between two lines of it."""
    before, begin, rest = text.partition(lines[0])
    _, end, after = rest.partition(lines[1])
    if not (begin and end):
        raise ValueError(f"{README.name} has no lines {' and '.join(lines)}")
    return f"{before}{begin}\n\n{made}\n\n{end}{after}"


def _findings(rebuilt: Path, rows: Sequence[Row]) -> str:
    results = f"docs/results/{findings.NAME}"
    made = [
        f"1. {findings.headline(rebuilt)} [All layouts, with power, memory and what the "
        f"differences support]({results}).",
        f"2. {findings.trainers(rebuilt)} [Power, memory and differences]"
        f"(docs/results/{findings.TRAINERS}.md).",
        f"3. {in_step.finding()} [Each kind of start, and the rule](docs/results/{in_step.NAME}).",
        *(
            f"{number}. {said} [The runs behind it](docs/results/claims.md#{name.lower()})."
            for number, name, said in (
                (4, _TOLD_OF_PAIRS, of_pairs(rows, _TOLD_OF_PAIRS)),
                (5, _TOLD, of_claim(rows, _TOLD)),
            )
        ),
        "",
        f"{_counts(rows)} [Each with its rule, its interval and its cells]"
        "(docs/results/claims.md).",
    ]
    return "\n".join(made)


def of_claim(rows: Sequence[Row], name: str) -> str:
    """What runs say of one of our claims, in a sentence. The range is that of all contrasts with
    an interval."""
    own = [row for row in rows if row["claim"] == name]
    told = [row for row in own if row["wide_low"] is not None]
    verdict = IN_WORDS[own[0]["claim_verdict"]]
    if not told:
        return f"“{own[0]['says']}” is our claim: {verdict}."
    test, *others = _tests_of(name)
    if any(other.measure != test.measure for other in others):
        raise ValueError(f"the tests of {name} have several measures")
    pressed = any(PRESSED in f"{row['label_a']} {row['label_b']}" for row in told)
    low = min(row["wide_low"] for row in told)
    high = max(row["wide_high"] for row in told)
    return (
        f"“{own[0]['says']}” is our claim: {verdict} by {decided_by(told)}, "
        f"{measure_of(test).heading} within {amount(test, low)} to {amount(test, high)}"
        f"{', some runs under memory pressure' if pressed else ''}."
    )


def of_pairs(rows: Sequence[Row], name: str) -> str:
    """What runs say of each part of a reviewers' question that sets two pairs beside each other."""
    own = [row for row in rows if row["claim"] == name]
    asked = f"“{own[0]['says']}” was asked by the study's reviewers: "
    told = [row for row in own if row["coverage"] is not None]
    if not told:
        return f"{asked}{IN_WORDS[own[0]['claim_verdict']]}."
    tests = _tests_of(name)
    parts = [
        f"{row['part']} {amount(tests[row['test'] - 1], row['estimate'])} "
        f"({IN_WORDS[row['verdict']]})"
        for row in told
    ]
    (kind,) = {measure_of(tests[row["test"] - 1]).heading for row in told}
    return (
        f"{asked}{IN_WORDS[own[0]['claim_verdict']]}. {kind}, how far the effect of each in "
        f"`{told[0]['model']}` is off that in `{told[0]['beside_model']}`: {', '.join(parts)}."
    )


def _tests_of(name: str) -> tuple[ClaimTest, ...]:
    return next(claim.tests for claim in load_ledger(LEDGER).claims if claim.id == name)


def decided_by(told: Sequence[Row]) -> str:
    """How many of a claim's contrasts have its verdict: "4 contrasts", or "6 of 8 contrasts"."""
    agree = sum(row["verdict"] == row["claim_verdict"] for row in told)
    of_all = counted(len(told), "contrast")
    if sets := sum(row["gpu_sets"] or 0 for row in told):
        of_all += f" over {counted(sets, 'set')} of GPUs"
    return of_all if agree == len(told) else f"{agree} of {of_all}"


def _counts(rows: Sequence[Row]) -> str:
    """How many claims of the study have which verdict, and how many questions near to them."""
    verdicts = {row["claim"]: row["claim_verdict"] for row in rows}
    claims = [claim for claim in load_ledger(LEDGER).claims if claim.by == "study"]
    near = {name for claim in claims for name in claim.nearest}
    with_near = sum(bool(claim.nearest) for claim in claims)
    return (
        f"Of the study's {len(claims)} claims, by these runs alone: "
        f"{_counted(verdicts[claim.id] for claim in claims)}. Near to {with_near} of them are "
        f"{len(near)} questions that one or two GPUs answer: "
        f"{_counted(verdicts[name] for name in near)}."
    )


def _counted(verdicts: Iterable[str]) -> str:
    counts = Counter(verdicts)
    return ", ".join(f"{counts[each]} {words}" for each, words in IN_WORDS.items() if counts[each])
