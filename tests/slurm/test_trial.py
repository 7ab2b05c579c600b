"""``make try-slurm``: a newcomer gets a report, and then types the commands of the README."""

from __future__ import annotations

import os
import re

import pytest

from tests import programs
from tests.slurm import study, trial


def typed_in_the_readme() -> list[str]:
    """The commands of the README's section on clusters, without their comments."""
    text = (study.ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"^## On your cluster\n+```sh\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    assert block is not None
    return [line.partition("#")[0].strip() for line in block[1].splitlines()]


@pytest.mark.long
def test_the_smoke_sweep_runs_and_the_readmes_commands_work_as_typed(
    slurm_cluster, tmp_path, capfd
):
    directory = tmp_path / "try-slurm"
    code = trial.main(["--directory", str(directory)])
    told = capfd.readouterr().out
    report = directory / trial.REPORT
    assert code == 0, told
    assert f"The report: {report}\n" in told
    assert "simulated" in report.read_text(encoding="utf-8")
    # What was told to be typed first; and the environment is there: make shall not install it.
    (export,) = re.findall(r"export (SLURM_CONF=\S+) (XDG_CONFIG_HOME=\S+)", told)
    variables = dict(each.split("=", 1) for each in export)
    written = report.stat().st_mtime_ns
    for command in typed_in_the_readme():
        typed = re.sub(r"^make ", "make -o .venv/.installed ", command)
        done = programs.run(["sh", "-c", typed], directory, os.environ | variables)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    # What is done is not done again, and nothing of it lies anywhere else.
    assert report.stat().st_mtime_ns == written
    assert not (study.ROOT / trial.DIRECTORY.name).exists()


def test_without_the_cluster_it_says_how_to_start_it(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(trial, "default_directory", lambda: tmp_path / "no-cluster")
    assert trial.main(["--directory", str(tmp_path / "try")]) == 1
    assert "make slurm-cluster" in capsys.readouterr().err
    assert not (tmp_path / "try").exists()


def test_what_removes_the_cluster_removes_the_copy():
    shown = programs.run(["make", "--dry-run", "slurm-cluster-stop"])
    assert f"rm -rf {trial.DIRECTORY.relative_to(study.ROOT)}\n" in shown.stdout
