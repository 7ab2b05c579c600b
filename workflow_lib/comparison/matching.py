"""Which cell of one sweep corresponds to which of another, and in which respect they differ."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from workflow_lib.comparison.measures import COMPARED
from workflow_lib.records import Measure, RecordError, cell_axes
from workflow_lib.report.cells import Row, completed, in_order, natural

SAME_LAYOUT, OTHER_REPLICAS, OTHER_STAGES = "same_layout", "other_replicas", "other_stages"
NAMED, BEST, UNMATCHED = "named", "best", "unmatched"

#: where a cell ran: two sides may differ in it and still show the same cell
_PLACE = (*cell_axes.of_roles("place"), "nodes")
#: how a cell does its work, and where
MEANS = cell_axes.of_roles("layout", "option", "place")
_ALIKE = "several cells of a side differ only in where they ran"
_NONE = "the other side has no cell that differs only in where it ran, its replicas or its stages"


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

    A cell is in one pair alone. First come cells of one id, then those that differ in where they
    ran alone, of one platform before others; then those that differ in the data-parallel degree,
    and so in GPUs; then those that differ in the pipeline's instead, as where a model is cut over
    more nodes.
    """
    left, right = in_order(a), in_order(b)
    pairs: list[Pair] = []
    alike: set[str] = set()
    passes: tuple[tuple[str, Callable[[Row], Hashable]], ...] = (
        (SAME_LAYOUT, lambda cell: cell["cell"]),
        (SAME_LAYOUT, lambda cell: (cell["platform"], cell_axes.key(cell, _PLACE))),
        (SAME_LAYOUT, lambda cell: cell_axes.key(cell, _PLACE)),
        (OTHER_REPLICAS, lambda cell: cell_axes.key(cell, (*_PLACE, "dp"))),
        (OTHER_STAGES, lambda cell: cell_axes.key(cell, (*_PLACE, "pp"))),
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
        pairs.append(Pair(UNMATCHED, cell, None, None, _alone(cell, right, cell["cell"] in alike)))
    for cell in right:
        pairs.append(Pair(UNMATCHED, None, cell, None, _alone(cell, left, cell["cell"] in alike)))
    return pairs


def _alone(cell: Row, others: Sequence[Row], alike: bool) -> str:
    """Why a cell has no partner: what the nearest of the other side's differs in, where one is."""
    if alike:
        return _ALIKE
    near = [
        (len(names), names)
        for other in others
        if (names := cell_axes.differing([cell, other], (*_PLACE, "dp", "pp")))
        and cell["model"] == other["model"]
    ]
    if not near:
        return _NONE
    _, names = min(near)
    return f"{_NONE}; the nearest differs in {', '.join(names)}"


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

    Cells compete that do the same work and are measured alike. Where they are equal the first in
    order is taken.
    """
    groups: dict[Hashable, tuple[list[Row], list[Row]]] = {}
    for side, cells in enumerate((in_order(a), in_order(b))):
        for cell in filter(completed, cells):
            groups.setdefault(work(cell), ([], []))[side].append(cell)
    pairs = []
    # The first of a group stands for its work.
    whole = [sides for sides in groups.values() if all(sides)]
    for sides in sorted(whole, key=lambda sides: _work_place(sides[0][0])):
        for measure in COMPARED:
            if measure.better and measure.applies(sides[0][0]["workload"]):
                best = [_best(cells, measure) for cells in sides]
                if all(best):
                    pairs.append(Pair(BEST, best[0], best[1], measure))
    return pairs


def work(cell: Row) -> Hashable:
    """What a cell is asked to do, and how that is measured, however it does it."""
    return cell_axes.key(cell, MEANS)


def _work_place(cell: Row) -> list[list[tuple[int, int, str]]]:
    names = ("model", "workload", "sequence_length", "global_batch_size", "precision", "cell")
    return [natural(str(cell[name])) for name in names]


def _best(cells: Sequence[Row], measure: Measure) -> Row | None:
    known = [cell for cell in cells if cell[measure.name] is not None]
    choose = max if measure.better == "most" else min
    return choose(known, key=lambda cell: cell[measure.name]) if known else None


def check_matched(pairs: Sequence[Pair], a: Sequence[Row], b: Sequence[Row]) -> None:
    """Raises RecordError, which says what differs, where no cell of A corresponds to any of B."""
    if any(pair.match != UNMATCHED for pair in pairs):
        return
    differing = []
    for name in cell_axes.AXES:
        of_a, of_b = ({str(cell[name]) for cell in cells} for cells in (a, b))
        if name not in _PLACE and not of_a & of_b:
            differing.append(f"{name} is {_listed(of_a)} in A and {_listed(of_b)} in B")
    raise RecordError(
        "no cell of A corresponds to one of B: "
        + (
            "; ".join(differing)
            or "no axis differs in all cells, but no cell of B has all of one of A's"
        )
        + ". Name two sweeps with cells of the same model, options, layout and protocol, or name "
        "pairs of cells with --pair"
    )


def _listed(values: Iterable[str]) -> str:
    return ", ".join(sorted(values, key=natural)) or "nothing"
