import errno
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from workflow_lib.records import Outcome
from workflow_lib.training.failures import NonfiniteLoss, describe, outcome_of


def caught(action):
    with pytest.raises(Exception) as error:  # noqa: PT011 - whatever the library raises
        action()
    return error.value


def test_memory_that_torch_cannot_have_is_out_of_memory():
    # 4 EiB: more than any address space, so that the allocator itself refuses
    error = caught(lambda: torch.empty(1 << 60))

    assert outcome_of(error) == Outcome.OUT_OF_MEMORY


def test_memory_that_python_cannot_have_is_out_of_memory():
    assert outcome_of(caught(lambda: bytearray(1 << 62))) == Outcome.OUT_OF_MEMORY


def test_a_rank_that_never_comes_is_a_communication_timeout():
    store_of_two = lambda: dist.TCPStore(  # noqa: E731
        "127.0.0.1", 0, 2, is_master=True, timeout=timedelta(seconds=1)
    )

    assert outcome_of(caught(store_of_two)) == Outcome.COMMUNICATION_TIMEOUT


def test_a_loss_that_is_not_finite_and_anything_else_are_told_apart():
    assert outcome_of(NonfiniteLoss("the loss of step 3 is nan")) == Outcome.NONFINITE_LOSS
    assert outcome_of(KeyError("x")) == Outcome.ERROR


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("CUDA error: uncorrectable ECC error encountered", Outcome.NODE_FAILURE),
        (
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`",
            Outcome.OUT_OF_MEMORY,
        ),
        ("CUDA error: an illegal memory access was encountered", Outcome.ERROR),
    ],
)
def test_what_cuda_says_tells_broken_gpus_and_full_ones_from_mistakes(message, expected):
    assert outcome_of(RuntimeError(message)) == expected


def test_host_memory_that_the_system_refuses_is_out_of_memory():
    assert outcome_of(OSError(errno.ENOMEM, "Cannot allocate memory")) == Outcome.OUT_OF_MEMORY
    assert outcome_of(OSError(errno.ENOSPC, "No space left on device")) == Outcome.ERROR


def test_what_a_compiler_lacks_is_said_with_what_to_install():
    error = RuntimeError(
        "CppCompileError: C++ compile error\n\nCommand:\ng++ a.cpp\n\nOutput:\n"
        "a.cpp:80:10: fatal error: Python.h: No such file or directory\n   80 | #include <Python.h>"
    )
    assert describe(0, "forward_backward", error).message == (
        "RuntimeError: CppCompileError: C++ compile error: fatal error: Python.h: No such file or "
        "directory: Python's header files are missing; on Debian, apt-get install python3-dev"
    )


def test_the_record_says_where_and_why_and_keeps_the_traceback():
    error = caught(lambda: int("teapot"))

    record = describe(5, "data", error)

    assert (record.rank, record.phase, record.outcome) == (5, "data", Outcome.ERROR)
    assert record.message == "invalid literal for int() with base 10: 'teapot'"
    assert "Traceback (most recent call last)" in record.traceback
