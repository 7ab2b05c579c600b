"""Each platform on Slurm has a profile, made from one template."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

from tests.conftest import ROOT

_spec = importlib.util.spec_from_file_location("register", ROOT / "profiles" / "register.py")
register = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(register)


@pytest.mark.parametrize(
    "platform", ["h100", "h100x1", "h200", "h200x1", "h200x4", "h200x8", "mi250"]
)
def test_a_slurm_profile_is_what_its_template_says(platform):
    directory = ROOT / "profiles" / f"slurm_{platform}"
    assert {path.name: path.read_text(encoding="utf-8") for path in directory.iterdir()} == (
        register.files_of(platform)
    )


def test_a_new_platform_gets_a_profile_and_one_that_is_there_is_left_alone(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "profiles", tmp_path / "profiles")
    platforms = tmp_path / "config" / "platforms"
    shutil.copytree(ROOT / "config" / "platforms", platforms)
    shutil.copy(platforms / "h200.yaml", platforms / "gh200.yaml")
    mine = tmp_path / "profiles" / "slurm_h200" / "config.yaml"
    mine.write_text("# mine\n", encoding="utf-8")
    monkeypatch.setattr(register, "PROFILES", tmp_path / "profiles")
    monkeypatch.setattr(register, "PLATFORMS", platforms)
    monkeypatch.setattr(register, "TEMPLATE", tmp_path / "profiles" / "slurm.yaml")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    assert register.main() == 0
    made = tmp_path / "profiles" / "slurm_gh200"
    assert "platform: gh200" in (made / "platform.yaml").read_text(encoding="utf-8")
    assert "config/platforms/gh200.yaml" in (made / "config.yaml").read_text(encoding="utf-8")
    assert mine.read_text(encoding="utf-8") == "# mine\n"
    assert not (tmp_path / "profiles" / "slurm_local").exists()
    assert (tmp_path / "home" / "snakemake" / "slurm_gh200").resolve() == made


def test_without_a_home_to_write_to_it_says_what_to_do(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setattr(register, "make_missing", lambda: None)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    assert register.main() == 1
    said = capsys.readouterr().err
    assert "set HOME or XDG_CONFIG_HOME to a directory that you may write" in said
    assert "--profile" in said


@pytest.mark.parametrize("written", ["slurm", "'slurm'", '"slurm"  # of the site'])
def test_a_platform_on_slurm_is_one_however_its_file_quotes_it(tmp_path, monkeypatch, written):
    (tmp_path / "mine.yaml").write_text(f"scheduler: {written}\n", encoding="utf-8")
    monkeypatch.setattr(register, "PROFILES", tmp_path)
    monkeypatch.setattr(register, "PLATFORMS", tmp_path)
    register.make_missing()
    assert (tmp_path / "slurm_mine" / "config.yaml").is_file()
