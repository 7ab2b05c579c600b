"""The summary in words: which cells are best, how certain that is, and which were throttled.

Whether a cell is better than another is judged as in comparisons, with dates, nodes and the errors
of sensors (:mod:`workflow_lib.comparison.verdicts`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workflow_lib.comparison import sentences
from workflow_lib.comparison.matching import NAMED, Pair
from workflow_lib.comparison.sides import Side
from workflow_lib.comparison.verdicts import TOLD_APART, WITH_INTERVAL, rows
from workflow_lib.records import cell_axes
from workflow_lib.records.measures import MEASURES, Measure
from workflow_lib.report.figures.cell_names import Row, completed, natural
from workflow_lib.report.figures.numbers import in_words, paired_value, shown
from workflow_lib.words import counted

#: measures for which the best cell is named
_ASKED = tuple(measure for measure in MEASURES.values() if measure.question)
#: measures of the time in a state, such as at the power cap
_STATES = tuple(measure for measure in MEASURES.values() if measure.state)
#: how many cells are named that cannot be told apart from the best one
_MOST_NAMES = 3


@dataclass(frozen=True)
class Answer:
    """A sentence on a cell: "Fastest: <cell> (32 GPUs), 99 tokens/s (98–100). <rest>"."""

    question: str
    #: None if no cell can be named; ``rest`` then says why
    cell: Row | None
    label: str
    value: str
    rest: str
    #: from how many cells it is not told apart
    rivals: int = 0
    #: the value of the measure that is shown beside; "" if there is none
    beside: str = ""

    @property
    def shortest(self) -> str:
        """The value alone: "99 tokens/s"; of a cell with rivals, that it is not told apart."""
        return "not told apart" if self.rivals else self.value.partition(" (")[0]


@dataclass(frozen=True)
class Group:
    """Cells that are compared: they do the same work in one place, are measured in the same way,
    and are all simulated or all real."""

    name: str
    model: str
    answers: tuple[Answer, ...]
    #: a sentence in place of answers if there is nothing to compare
    instead: str
    throttled: str


def groups(cells: Sequence[Row], labels: Mapping[str, str], side: Side) -> list[Group]:
    """The answers for each group of cells, in order; ``labels`` maps cells to labels, and ``side``
    has the runs of all cells."""
    divided = sorted(cell_axes.alike(cells, cell_axes.of_roles("layout", "option")), key=_place)
    answers = []
    for group in divided:
        model, platform = group[0]["model"], group[0]["platform"]
        beside = [g[0] for g in divided if (g[0]["model"], g[0]["platform"]) == (model, platform)]
        unlike = cell_axes.differences(beside, cell_axes.of_roles("layout", "option"))
        name = ", ".join([f"{model} on {platform}", *unlike[beside.index(group[0])]])
        done = [cell for cell in group if completed(cell)]
        if not done:
            answers.append(Group(name, model, (), "no cell has completed.", ""))
            continue
        kinds = sorted({bool(cell["simulated"]) for cell in done})
        for simulated in kinds:
            alike = [cell for cell in done if bool(cell["simulated"]) == simulated]
            kind = ""
            if len(kinds) > 1:
                kind = ", simulated GPU readings" if simulated else ", measured"
            answers.append(_group(name + kind, alike, labels, side))
    return answers


def _place(group: Sequence[Row]) -> tuple[object, ...]:
    """The sort key of a group: by model and platform; pre-training comes first."""
    model, platform, workload = (group[0][name] for name in ("model", "platform", "workload"))
    return natural(model), natural(platform), workload != "pretrain", natural(workload)


def _group(name: str, done: Sequence[Row], labels: Mapping[str, str], side: Side) -> Group:
    model = done[0]["model"]
    throttled = _throttled(done, labels)
    if len(done) == 1:
        alone = labels[done[0]["cell"]]
        instead = f"Only one cell has completed, {alone}. There is no other to compare it with."
        return Group(name, model, (), instead, throttled)
    answers = [
        _answer(measure, done, labels, side)
        for measure in _ASKED
        if measure.applies(done[0]["workload"])
    ]
    return Group(name, model, tuple(answers), "", throttled)


def _answer(measure: Measure, done: Sequence[Row], labels: Mapping[str, str], side: Side) -> Answer:
    name, question = measure.name, measure.question
    known = [cell for cell in done if cell[name] is not None]
    if len(known) < 2:
        some = "only one completed cell has" if known else "no completed cell has"
        return Answer(question, None, "", "", f"{some} this measure.")
    best, judged = _leader(known, measure, side)
    rivals, rest = _certainty(judged, measure, labels)
    if missing := len(done) - len(known):
        lack = "lacks" if missing == 1 else "lack"
        rest += f" {counted(missing, 'completed cell')} {lack} this measure."
    label, value = labels[best["cell"]], in_words(best, measure)
    return Answer(question, best, label, value, rest, rivals, paired_value(best, measure))


def _leader(
    cells: Sequence[Row], measure: Measure, side: Side
) -> tuple[Row, list[tuple[Row, Row, bool]]]:
    """The cell with the best median, and each other with the row that judges the two, nearest
    first, and whether it tells the leader to be better.

    Where a verdict is about runs of one host, and says that another cell is better than the one
    with the best median, that cell leads.
    """
    choose, better = (max, "a_more") if measure.better == "most" else (min, "b_more")
    left = list(cells)
    while True:
        best = choose(left, key=lambda cell: cell[measure.name])
        others = [cell for cell in cells if cell is not best]
        others.sort(key=lambda cell: abs(cell[measure.name] - best[measure.name]))
        judged = rows([Pair(NAMED, best, cell, measure) for cell in others], side, side)
        pairs = list(zip(others, judged, strict=True))
        # Fewer each time: verdicts need not be an order.
        ahead = {cell["cell"] for cell, row in pairs if row["verdict"] in TOLD_APART - {better}}
        left = [cell for cell in left if cell["cell"] in ahead]
        if not left:
            return best, [(cell, row, row["verdict"] == better) for cell, row in pairs]


def _certainty(
    judged: Sequence[tuple[Row, Row, bool]], measure: Measure, labels: Mapping[str, str]
) -> tuple[int, str]:
    """From how many other cells the best one is not told apart, and a sentence on that."""
    pairs = [(cell, row) for cell, row, _ in judged]
    rest = [(cell, row) for cell, row, worse in judged if not worse]
    # Of too few runs there is no interval, which may be of a cell far behind.
    near = [(cell, row) for cell, row in rest if row["verdict"] in WITH_INTERVAL]
    unjudged = [labels[cell["cell"]] for cell, row in rest if row["verdict"] not in WITH_INTERVAL]
    rivals = near or rest
    cell, row = (rivals or pairs)[0]
    by = row["in_words"]
    if row["verdict"] in WITH_INTERVAL:
        by = sentences.interval(measure, row["wide_low"], row["wide_high"])
    if row["medians"]:
        by += f" ({row['medians']})"
    if not rivals:
        return 0, f"Next is {labels[cell['cell']]}, {in_words(cell, measure)}: {by} against it."
    names = [labels[rival["cell"]] for rival, _ in rivals]
    against = f" against {names[0]}" if len(names) > 1 else ""
    sentence = f"Not told apart from {_listed(names)}: {by}{against}."
    return len(rivals), sentence + (
        f" No verdict on {_listed(unjudged)}." if near and unjudged else ""
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _throttled(done: Sequence[Row], labels: Mapping[str, str]) -> str:
    """Which cells were throttled by what, and which of them most; "" if that is not known."""
    parts = []
    for measure in _STATES:
        name = measure.name
        known = [cell for cell in done if cell[name] is not None]
        some = [cell for cell in known if cell[name] > 0]
        if not known:
            continue
        if not some:
            parts.append(f"none {measure.state}")
            continue
        most = max(some, key=lambda cell: cell[name])
        alone = sum(cell[name] == most[name] for cell in some) == 1
        worst = f"most of all {labels[most['cell']]}, {in_words(most, measure)}"
        tied = f"up to {shown(most, measure)[0]} {measure.people_unit}"
        number = f"{len(some)} of {counted(len(known), 'cell')}"
        parts.append(f"{number} {measure.state}, {worst if alone else tied}")
    return "; ".join(parts)
