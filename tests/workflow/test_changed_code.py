"""The code changes while a run is in flight: what it measured is kept."""

import shutil

import pytest

from tests.conftest import ROOT
from tests.programs import well
from tests.workflow.test_local import started
from workflow_lib.records.contract import RankRecord
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import EndedRecord, Outcome, OutcomeRecord

pytestmark = pytest.mark.slow

TRAINING = "workflow_lib/trainers/native/__main__.py"
#: what the older version has at the beginning of its training: it waits until it may go on
HELD = """
    while not paths.directory.with_name("go on").exists():
        time.sleep(0.05)
"""


def test_a_run_that_an_older_version_submitted_is_judged_and_not_trained_again(checkout):
    checkout.write_sweep(matrix=[{"models": "gpt3-tiny", "gpus": 1, "dp": 1}])
    checkout.edit(TRAINING, "    started = time.time()\n", f"{HELD}    started = time.time()\n")
    snakemake = checkout.start()
    began = started(checkout, "results/cells/*/*/*/run1/telemetry/*.ready", seconds=300)
    snakemake.kill()
    snakemake.wait()
    (run,) = checkout.runs().values()
    job = run.job.read_text()

    # A pull: the job's last step has an option of another name, and its script gives that.
    shutil.copy(ROOT / TRAINING, checkout.directory / TRAINING)
    for name in ("job/node.py", "templates/job.sh.j2"):
        checkout.edit(f"workflow_lib/launch/{name}", "--telemetry-exit", "--sampler-exit")
    checkout.edit("workflow_lib/launch/job/node.py", "arguments.telemetry_", "arguments.sampler_")
    assert not run.ended.exists(), began
    run.directory.with_name("go on").touch()
    well(checkout.snakemake("results/sweeps/tiny/report.html"))

    outcome = read_record(run.outcome, OutcomeRecord)
    assert outcome.outcome is Outcome.COMPLETED
    assert run.job.read_text() == job
    assert not run.attempts.exists()
    # All of it is of one version, which is kept under the name of its content.
    parts = {
        outcome.code_sha256,
        read_record(run.ended, EndedRecord).code_sha256,
        read_record(run.rank(0), RankRecord).code_sha256,
    }
    (code,) = (checkout.directory / "results" / "code").glob("*/*.zip")
    assert parts == {code.stem}
    assert checkout.planned_jobs() == set()
