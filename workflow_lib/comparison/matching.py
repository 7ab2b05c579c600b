"""Matches the cells of two sweeps, and says in which respect the cells of a pair differ."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from workflow_lib.comparison.measures import COMPARED
from workflow_lib.records import cell_axes
from workflow_lib.records.measures import Measure
from workflow_lib.records.reading import RecordError
from workflow_lib.report.figures.cell_names import Row, completed, in_order, natural

SAME_LAYOUT, OTHER_REPLICAS, OTHER_STAGES = "same_layout", "other_replicas", "other_stages"
NAMED, BEST, UNMATCHED = "named", "best", "unmatched"

#: axes of where a cell ran; two sides may differ in them and still show the same cell
_PLACE = (*cell_axes.of_roles("place"), "nodes")
#: axes of how and where a cell does its work
MEANS = cell_axes.of_roles("layout", "option", "place")
_ALIKE = "several cells of a side differ only in where they ran"
_NONE = "the other side has no cell that differs only in where it ran, its replicas or its stages"


@dataclass(frozen=True)
class Pair:
    """Two cells that correspond; one is None if a cell has no partner."""

    match: str
    a: Row | None
    b: Row | None
    #: the only measure that they are compared by; None if they are compared by all
    measure: Measure | None = None
    #: why there is no partner
    reason: str = ""

    @property
    def one(self) -> Row:
        """A's cell, or B's if A has none."""
        cell = self.a or self.b
        if cell is None:
            raise ValueError("a pair of no cells")
        return cell


def layout_pairs(a: Iterable[Row], b: Iterable[Row]) -> list[Pair]:
    """Pairs of the rows of CELLS that differ least; then the cells without a partner.

    A cell is in only one pair. First come cells with the same id. Then come cells that differ only
    in where they ran, first those on one platform. Then come cells that also differ in the
    data-parallel degree, and so in GPUs. Last come cells that differ in the pipeline's degree
    instead, as if a model is cut over more nodes.
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
        matched, doubtful = _pass(match, key, left, right)
        pairs += matched
        alike |= doubtful
        taken = {cell["cell"] for pair in matched for cell in (pair.a,) if cell}
        left = [cell for cell in left if cell["cell"] not in taken]
        taken = {cell["cell"] for pair in matched for cell in (pair.b,) if cell}
        right = [cell for cell in right if cell["cell"] not in taken]
    order = (SAME_LAYOUT, OTHER_REPLICAS, OTHER_STAGES)
    pairs.sort(key=lambda pair: (order.index(pair.match), _place(pair.one)))
    for cell in left:
        pairs.append(Pair(UNMATCHED, cell, None, None, _alone(cell, right, cell["cell"] in alike)))
    for cell in right:
        pairs.append(Pair(UNMATCHED, None, cell, None, _alone(cell, left, cell["cell"] in alike)))
    return pairs


def _alone(cell: Row, others: Sequence[Row], alike: bool) -> str:
    """Why a cell has no partner; if there is a nearest cell on the other side, with the axes in
    which it differs."""
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
    """Pairs of cells that are the only ones of their side with a key; and the ids of cells whose
    key several cells of a side have."""
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

    Raises RecordError if a part is in the id of no cell, or of several.
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
        + ": give a part that only one cell's id contains"
    )


def best_pairs(a: Iterable[Row], b: Iterable[Row]) -> list[Pair]:
    """The best completed cell of each side by each measure that has a best, whatever its layout.

    Cells are compared that do the same work and are measured in the same way. Of equal cells the
    first in order is taken.
    """
    groups: dict[Hashable, tuple[list[Row], list[Row]]] = {}
    for side, cells in enumerate((in_order(a), in_order(b))):
        for cell in filter(completed, cells):
            groups.setdefault(work(cell), ([], []))[side].append(cell)
    pairs = []
    # Any cell of a group tells its work; the first one is used.
    whole = [sides for sides in groups.values() if all(sides)]
    for sides in sorted(whole, key=lambda sides: _work_place(sides[0][0])):
        for measure in COMPARED:
            if measure.better and measure.applies(sides[0][0]["workload"]):
                best = [_best(cells, measure) for cells in sides]
                if all(best):
                    pairs.append(Pair(BEST, best[0], best[1], measure))
    return pairs


def work(cell: Row) -> Hashable:
    """A key of what a cell computes and how that is measured, whatever its layout, options and
    place."""
    return cell_axes.key(cell, MEANS)


def _work_place(cell: Row) -> list[list[tuple[int, int, str]]]:
    names = ("model", "workload", "sequence_length", "global_batch_size", "precision", "cell")
    return [natural(str(cell[name])) for name in names]


def _best(cells: Sequence[Row], measure: Measure) -> Row | None:
    known = [cell for cell in cells if cell[measure.name] is not None]
    choose = max if measure.better == "most" else min
    return choose(known, key=lambda cell: cell[measure.name]) if known else None


def check_matched(pairs: Sequence[Pair], a: Sequence[Row], b: Sequence[Row]) -> None:
    """Raise RecordError, which says what differs, if no cell of A corresponds to any of B."""
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
            or "no axis differs in all cells, but no cell of B equals a cell of A in all axes"
        )
        + ". Name two sweeps with cells of the same model, options, layout and protocol, or name "
        "pairs of cells with --pair"
    )


def _listed(values: Iterable[str]) -> str:
    return ", ".join(sorted(values, key=natural)) or "nothing"
