"""Which GPUs a job sees."""

import pytest

from workflow_lib.telemetry.source import TelemetryError, visible_gpus

UUIDS = ("GPU-aa1", "GPU-ab2", "GPU-cc3", "GPU-dd4")


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("2,0", [2, 0]),
        ("GPU-cc,GPU-aa1", [2, 0]),
        (" 1 , 3 ", [1, 3]),
        ("0,-1,2", [0]),
        ("", []),
    ],
)
def test_cuda_order_and_subset(setting, expected):
    environment = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}
    assert visible_gpus(UUIDS, ("CUDA_VISIBLE_DEVICES",), environment) == expected


def test_hip_counts_within_what_rocr_left():
    environment = {"ROCR_VISIBLE_DEVICES": "1,2,3", "HIP_VISIBLE_DEVICES": "2,0"}
    variables = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    assert visible_gpus(UUIDS, variables, environment) == [3, 1]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("4", r"names GPU 4, but only 4 are there \(from 0\)"),
        ("GPU-a", r"'GPU-a' fits 2 of this node's GPUs"),
        ("first", r"'first' fits 0 of this node's GPUs"),
        ("MIG-GPU-aa1/1/0", "names a MIG instance"),
    ],
)
def test_an_entry_that_names_no_gpu_is_refused(setting, message):
    with pytest.raises(TelemetryError, match=message):
        visible_gpus(UUIDS, ("CUDA_VISIBLE_DEVICES",), {"CUDA_VISIBLE_DEVICES": setting})
