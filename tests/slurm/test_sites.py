"""What some sites want of jobs, on a real Slurm: options of their own, and job arrays."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests import programs
from tests.launch import scripts
from tests.programs import well
from tests.slurm import study
from tests.slurm.test_workflow import site  # noqa: F401  # a fixture
from tests.waiting import until
from workflow_lib.launch.schedulers.refusals import NotNowError, refused
from workflow_lib.records.checks import CheckRecord
from workflow_lib.records.files import read_record
from workflow_lib.records.paths import RunPaths
from workflow_lib.study import load_study


def _repeat(config: Path, repeats: int) -> None:
    path = config / "sweeps" / "tiny.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"repeats": repeats}))


def test_slurm_is_asked_for_what_the_platforms_file_says(slurm_cluster, tmp_path):
    options = {"comment": "power", "nice": 5, "contiguous": True, "switches": "1@00:02:00"}
    config = study.write(
        tmp_path / "config",
        exclude_nodes=["h100-2", "mi250-[1-1]"],
        requeue=False,
        sbatch_options=options,
        time_limit_max_min=3000,
    )
    platform = load_study(config).platforms["h200"]
    cell = scripts.planned("smoke-h200").cell
    places = scripts.write(cell, platform, tmp_path, tmp_path / "results")
    script = str(places.run_directory / "job.sh")
    output = f"--output={os.devnull}"
    job_id = slurm_cluster.run("sbatch", "--hold", "--parsable", output, script).stdout.strip()
    told = slurm_cluster.run("scontrol", "show", "job", "--oneliner", job_id).stdout
    slurm_cluster.run("scancel", job_id)
    for expected in ("ExcNodeList=h100-2,mi250-1", "Requeue=0", "Comment=power", "Nice=5"):
        assert f" {expected} " in told
    assert " Contiguous=1 " in told
    assert "Switches=1@00:02:00" in told

    command = [sys.executable, "-m", "workflow_lib.check", "--config", str(config)]
    command += ["--results", str(tmp_path), "--platform", "h200", "--without-job"]
    programs.run(command, env=slurm_cluster.environment)
    (written,) = tmp_path.glob("checks/h200/*/check.json")
    found = read_record(written, CheckRecord).findings
    # Two days, in the cluster's slurm.conf.
    (said,) = (each.said for each in found if each.part == "partition" and each.held is False)
    assert "time_limit_max_min: 3000" in said
    assert "most 2880 min" in said


@pytest.fixture
def closed_partition(slurm_cluster):
    """A partition whose jobs wait."""
    slurm_cluster.run("scontrol", "update", "PartitionName=mi250", "State=DOWN")
    yield "mi250"
    slurm_cluster.run("scancel", "--partition=mi250")
    slurm_cluster.run("scontrol", "update", "PartitionName=mi250", "State=UP")


@pytest.mark.long
def test_no_more_runs_are_in_flight_than_open_files_allow(
    site,  # noqa: F811
    slurm_cluster,
    closed_partition,
):
    _repeat(site.config, 7)
    many = ("--resources", "runs_in_flight=7", "--until", "run")
    # 96 for Snakemake, and 4 a run.
    limited = ["prlimit", "--nofile=116:116", *site.command("slurm_mi250", *many)]
    most, cancelled = 0, set()
    with subprocess.Popen(
        limited,
        cwd=study.ROOT,
        env=dict(site.environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as snakemake:
        deadline = time.monotonic() + 240
        while snakemake.poll() is None:
            assert time.monotonic() < deadline
            query = ("squeue", "--noheader", f"--partition={closed_partition}", "--format=%A")
            waiting = set(slurm_cluster.run(*query).stdout.split()) - cancelled
            most = max(most, len(waiting))
            # Once as many wait as may, one makes place for the next.
            if len(waiting) == min(5, 7 - len(cancelled)) and waiting:
                cancelled.add(job := min(waiting))
                slurm_cluster.run("scancel", job)
            time.sleep(0.1)
        output = snakemake.stdout.read()
    assert "most 5 runs" in output
    assert "each takes 4 " in output
    assert output.index("at most 5 runs") < output.index("submitted job")
    assert (most, len(cancelled)) == (5, 7)
    assert "Too many open" not in output
    ends = [json.loads(run.failure.read_text())["outcome"] for run in site.runs("mi250")]
    assert ends == ["cancelled"] * 7


@pytest.mark.long
def test_the_workflow_takes_what_ran_as_an_array(site, slurm_cluster):  # noqa: F811
    _repeat(site.config, 3)
    well(site.snakemake("slurm_mi250", "--until", "render", "tokenize"))
    arguments = ["--config", str(site.config), "--results", str(site.results)]
    command = [sys.executable, "-m", "workflow_lib.launch", "array", *arguments]
    asked = [*command, "--sweep", "tiny-mi250", "--at-once", "3"]
    well(programs.run(asked, env=site.environment))
    runs = site.runs("mi250")
    ids = [json.loads(run.job.read_text())["job_id"] for run in runs]
    array = ids[0].partition("_")[0]
    assert ids == [f"{array}_{task}" for task in (1, 2, 3)]

    # The workflow starts while they queue and run: it submits nothing of its own.
    well(site.snakemake("slurm_mi250", "--until", "run"))
    for run, job_id in zip(runs, ids, strict=True):
        outcome = json.loads(run.outcome.read_text())
        assert (outcome["outcome"], outcome["job_id"]) == ("completed", job_id)
        assert not outcome["script_edited"]
        assert not run.attempts.exists()
        assert (run.logs / f"slurm-{job_id}.log").exists()
    fields = "JobID,State,TimelimitRaw"
    told = slurm_cluster.run("sacct", "-X", "-n", "-P", "-j", array, f"--format={fields}").stdout
    limit = re.search(r"^#SBATCH --time=(\d+)$", RunPaths(runs[0].directory).script.read_text(), 8)
    assert limit is not None
    assert sorted(told.split()) == [f"{each}|COMPLETED|{limit[1]}" for each in ids]


@pytest.mark.long
def test_a_job_that_was_suspended_says_so_with_its_cause(site, slurm_cluster):  # noqa: F811
    path = site.config / "sweeps" / "tiny.yaml"
    sweep = yaml.safe_load(path.read_text())
    sweep["protocol"]["measured_steps"] = 100
    path.write_text(yaml.safe_dump(sweep))
    with subprocess.Popen(
        site.command("slurm_mi250", "--until", "run"),
        cwd=study.ROOT,
        env=dict(site.environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as snakemake:
        until(lambda: any(_lines(run.rank_steps(0)) > 5 for run in site.runs("mi250")))
        (run,) = site.runs("mi250")
        job_id = json.loads(run.job.read_text())["job_id"]
        slurm_cluster.run("scontrol", "suspend", job_id)
        # Longer than the 5 s between two looks of the job at itself.
        time.sleep(7)
        slurm_cluster.run("scontrol", "resume", job_id)
        output, _ = snakemake.communicate()
    assert snakemake.returncode != 0
    failure = json.loads(run.failure.read_text())
    assert failure["outcome"] == "telemetry_invalid", output
    assert re.search(r"suspended for \d+ s ", failure["cause"])
    assert _lines(run.rank_steps(0)) == 1 + sweep["protocol"]["warmup_steps"] + 100


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.fixture
def account_of_one_job(slurm_cluster):
    """An account that may have one job in the queue."""
    manage = ("sacctmgr", "--immediate")
    slurm_cluster.run(*manage, "add", "account", "single", "GrpSubmitJobs=1")
    slurm_cluster.run(*manage, "add", "user", "root", "account=single")
    yield "single"
    slurm_cluster.run(*manage, "delete", "user", "root", "account=single")
    slurm_cluster.run(*manage, "delete", "account", "single")


@pytest.mark.long
def test_runs_wait_where_the_site_takes_one_job_at_a_time(site, account_of_one_job):  # noqa: F811
    _repeat(site.config, 2)
    platform = site.config / "platforms" / "mi250.yaml"
    content = yaml.safe_load(platform.read_text()) | {"account": account_of_one_job}
    platform.write_text(yaml.safe_dump(content))
    done = site.snakemake("slurm_mi250", "--until", "run")
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert "takes no jobs" in output
    ends = [json.loads(run.outcome.read_text())["outcome"] for run in site.runs("mi250")]
    assert ends == ["completed"] * 2
    assert not any(run.attempts.exists() for run in site.runs("mi250"))


def test_an_array_that_the_site_does_not_take_is_refused_in_a_sentence(slurm_cluster):
    done = slurm_cluster.run("sbatch", "--array=1-100000", "--wrap=true", check=False)
    error = refused(done.stderr, done.returncode, "h200")
    assert not isinstance(error, NotNowError)
    assert "Invalid job array" in str(error)
    assert "`snakemake` submits" in str(error)
