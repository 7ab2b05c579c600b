"""Which GPU a rank takes, and what it records of torch's allocator of its memory."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.training.cells import cell
from workflow_lib.trainers.native import device as device_module
from workflow_lib.trainers.native.device import choose
from workflow_lib.trainers.native.launch import Launch


@pytest.fixture
def two_gpus(monkeypatch):
    """torch, as if this machine had two GPUs; returns those that were made current."""
    current = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    address = {"pci_domain_id": 0, "pci_device_id": 0}
    # As torch writes a UUID: without NVML's "GPU-".
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda gpu: SimpleNamespace(
            uuid=f"5f2a-{gpu.index}", pci_bus_id=0xC1 + gpu.index, **address
        ),
    )
    return current


ONE = cell()
FIRST = Launch(0, 2, 0, 2, "127.0.0.1", 0)


@pytest.mark.parametrize(
    ("order", "local_rank", "gpu"), [((), 0, 0), ((), 1, 1), ((1, 0), 0, 1), ((1, 0), 1, 0)]
)
def test_a_rank_takes_the_gpu_that_the_order_gives_it(two_gpus, order, local_rank, gpu):
    launch = replace(FIRST, rank=local_rank, local_rank=local_rank)

    device = choose(launch, ONE.hardware, ONE.telemetry, order)

    # Telemetry finds the rank's GPU by the same number.
    assert (device.gpu, device.name) == (gpu, f"GPU {gpu}")
    assert device.uuid == f"GPU-5f2a-{gpu}"
    assert device.pci_address == f"0000:c{1 + gpu}:00"
    assert device.torch == torch.device("cuda", gpu)
    assert two_gpus == [torch.device("cuda", gpu)]


def test_a_gpu_of_another_model_is_refused(two_gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA GH200 480GB")

    with pytest.raises(ValueError, match="'NVIDIA GH200 480GB'"):
        choose(FIRST, replace(ONE.hardware, gpu="H200"), ONE.telemetry)


def test_memory_is_told_as_tensors_allocator_and_driver_have_it(two_gpus, monkeypatch):
    gigabyte = 10**9
    stats = {
        "allocated_bytes.all.current": 40 * gigabyte,
        "allocated_bytes.all.peak": 60 * gigabyte,
        "reserved_bytes.all.current": 61 * gigabyte,
        "reserved_bytes.all.peak": 66 * gigabyte,
        "num_alloc_retries": 2,
        "num_device_free": 7,
    }
    free_and_total = (80 * gigabyte, 150 * gigabyte)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: stats)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: free_and_total)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")

    memory = choose(FIRST, ONE.hardware, ONE.telemetry).memory()

    assert (memory.allocated, memory.peak) == (40 * gigabyte, 60 * gigabyte)
    # The driver counts 70 GB, what is not free; and counted the 5 GB that the allocator gave back.
    assert (memory.reserved, memory.used) == (66 * gigabyte, 75 * gigabyte)
    assert (memory.retries, memory.frees) == (2, 7)


def test_one_module_alone_spells_torchs_name_of_a_gpu():
    package = Path(device_module.__file__).parent
    spelling = [path for path in package.rglob("*.py") if '"cuda"' in path.read_text("utf-8")]

    assert spelling == [package / "device.py"]


def test_a_cell_that_was_placed_on_other_gpus_does_not_train(two_gpus):
    chosen = (ONE.hardware, ONE.telemetry, (1, 0))
    # The second GPU of either of two nodes.
    of_two_nodes = ("GPU-a", "GPU-b", "GPU-c", "GPU-5f2a-1")

    assert choose(FIRST, *chosen, of_two_nodes).uuid == "GPU-5f2a-1"
    with pytest.raises(ValueError, match=r"GPU-5f2a-1, .* GPU-b: "):
        choose(FIRST, *chosen, ("GPU-a", "GPU-b"))


def test_on_a_cpu_deepspeed_asks_no_program_how_many_ranks_there_are(tmp_path):
    numactl = tmp_path / "numactl"
    numactl.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-started\n", encoding="utf-8")
    numactl.chmod(0o755)
    asked = (
        "import torch; from workflow_lib.trainers.deepspeed.engine import import_deepspeed; "
        "import_deepspeed(torch.device('cpu')); "
        "from deepspeed.accelerator import get_accelerator; "
        "print('ranks', get_accelerator().device_count())"
    )
    environment = {key: value for key, value in os.environ.items() if key != "LOCAL_SIZE"}
    environment |= {"LOCAL_WORLD_SIZE": "2", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-c", asked], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "ranks 2", done.stderr
    assert not (tmp_path / "was-started").exists()


GPU = torch.device("cuda", 0)
STATS = {"num_alloc_retries": 3, "num_device_free": 17}


@pytest.fixture
def asked(monkeypatch):
    """Has torch tell these settings, and this backend."""

    def tell(text="", backend="native"):
        snapshot = {"allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": text}}
        monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda device: snapshot)
        monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: backend)

    return tell


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "native"),
        ("expandable_segments:True", "native, expandable_segments:True"),
        (
            "roundup_power2_divisions:[256:1, >:4], expandable_segments:True,",
            "native, expandable_segments:True, roundup_power2_divisions:[256:1,>:4]",
        ),
    ],
)
def test_settings_are_those_that_torch_tells_in_one_order(asked, text, told):
    asked(text)
    assert device_module.allocator_settings(GPU) == told
    assert device_module.allocator_shortages(STATS) == (3, 17)


def test_an_allocator_that_does_not_count_has_no_counts(asked, monkeypatch):
    asked("backend:cudaMallocAsync", "cudaMallocAsync")
    assert device_module.allocator_settings(GPU) == "cudaMallocAsync"
    assert device_module.allocator_shortages(STATS) == (None, None)
    asked()
    # An old torch counts retries alone.
    assert device_module.allocator_shortages({"num_alloc_retries": 3}) == (3, None)
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    assert device_module.allocator_settings(GPU) == "native, no caching"
    assert device_module.allocator_shortages(STATS) == (None, None)
