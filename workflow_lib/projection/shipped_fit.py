"""The fit to the shipped runs, kept as data: with it a plan fits nothing.

``data/own_fit.json`` holds the parameters that rows of this workflow can have, their covariance and
the residuals of ``own_stack.py``. Parameters that only published rows have are left out: they bear
on no prediction. ``python -m docs.fit`` writes the file.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Hashable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from workflow_lib.projection import mixed
from workflow_lib.projection.own import OwnRun, read_own
from workflow_lib.projection.own_stack import (
    OwnStack,
    Residual,
    problem_of,
    rows_of,
)
from workflow_lib.projection.own_stack import own_stack as fitted_anew
from workflow_lib.projection.part_times import read_parts
from workflow_lib.projection.rates import Rates

_DATA = Path(str(resources.files("workflow_lib.projection") / "data"))
SHIPPED = _DATA / "own_fit.json"
#: files that a fit is made from
_SOURCES = ("*.csv", "*.jsonl", "*.toml")
#: significant digits: far more than the fit is good for
_DIGITS = 10
#: far below what the fit is good for, and far above what processors and numbers of threads change
RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE = 1e-5, 1e-9


def digest() -> str:
    """The SHA-256 of the files that a fit is made from."""
    found = hashlib.sha256()
    for path in sorted(path for pattern in _SOURCES for path in _DATA.glob(pattern)):
        content = path.read_bytes()
        found.update(f"{path.name} {len(content)}\n".encode() + content)
    return found.hexdigest()


def text() -> str:
    """The content of the file, fitted anew. Raises RecordError."""
    stack = fitted_anew()
    names = _names(stack.runs, stack.rates)
    values, covariance = stack.fit.of(names)
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


@functools.cache
def own_stack() -> OwnStack:
    """The fit to the shipped runs: the kept one, or a new one if the files that it was made from
    have changed since. Raises RecordError."""
    kept = json.loads(SHIPPED.read_text(encoding="utf-8"))
    if kept["fitted_to_sha256"] != digest():
        return fitted_anew()
    runs, rates = tuple(read_own()), Rates(tuple(read_parts()))
    size = len(kept["values"])
    covariance = np.zeros((size, size))
    for number, row in enumerate(kept["covariance"]):
        covariance[number, : number + 1] = covariance[: number + 1, number] = row
    fit = mixed.Fit.known(
        problem_of(rates),
        _names(runs, rates),
        np.array(kept["values"]),
        covariance,
        (kept["effect_sd"], kept["noise_sd"]),
    )
    found = zip(runs, kept["residuals"], strict=True)
    residuals = tuple(Residual(run, error, distance) for run, (error, distance) in found)
    return OwnStack(
        fit=fit,
        runs=runs,
        largest_own=max(run.layout.gpus for run in runs),
        largest_published=kept["largest_published"],
        gpus=frozenset(kept["gpus"]),
        rates=rates,
        known_residuals=residuals,
    )


def _names(runs: tuple[OwnRun, ...], rates: Rates) -> list[tuple[str, Hashable]]:
    """The parameters that rows of this workflow can have, in the order of the file."""
    problem = problem_of(rates)
    names: list[tuple[str, Hashable]] = [("rate", part) for part in problem.rates]
    names += [("growth", kind) for kind in problem.growth]
    groups = (group for row in rows_of(runs, rates) for group in row.groups.items())
    return list(dict.fromkeys([*names, *groups]))


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
