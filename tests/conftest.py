"""What tests of several parts share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def study_directory(tmp_path: Path) -> Path:
    """A copy of the shipped configuration that a test may edit."""
    return Path(shutil.copytree(ROOT / "config", tmp_path / "config"))


@pytest.fixture
def edit(study_directory: Path):
    """Replaces text in a file of the copied configuration, which must contain it."""

    def replace(name: str, old: str, new: str) -> Path:
        path = study_directory / name
        text = path.read_text(encoding="utf-8")
        assert old in text, f"{name} does not hold {old!r}"
        path.write_text(text.replace(old, new), encoding="utf-8")
        return path

    return replace
