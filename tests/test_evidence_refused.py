"""Evidence that cannot be rebuilt is refused in a sentence, as by an evaluator's first command."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from docs import evidence


@pytest.fixture
def archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for archives in place of evidence/."""
    directory = tmp_path / "evidence"
    directory.mkdir()
    monkeypatch.setattr(evidence, "ARCHIVES", directory)
    monkeypatch.setattr(evidence, "REBUILT", tmp_path / "rebuilt" / "evidence")
    return directory


def test_a_changed_archive_is_one_message_and_nothing_is_left(archives, capsys):
    (whole,) = evidence.CHECKOUT.glob("evidence/evidence-stages-x2.zip")
    changed = archives / "changed.zip"
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, data + b" " if name.endswith("run2/cell.json") else data)
    assert evidence.main([]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"evidence: {changed}: data/results/cells/")
    assert "run2/cell.json was changed" in said
    assert "`git status evidence`" in said
    assert not list(archives.parent.glob("rebuilt/*"))


def test_a_damaged_archive_is_one_message(archives, capsys):
    (archives / "damaged.zip").write_bytes(b"PK")
    assert evidence.main([]) == 1
    assert "damaged.zip: " in capsys.readouterr().err


@pytest.mark.parametrize("is_claims", [True, False])
def test_a_bad_file_stops_what_needs_it(archives, study_directory, monkeypatch, capsys, is_claims):
    monkeypatch.setattr(evidence.verdicts, "LEDGER", study_directory / "claims.yaml")
    bad = study_directory / ("claims.yaml" if is_claims else "sweeps/broken.yaml")
    bad.write_text("[", encoding="utf-8")
    rebuilt: list[Path] = []
    monkeypatch.setattr(
        evidence, "rebuild_all", lambda into: (rebuilt.append(into), into.mkdir(parents=True))
    )
    for made in ("pages", "fitted_to"):
        monkeypatch.setattr(evidence, made, lambda rebuilt: {})
    monkeypatch.setattr(evidence, "_stale", lambda made: [])
    monkeypatch.setattr(evidence.digests, "differences", lambda before, now: [])
    monkeypatch.setattr(evidence, "CHECKOUT", archives.parent)
    assert evidence.main([]) == (1 if is_claims else 0)
    assert f"{bad}: " in capsys.readouterr().err
    assert bool(rebuilt) != is_claims
    assert evidence.as_recorded().is_file() != is_claims
    if not is_claims:
        monkeypatch.setattr(evidence, "_stale", lambda made: ["a page"])
        assert evidence.main([]) == 1
        assert not evidence.as_recorded().exists()
