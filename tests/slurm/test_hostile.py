"""Hostile configurations on a real Slurm: every text arrives in the job as what it is, none is
executed, Slurm's records stay whole, and secrets are in none of them.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.hostile import FOR_A_SHELL, HOSTILE, NAMES, canaries
from tests.launch import scripts
from tests.slurm import study
from workflow_lib import cells
from workflow_lib.config import Invocation
from workflow_lib.launch import job_script, run_place
from workflow_lib.records.paths import RunPaths
from workflow_lib.study import ConfigError, checked, load_study

#: In the job's place of Python: writes down how it was called, and becomes Python, but for ranks,
#: which would take seconds to train. In a container's place it becomes what it is to start.
_RECORDER = """#!/bin/sh
printf '%s\\0' "$0" "$@" >"$RECORDS/$(hostname).$$.{name}.call"
env -0 >"$RECORDS/$(hostname).$$.{name}.environment"
"""
_PYTHON = (
    _RECORDER
    + """case "$*" in *workflow_lib.launch.job.rank*) exit 0 ;; esac
exec '{python}' "$@"
"""
)
_APPTAINER = (
    _RECORDER
    + """while [ "$1" != "$IMAGE" ]; do shift; done
shift
exec "$@"
"""
)

#: what one word of the shell can carry
TEXTS = [v for v in HOSTILE if v not in FOR_A_SHELL and not set(v) & {"\0", "\ud800"}]
MODULES = [value for value in TEXTS if value.isprintable() and value and value[0] != "-"]
IMAGE = 'docker://it\'s; touch canary $(touch canary) `touch canary` "image"'


def _directory(*unfit: str) -> str:
    """Directories of every name that a results directory can have, one within the other."""

    def fits(name: str) -> bool:
        plain = {"config_directory": ".", "results_directory": f"./{name}", "sweeps": ["tiny"]}
        try:
            checked("", Invocation, plain)
        except ConfigError:
            return False
        return not set(name) & set(unfit)

    return "/".join(name for name in NAMES if fits(name))


@dataclass(frozen=True)
class Job:
    """A job that has ended: what it was made of, and what it wrote down."""

    platform: str
    run: RunPaths
    root: Path
    job_id: str
    calls: list[scripts.Call]
    output: str


@dataclass(frozen=True)
class Site:
    """The jobs, their cluster, where all of it was, and the secrets of whoever submitted them."""

    cluster: Any
    directory: Path
    plain: Job
    contained: Job
    secrets: Mapping[str, str]

    @property
    def jobs(self) -> tuple[Job, Job]:
        return self.plain, self.contained


def _start(
    base: Path, environment: Mapping[str, str], results: str, **changes: Any
) -> tuple[RunPaths, Path, subprocess.Popen[str]]:
    """Render a run whose site is hostile, and begin to take it to its end."""
    base.mkdir()
    records, tools = base / "records", base / "tools"
    records.mkdir()
    tools.mkdir()
    python = base / "py $(touch canary) 'th\"on;"
    for path, text in (
        (python, _PYTHON),
        (tools / "module", _RECORDER),
        (tools / "apptainer", _APPTAINER),
    ):
        path.write_text(text.format(name=path.name[:2], python=sys.executable), encoding="utf-8")
        path.chmod(0o755)
    root = base / "a $(touch canary) 'repository' ;#&"
    root.symlink_to(study.ROOT)
    values = {f"VALUE_{number}": value for number, value in enumerate(TEXTS)}
    site = {"environment": values, "modules": MODULES, "python": str(python)} | changes
    loaded = load_study(study.write(base / "config", **site))
    planned = cells.expand_study(loaded)["tiny-mi250"].cells[0]
    cell = scripts.with_telemetry(planned.cell)
    places = scripts.write(cell, loaded.platforms["mi250"], root, base / results)
    run = RunPaths(places.run_directory)
    path = f"{tools}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "RECORDS": str(records), "IMAGE": IMAGE}
    module = [sys.executable, "-m", "workflow_lib.launch"]
    process = subprocess.Popen(
        [*module, "run", str(run.directory), "--scheduler", "slurm"],
        cwd=base,
        env={**environment, **own, "PYTHONPATH": str(study.ROOT)},
        umask=0o027,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return run, root, process


def _finish(base: Path, run: RunPaths, root: Path, process: subprocess.Popen[str]) -> Job:
    output, _ = process.communicate()
    assert run.job.exists(), output
    job_id = json.loads(run.job.read_text(encoding="utf-8"))["job_id"]
    calls = []
    for record in sorted((base / "records").glob("*.call")):
        argv = record.read_bytes().decode().split("\0")[:-1]
        pairs = record.with_suffix(".environment").read_bytes().decode().split("\0")[:-1]
        calls.append(scripts.Call(argv, dict(pair.split("=", 1) for pair in pairs)))
    return Job("mi250", run, root, job_id, calls, output)


@pytest.fixture(scope="module")
def site(slurm_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Site:
    directory = tmp_path_factory.mktemp("hostile")
    names = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "TORCH_HUB_TOKEN")
    secret = {name: secrets.token_hex(16) for name in names}
    environment = {
        **slurm_cluster.environment,
        **secret,
        "TRIPTYCH_ASK_SCHEDULER_EVERY_S": "2",
        "TMPDIR": str(directory),
    }
    mounts = []
    for value in (f"/{value}" for value in MODULES):
        if not set(value) & set(':,"\\'):
            job_script.mount(value)
            mounts.append(value)
    container = {"runtime": "apptainer", "image": IMAGE, "mounts": mounts}
    # Slurm writes no log below a directory with a backslash; containers divide paths by more.
    started = [
        _start(directory / "plain", environment, _directory("\\")),
        _start(directory / "contained", environment, _directory(*':,"\\'), container=container),
    ]
    jobs = [
        _finish(directory / name, *each)
        for name, each in zip(("plain", "contained"), started, strict=True)
    ]
    return Site(slurm_cluster, directory, *jobs, secret)


def test_no_text_of_the_configuration_is_executed(site):
    assert len(TEXTS) >= 50
    for job in site.jobs:
        assert json.loads(job.run.ended.read_text())["failed_stage"] is None, job.output
    assert canaries(site.directory) == []
    assert not [*study.ROOT.glob("canary*"), *Path.home().glob("canary*")]


def test_values_of_variables_arrive_on_every_node_and_in_every_process(site):
    values = {f"VALUE_{number}": value for number, value in enumerate(TEXTS)}
    for job in site.jobs:
        pythons = [call for call in job.calls if call.argv[0].startswith(str(site.directory))]
        modules = {call.argv[2] for call in pythons if call.argv[1:2] == ["-m"]}
        assert modules == {
            *(
                "workflow_lib.launch.job.node",
                "workflow_lib.telemetry",
                "workflow_lib.launch.job.rank",
            )
        }
        for call in pythons:
            if Path(call.argv[0]).name != "module":  # loaded before the variables are set
                assert {name: call.environment[name] for name in values} == values


def test_modules_paths_and_the_interpreter_arrive(site):
    for job in site.jobs:
        loaded = [call.argv[1:] for call in job.calls if Path(call.argv[0]).name == "module"]
        assert sorted(loaded) == sorted(["load", value] for value in MODULES)
        run = str(job.run.directory)
        training = ["-m", "workflow_lib.launch.job.rank", run, "-m", "workflow_lib.trainers.native"]
        ranks = [call for call in job.calls if call.argv[1:] == [*training, f"{run}/cell.json"]]
        assert len(ranks) == 2
        assert {call.environment["PYTHONPATH"].split(os.pathsep)[0] for call in ranks} == {
            str(run_place.code_of(job.run.script))
        }
        assert (job.run.logs / f"slurm-{job.job_id}.log").exists()
        assert json.loads(job.run.failure.read_text())["job_id"] == job.job_id  # nothing trained


def test_a_container_gets_its_image_and_mounts(site):
    calls = [
        call.argv[1:]
        for call in site.contained.calls
        # What watches the run may be ended before it is recorded.
        if Path(call.argv[0]).name == "apptainer" and "stop-early" not in call.argv
    ]
    assert len(calls) == 6  # begin, telemetry, wait, two ranks, end
    for argv in calls:
        before = argv[: argv.index(IMAGE)]
        assert before[0] == "exec"  # simulated telemetry: no GPU to hand in
        binds = dict.fromkeys(before[2::2])
        assert set(before[1::2]) == {"--bind"}
        assert list(binds)[:2] == [str(site.contained.root), str(site.contained.run.directory)]
        assert len(binds) > 40


def test_slurms_record_of_the_job_is_whole(site):
    fields = "JobIDRaw,JobName,State,ExitCode,Partition,Account,NodeList"
    for job in site.jobs:
        name = json.loads(job.run.submission.read_text())["job_name"]
        command = ("sacct", "-X", "-n", "-P", "-j", job.job_id, f"--format={fields}")
        said = site.cluster.run(*command).stdout
        # Under load slurmdbd knows of a job's end before it knows of its beginning.
        while said.split("|")[1:2] == ["allocation"]:
            time.sleep(0.5)
            said = site.cluster.run(*command).stdout
        assert said == f"{job.job_id}|{name}|COMPLETED|0:0|mi250|research|mi250-1\n"
        assert name.replace("-", "").isalnum()


def test_secrets_are_in_no_record_of_slurm_and_in_no_file(site):
    run = site.cluster.run
    everything = ",".join(run("sacct", "--helpformat").stdout.split())
    logs = [path.read_text(errors="replace") for path in (site.cluster.directory / "log").iterdir()]
    for job in site.jobs:
        # The job has them: it may need them to fetch something.
        ranks = [call for call in job.calls if "workflow_lib.launch.job.rank" in call.argv]
        assert {call.environment["HF_TOKEN"] for call in ranks} == {site.secrets["HF_TOKEN"]}
        said = [
            job.output,
            run("sacct", "-P", "-j", job.job_id, f"--format={everything}").stdout,
            run("scontrol", "show", "job", "-dd", job.job_id).stdout,
            run("scontrol", "write", "batch_script", job.job_id, "-").stdout,
        ]
        assert all(job.job_id in each for each in said[1:3])
        assert "workflow_lib" in said[3]
        files = [path for path in job.run.directory.rglob("*") if path.is_file()]
        assert len(files) > 10
        said += [path.read_text(encoding="utf-8", errors="replace") for path in files]
        for name, secret in site.secrets.items():
            assert not any(secret in each for each in [*said, *logs]), name


def test_what_a_job_writes_is_open_to_whom_the_umask_lets_in(site):
    for job in site.jobs:
        written = [path for path in job.run.directory.rglob("*") if path != job.run.logs]
        # Rendered by these tests, under their own umask.
        rendered = {job.run.cell, job.run.cell_checksum, job.run.script}
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in {*written} - rendered}
        assert len(modes) > 10
        for path, mode in modes.items():
            assert mode == (0o750 if path.is_dir() else 0o640), f"{path} has mode {mode:o}"
