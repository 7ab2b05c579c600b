"""A sweep and its archive, made once."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from tests.archive.sweeps import NAME, Study, finish, write_runs, write_study
from tests.conftest import ROOT
from workflow_lib.archive.pack import pack


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A sweep with its tables, figures and page; tests leave it as they found it."""
    study = write_study(tmp_path_factory.mktemp("here"))
    write_runs(study)
    finish(study)
    return study


@pytest.fixture(scope="session")
def archive(study: Study) -> Path:
    """That sweep, packed."""
    path = study.directory / "a sweep.zip"
    pack(NAME, path, study.config, study.results, ROOT, published=date(2026, 1, 31))
    return path
