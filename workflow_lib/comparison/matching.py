"""Which cell of one sweep corresponds to which of another, and in which respect they differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from workflow_lib.comparison.measures import MEASURES, Measure
from workflow_lib.records import IDENTITY, RecordError
from workflow_lib.report.cells import Row, completed, in_order, natural

SAME_LAYOUT, OTHER_REPLICAS, OTHER_STAGES = "same_layout", "other_replicas", "other_stages"
NAMED, BEST, UNMATCHED = "named", "best", "unmatched"

#: what follows from the others, or says where a cell ran
_NOT_COMPARED = frozenset(("cell", "platform", "parallelism", "nodes"))
_ALIKE = "several cells of either side are alike but for what the tables do not tell"
_NONE = "no cell of the other side has its layout and options, be it with more replicas or stages"


@dataclass(frozen=True)
class Pair:
    """Two cells that correspond; one is null where a cell has no partner."""

    match: str
    a: Row | None
    b: Row | None
    #: the only measure that they are compared by; null where they are by all
    measure: Measure | None = None
    #: why there is no partner
    reason: str = ""

    @property
    def one(self) -> Row:
        """A's cell, or B's where A has none."""
        found = self.a or self.b
        if found is None:
            raise ValueError("a pair of no cells")
        return found


def layout_pairs(a: Iterable[Row], b: Iterable[Row]) -> list[Pair]:
    """Each cell of CELLS with the one that differs from it in the least; then those without.

    A cell is in one pair alone. First come cells of one id, then those that are the same but for
    the platform; then those that differ in the data-parallel degree, and so in GPUs; then those
    that differ in the pipeline's instead, as where a model is cut over more nodes.
    """
    left, right = in_order(a), in_order(b)
    pairs: list[Pair] = []
    alike: set[str] = set()
    passes: tuple[tuple[str, Callable[[Row], Hashable]], ...] = (
        (SAME_LAYOUT, lambda cell: cell["cell"]),
        (SAME_LAYOUT, lambda cell: (cell["platform"], _but(cell))),
        (SAME_LAYOUT, _but),
        (OTHER_REPLICAS, lambda cell: _but(cell, "dp", "gpus")),
        (OTHER_STAGES, lambda cell: _but(cell, "pp", "gpus")),
    )
    for match, key in passes:
        found, doubtful = _pass(match, key, left, right)
        pairs += found
        alike |= doubtful
        taken = {cell["cell"] for pair in found for cell in (pair.a,) if cell}
        left = [cell for cell in left if cell["cell"] not in taken]
        taken = {cell["cell"] for pair in found for cell in (pair.b,) if cell}
        right = [cell for cell in right if cell["cell"] not in taken]
    order = (SAME_LAYOUT, OTHER_REPLICAS, OTHER_STAGES)
    pairs.sort(key=lambda pair: (order.index(pair.match), _place(pair.one)))
    for cell in left:
        pairs.append(Pair(UNMATCHED, cell, None, None, _ALIKE if cell["cell"] in alike else _NONE))
    for cell in right:
        pairs.append(Pair(UNMATCHED, None, cell, None, _ALIKE if cell["cell"] in alike else _NONE))
    return pairs


def _pass(
    match: str, key: Callable[[Row], Hashable], left: Sequence[Row], right: Sequence[Row]
) -> tuple[list[Pair], set[str]]:
    """Pairs of the cells that alone have a key; and the ids of those of which several have it."""
    groups: dict[Hashable, tuple[list[Row], list[Row]]] = {}
    for side, cells in enumerate((left, right)):
        for cell in cells:
            groups.setdefault(key(cell), ([], []))[side].append(cell)
    pairs, doubtful = [], set()
    for of_a, of_b in groups.values():
        if len(of_a) == len(of_b) == 1:
            pairs.append(Pair(match, of_a[0], of_b[0]))
        elif of_a and of_b:
            doubtful |= {cell["cell"] for cell in (*of_a, *of_b)}
    return pairs, doubtful


def _but(cell: Row, *free: str) -> Hashable:
    """A cell's identity without where it ran and ``free``.

    Of the layout's name what the degrees do not say counts, too: how layers are divided over stages
    and in which order GPUs are used.
    """
    fixed = tuple(
        cell[column.name] for column in IDENTITY if column.name not in {*_NOT_COMPARED, *free}
    )
    return fixed, re.sub(r"\b(tp|pp|dp|ep)\d+(x\d+)?", "", cell["parallelism"])


def _place(cell: Row) -> list[list[tuple[int, int, str]]]:
    return [natural(cell[key]) for key in ("model", "parallelism", "options", "platform")]


def named_pairs(a: Sequence[Row], b: Sequence[Row], asked: Iterable[Sequence[str]]) -> list[Pair]:
    """Pairs that were asked for, each by a part of A's and of B's cell id that no other cell has.

    Raises RecordError where a part is that of no cell, or of several.
    """
    return [Pair(NAMED, _named(a, of_a, "A"), _named(b, of_b, "B")) for of_a, of_b in asked]


def _named(cells: Sequence[Row], part: str, end: str) -> Row:
    fitting = [cell for cell in in_order(cells) if part in cell["cell"]]
    exact = [cell for cell in fitting if cell["cell"] == part]
    if len(exact or fitting) == 1:
        return (exact or fitting)[0]
    several = ", ".join(cell["cell"] for cell in fitting[:5])
    raise RecordError(
        f"{part!r} is in the id of {len(fitting)} cells of {end}"
        + (f" ({several}{' …' if len(fitting) > 5 else ''})" if fitting else "")
        + ": give a part that one alone has"
    )


def best_pairs(a: Iterable[Row], b: Iterable[Row]) -> list[Pair]:
    """The best completed cell of each side by each measure that has a best, whatever its layout.

    Within one model, workload, sequence length, batch and precision, as they set what is done.
    Where cells are equal the first in order is taken.
    """
    groups: dict[tuple[object, ...], tuple[list[Row], list[Row]]] = {}
    for side, cells in enumerate((in_order(a), in_order(b))):
        for cell in filter(completed, cells):
            groups.setdefault(work(cell), ([], []))[side].append(cell)
    pairs = []
    for key in sorted(groups, key=lambda key: [natural(str(part)) for part in key]):
        for measure in MEASURES:
            if measure.best and measure.applies(str(key[1])):
                best = [_best(cells, measure) for cells in groups[key]]
                if all(best):
                    pairs.append(Pair(BEST, best[0], best[1], measure))
    return pairs


def work(cell: Row) -> tuple[object, ...]:
    """What a cell is asked to do, however it does it."""
    of_work = ("model", "workload", "sequence_length", "global_batch_size", "precision")
    return tuple(cell[name] for name in of_work)


def _best(cells: Sequence[Row], measure: Measure) -> Row | None:
    known = [cell for cell in cells if cell[measure.name] is not None]
    choose = max if measure.best == "most" else min
    return choose(known, key=lambda cell: cell[measure.name]) if known else None


def check_matched(pairs: Sequence[Pair], a: Sequence[Row], b: Sequence[Row]) -> None:
    """Raises RecordError, which says what differs, where no cell of A corresponds to any of B."""
    if any(pair.match != UNMATCHED for pair in pairs):
        return
    differing = []
    for column in IDENTITY:
        of_a, of_b = ({str(cell[column.name]) for cell in cells} for cells in (a, b))
        if column.name not in {*_NOT_COMPARED, "options"} and not of_a & of_b:
            differing.append(f"{column.name} is {_listed(of_a)} in A and {_listed(of_b)} in B")
    raise RecordError(
        "no cell of A corresponds to one of B: "
        + (
            "; ".join(differing)
            or "no column differs in all cells, but no cell of B has all of one of A's"
        )
        + ". Name two sweeps with cells of the same model, options and layout"
    )


def _listed(values: Iterable[str]) -> str:
    return ", ".join(sorted(values, key=natural)) or "nothing"
