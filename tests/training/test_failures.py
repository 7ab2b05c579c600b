import errno
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from workflow_lib.records.outcomes import Outcome
from workflow_lib.trainers.native.failures import NonfiniteLoss, describe, outcome_of
from workflow_lib.trainers.native.optimizer import NonfiniteGradient


def caught(action):
    with pytest.raises(Exception) as error:  # noqa: PT011 - whatever the library raises
        action()
    return error.value


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        # 4 EiB: more than any address space, so that the allocator itself refuses
        (lambda: torch.empty(1 << 60), Outcome.OUT_OF_MEMORY),
        (lambda: bytearray(1 << 62), Outcome.OUT_OF_MEMORY),
        (
            lambda: dist.TCPStore(
                *("127.0.0.1", 0, 2), is_master=True, timeout=timedelta(seconds=1)
            ),
            Outcome.COMMUNICATION_TIMEOUT,
        ),
    ],
    ids=["torch", "python", "a rank that never comes"],
)
def test_what_libraries_raise_has_its_outcome(action, expected):
    assert outcome_of(caught(action)) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NonfiniteLoss("step 3"), Outcome.NONFINITE_LOSS),
        (NonfiniteGradient("step 1"), Outcome.NONFINITE_LOSS),
        (KeyError("out of memory"), Outcome.ERROR),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), Outcome.OUT_OF_MEMORY),
        (OSError(errno.ENOSPC, "No space left"), Outcome.ERROR),
    ],
)
def test_an_exception_has_its_outcome(error, expected):
    assert outcome_of(error) == expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("CUDA error: uncorrectable ECC error encountered", Outcome.NODE_FAILURE),
        ("CUDA error: an illegal memory access was encountered", Outcome.ERROR),
        # Memory that ran out, in the words of each library.
        *(
            (message, Outcome.OUT_OF_MEMORY)
            for message in (
                "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
                "HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has 64 GB in all",
                "HIP error: out of memory",
                "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`",
                "Allocation on device 0 would exceed allowed memory. (out of memory)",
                "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
                'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/'
                'CUDACachingAllocator.cpp":1016, please report a bug to PyTorch. ',
                "unable to mmap 68719476736 bytes from file </tmp/x>: Cannot allocate memory (12)",
                "NCCL error in: /pytorch/NCCLUtils.cpp:94, unhandled cuda error\n"
                "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
                "Cuda failure 2 'out of memory'",
            )
        ),
        # Words of a cause in a message that is of something else.
        ("CUDA error: the launch timed out and was terminated", Outcome.ERROR),
        ("the option timeout=3 is not known", Outcome.ERROR),
        ("of 7 configurations of a kernel 3 ran out of memory", Outcome.ERROR),
        ("cannot parse 'uncorrectable ecc error' in the site's table", Outcome.ERROR),
        # Ranks that are gone.
        (
            "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
            "[127.0.0.1]:4815",
            Outcome.COMMUNICATION_TIMEOUT,
        ),
        ("Timed out after 31 seconds waiting for clients", Outcome.COMMUNICATION_TIMEOUT),
    ],
)
def test_what_cuda_says_tells_broken_gpus_and_full_ones_from_mistakes(message, expected):
    assert outcome_of(RuntimeError(message)) == expected


def test_what_a_compiler_lacks_is_said_with_what_to_install():
    error = RuntimeError(
        "CppCompileError: C++ compile error\n\nCommand:\ng++ a.cpp\n\nOutput:\n"
        "a.cpp:80:10: fatal error: Python.h: No such file or directory\n   80 | #include <Python.h>"
    )
    message = describe(0, "forward_backward", error).message
    assert message.startswith("RuntimeError: CppCompileError: ")
    assert "Python.h: " in message
    assert "python3-dev" in message


def test_the_record_says_where_and_why_and_keeps_the_traceback():
    error = caught(lambda: int("teapot"))

    record = describe(5, "data", error)

    assert (record.rank, record.phase, record.outcome) == (5, "data", Outcome.ERROR)
    assert record.message.endswith(": 'teapot'")
    assert "Traceback" in record.traceback
