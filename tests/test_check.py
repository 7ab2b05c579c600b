"""A check of a platform on this machine, and what does not need Slurm of others."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import pytest

from tests import programs
from tests.conftest import ROOT
from tests.launch import scripts
from tests.launch.fake_slurm import Fake
from tests.programs import well
from workflow_lib import check
from workflow_lib.launch import interruption
from workflow_lib.launch.interruption import InterruptedRunError
from workflow_lib.records.checks import CheckPaths, CheckRecord, NodeCheck
from workflow_lib.records.files import read_record
from workflow_lib.study import load_study


def node(name: str, ahead_s: float = 0.0, **problems: str) -> NodeCheck:
    """What a node found that has no problem but these."""
    gpus = (f"GPU-{name}",)
    return NodeCheck(name, "3.12.1", {"torch": "2.13.0"}, "nvidia", gpus, ahead_s, problems)


def test_this_machine_passes_and_its_script_begins_as_a_runs(tmp_path, capsys):
    arguments = ["--config", str(scripts.CONFIG), "--results", str(tmp_path), "--platform", "local"]
    assert check.main(arguments) == 0
    assert "local" in capsys.readouterr().out
    (path,) = tmp_path.glob("checks/local/*/check.json")
    found = read_record(path, CheckRecord)
    assert found.passed
    held = {each.part: each.held for each in found.findings}
    # Sensors are real ones where this machine has GPUs.
    assert {"job": True, "python": True, "clock": True}.items() <= held.items()
    assert False not in held.values()
    platform = load_study(scripts.CONFIG).platforms["local"]
    assert check.is_passed(tmp_path, "local", platform)
    # Of a file with other content nothing is known.
    other = platform.model_copy(update={"python": "python3"})
    assert not check.is_passed(tmp_path, "local", other)
    script = (path.parent / "job.sh").read_text(encoding="utf-8")
    well(programs.run([Path(sys.executable).with_name("shellcheck"), path.parent / "job.sh"]))
    run = scripts.write(scripts.planned("smoke-local").cell, platform, ROOT, tmp_path)
    of_run = (run.run_directory / "job.sh").read_text(encoding="utf-8")
    begins = "the site's environment\n"
    of_check = script.partition(begins)[2].partition("# ----")[2].partition("# ----")[0]
    assert "on_every_node=(" in of_check
    assert of_check in of_run


def test_a_python_that_is_not_there_fails(tmp_path, study_directory, edit, capsys):
    edit("platforms/local.yaml", "python: .venv/bin/python", "python: /nowhere/python")
    arguments = ["--config", str(study_directory), "--results", str(tmp_path / "results")]
    assert check.main([*arguments, "--platform", "local"]) == 1
    assert "/nowhere/python" in capsys.readouterr().out


def test_a_mistake_is_told_before_anything_is_written(tmp_path, study_directory, edit, capsys):
    path = edit("platforms/local.yaml", "python: .venv", "python: ~/venv")
    arguments = ["--config", str(study_directory), "--results", str(tmp_path / "results")]
    assert check.main([*arguments, "--platform", "local"]) == 1
    assert f"{path}: python: " in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_a_clock_that_is_off_fails_and_is_named():
    found = check._of_clocks([node("a", 0.2), node("b", -3.5)], here_s=0.1)
    assert found.held is False
    assert "b is -3.6 s" in found.said
    assert check._of_clocks([node("a", 30.2), node("b", 30.1)], here_s=30.0).held


def test_clocks_are_compared_by_that_of_the_file_system(tmp_path, monkeypatch):
    assert abs(check.node_check.clock_ahead_s(tmp_path)) < 1
    ahead = time.time() + 100
    monkeypatch.setattr(check.node_check.time, "time", lambda: ahead)
    assert check.node_check.clock_ahead_s(tmp_path) == pytest.approx(100, abs=10)


def test_a_slow_file_system_is_no_wrong_clock(tmp_path, monkeypatch):
    now = time.time()
    told = iter([now - 2.0, now + 60.0])
    monkeypatch.setattr(check.node_check.time, "time", lambda: next(told))
    assert check.node_check.clock_ahead_s(tmp_path) == 0.0


@pytest.mark.parametrize("problem", [None, "scancel: slurmctld does not answer"])
@pytest.mark.parametrize("when", ["submitting", "waiting"])
def test_a_job_is_cancelled_whenever_ctrl_c_comes(tmp_path, monkeypatch, when, problem):
    class Interrupted(Fake):
        cancelled = 0

        def submit(self, submission):
            if when == "submitting":
                raise InterruptedRunError("interrupted")
            return "41"

        def state(self, job):
            raise InterruptedRunError("interrupted")

        def cancel(self, job):
            self.cancelled += 1
            # Ctrl-C has come once: it may not end this, too.
            interruption.check()
            return problem

        cancel_submission = cancel

    scheduler = Interrupted()
    monkeypatch.setattr(check, "choose", lambda name: scheduler)
    monkeypatch.setattr(interruption, "_came", 1)
    monkeypatch.setattr(check, "pause", lambda seconds: None)
    platform = scripts.platform(tmp_path, "h200")
    paths = CheckPaths(tmp_path / "check")
    with pytest.raises(InterruptedRunError, match=problem or "is cancelled"):
        list(check.of_job(scripts.planned("smoke-h200"), platform, paths))
    assert scheduler.cancelled == 1


def test_each_problem_is_told_once_with_its_nodes():
    platform = load_study(scripts.CONFIG).platforms["h200"]
    optional = node("c", compile="no g++", deepspeed="gone")
    nodes = [node("a", torch="gone"), node("b", torch="gone"), optional]
    found = {each.part: each for each in check._of_nodes(nodes, platform)}
    assert found["torch"].held is False
    assert "on a, b: gone" in found["torch"].said
    assert platform.python in found["torch"].said
    # Not every sweep compiles, or trains with DeepSpeed: an H100 without it trained to the end.
    assert found["compile"].held is found["deepspeed"].held is None
    assert "on c: no g++" in found["compile"].said
    assert found["sensors"].held is True


def test_a_profile_without_the_platforms_account_is_named(tmp_path):
    platform = scripts.platform(tmp_path, "h200", account="ours")
    profile = tmp_path / platform.profile("mine") / "config.yaml"

    def account_missing() -> bool:
        found = check.of_file("mine", platform.model_copy(update={"partition": None}), tmp_path)
        return any("slurm_account=ours" in each.said for each in found if each.held is None)

    assert not account_missing()
    profile.parent.mkdir()
    # Made when the platform had no account.
    shutil.copy(ROOT / "profiles" / "slurm_h200" / "config.yaml", profile)
    assert account_missing()
    profile.write_text("default-resources:\n  - slurm_account=ours\n", encoding="utf-8")
    assert not account_missing()


def test_results_of_an_earlier_check_are_gone_before_the_next(tmp_path):
    platform = scripts.platform(tmp_path, "local", python=sys.executable)
    paths = CheckPaths(tmp_path / "check")
    for old in (paths.result, paths.node("old")):
        old.parent.mkdir(parents=True, exist_ok=True)
        old.write_text("{}", encoding="utf-8")
    check.write_job(scripts.planned("smoke-local"), platform, paths, tmp_path)
    assert not paths.result.exists()
    assert list(paths.nodes.iterdir()) == []
    assert Path(paths.directory, "job.sh").is_file()


def test_its_job_has_the_python_that_runs_have(tmp_path, monkeypatch):
    prefix = tmp_path / "environment"
    prefix.mkdir()
    (prefix / ".installed").touch()
    monkeypatch.setattr("sys.prefix", str(prefix))
    platform = scripts.study().platforms["local"]
    paths = CheckPaths(tmp_path / "check")
    run = check.write_job(scripts.planned("smoke-local"), platform, paths, tmp_path)
    assert f"python={prefix}/bin/python" in run.script.read_text(encoding="utf-8").splitlines()
