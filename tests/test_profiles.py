"""Each platform on Slurm has a profile, made from one template."""

import importlib.util
import shutil

import pytest
import yaml

from tests import shipped
from tests.conftest import ROOT

_spec = importlib.util.spec_from_file_location("register", ROOT / "profiles" / "register.py")
register = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(register)


PLATFORMS = shipped.study().platforms


@pytest.mark.parametrize(
    "platform", [name for name, each in PLATFORMS.items() if each.scheduler == "slurm"]
)
def test_a_slurm_profile_is_what_its_template_says(platform):
    directory = ROOT / "profiles" / f"slurm_{platform}"
    assert {path.name: path.read_text(encoding="utf-8") for path in directory.iterdir()} == (
        register.files_of(platform, PLATFORMS[platform])
    )


def test_a_profile_has_the_partition_and_the_account_of_its_platform(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "config", tmp_path / "config")
    path = tmp_path / "config" / "platforms" / "h200.yaml"
    text = path.read_text(encoding="utf-8").replace("account: null", "account: '0012'  # of ours")
    text = text.replace("partition: h200", "partition: big").replace("qos: null", "qos: long")
    text += "reservation: maint\n"
    path.with_name("mine.yaml").write_text(text)
    (tmp_path / "profiles").mkdir()
    monkeypatch.setattr(register, "PROFILES", tmp_path / "profiles")
    monkeypatch.setattr(register, "CONFIG", tmp_path / "config")
    assert register.make_missing() == []

    def of(platform):
        made = tmp_path / "profiles" / f"slurm_{platform}" / "config.yaml"
        return yaml.safe_load(made.read_text(encoding="utf-8"))

    with_account, without = of("mine"), of("h200")
    given = {*with_account["default-resources"]}
    assert {"slurm_partition=big", "slurm_account=0012", "qos=long"} <= given
    assert "slurm-no-account" not in with_account
    assert with_account["slurm-reservation"] == "maint"
    assert "slurm-reservation" not in without
    assert without["slurm-no-account"] is True
    assert "slurm_partition=h200" in without["default-resources"]
    assert not any("slurm_account" in each for each in without["default-resources"])


def test_a_profile_is_written_from_its_platform_unless_somebody_edited_it(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "profiles", tmp_path / "profiles")
    platforms = tmp_path / "config" / "platforms"
    shutil.copytree(ROOT / "config" / "platforms", platforms)
    shutil.copy(platforms / "h200.yaml", platforms / "gh200.yaml")
    mine = tmp_path / "profiles" / "slurm_h200" / "config.yaml"
    mine.write_text("# mine\n", encoding="utf-8")
    changed = platforms / "h200x2.yaml"
    text = changed.read_text(encoding="utf-8").replace("account: null", "account: ours")
    changed.write_text(text, encoding="utf-8")
    on_cpus = tmp_path / "profiles" / "slurm_h100" / "config.yaml"
    theirs = on_cpus.read_text(encoding="utf-8").replace(
        "slurm_partition=h100", "slurm_partition=cpu"
    )
    on_cpus.write_text(theirs, encoding="utf-8")
    monkeypatch.setattr(register, "PROFILES", tmp_path / "profiles")
    monkeypatch.setattr(register, "CONFIG", platforms.parent)
    monkeypatch.setattr(register, "TEMPLATE", tmp_path / "profiles" / "slurm.yaml")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    assert register.main() == 0
    made = tmp_path / "profiles" / "slurm_gh200"
    assert "platform: gh200" in (made / "platform.yaml").read_text(encoding="utf-8")
    assert "config/platforms/gh200.yaml" in (made / "config.yaml").read_text(encoding="utf-8")
    assert mine.read_text(encoding="utf-8") == "# mine\n"
    other = (tmp_path / "profiles" / "slurm_h200x2" / "config.yaml").read_text(encoding="utf-8")
    assert "slurm_account=ours" in other
    assert on_cpus.read_text(encoding="utf-8") == theirs
    assert not (tmp_path / "profiles" / "slurm_local").exists()
    assert (tmp_path / "home" / "snakemake" / "slurm_gh200").resolve() == made


def test_without_a_home_to_write_to_it_says_what_to_do(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setattr(register, "make_missing", lambda: [])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    assert register.main() == 1
    said = capsys.readouterr().err
    assert "HOME or XDG_CONFIG_HOME" in said
    assert "--profile" in said


def test_a_mistake_costs_its_platforms_profile(study_directory, tmp_path, monkeypatch, capsys):
    broken = study_directory / "platforms" / "broken.yaml"
    broken.write_text("scheduler: slurm\n", encoding="utf-8")
    (tmp_path / "profiles").mkdir()
    monkeypatch.setattr(register, "PROFILES", tmp_path / "profiles")
    monkeypatch.setattr(register, "CONFIG", study_directory)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    assert register.main() == 1
    assert f"{broken}: " in capsys.readouterr().err
    assert (tmp_path / "profiles" / "slurm_h200" / "config.yaml").is_file()
    assert not (tmp_path / "profiles" / "slurm_broken").exists()
