"""Contrasts of claims by projection: of cells of the configuration that span several nodes.

They are of this workflow's own engine, and of no run: the ledger has them beside what was measured,
never among it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workflow_lib.cells import Sweep
from workflow_lib.claims.pairs import pairs
from workflow_lib.comparison.measures import RATIO
from workflow_lib.config import ClaimTest
from workflow_lib.projection import planned
from workflow_lib.projection.planned import Projected
from workflow_lib.records.cell_axes import identity
from workflow_lib.records.measures import MEASURES
from workflow_lib.records.outcomes import Outcome
from workflow_lib.report.figures.cell_names import Row

_ASSUMES = (
    "projected for this workflow's engine from its runs on one and two GPUs and from published runs"
)


@dataclass(frozen=True)
class Cells:
    """Planned cells by their ids, with rows as tables have them."""

    projected: Mapping[str, Projected]
    rows: Sequence[Row]
    #: the sweeps that ask for each
    sweeps: Mapping[str, str]


def cells_of(sweeps: Iterable[Sweep]) -> Cells:
    """The cells of sweeps that can run, span several nodes, and can be projected. Raises
    RecordError where the runs that projections rest on cannot be read.
    """
    projected: dict[str, Projected] = {}
    names: dict[str, list[str]] = {}
    for sweep in sweeps:
        for candidate in sweep.cells:
            cell = candidate.cell
            names.setdefault(cell.id, []).append(sweep.name)
            if cell.id not in projected and candidate.feasible and cell.nodes > 1:
                projection = planned.projected(cell)
                if projection is not None:
                    projected[cell.id] = projection
    rows = [_row(projection) for projection in projected.values()]
    return Cells(projected, rows, {cell: ", ".join(names[cell]) for cell in projected})


def _row(projection: Projected) -> dict[str, Any]:
    return {
        **dict.fromkeys(MEASURES),
        **identity(projection.cell),
        **{name: projection.value(name) for name in planned.CONTRASTED},
        "outcome": Outcome.COMPLETED.value,
    }


def project_test(test: ClaimTest, cells: Cells, coverage: float) -> Iterator[dict[str, Any]]:
    """The contrasts of a test: columns of CLAIMS without verdicts; none where the test is of
    anything but ratios of two cells' time or energy. A test that sets one pair beside another has
    none: the errors of two projections are one model's, and not independent. An interval of another
    coverage than projections have is that of a logarithm with normal errors.
    """
    if test.measure not in planned.CONTRASTED or not test.first or test.beside:
        return
    normal = statistics.NormalDist().inv_cdf
    further = normal((1 + coverage) / 2) / normal((1 + planned.COVERAGE) / 2)
    for pair in pairs(test, cells.rows):
        assert pair.a is not None
        assert pair.b is not None
        one, other = (cells.projected[cell["cell"]] for cell in (pair.a, pair.b))
        interval = planned.ratio(test.measure, one, other)
        low, high = (
            interval.estimate * (end / interval.estimate) ** further
            for end in (interval.low, interval.high)
        )
        yield {
            "model": pair.a["model"],
            "contrast": RATIO,
            "estimate": interval.estimate,
            "low": low,
            "high": high,
            "wide_low": low,
            "wide_high": high,
            "coverage": coverage,
            "assumes": _ASSUMES,
            "in_words": "",
            "simulated": False,
            "has_values": True,
            **_side("a", pair.a, cells),
            **_side("b", pair.b, cells),
        }


def _side(end: str, row: Row, cells: Cells) -> dict[str, Any]:
    return {
        f"cell_{end}": row["cell"],
        f"platform_{end}": row["platform"],
        f"sweeps_{end}": cells.sweeps[row["cell"]],
        f"runs_{end}": "",
    }
