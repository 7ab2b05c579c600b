"""Every job of a cluster is measured, by Slurm's own Prolog and Epilog."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S, until

from .cluster import Cluster

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.long


@pytest.fixture
def measuring_cluster(disposable_cluster: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose Prolog and Epilog measure into ``tmp_path``/site."""
    settings = {"PrologFlags": "Alloc"}
    (tmp_path / "site").mkdir()
    for name, word in (("Prolog", "begin"), ("Epilog", "end")):
        script = tmp_path / name
        script.write_text(
            f"#!/bin/sh\nexec 2>> {tmp_path}/said.txt\n"
            f"PYTHONPATH={ROOT} exec {sys.executable} -m workflow_lib.measure site {word} "
            f"{tmp_path}/site --simulate=2 --comment\n"
        )
        script.chmod(0o755)
        settings[name] = str(script)
    cluster = Cluster(disposable_cluster.directory, settings)
    assert cluster.start()
    yield cluster
    cluster.stop()


def said(directory: Path) -> str:
    """What Prolog and Epilog complained of."""
    return (directory / "said.txt").read_text()


def samplers(directory: Path) -> list[str]:
    """The command lines of samplers that write below a directory."""
    found = subprocess.run(
        ["pgrep", "-af", f"sample .*{directory}"], capture_output=True, text=True
    )
    return found.stdout.splitlines()


def submit(cluster: Cluster, *options: str, command: str) -> str:
    words = (
        "sbatch",
        "--parsable",
        "--wait",
        "--account=research",
        "--time=60",
        "--output=/dev/null",
    )
    done = cluster.run(*words, *options, f"--wrap={command}", check=False, timeout=PATIENCE_S)
    return done.stdout.split()[0]


def test_every_job_with_gpus_is_measured(measuring_cluster, tmp_path):
    gpus = ("--partition=h200", "--gres=gpu:h200:2")
    two_nodes = submit(measuring_cluster, *gpus, "--nodes=2", command="srun sleep 4; exit 3")
    none = submit(measuring_cluster, "--partition=cpu", command="sleep 1")
    until(lambda: (tmp_path / f"site/{two_nodes}/logs/summary.txt").exists())
    until(lambda: not samplers(tmp_path))
    record = json.loads((tmp_path / f"site/{two_nodes}/measured.json").read_text())
    assert (record["job_id"], record["exit_code"]) == (two_nodes, 3)
    assert record["nodes"] == ["h200-1", "h200-2"]
    assert (len(record["gpus"]), record["invalid"], record["rung"]) == (4, [], 0)
    assert record["values"]["measured_duration_s"] > 2
    assert record["values"]["energy_j"] > 0
    assert [path.name for path in (tmp_path / "site").iterdir()] == [two_nodes]
    assert not (tmp_path / f"site/{none}").exists()
    sacct = ("sacct", "-nXP", "-j", two_nodes, "--format=State,AdminComment%200")
    until(lambda: "triptych: " in measuring_cluster.run(*sacct).stdout or said(tmp_path))
    assert said(tmp_path) == ""
    state, comment = measuring_cluster.run(*sacct).stdout.strip().split("|")
    energy_j = record["values"]["energy_j"]
    assert (state, comment.split()[1]) == ("FAILED", f"energy_j={energy_j:.6g}")
    assert comment.split()[-4:] == ["gpus=4", "nodes=2", "valid", "simulated"]


def test_a_node_is_not_drained_where_nothing_can_be_written(measuring_cluster, tmp_path):
    (tmp_path / "site").rmdir()
    (tmp_path / "site").write_text("not a directory")
    job = submit(measuring_cluster, "--partition=h100", "--gres=gpu:h100:1", command="exit 4")
    state = measuring_cluster.run("sacct", "-nXP", "-j", job, "--format=State,ExitCode").stdout
    assert state.strip() == "FAILED|4:0"
    assert measuring_cluster.node_states()["h100-1"] in ("idle", "completing", "mixed")
