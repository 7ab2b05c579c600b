"""Writes the ledger for readers: ``claims.md``, and ``claims.html`` in the look of the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workflow_lib import __version__
from workflow_lib.claims.contrasts import VALUE
from workflow_lib.claims.pairs import selected_in_words
from workflow_lib.claims.ratio_of_ratios import of_two_pairs, second_pair
from workflow_lib.claims.verdicts import (
    IN_WORDS,
    NOT_TESTABLE,
    amount,
    kind_of,
    measure_of,
    range_in_words,
)
from workflow_lib.comparison import sentences
from workflow_lib.comparison.measures import DIFFERENCE, RATIO
from workflow_lib.comparison.sides import emulated_sides
from workflow_lib.config import Claim, ClaimTest, Ledger
from workflow_lib.records import cell_axes
from workflow_lib.report.figures.html import page_templates
from workflow_lib.report.figures.numbers import NOTHING
from workflow_lib.words import counted

Row = Mapping[str, Any]
#: (sweep, cell) → the address of the cell in the sweep's report; "" if there is none
Link = Callable[[str, str], str]

_BY = {
    "reviewers": "What the study's reviewers asked",
    "study": "What the study claims",
    "triptych": "What we claim",
}
_KINDS = {
    RATIO: "the first over the second",
    DIFFERENCE: "the first minus the second",
    VALUE: "the measure itself",
    of_two_pairs(RATIO): "the first over the second, and the ratio of {pair} over that of {beside}",
    of_two_pairs(DIFFERENCE): "the first minus the second, and the difference of {pair} minus that "
    "of {beside}",
}
_SCOPES = {"all": "all", "most": "more than half of", "any": "some"}
_TEMPLATES = page_templates("workflow_lib.claims", "workflow_lib.report")


@dataclass(frozen=True)
class Cells:
    """One pair of cells of a contrast, or one cell."""

    #: their model, the options that they share, and the platform and runs where both have the same
    alike: str
    #: each cell's name, with what is not alike; its id; its address
    each: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Line:
    """A contrast on the page."""

    verdict: str
    in_words: str
    pairs: tuple[Cells, ...]


@dataclass(frozen=True)
class Rule:
    """A test on the page."""

    part: str
    rule: str
    verdict: str
    lines: tuple[Line, ...]

    @property
    def told(self) -> str:
        """The rule, after the part of the claim that it is about."""
        return ": ".join(filter(None, (self.part, self.rule)))


@dataclass(frozen=True)
class Entry:
    """A claim on the page."""

    claim: Claim
    verdict: str
    #: verdicts of its contrasts, counted: "2 supported, 1 undecided"
    counts: str
    rules: tuple[Rule, ...]
    #: by projections: the verdict, its counts, and what the tests say; "" where there are none
    projected: str = ""
    projected_counts: str = ""
    projections: tuple[str, ...] = ()


def entries(
    ledger: Ledger, rows: Sequence[Row], link: Link, projected: Sequence[Row] = ()
) -> dict[str, list[Entry]]:
    """The claims with their verdicts, by author: those by the ``rows`` of runs, and apart from
    them those by projections.
    """
    by_author: dict[str, list[Entry]] = {heading: [] for heading in _BY.values()}
    for claim in ledger.claims:
        of_claim = [row for row in rows if row["claim"] == claim.id]
        rules = tuple(
            _rule(test, [row for row in of_claim if row["test"] == number], link)
            for number, test in enumerate(claim.tests, start=1)
        )
        verdict = IN_WORDS[of_claim[0]["claim_verdict"]]
        apart = [row for row in projected if row["claim"] == claim.id]
        entry = Entry(
            *(claim, verdict, _counted(of_claim), rules),
            projected=IN_WORDS[apart[0]["claim_verdict"]] if apart else "",
            projected_counts=_counted(apart),
            projections=tuple(_projections(claim, apart)),
        )
        by_author[_BY[claim.by]].append(entry)
    return {heading: of_author for heading, of_author in by_author.items() if of_author}


def near(by_author: Mapping[str, Sequence[Entry]]) -> list[tuple[Entry, list[Entry]]]:
    """Each question that is nearest to a claim of others, with these claims."""
    every = {entry.claim.id: entry for group in by_author.values() for entry in group}
    of_questions = {
        name: [entry for entry in every.values() if name in entry.claim.nearest] for name in every
    }
    return [(every[name], claims) for name, claims in of_questions.items() if claims]


def _counted(rows: Sequence[Row]) -> str:
    """How many contrasts have each verdict; "" if there is none to judge."""
    verdicts = [row["verdict"] for row in rows if row["cell_a"]]
    counts = {words: verdicts.count(verdict) for verdict, words in IN_WORDS.items()}
    return ", ".join(f"{count} {words}" for words, count in counts.items() if count)


def _rule(test: ClaimTest, rows: Sequence[Row], link: Link) -> Rule:
    pair, beside = map(selected_in_words, (test.pair, test.beside))
    measure, kind = measure_of(test), _KINDS[kind_of(test)].format(pair=pair, beside=beside)
    scope = f"{_SCOPES[test.holds_in]} such {'pairs' if test.beside else 'cells'}"
    return Rule(
        part=test.part or "",
        rule=f"{measure.heading} ({kind}) is {range_in_words(test)}, in {scope}",
        verdict=IN_WORDS[rows[0]["test_verdict"]],
        lines=tuple(_lines(rows, link)),
    )


def _projections(claim: Claim, rows: Sequence[Row]) -> Iterator[str]:
    """A sentence for each test of a claim that projections say anything about."""
    for number, test in enumerate(claim.tests, start=1):
        of_test = [row for row in rows if row["test"] == number]
        if not of_test:
            continue
        about = f"{test.part}: " if test.part else ""
        low, high = min(row["low"] for row in of_test), max(row["high"] for row in of_test)
        yield (
            f"{about}{IN_WORDS[of_test[0]['test_verdict']]} ({_counted(of_test)}); "
            f"{counted(len(of_test), 'pair')} of planned cells on several nodes, with 90 % "
            f"intervals within {amount(test, low)} to {amount(test, high)}"
        )


def _lines(rows: Sequence[Row], link: Link) -> Iterator[Line]:
    """One line for each contrast; contrasts that are not testable for the same reason
    share a line."""
    not_testable: dict[str, list[Row]] = {}
    for row in rows:
        if row["verdict"] == NOT_TESTABLE and row["cell_b"] is None and row["cell_a"]:
            not_testable.setdefault(row["in_words"], []).append(row)
        else:
            yield _line(row, link)
    for why, alike in not_testable.items():
        yield Line(IN_WORDS[NOT_TESTABLE], f"{counted(len(alike), 'cell')}: {why}", ())


def _line(row: Row, link: Link) -> Line:
    pairs = tuple(_cells(pair, link) for pair in (row, second_pair(row)) if pair["cell_a"])
    return Line(IN_WORDS[row["verdict"]], row["in_words"], pairs)


def _cells(pair: Row, link: Link) -> Cells:
    ends = [end for end in ("a", "b") if pair[f"cell_{end}"] is not None]
    where = []
    for end in ends:
        place = pair[f"platform_{end}"] + (" (emulated)" if pair[f"emulated_{end}"] else "")
        where.append(f" on {place}, {_runs(pair[f'runs_{end}'])}")
    alike = " ".join(filter(None, (pair["model"], pair["shared"])))
    if len({*where}) == 1:
        alike += where[0] + (" each" if len(ends) > 1 else "")
        where = [""] * len(ends)
    each = []
    for end, rest in zip(ends, where, strict=True):
        cell, sweep = pair[f"cell_{end}"], pair[f"sweeps_{end}"].split(", ")[0]
        each.append((f"{pair[f'label_{end}']}{rest}", cell, link(sweep, cell)))
    return Cells(alike, tuple(each))


def _runs(numbers: str | None) -> str:
    """How many runs, where they are the first ones; else their numbers."""
    if not numbers:
        return "no completed run"
    several = numbers.split(", ")
    as_counted = [str(number) for number, _ in enumerate(several, start=1)]
    return counted(len(several), "run") if several == as_counted else f"runs no. {numbers}"


def by_chance(rows: Sequence[Row]) -> tuple[int, int]:
    """How many contrasts have an interval, and how many of these miss the true value by chance on
    average, however they depend on each other; rounded up."""
    judged = [row for row in rows if row["wide_low"] is not None]
    missing: float = sum(1 - row["coverage"] for row in judged)
    return len(judged), math.ceil(missing - 1e-9)


def markdown(
    ledger: Ledger,
    rows: Sequence[Row],
    link: Link,
    notice: str = "",
    projected: Sequence[Row] = (),
) -> str:
    """The page as Markdown."""
    parts = [notice] if notice else []
    parts += [
        "# Claims, and what runs say of them",
        _cell(ledger.description),
        _METHOD,
        *([PROJECTION] if projected else []),
        _chance(rows),
        *filter(None, [_cell(_emulated(rows))]),
    ]
    by_author = entries(ledger, rows, link, projected)
    for heading, of_author in by_author.items():
        parts += [f"## {heading}", _summary(of_author)]
    if nearest := near(by_author):
        parts += [f"## {NEAREST}", NEAREST_NOTE, _nearest(nearest)]
    every = [entry for group in by_author.values() for entry in group]
    parts += ["## Why", *(_why(entry) for entry in every if entry.counts)]
    if untried := [entry for entry in every if not entry.counts]:
        parts += [f"## {UNTRIED}", _untried(untried)]
    return "\n\n".join(parts) + "\n"


#: what the page says of its intervals, as text and as HTML
_INTERVALS = (
    "Intervals have a coverage of 95 %. They are those of comparisons, which include the effects "
    "of dates, nodes and sensors. Where a claim sets a pair of cells beside another, they are made "
    "from the intervals of both. A verdict holds only for the cells that it names. "
    f"{sentences.LICENCE}"
)
_METHOD = (
    "A claim is *supported* if the whole interval of each contrast lies in the range that the "
    "claim states. It is *contradicted* if no part of an interval lies there, and *undecided* if a "
    "part does, or if the effects of dates or sensors are unknown. If one contrast of *k* "
    "contradicts a claim about all, its interval has to do so at a coverage of 1 − 5 %/*k*. A "
    "contrast is *not testable here* if it has no interval: no sweep has the cells, or too few of "
    "their runs completed. If other contrasts have an interval, these decide. A claim is supported "
    f"if all of its tests are. {_INTERVALS}"
)
NEAREST = "What is known near to these claims"
UNTRIED = "What no run here tests"
NEAREST_NOTE = (
    "A claim may need more GPUs than there were. Near to these is a question that needs fewer: a "
    "claim of ours with a rule of its own, whose verdict is no verdict on the other."
)
PROJECTION = (
    "A projection is not a measurement, and has its own column. It is of planned cells on several "
    "nodes, none of which has run here. It is made for this workflow's engine, from its runs on "
    "one and two GPUs and from published runs, and it says nothing about the engines of the study. "
    "Intervals have a coverage of 90 %."
)


def _chance(rows: Sequence[Row]) -> str:
    judged, wrong = by_chance(rows)
    return (
        f"{judged} contrasts have an interval; by chance alone, {wrong} of these may be wrong on "
        "average."
    )


def _emulated(rows: Sequence[Row]) -> str:
    """What is emulated on the platforms of the cells; "" if nothing is."""
    every = [*rows, *map(second_pair, rows)]
    return cell_axes.emulated_in_words(emulated_sides(every))


def _summary(of_author: Sequence[Entry]) -> str:
    lines = ["| | claim | by runs | contrasts | by projection |", "|---|---|---|---|---|"]
    for entry in of_author:
        claim = entry.claim
        lines.append(
            f"| {_to(entry)} | {_cell(claim.says)} | **{entry.verdict}** | "
            f"{entry.counts or NOTHING} | {_by_projection(entry)} |"
        )
    return "\n".join(lines)


def _nearest(nearest: Sequence[tuple[Entry, Sequence[Entry]]]) -> str:
    lines = ["| near to | the question | by runs | contrasts |", "|---|---|---|---|"]
    for other, claims in nearest:
        lines.append(
            f"| {', '.join(map(_to, claims))} | {_to(other)} {_cell(other.claim.says)} | "
            f"**{other.verdict}** | {other.counts or NOTHING} |"
        )
    return "\n".join(lines)


def _untried(entries: Sequence[Entry]) -> str:
    lines = ["| | rule | needs | would test it | by projection |", "|---|---|---|---|---|"]
    for entry in entries:
        claim = entry.claim
        rules = "; ".join(rule.told for rule in entry.rules) or f"none: {claim.no_rule}"
        projected = "; ".join(map(_cell, entry.projections)) or NOTHING
        name = f"{claim.id}{_where(claim)}"
        lines.append(
            f"| {name} | {_cell(rules)} | {_cell(claim.needs)} | {_cell(claim.would_test)} | "
            f"{projected} |"
        )
    return "\n".join(lines)


def _where(claim: Claim) -> str:
    """Where the study makes a claim."""
    return f" ({_cell(claim.section)})" if claim.section else ""


def _to(entry: Entry) -> str:
    """A link to what the page says of a claim."""
    name = entry.claim.id
    return f"[{name}](#{(name if entry.counts else UNTRIED).lower().replace(' ', '-')})"


def _by_projection(entry: Entry) -> str:
    return f"{entry.projected}: {entry.projected_counts}" if entry.projected else NOTHING


def _why(entry: Entry) -> str:
    claim = entry.claim
    parts = [
        f"### {claim.id}",
        f"{_cell(claim.says)}{_where(claim)} **{entry.verdict.capitalize()}.**",
        f"Needs: {_cell(claim.needs)} Would test it: {_cell(claim.would_test)}",
    ]
    for rule in entry.rules:
        lines = [f"{_cell(rule.told)}. **{rule.verdict.capitalize()}.**", ""]
        for line in rule.lines:
            cells = f"{_named(line)}: {line.verdict}; " if line.pairs else ""
            lines.append(f"- {cells}{_cell(line.in_words)}.")
        parts.append("\n".join(lines))
    parts += [f"By projection: {_cell(projection)}." for projection in entry.projections]
    return "\n\n".join(parts)


def _named(line: Line) -> str:
    """The cells of a contrast, each with its link."""
    return "; beside ".join(
        f"{_cell(pair.alike)}: "
        + " against ".join(
            f"[`{_code(name)}`]({address})" if address else f"`{_code(name)}`"
            for name, _, address in pair.each
        )
        for pair in line.pairs
    )


def _cell(text: str) -> str:
    """Escape text so that it neither ends a cell of a table nor acts as markup."""
    return text.replace("|", "\\|").replace("[", "\\[").replace("<", "&lt;")


def _code(text: str) -> str:
    return text.replace("`", "'")


def html(ledger: Ledger, rows: Sequence[Row], link: Link, projected: Sequence[Row] = ()) -> str:
    """The page as HTML."""
    by_author = entries(ledger, rows, link, projected)
    return _TEMPLATES.get_template("claims.html.j2").render(
        version=__version__,
        ledger=ledger,
        by_author=by_author,
        nearest=near(by_author),
        nearest_heading=NEAREST,
        nearest_note=NEAREST_NOTE,
        untried=UNTRIED,
        any_untried=any(not entry.counts for group in by_author.values() for entry in group),
        projection=PROJECTION if projected else "",
        intervals=_INTERVALS,
        chance=_chance(rows),
        simulated=any(row["simulated"] for row in rows),
        emulated=_emulated(rows),
    )
