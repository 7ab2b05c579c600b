"""Nothing runs twice and nothing is orphaned, on a real Slurm: whoever waits is killed or
interrupted, or its job is requeued.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.launch import runs
from tests.slurm import study
from tests.waiting import until
from workflow_lib.launch import job_script, run_place
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import EndedRecord, JobRecord, Outcome, OutcomeRecord
from workflow_lib.records.paths import RunPaths

pytestmark = pytest.mark.slow

#: begins and ends as a rendered script does, and does nothing in between until it is let
_BODY = """\
#SBATCH --partition=cpu --time=5 --mem=100 --requeue --output=/dev/null
code={code}
run_directory={run}
python={python}
cd {root} || exit 72
stage=training
finish() {{
    {python} -m workflow_lib.launch.job.node end {run} --job "$SLURM_JOB_ID" --stage "$stage" \\
        --training-exit 1 --telemetry-exit 0
}}
trap 'if [ "$BASHPID" -eq "$$" ]; then finish; fi' EXIT
trap 'stage=interrupted; exit 143' TERM
{python} -m workflow_lib.launch.job.node begin {run} --job "$SLURM_JOB_ID" --scheduler slurm \\
    <"$0" || {{ trap - EXIT; exit 1; }}
while [ ! -e {go} ]; do sleep 0.1 & wait $!; done
exit 1
"""


_SOON = timedelta(seconds=10)


class Site:
    """A run on the cluster, and the processes that wait for it."""

    def __init__(self, cluster: Any, directory: Path) -> None:
        self.cluster = cluster
        self.go = directory / "go"
        self.paths = runs.rendered(directory, "smoke-h200")
        body = _BODY.format(
            root=study.ROOT,
            code=run_place.code_of(self.paths.script),
            python=sys.executable,
            run=self.paths.directory,
            go=self.go,
        )
        self.paths.script.write_text(job_script.with_checksum(body))
        self.commands = directory / "bin"
        self.commands.mkdir()
        self.environment = dict(cluster.environment) | {
            "TRIPTYCH_ASK_SCHEDULER_EVERY_S": "0.5",
            "TRIPTYCH_TRUST_ABSENCE_AFTER_S": "2",
            "TMPDIR": str(directory),
            "PATH": f"{self.commands}{os.pathsep}{os.environ['PATH']}",
        }

    def start(self) -> subprocess.Popen[str]:
        """The command that the run rule calls, in a process of its own."""
        command = [sys.executable, "-m", "workflow_lib.launch", "run", str(self.paths.directory)]
        return subprocess.Popen(
            [*command, "--scheduler", "slurm"],
            cwd=study.ROOT,
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    def jobs(self) -> list[str]:
        """Ids of all jobs that were ever submitted for the run."""
        cell = self.paths.directory.parent.name.rpartition("_")[2]
        answer = self.cluster.run("squeue", "--noheader", "--states=all", "--format=%i|%j").stdout
        rows = [line.split("|") for line in answer.splitlines()]
        return [job for job, name in rows if name.startswith(f"triptych-{cell}-")]

    def state(self, job: str) -> str:
        """What squeue says of a job."""
        answer = self.cluster.run("squeue", "-h", "--states=all", f"--jobs={job}", "--format=%T")
        return str(answer.stdout).strip()

    def cancel_all(self) -> None:
        for job in self.jobs():
            self.cluster.run("scancel", job)


@pytest.fixture
def site(slurm_cluster, tmp_path):
    made = Site(slurm_cluster, tmp_path)
    before = made.jobs()
    made.jobs = lambda jobs=made.jobs: [job for job in jobs() if job not in before]
    yield made
    made.cancel_all()


def outcome(paths: RunPaths) -> OutcomeRecord:
    return read_record(paths.failure, OutcomeRecord)


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_process_that_dies_as_it_submits_leaves_a_job_that_the_next_one_finds(site, has_begun):
    sbatch = shutil.which("sbatch")
    hold = "" if has_begun else "--hold"
    kills = site.commands / "sbatch"
    kills.write_text(f'#!/bin/sh\n{sbatch} {hold} "$@" >/dev/null\nkill -KILL $PPID\n')
    kills.chmod(0o755)
    assert site.start().wait() == -signal.SIGKILL
    (job,) = site.jobs()
    kills.unlink()
    if has_begun:
        until(site.paths.environment.exists)
    else:
        assert not site.paths.job.exists()
    second = site.start()
    if has_begun:
        # A job that failed while nobody waited for it would rightly be submitted again.
        assert second.stderr is not None
        assert any("was submitted before" in line for line in iter(second.stderr.readline, ""))
    until(site.paths.job.exists)
    if not has_begun:
        site.cluster.run("scontrol", "release", job)
    site.go.touch()
    second.communicate()
    assert site.jobs() == [job]
    assert outcome(site.paths).job_id == job
    assert outcome(site.paths).outcome is not Outcome.CANCELLED


def test_a_process_that_dies_before_it_submits_leaves_nothing_to_wait_for(site):
    kills = site.commands / "sbatch"
    kills.write_text("#!/bin/sh\nkill -KILL $PPID\n")
    kills.chmod(0o755)
    assert site.start().wait() == -signal.SIGKILL
    assert site.paths.submission.exists()
    kills.unlink()
    site.go.touch()
    second = site.start()
    said = second.communicate()[1]
    assert "was never submitted" in said
    assert len(site.jobs()) == 1


@pytest.mark.parametrize("has_begun", [False, True])
def test_ctrl_c_cancels_the_job_and_the_run_is_a_cancelled_one(site, has_begun):
    if not has_begun:
        sbatch = shutil.which("sbatch")
        holds = site.commands / "sbatch"
        holds.write_text(f'#!/bin/sh\nexec {sbatch} --hold "$@"\n')
        holds.chmod(0o755)
    process = site.start()
    until((site.paths.environment if has_begun else site.paths.job).exists)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    (job,) = site.jobs()
    assert outcome(site.paths).outcome is Outcome.CANCELLED
    assert site.state(job) in ("CANCELLED", "COMPLETING")


def test_a_requeued_job_starts_anew_and_keeps_its_first_start(site):
    process = site.start()
    until(site.paths.environment.exists)
    (job,) = site.jobs()
    site.cluster.run("scontrol", "requeue", job)
    started_again = RunPaths(site.paths.attempts / "1").environment

    def hurried() -> bool:
        """Slurm lets it wait for two minutes, from when its first start is cleared away on. Asked
        again and again not to, it never begins. A start in the second of its requeue has a
        credential that slurmd of 24.11 has just revoked: 5 s later, it has a new one."""
        shown = site.cluster.run("scontrol", "show", "job", job).stdout
        eligible = re.search(r"EligibleTime=(\d\S+)", shown)
        if eligible and datetime.fromisoformat(eligible[1]) > datetime.now() + _SOON:
            site.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now+5")
        return started_again.exists()

    until(hurried)
    until(site.paths.environment.exists)
    site.go.touch()
    process.communicate()
    assert site.jobs() == [job]
    first = RunPaths(site.paths.attempts / "1")
    assert read_record(first.ended, EndedRecord).failed_stage == "interrupted"
    assert read_record(site.paths.ended, EndedRecord).failed_stage == "training"
    assert read_record(site.paths.job, JobRecord).job_id == job
    assert outcome(site.paths).job_id == job
