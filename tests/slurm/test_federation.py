"""Jobs whose ids are no plain number of one cluster: sbatch names the cluster beside it, or a
federation gives numbers that tell where a job came from.
"""

from __future__ import annotations

import time

import pytest

from tests.slurm.cluster import CLUSTER_NAME
from tests.slurm.test_submission import outcome
from tests.slurm.test_submission import site as site
from tests.waiting import until
from workflow_lib.launch.schedulers import slurm
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import JobRecord, Outcome

pytestmark = pytest.mark.slow
#: a federation's job ids have the number of their cluster in the bits from here on
_CLUSTER_BITS = 26


@pytest.fixture
def federation(slurm_cluster):
    manage = ("sacctmgr", "--immediate")
    slurm_cluster.run(*manage, "add", "federation", "tried", f"clusters={CLUSTER_NAME}")
    while "tried" not in slurm_cluster.run("scontrol", "show", "federation").stdout:
        time.sleep(0.1)
    yield
    slurm_cluster.run(*manage, "delete", "federation", "tried")
    while "tried" in slurm_cluster.run("scontrol", "show", "federation").stdout:
        time.sleep(0.1)


def _ended(site) -> str:
    """See the run's job to its end, which is a failure by design; returns the job's id."""
    process = site.start()
    until(lambda: site.paths.job.exists() or process.poll() is not None)
    site.go.touch()
    said = process.communicate()[1]
    assert site.paths.job.exists(), said
    job_id = read_record(site.paths.job, JobRecord).job_id
    assert site.jobs() == [job_id], said
    assert outcome(site.paths).job_id == job_id
    assert outcome(site.paths).outcome is Outcome.ERROR
    return job_id


def test_an_id_with_the_name_of_its_cluster_is_understood(slurm_cluster):
    named = ("sbatch", "--parsable", f"--clusters={CLUSTER_NAME}", "--output=/dev/null")
    said = slurm_cluster.run(*named, "--wrap=true").stdout
    assert said.strip().partition(";")[2] == CLUSTER_NAME
    assert slurm._job_id(said) == said.partition(";")[0]


def test_defaults_that_a_user_has_for_slurms_commands_change_nothing(site):
    site.environment |= {
        "SBATCH_PARTITION": "nowhere",
        "SBATCH_CLUSTERS": "elsewhere",
        "SLURM_CLUSTERS": "elsewhere",
        "SLURM_MEM_PER_CPU": "1",
        "SLURM_MEM_PER_NODE": "1",
        "SLURM_JOB_ID": "1",
        "SQUEUE_PARTITION": "nowhere",
        "SQUEUE_STATES": "COMPLETED",
        "SQUEUE_USERS": "nobody",
        "SCANCEL_PARTITION": "nowhere",
    }
    assert _ended(site).isdigit()


def test_a_job_of_a_federation_is_waited_for(federation, site):
    job_id = _ended(site)
    assert int(job_id) >> _CLUSTER_BITS
