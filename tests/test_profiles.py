"""Each platform on Slurm has a profile, made from one template."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

from tests.conftest import ROOT

_spec = importlib.util.spec_from_file_location("register", ROOT / "profiles" / "register.py")
register = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(register)


@pytest.mark.parametrize("platform", ["h100", "h200", "h200x4", "mi250"])
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
