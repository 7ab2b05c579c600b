"""Prolog and Epilog of one node, as Slurm calls them."""

from __future__ import annotations

import csv
import io
import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests import programs
from tests.measure.runs import environment
from tests.waiting import until
from workflow_lib import audit
from workflow_lib.records.paths import RunPaths


def site(directory: Path, word: str, gpus: int = 2, told: int = 0, **variables: str) -> None:
    """Call a script of job 7 on node n1, with so many simulated GPUs; it tells so many lines."""
    of_job = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0,1", "SLURMD_NODENAME": "n1", **variables}
    words = [sys.executable, "-m", "workflow_lib.measure", "site", word, str(directory / "site")]
    words += [f"--simulate={gpus}", "--rate=10"]
    done = programs.run(words, directory, environment(**of_job))
    assert (done.returncode, done.stderr.count("\n")) == (0, told)


def measured_once(
    directory: Path, name: str, gpus: int = 2, told: int = 0, **variables: str
) -> dict[str, object]:
    """The record of a run of the job."""
    paths = RunPaths(directory / "site" / name)
    (directory / "site").mkdir(exist_ok=True)
    site(directory, "begin", gpus, **variables)
    until(paths.telemetry_ready("n1").exists)
    site(directory, "end", gpus, told, **variables)
    assert paths.telemetry_end("n1").exists()
    record: dict[str, object] = json.loads(paths.measured.read_bytes())
    return record


def test_a_job_that_is_requeued_has_a_run_for_each_time(tmp_path):
    for name, code in (("7", 0), ("7-2", 3)):
        record = measured_once(tmp_path, name, SLURM_JOB_EXIT_CODE2=f"{code}:0")
        assert (record["job_id"], record["exit_code"], record["invalid"]) == ("7", code, [])
    assert sorted(path.name for path in (tmp_path / "site").iterdir()) == ["7", "7-2"]


def test_a_node_that_was_not_sampled_is_told(tmp_path):
    record = measured_once(tmp_path, "7", told=1, SLURM_JOB_NUM_NODES="2")
    assert record["nodes"] == ["n1"]
    assert len(list(record["invalid"])) == 1  # type: ignore[call-overload]


def test_a_job_with_gpus_of_which_none_is_seen_is_not_valid(tmp_path):
    record = measured_once(tmp_path, "7", gpus=0, told=1)
    assert record["gpus"] == []
    assert len(list(record["invalid"])) == 1  # type: ignore[call-overload]


def test_a_directory_that_is_not_mounted_is_not_made(tmp_path):
    site(tmp_path, "begin", told=1)
    assert list(tmp_path.iterdir()) == []


def test_a_job_without_gpus_leaves_nothing(tmp_path):
    for word in ("begin", "end"):
        site(tmp_path, word, SLURM_JOB_GPUS="")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("job", ["1", "2"])
def test_jobs_side_by_side_have_the_joules_of_their_own_gpus(job):
    archive = Path(__file__).parents[2] / "evidence/measured/site-h100x2.zip"
    audited = {run.name: audit.Audit(run) for run in audit.runs_below(archive)}[job]
    with zipfile.ZipFile(archive) as opened:
        uuid = f"GPU-{opened.read(f'job-{job}.out').decode().split(chr(39))[1]}"  # as torch saw it
        rows = list(csv.DictReader(io.StringIO(opened.read("recorder.csv").decode())))
    own = [row for row in rows if row["gpu_uuid"] == uuid]
    at = [(float(row["before_unix_s"]) + float(row["after_unix_s"])) / 2 for row in own]
    assert at[0] <= audited.window[0] < audited.window[1] < at[-1]
    counter_j = [float(row["energy_mj"]) / 1e3 for row in own]
    start_j, end_j = np.interp(audited.window, at, counter_j)
    assert audited.values["energy_j"] == pytest.approx(end_j - start_j, rel=3e-4)
