"""The three Slurm profiles, end to end on a real Slurm, and what happens when a site says no."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from tests import programs
from tests.programs import well
from tests.slurm import study
from tests.waiting import PATIENCE_S
from workflow_lib import results
from workflow_lib.records.paths import RunPaths

SNAKEMAKE = Path(sys.executable).parent / "snakemake"


@dataclass(frozen=True)
class Site:
    """A study's configuration and results beside a running cluster, as a user would have them."""

    config: Path
    results: Path
    environment: dict[str, str]

    def command(self, profile: str, *arguments: str) -> list[str]:
        """``snakemake --profile <profile>`` for the sweep; it asks for the analysis's jobs more
        often than profiles do, which spare a site's slurmctld.
        """
        return [
            str(SNAKEMAKE),
            "--profile",
            profile,
            "--slurm-init-seconds-before-status-checks=2",
            "--seconds-between-status-checks=2",
            *arguments,
            "--nolock",
            "--config",
            f"config_directory={self.config}",
            f"results_directory={self.results}",
            "sweeps=[tiny]",
        ]

    def snakemake(self, profile: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command in the repository, profiles registered."""
        return programs.run(self.command(profile, *arguments), env=self.environment)

    def runs(self, platform: str) -> list[RunPaths]:
        """The runs of a platform, by directory."""
        return [
            RunPaths(path) for path in sorted((self.results / "cells" / platform).glob("*/*/run*"))
        ]


@pytest.fixture
def site(slurm_cluster: Any, tmp_path: Path) -> Site:
    environment = dict(slurm_cluster.environment) | {
        "XDG_CONFIG_HOME": str(tmp_path / "xdg"),
        "TRIPTYCH_ASK_SCHEDULER_EVERY_S": "2",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    subprocess.run(
        [sys.executable, "profiles/register.py"], cwd=study.ROOT, env=environment, check=True
    )
    return Site(study.write(tmp_path / "config"), tmp_path / "results", environment)


def requested(script: Path) -> dict[str, str]:
    """The ``#SBATCH`` lines of a script."""
    lines = re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", script.read_text(), flags=re.MULTILINE)
    return dict(lines)


def allocated(cluster: Any, job_id: str) -> dict[str, str]:
    """What sacct says of a job."""
    fields = "State,Partition,Account,AllocTRES,NNodes,NodeList,TimelimitRaw,Constraints"
    answer = cluster.run(
        "sacct", "-X", "-n", "-P", "-j", job_id, f"--format={fields}"
    ).stdout.strip()
    return dict(zip(fields.split(","), answer.split("|"), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("platform", "nodes", "gpus"),
    [
        ("h200", 2, 2),
        pytest.param("h100", 2, 2, marks=pytest.mark.kills),
        pytest.param("mi250", 1, 2, marks=pytest.mark.long),
    ],
)
def test_a_profile_takes_a_sweep_to_its_report(
    site, slurm_cluster, tmp_path, platform, nodes, gpus
):
    options = []
    if platform != "h200":
        # The first run's script comes last, and still its job is the first, also where no other
        # may be in flight beside it.
        slow = tmp_path / "slow.sh"
        slow.write_text(
            'python() { case "$*" in *"launch render"*"--run 1") sleep 4;; esac; '
            'command python "$@"; }\n'
        )
        site.environment["BASH_ENV"] = str(slow)
        study.profile(site.config)
    if platform == "mi250":
        options = ["--resources", "runs_in_flight=1"]
    well(site.snakemake(f"slurm_{platform}", *options))

    profiled, runs = [
        [run for run in site.runs(platform) if results.is_profiled(run.directory) is wanted]
        for wanted in (True, False)
    ]
    assert len(runs) == (2 if platform == "h200" else 1)
    for run in runs:
        outcome = json.loads(run.outcome.read_text())
        assert outcome["outcome"] == "completed", outcome
        assert len(outcome["nodes"]) == nodes
        # Telemetry of every node, and steps of every rank.
        assert run.sampled_nodes() == sorted(outcome["nodes"])
        assert len(list(run.steps.glob("rank*.csv"))) == gpus

        request, allocation = requested(run.script), allocated(slurm_cluster, outcome["job_id"])
        assert allocation["State"] == "COMPLETED"
        assert request["partition"] == allocation["Partition"] == platform
        assert request["account"] == allocation["Account"] == "research"
        assert request["constraint"] == allocation["Constraints"] == platform
        assert int(request["nodes"]) == int(allocation["NNodes"]) == nodes
        assert int(request["time"]) == int(allocation["TimelimitRaw"])
        resources = dict(each.split("=") for each in allocation["AllocTRES"].split(","))
        assert resources["gres/gpu"] == str(gpus)
        assert resources["cpu"] == str(gpus)
        assert resources["mem"] == f"{4 * nodes}G"

    # Slurm got the jobs in the order of the runs, the profiled one last.
    places = {
        int(json.loads(run.job.read_text())["job_id"]): json.loads(run.order.read_text())["place"]
        for run in (*runs, *profiled)
    }
    assert [places[job] for job in sorted(places)] == sorted(places.values())

    view = site.results / "sweeps" / f"tiny-{platform}"
    table = pl.read_parquet(view / "runs.parquet")
    assert table["outcome"].unique().to_list() == ["completed"]
    assert table["simulated"].all()
    assert table["tokens_per_s"].min() > 0
    assert pl.read_parquet(view / "gpus.parquet")["node"].n_unique() == nodes
    traces = pl.read_parquet(view / "traces.parquet")
    assert len(profiled) == (0 if platform == "h200" else 1)
    assert traces["rank"].to_list() == ([0, 1] if profiled else [])
    page = (view / "report.html").read_text()
    assert "simulated" in page.lower()

    again = site.snakemake(f"slurm_{platform}", "--dry-run")
    assert "Nothing to be" in again.stdout + again.stderr


@pytest.mark.long
def test_other_trainers_train_over_two_nodes(site):
    path = site.config / "sweeps/tiny.yaml"
    sweep = yaml.safe_load(path.read_text(encoding="utf-8"))
    names = ["deepspeed-plain", "transformers"]
    sweep["training"] |= {"trainer": names, "zero_stage": 0, "overlap": True}
    sweep |= {"platforms": ["h200"], "matrix": [{"models": "llama3-tiny", "dp": 2}]}
    path.write_text(yaml.safe_dump(sweep), encoding="utf-8")
    well(site.snakemake("slurm_h200"))
    rows = pl.read_parquet(site.results / "sweeps/tiny/runs.parquet").sort("trainer").to_dicts()
    assert [row["trainer"] for row in rows] == names
    for row in rows:
        assert (row["outcome"], row["nodes"]) == ("completed", 2)
        assert row["tokens_per_s"] == pytest.approx(4 * 8 * 128 / row["measured_duration_s"])
        assert row["energy_per_token_j"] > 0


#: lets one job into the queue, held; then it says that there is no controller
_ONE_ONLY = """#!/bin/sh
echo "$$" >>"{calls}"
mkdir "{calls}.first" 2>/dev/null && exec {sbatch} --hold "$@"
echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1
"""


@pytest.mark.slow
def test_after_sigterm_no_run_is_submitted_and_that_under_way_is_waited_for(
    site, slurm_cluster, tmp_path
):
    calls, own = tmp_path / "calls", tmp_path / "bin" / "sbatch"
    own.parent.mkdir()
    own.write_text(_ONE_ONLY.format(calls=calls, sbatch=shutil.which("sbatch")))
    own.chmod(0o755)
    site.environment["PATH"] = f"{own.parent}{os.pathsep}{site.environment['PATH']}"
    log = tmp_path / "snakemake.log"
    with log.open("w") as output:
        snakemake = subprocess.Popen(
            site.command("slurm_h200", "--until", "run", "--retries", "2"),
            cwd=study.ROOT,
            env=site.environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def until(condition: Callable[[], object]) -> None:
        while not condition():
            assert snakemake.poll() is None, log.read_text()
            time.sleep(0.2)

    try:
        until(lambda: any(run.job.exists() for run in site.runs("h200")))
        until(lambda: log.read_text().count("trying again") >= 2)
        snakemake.send_signal(signal.SIGTERM)
        until(lambda: "SIGTERM" in log.read_text())
        called = len(calls.read_text().splitlines())
        (ours,) = [run for run in site.runs("h200") if run.job.exists()]
        slurm_cluster.run("scontrol", "release", json.loads(ours.job.read_text())["job_id"])
        assert snakemake.wait() == 1
    finally:
        snakemake.kill()
    assert len(calls.read_text().splitlines()) == called
    assert json.loads(ours.outcome.read_text())["outcome"] == "completed"
    for run in site.runs("h200"):
        if run.directory != ours.directory:
            assert not any(path.exists() for path in (run.submission, run.failure, run.attempts))
    assert not _session(snakemake.pid)


def _session(leader: int) -> list[int]:
    """The processes of a session."""
    pids = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
    found = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) == leader:
                found.append(pid)
    return found


@pytest.mark.long
def test_a_script_submitted_by_hand_gives_the_workflow_its_result(site, slurm_cluster):
    well(site.snakemake("slurm_mi250", "--until", "render"))
    (run,) = site.runs("mi250")
    slurm_cluster.run(
        "sbatch", "--wait", "--output", os.devnull, str(run.script), timeout=PATIENCE_S
    )
    job_id = json.loads(run.job.read_text())["job_id"]

    well(site.snakemake("slurm_mi250", "--until", "run"))
    outcome = json.loads(run.outcome.read_text())
    assert (outcome["outcome"], outcome["job_id"]) == ("completed", job_id)
    assert not run.attempts.exists()


#: how long the login node in this test takes a name that it saw, or missed, for the truth
LAG_S = 10
_LAGGING = f"""
bindfs -o attr_timeout=0,entry_timeout={LAG_S},negative_timeout={LAG_S} "$0" "$0" || exit 99
"$@"; code=$?
umount --lazy "$0"; exit $code
"""


@pytest.mark.long
@pytest.mark.skipif(
    shutil.which("bindfs") is None or not os.access("/dev/fuse", os.R_OK | os.W_OK),
    reason="needs bindfs and /dev/fuse, for a view of files that lags",
)
def test_a_login_node_that_sees_new_files_late_takes_them_when_they_come(site):
    """As with NFS, where a client may miss for a while what another one has made: the job and the
    reductions write to the directory itself, Snakemake looks at it through a cache of names.
    """
    site.results.mkdir()
    command = ["unshare", "--mount", "bash", "-c", _LAGGING, str(site.results)]
    well(programs.run([*command, *site.command("slurm_mi250")], env=site.environment))
    (run,) = site.runs("mi250")
    assert json.loads(run.outcome.read_text())["outcome"] == "completed"
    assert not run.attempts.exists()
    assert (site.results / "sweeps" / "tiny-mi250" / "report.html").exists()


@pytest.mark.slow
def test_a_copy_that_is_submitted_by_hand_writes_nothing(site, slurm_cluster, tmp_path):
    well(site.snakemake("slurm_mi250", "--until", "render"))
    (run,) = site.runs("mi250")
    copied = RunPaths(tmp_path / "copy of results" / run.directory.relative_to(site.results))
    shutil.copytree(site.results, tmp_path / "copy of results")
    before = sorted(tmp_path.glob("*/cells/**/*"))
    log = tmp_path / "slurm.log"
    by_hand = ("sbatch", "--wait", "--output", str(log), str(copied.script))
    slurm_cluster.run(*by_hand, timeout=PATIENCE_S, check=False)
    said = log.read_text()
    assert f"lies in {copied.directory}, but was rendered for {run.directory}" in said
    assert sorted(tmp_path.glob("*/cells/**/*")) == before


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        pytest.param({"partition": "h300"}, "partition", marks=pytest.mark.kills),
        pytest.param({"account": "nobody"}, "account", marks=pytest.mark.kills),
        ({"qos": "gold"}, "qos"),
    ],
)
def test_what_slurm_refuses_names_the_file_and_the_key(site, slurm_cluster, tmp_path, changes, key):
    shutil.rmtree(site.config)
    study.write(site.config, **changes)
    done = site.snakemake("slurm_mi250")
    assert done.returncode != 0
    output = done.stdout + done.stderr
    assert "Slurm refused" in output
    assert f"Set {key} in" in output
    assert "platforms/mi250.yaml" in output
    assert "Traceback" not in output
    (run,) = site.runs("mi250")
    assert run.cell.exists()
    assert run.script.exists()
    assert not run.job.exists()

    # The remedy works: with the file mended, the same command asks for what Slurm grants.
    shutil.rmtree(site.config)
    study.write(site.config)
    well(site.snakemake("slurm_mi250", "--until", "render"))
    assert not set(changes.values()) & set(requested(run.script).values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"telemetry": "nvidia"},
            r"did not start on {nodes}: NVML did not start: NVML Shared Library Not Found;",
        ),
        (
            {"modules": ["cuda/99"]},
            r"could not load a module; \S+ says: module: command not found$",
        ),
    ],
)
def test_what_the_site_lacks_is_the_cause_and_every_node_is_named(site, changes, words):
    shutil.rmtree(site.config)
    study.write(site.config, **changes)
    done = site.snakemake("slurm_h200", "--until", "run", "--retries", "0")
    assert done.returncode != 0
    runs = site.runs("h200")
    assert len(runs) == 2
    for run in runs:
        found = json.loads(run.failure.read_text())
        log, said_by = run.logs / "telemetry.log", []
        if log.exists():
            said_by = re.findall(r"^telemetry on (\S+):", log.read_text(), re.MULTILINE)
            assert len(said_by) == 2
            assert found["nodes"] == sorted(said_by)
        expected = words.replace("{nodes}", re.escape(", ".join(said_by)))
        assert re.search(expected, found["cause"]), found["cause"]


def test_without_sbatch_the_message_says_where_to_run(site):
    path = os.pathsep.join(
        directory
        for directory in site.environment["PATH"].split(os.pathsep)
        if not (Path(directory) / "sbatch").exists()
    )
    tools = site.config.parent / "bin"
    tools.mkdir()
    for tool in ("env", "bash", "sh", "dirname"):
        found = shutil.which(tool)
        assert found is not None
        (tools / tool).symlink_to(found)
    without = Site(site.config, site.results, dict(site.environment) | {"PATH": f"{path}:{tools}"})
    well(site.snakemake("slurm_mi250", "--until", "render"))
    (run,) = site.runs("mi250")
    command = [sys.executable, "-m", "workflow_lib.launch", "run", str(run.directory)]
    done = programs.run([*command, "--scheduler", "slurm"], env=without.environment)
    assert done.returncode == 1
    assert "sbatch is not" in done.stderr
    assert "Traceback" not in done.stderr
