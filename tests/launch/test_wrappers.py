"""A site's wrappers of Slurm's commands: they print lines, are slow, fail, or speak otherwise.

``TRIPTYCH_TEST_SLOW_S`` is how long slow ones take; on real login nodes that may be 20 s.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.launch import runs
from tests.launch.test_submit import launch, read_outcome, start
from tests.waiting import until
from workflow_lib.launch.schedulers import slurm
from workflow_lib.launch.schedulers.refusals import SubmissionError, UnclearError, refused
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import JobRecord
from workflow_lib.records.paths import RunPaths

SLOW_S = os.environ.get("TRIPTYCH_TEST_SLOW_S", "1")

#: Slurm, as far as one user sees it: a job runs until it is cancelled, or ``done`` is there
_SLURM = {
    "sbatch": """
for each in "$@"; do case $each in --job-name=*) name=${each#*=};; esac; done
echo "$name" >>"$STATE/jobs"
echo $((4241 + $(wc -l <"$STATE/jobs")))
""",
    "squeue": """
[ -e "$STATE/jobs" ] || exit 0
state=RUNNING; [ ! -e "$STATE/done" ] || state=FAILED
[ ! -e "$STATE/cancelled" ] || state='CANCELLED by 0'
n=4241; while read -r name; do n=$((n + 1)); echo "$n|$name|$state|None|0|"; done <"$STATE/jobs"
""",
    "sacct": "exit 0",
    "scancel": 'cp "$STATE/ended.json" "$RUN"; touch "$STATE/cancelled"',
}
#: what a wrapper does before the command, and after it
_WRAPPERS = {
    "banner": ("echo '### Maintenance on Friday: 12 nodes | 3 | a | b | c ###'", "echo 'Bye.'"),
    "banner that could be an id": ("echo 2026", "echo 7"),
    "slow": (f"sleep {SLOW_S}", ""),
    "fails before": ('count; [ $((n % 2)) = 0 ] || { echo "licence server?" >&2; exit 1; }', ""),
    "fails after": ("", 'count; [ $((n % 2)) = 0 ] || { echo "licence server?" >&2; exit 1; }'),
    "another locale": (
        "export LC_ALL=de_DE.ISO-8859-1; printf 'gr\\374n\\n'; printf 'gr\\374n\\n' >&2",
        "",
    ),
}


class Site:
    """Slurm behind wrappers, and one run."""

    def __init__(self, directory: Path, wrapper: str) -> None:
        self.state = directory / "state"
        self.paths = runs.rendered(directory, "smoke-h200")
        commands = directory / "bin"
        for made in (self.state, commands):
            made.mkdir()
        before, after = _WRAPPERS[wrapper]
        for name, does in _SLURM.items():
            count = f'count() {{ echo >>"$STATE/{name}.n"; n=$(wc -l <"$STATE/{name}.n"); }}'
            text = f"#!/bin/bash\n{count}\n{before}\n(\n{does}\n)\n{after}\ntrue\n"
            (commands / name).write_text(text)
            (commands / name).chmod(0o755)
        end_record = RunPaths(directory / "end_record")
        runs.end(end_record, "interrupted", training_exit=143, job_id="4242")
        end_record.ended.rename(self.state / "ended.json")
        self.environment = {
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            "STATE": str(self.state),
            "RUN": str(self.paths.directory),
        }

    def jobs(self) -> list[str]:
        """Names of all jobs that were submitted."""
        return (self.state / "jobs").read_text().splitlines()


@pytest.fixture(params=_WRAPPERS)
def site(tmp_path, request) -> Site:
    return Site(tmp_path, request.param)


def test_a_run_is_submitted_once_and_seen_to_its_end(site):
    (site.state / "done").touch()
    end_record = RunPaths(site.paths.directory)
    process = start(site.paths, **site.environment)
    until(site.paths.job.exists, process)
    (site.state / "ended.json").rename(end_record.ended)
    said = process.communicate()[1]
    assert "Traceback" not in said
    assert len(site.jobs()) == 1, said
    job = read_record(site.paths.job, JobRecord)
    assert (job.job_id, job.job_name) == ("4242", site.jobs()[0])
    assert read_outcome(site.paths.failure) == "cancelled"


def test_ctrl_c_cancels_the_job(site):
    process = start(site.paths, **site.environment)
    until(site.paths.job.exists, process)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1]
    assert process.returncode == 130
    assert (site.state / "cancelled").exists(), said
    assert "Traceback" not in said
    assert read_outcome(site.paths.failure) == "cancelled", said


def test_a_wrapper_that_never_submits_is_given_up_with_what_it_said(tmp_path):
    site = Site(tmp_path, "banner")
    (tmp_path / "bin" / "sbatch").write_text("#!/bin/sh\necho 'module: not found' >&2; exit 127\n")
    done = launch(site.paths, **site.environment, TRIPTYCH_TRUST_ABSENCE_AFTER_S="0.1")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "127: module: not found; " in last
    assert "8 times" in last
    assert not site.paths.submission.exists()


@pytest.mark.parametrize(
    ("said", "job_id"),
    [
        ("4242\n", "4242"),
        ("4242;alpha\n", "4242"),
        ("welcome\n\n4242;alpha-1\nbye\n", "4242"),
        ("", None),
        ("Submitted batch job 4242\n", None),
        ("2026\n4242\n", None),
        ("0\n", None),
        ("42.5\n-1\n1,000\n", None),
    ],
)
def test_an_id_is_taken_only_from_where_it_can_be_one(said, job_id):
    assert slurm._job_id(said) == job_id


def test_what_slurm_refuses_is_told_from_what_a_wrapper_says():
    assert isinstance(refused("licence server?", 1, "h200"), UnclearError)
    said = "sbatch: error: Batch job submission failed: Invalid qos specification"
    assert type(refused(said, 1, "h200")) is SubmissionError
    assert isinstance(refused(said, 1, "h200", may_be_submitted=True), UnclearError)
