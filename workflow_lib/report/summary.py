"""The summary in words: which cells are best, how sure that is, and what was throttled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from workflow_lib.records import inapplicable
from workflow_lib.report.cells import Row, completed, natural
from workflow_lib.report.quantities import Quantity, counted, shown

#: what is asked, the measure, and whether the highest or the lowest is best
_QUESTIONS: tuple[tuple[str, Quantity, Callable[..., Row]], ...] = (
    ("Fastest", Quantity("tokens_per_s", "throughput", "tokens/s"), max),
    (
        "Fastest prefill",
        Quantity("prefill_tokens_per_s_per_gpu", "prefill", "tokens/s per GPU"),
        max,
    ),
    (
        "Fastest decoding",
        Quantity("decode_tokens_per_s_per_gpu", "decoding", "tokens/s per GPU"),
        max,
    ),
    ("Most tokens per joule", Quantity("tokens_per_j", "efficiency", "tokens/J"), max),
    (
        "Most decoded tokens per joule",
        Quantity("decode_tokens_per_j", "efficiency of decoding", "tokens/J"),
        max,
    ),
    ("Coolest (mean)", Quantity("temperature_mean_c", "mean temperature", "°C"), min),
)
_CAUSES = (
    Quantity("throttle_power_share", "at the power cap", "% of time", 100.0),
    Quantity("throttle_thermal_share", "in thermal slowdown", "% of time", 100.0),
    Quantity("throttle_brake_share", "in power-brake slowdown", "% of time", 100.0),
)
#: so many cells that a best one is not told apart from are named
_MOST_NAMES = 3


@dataclass(frozen=True)
class Answer:
    """A sentence on a cell: "Fastest: <cell> (32 GPUs), 99 tokens/s (98–100). <rest>"."""

    question: str
    #: None where no cell can be named; the rest then says why
    cell: Row | None
    label: str
    value: str
    rest: str


@dataclass(frozen=True)
class Group:
    """Cells that can be compared: of one model, platform and workload, all simulated or none."""

    name: str
    answers: tuple[Answer, ...]
    #: where there is nothing to compare
    instead: str
    throttled: str


def groups(cells: Sequence[Row], labels: Mapping[str, str]) -> list[Group]:
    """What there is to say of each group of cells, in order; ``labels`` are by cell."""
    divided: dict[tuple[str, ...], list[Row]] = {}
    for cell in cells:
        divided.setdefault((cell["model"], cell["platform"], cell["workload"]), []).append(cell)
    found = []
    for key in sorted(divided, key=_place):
        model, platform, workload = key
        several = len({other for *place, other in divided if place == [model, platform]}) > 1
        name = f"{model} on {platform}" + (f", {workload}" if several else "")
        done = [cell for cell in divided[key] if completed(cell)]
        if not done:
            found.append(Group(name, (), "no cell has completed.", ""))
            continue
        kinds = sorted({bool(cell["simulated"]) for cell in done})
        for simulated in kinds:
            alike = [cell for cell in done if bool(cell["simulated"]) == simulated]
            kind = ""
            if len(kinds) > 1:
                kind = ", simulated GPU readings" if simulated else ", measured"
            found.append(_group(name + kind, alike, labels))
    return found


def _place(key: tuple[str, ...]) -> tuple[object, ...]:
    """By model and platform; pre-training comes first."""
    model, platform, workload = key
    return natural(model), natural(platform), workload != "pretrain", natural(workload)


def _group(name: str, done: Sequence[Row], labels: Mapping[str, str]) -> Group:
    throttled = _throttled(done, labels)
    if len(done) == 1:
        alone = labels[done[0]["cell"]]
        instead = f"One cell alone has completed, {alone}: there is none to compare it with."
        return Group(name, (), instead, throttled)
    answers = [
        _answer(question, quantity, choose, done, labels)
        for question, quantity, choose in _QUESTIONS
        if quantity.measure not in inapplicable(done[0]["workload"])
    ]
    return Group(name, tuple(answers), "", throttled)


def _answer(
    question: str,
    quantity: Quantity,
    choose: Callable[..., Row],
    done: Sequence[Row],
    labels: Mapping[str, str],
) -> Answer:
    measure = quantity.measure
    known = [cell for cell in done if cell[measure] is not None]
    if len(known) < 2:
        some = "only one completed cell has" if known else "no completed cell has"
        return Answer(question, None, "", "", f"{some} this measure.")
    best = choose(known, key=lambda cell: cell[measure])
    others = [cell for cell in known if cell is not best]
    rest = _certainty(best, others, choose, quantity, labels)
    if missing := len(done) - len(known):
        rest += f" {counted(missing, 'completed cell')} {'lacks' if missing == 1 else 'lack'} it."
    return Answer(question, best, labels[best["cell"]], _value(best, quantity), rest)


def _value(cell: Row, quantity: Quantity) -> str:
    text, interval, _ = shown(cell, quantity)
    return f"{text} {quantity.unit}" + (f" ({interval})" if interval else "")


def _certainty(
    best: Row,
    others: Sequence[Row],
    choose: Callable[..., Row],
    quantity: Quantity,
    labels: Mapping[str, str],
) -> str:
    """How sure it is that a cell is the best: whether an interval of another reaches into its own.

    One run has no interval, so that nothing can be said; it then is said whom it concerns.
    """
    measure = quantity.measure
    low, high = f"{measure}_low", f"{measure}_high"
    runner = choose(others, key=lambda cell: cell[measure])
    if best["completed"] < 2:
        return (
            f"Next is {labels[runner['cell']]}, {_value(runner, quantity)}; with one run of the "
            "best, how sure that order is cannot be told."
        )
    overlapping = [cell for cell in others if cell[low] <= best[high] and cell[high] >= best[low]]
    overlapping.sort(key=lambda cell: abs(cell[measure] - best[measure]))
    if overlapping:
        names = [labels[cell["cell"]] for cell in overlapping[:_MOST_NAMES]]
        more = len(overlapping) - len(names)
        told = ", ".join(names) + (f" and {more} more" if more else "")
        return f"Not told apart from {told}: their intervals overlap."
    if single := [cell for cell in others if cell["completed"] < 2]:
        return (
            f"Next is {labels[runner['cell']]}, {_value(runner, quantity)}; no interval overlaps, "
            f"but {counted(len(single), 'other cell')} {'has' if len(single) == 1 else 'have'} one "
            "run and no interval."
        )
    return (
        f"Next is {labels[runner['cell']]}, {_value(runner, quantity)}; no other cell's interval "
        "overlaps."
    )


def _throttled(done: Sequence[Row], labels: Mapping[str, str]) -> str:
    """Which cells were throttled by what, and which of them the most; "" where nothing is known."""
    parts = []
    for cause in _CAUSES:
        known = [cell for cell in done if cell[cause.measure] is not None]
        some = [cell for cell in known if cell[cause.measure] > 0]
        if not known:
            continue
        if not some:
            parts.append(f"none {cause.heading}")
            continue
        most = max(some, key=lambda cell: cell[cause.measure])
        alone = sum(cell[cause.measure] == most[cause.measure] for cell in some) == 1
        worst = f"most of all {labels[most['cell']]}, {_value(most, cause)}"
        tied = f"up to {shown(most, cause)[0]} {cause.unit}"
        number = f"{len(some)} of {counted(len(known), 'cell')}"
        parts.append(f"{number} {cause.heading}, {worst if alone else tied}")
    return "; ".join(parts)
