"""The throwaway cluster behaves as a real one, and goes as if it had never been."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.waiting import until

from .cluster import Cluster, ClusterError

ALL_GPUS = "0,1,2,3,4,5,6,7"
DAEMONS = ("munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd", "slurmstepd")
JOB_COMMANDS = ("sleep 98765", "sleep 98766")  # told by these numbers from anybody else's
ON_H200 = ("--partition=h200", "--account=research", "--time=5")


def accounting(cluster: Cluster, job: str, nodes: str) -> dict[str, str]:
    """Return what sacct says of a job that ended on ``nodes``, waiting for it up to 15 s.

    The end of a job of a few seconds reaches the database before its start does: for up to 5 s
    sacct shows it as ended on the node that was planned when it was pending.
    """
    fields = ("State", "ExitCode", "AllocTRES", "NodeList")
    command = ["sacct", "-j", job, "-X", "--noheader", "-P", f"--format={','.join(fields)}"]
    deadline = time.monotonic() + 120
    said = ""
    while time.monotonic() < deadline:
        said = cluster.run(*command).stdout.strip()
        values = dict(zip(fields, said.split("|"), strict=False))
        if values["State"] in ("COMPLETED", "FAILED") and values["NodeList"] == nodes:
            return values
        time.sleep(0.2)
    raise AssertionError(f"sacct does not report the end of job {job} on {nodes}, only {said!r}")


def test_each_partition_has_its_nodes_up(slurm_cluster):
    answer = slurm_cluster.run("sinfo", "--noheader", "--format=%P|%a|%D|%N|%f|%G")
    assert answer.stdout.splitlines() == [
        "h200|up|2|h200-[1-2]|h200|gpu:h200:8",
        "h100|up|2|h100-[1-2]|h100|gpu:h100:8",
        "mi250|up|1|mi250-1|mi250|gpu:mi250:8",
        "cpu*|up|1|cpu-1|cpu|(null)",
    ]


def test_a_job_on_two_nodes_is_given_and_charged_sixteen_gpus(slurm_cluster, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/bash\n"
        "#SBATCH --nodes=2 --gres=gpu:h200:8 --exclusive --mem=900000 --cpus-per-task=16\n"
        "srun --ntasks-per-node=1 --gpus-per-node=h200:8"
        " bash -c 'echo $SLURMD_NODENAME $SLURM_PROCID $CUDA_VISIBLE_DEVICES'\n"
    )
    output = tmp_path / "job.out"
    job = slurm_cluster.run(
        "sbatch", "--parsable", *ON_H200, f"--output={output}", str(script)
    ).stdout.strip()
    ended = accounting(slurm_cluster, job, nodes="h200-[1-2]")
    assert sorted(output.read_text().splitlines()) == [
        f"h200-1 0 {ALL_GPUS}",
        f"h200-2 1 {ALL_GPUS}",
    ]
    assert ended["State"] == "COMPLETED"
    assert "gres/gpu=16" in ended["AllocTRES"].split(",")


def test_a_step_beside_another_sees_the_same_gpus(slurm_cluster, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/bash\n"
        'step() { srun --overlap --ntasks-per-node=1 --gpus-per-node=h200:8 bash -c "$1"; }\n'
        f"step 'touch {tmp_path}/telemetry; echo telemetry $CUDA_VISIBLE_DEVICES; sleep 2' &\n"
        f"step 'until test -e {tmp_path}/telemetry; do sleep 0.1; done;"
        " echo training $CUDA_VISIBLE_DEVICES'\n"
        "wait\n"
    )
    output = tmp_path / "job.out"
    job = slurm_cluster.run(
        "sbatch", "--parsable", *ON_H200, "--gres=gpu:h200:8", f"--output={output}", str(script)
    ).stdout.strip()
    assert accounting(slurm_cluster, job, nodes="h200-1")["State"] == "COMPLETED"
    assert sorted(output.read_text().splitlines()) == [
        f"telemetry {ALL_GPUS}",
        f"training {ALL_GPUS}",
    ]


def test_an_amd_node_names_its_gpus_in_amds_variable(slurm_cluster):
    answer = slurm_cluster.run(
        "srun", "--partition=mi250", "--gres=gpu:mi250:8", "printenv", "ROCR_VISIBLE_DEVICES"
    )
    assert answer.stdout == f"{ALL_GPUS}\n"


def test_a_node_resolves_its_own_name(slurm_cluster):
    answer = slurm_cluster.run(
        "srun", *ON_H200, "--nodelist=h200-2", "getent", "ahostsv4", "h200-2"
    )
    assert answer.stdout.split()[0] == "127.0.0.1"


def test_a_failed_job_is_recorded_with_its_exit_status(slurm_cluster):
    job = slurm_cluster.run(
        "sbatch", "--parsable", "--output=/dev/null", "--wrap=exit 3"
    ).stdout.strip()
    ended = accounting(slurm_cluster, job, nodes="cpu-1")
    assert (ended["State"], ended["ExitCode"]) == ("FAILED", "3:0")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--partition=h200", "--account=unheard-of"], "Invalid account"),
        (["--partition=unheard-of", "--account=research"], "Invalid partition name"),
        ([*ON_H200, "--qos=unheard-of"], "Invalid qos"),
        ([*ON_H200, "--nodes=3"], "Node count specification invalid"),
        ([*ON_H200, "--gres=gpu:h100:8"], "node configuration is not available"),
        ([*ON_H200, "--time=3-00:00:00"], "time limit is invalid"),
    ],
)
def test_what_the_cluster_does_not_have_is_refused(slurm_cluster, options, message):
    answer = slurm_cluster.run("sbatch", *options, "--wrap=true", check=False)
    assert answer.returncode == 1
    assert message in answer.stderr


def test_starting_it_again_changes_nothing(slurm_cluster):
    before = slurm_cluster.daemon_states()
    assert Cluster(slurm_cluster.directory).start() is False
    assert slurm_cluster.daemon_states() == before


def test_a_second_one_elsewhere_is_refused(slurm_cluster):
    second = Cluster(slurm_cluster.directory.with_name("triptych-slurm-second"))
    with pytest.raises(ClusterError, match=f"already up in {slurm_cluster.directory}"):
        second.start()
    assert not second.directory.exists()


def test_a_directory_with_something_else_in_it_is_refused(slurm_cluster, tmp_path):
    occupied = slurm_cluster.directory / "state"
    with pytest.raises(ClusterError, match="did not write"):
        Cluster(occupied).start()
    assert any(occupied.iterdir())


def running() -> list[str]:
    """Return name, process id and command of each daemon and each job of these tests."""
    processes = subprocess.run(
        ["ps", "-eo", "stat=,comm=,pid=,args="], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    alive = [line.split(maxsplit=1)[1] for line in processes if not line.startswith("Z")]
    return [line for line in alive if line.startswith(DAEMONS) or line.endswith(JOB_COMMANDS)]


def traces() -> dict[str, object]:
    """Return what a cluster could leave on the machine."""
    etc_slurm = Path("/etc/slurm")
    return {
        "hosts": Path("/etc/hosts").read_text(),
        "etc": sorted(etc_slurm.rglob("*")) if etc_slurm.exists() else None,
        "munge": Path("/run/munge").exists(),
        "processes": running(),
    }


def test_it_goes_without_a_trace_even_with_a_job_running(disposable_cluster):
    before = traces()
    assert "h200-1" not in str(before["hosts"])
    disposable_cluster.start()
    # The second sleep leaves its job's process tree, where Slurm no longer finds it.
    in_tree, escaped = JOB_COMMANDS
    disposable_cluster.run(
        "sbatch", "--output=/dev/null", f"--wrap=(setsid {escaped} &); exec {in_tree}"
    )
    until(
        lambda: all(any(line.endswith(job) for line in running()) for job in JOB_COMMANDS),
        what="the job did not start",
    )
    disposable_cluster.stop()
    assert traces() == before
    assert not disposable_cluster.directory.exists()


def test_it_starts_after_a_crash_and_still_goes_without_a_trace(disposable_cluster):
    before = traces()
    disposable_cluster.start()
    for state in disposable_cluster.daemon_states().values():
        subprocess.run(["kill", "-KILL", state.rpartition(" ")[2]], check=True)
    assert not disposable_cluster.is_up()
    assert disposable_cluster.start() is True
    assert set(disposable_cluster.node_states().values()) == {"idle"}
    disposable_cluster.stop()
    assert traces() == before


def test_its_daemons_are_found_when_their_directory_is_gone(disposable_cluster):
    before = traces()
    disposable_cluster.start()
    shutil.rmtree(disposable_cluster.directory)
    assert disposable_cluster.stop() is True
    assert traces() == before
