"""The configuration that is shipped, read once for all tests of a process."""

from __future__ import annotations

from functools import cache

from tests.programs import ROOT
from workflow_lib.cells import Views, expand_study
from workflow_lib.study import Study, load_study


@cache
def study() -> Study:
    """Platforms, models, data and sweeps."""
    return load_study(ROOT / "config")


@cache
def sweeps() -> Views:
    """Every sweep, one for each of its platforms, with its cells."""
    return expand_study(study())
