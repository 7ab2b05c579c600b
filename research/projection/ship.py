"""Writes what the projection reads at run time, from published runs and this workflow's own:
``python -m research.projection ship``.

``published_rows.json`` holds the rows of published runs that every fit shares. ``own_fit.json``
holds the parameters that rows of this workflow can have, their covariance and the residuals of
``own_stack.py``. Parameters that only published rows have are left out: they bear on no prediction.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from research.projection.layouts import assumed_chunks, usable
from research.projection.predicting import published_row
from research.projection.reading import PUBLISHED, read_published
from research.projection.splits import read_splits
from workflow_lib.projection.own_stack import (
    PUBLISHED_ROWS,
    SHIPPED_FIT,
    digest,
    names_of,
    own_stack,
    published_rows,
)

#: the split whose rows give the rates of parts
_RATES_OF = "model"
#: significant digits: far more than the fit is good for
_DIGITS = 10
#: far below what the fit is good for, and far above what processors and numbers of threads change
RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE = 1e-5, 1e-9


def rows_text() -> str:
    """The content of ``published_rows.json``."""
    runs, _ = read_published(PUBLISHED)
    split = next(split for split in read_splits()[0] if split.name == _RATES_OF)
    chosen = split.chosen([run for run in runs if run.step_time_s is not None])
    layouts, _ = usable(chosen, assumed_chunks(runs))
    numbers: dict[tuple[str, Any], int] = {}
    rows = []
    for run in chosen:
        if run.line in layouts:
            row = published_row(run, layouts[run.line])
            groups = {
                kind: numbers.setdefault((kind, group), len(numbers))
                for kind, group in row.groups.items()
            }
            rows.append({**vars(row), "groups": groups})
    kept = {
        "largest": max(run.gpus for run in chosen),
        "gpus": sorted({layout.machine.gpu for layout in layouts.values()}),
    }
    head = json.dumps(kept)[1:-1]
    return "{" + head + ', "rows": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]}\n"


def fit_text() -> str:
    """The content of ``own_fit.json``, fitted anew. Raises RecordError."""
    stack = own_stack()
    names = names_of(stack.runs, stack.rates)
    values, covariance = stack.fit.parameters(names)
    kept = {
        "fitted_to_sha256": digest(),
        "largest_published": stack.largest_published,
        "gpus": sorted(stack.gpus),
        "effect_sd": {kind: _rounded(sd) for kind, sd in stack.fit.effect_sd.items()},
        "noise_sd": {kind: _rounded(sd) for kind, sd in stack.fit.noise_sd.items()},
        "residuals": [[_rounded(r.error), _rounded(r.distance)] for r in stack.residuals],
        "values": [_rounded(value) for value in values],
        "covariance": [
            [_rounded(value) for value in row[: number + 1]]
            for number, row in enumerate(covariance)
        ],
    }
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in kept.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def is_same(kept: Any, new: Any) -> bool:
    """Whether what two files hold, or a part of it, is the same fit to the tolerances."""
    if isinstance(kept, float) and isinstance(new, float):
        return math.isclose(kept, new, rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE)
    if isinstance(kept, dict) and isinstance(new, dict):
        return kept.keys() == new.keys() and all(is_same(kept[key], new[key]) for key in kept)
    if isinstance(kept, list) and isinstance(new, list):
        return len(kept) == len(new) and all(map(is_same, kept, new))
    return bool(kept == new)


def files() -> dict[Path, str]:
    """Both files, and what they have to hold. A fit that is the same to the tolerances stays,
    whatever the last digits that this processor gives."""
    kept, new = SHIPPED_FIT.read_text(encoding="utf-8"), fit_text()
    same = is_same(json.loads(kept), json.loads(new))
    return {PUBLISHED_ROWS: rows_text(), SHIPPED_FIT: kept if same else new}


def ship() -> None:
    """Write both; the rows first, which are fitted."""
    PUBLISHED_ROWS.write_text(rows_text(), encoding="utf-8", newline="")
    published_rows.cache_clear()
    SHIPPED_FIT.write_text(files()[SHIPPED_FIT], encoding="utf-8", newline="")


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
