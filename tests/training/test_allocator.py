"""What a rank records of torch's allocator of GPU memory."""

from __future__ import annotations

import pytest
import torch

from workflow_lib.trainers.native import device as device_module
from workflow_lib.trainers.native.device import Device

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


def test_a_cpu_has_no_such_allocator():
    device = Device(torch.device("cpu"), "CPU", None, "gloo")
    memory = device.memory()
    assert (device.allocator, memory.retries, memory.frees) == (None, None, None)
