from dataclasses import replace

import pytest
import torch

from tests.training.cells import HARDWARE
from workflow_lib.records.cell import Telemetry
from workflow_lib.records.degrees import Degrees
from workflow_lib.trainers.native import device
from workflow_lib.trainers.native.launch import Launch, check, detect

SLURM = {
    "SUBMITIT_EXECUTOR": "slurm",
    "SLURM_JOB_ID": "4711",
    "SLURM_NTASKS": "4",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "h200-[1-2]",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}
TORCH = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "first",
    "MASTER_PORT": "29500",
}
REAL = Telemetry("auto", 20.0, 60.0)
TWO_ON_A_NODE = Launch(0, 2, 0, 2, "127.0.0.1", 0)


@pytest.fixture
def environment(monkeypatch):
    for name in {*SLURM, *TORCH}:
        monkeypatch.delenv(name, raising=False)

    def set_all(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_all


FOUND = Launch(3, 4, 1, 2, "first", 29500)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (TORCH, FOUND),
        # The job may name the master itself.
        (SLURM | {"MASTER_ADDR": "first", "MASTER_PORT": "29500"}, FOUND),
    ],
)
def test_the_environment_says_which_rank_this_is(environment, variables, expected):
    environment(variables)

    assert detect() == expected


def test_ranks_of_one_slurm_job_agree_on_a_port_and_two_jobs_do_not(environment):
    environment(SLURM)
    found = detect()
    assert found == replace(FOUND, master_address="h200-1", master_port=found.master_port)
    environment({"SLURM_PROCID": "0", "SLURM_LOCALID": "0"})
    assert detect().master_port == found.master_port
    environment({"SLURM_JOB_ID": "4712"})
    assert detect().master_port != found.master_port


@pytest.mark.parametrize("job", ["1", "4711", "12768", "67108864"])
def test_rank_0_listens_below_the_ports_of_outgoing_connections(environment, job):
    environment(SLURM | {"SLURM_JOB_ID": job})
    assert 20000 <= detect().master_port < 32768  # net.ipv4.ip_local_port_range: 32768 to 60999


def test_a_process_that_nobody_launched_is_the_only_rank(environment):
    found = detect()

    assert (found.rank, found.world_size) == (0, 1)


def test_half_an_environment_is_refused(environment):
    environment({"RANK": "0", "WORLD_SIZE": "2"})

    with pytest.raises(ValueError, match="LOCAL_RANK"):
        detect()


@pytest.mark.parametrize(
    ("address", "degrees", "said"),
    [("127.0.0.1", Degrees(tp=2, dp=2), "= 4:"), ("no-such-node", Degrees(dp=2), "no-such-node")],
)
def test_a_launch_that_cannot_work_is_refused_before_ranks_wait(address, degrees, said):
    with pytest.raises(ValueError, match=said):
        check(replace(TWO_ON_A_NODE, master_address=address), degrees)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a node without a GPU")
def test_a_run_meant_for_gpus_never_falls_back_to_the_cpu():
    hardware = replace(HARDWARE, platform="h200", gpu="H200")

    with pytest.raises(ValueError, match="shows 0"):
        device.choose(TWO_ON_A_NODE, hardware, REAL)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a node without a GPU")
def test_a_simulated_platform_trains_on_the_cpu():
    hardware = replace(HARDWARE, gpu="H200")
    chosen = device.choose(TWO_ON_A_NODE, hardware, Telemetry("simulated", 20.0, 0.0))

    assert (chosen.torch.type, chosen.backend, chosen.gpu) == ("cpu", "gloo", None)
    memory = chosen.memory()
    assert 50_000_000 < memory.allocated <= memory.peak
    assert (memory.reserved, memory.used) == (None, None)
    assert (chosen.allocator, memory.retries, memory.frees) == (None, None, None)
