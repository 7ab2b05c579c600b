"""The outcome that an exception stands for, and its record on disk."""

from __future__ import annotations

import errno
import re
import time
import traceback

import torch
import torch.distributed as dist

from workflow_lib import memory
from workflow_lib.records.cell import Cell
from workflow_lib.records.outcomes import ErrorRecord, Outcome
from workflow_lib.records.paths import node_name
from workflow_lib.trainers.native.optimizer import NonfiniteGradient


class NonfiniteLoss(ArithmeticError):
    """The loss of a step is NaN or infinite."""


#: What torch's own errors of collectives say if another rank does not answer or is gone. The cause
#: lies there, so this rank reports only that its wait timed out.
_LOST_RANK = re.compile(
    r"timed out|timeout|connection (closed by peer|reset by peer|refused|was closed)|broken pipe"
    r"|remote process exited",
    re.IGNORECASE,
)
#: where other errors come from that say so: gloo, and c10d's stores and sockets
_OF_COLLECTIVES = re.compile(
    r"\[\S*(gloo|c10d)\S*\] |Socket Timeout|Wait timeout|Timed out (after|initializing|waiting) "
    r"|The client socket has |Application timeout |Gloo connectFullMesh failed",
)

#: Lines with which libraries say that an allocation failed, if they raise no error of that kind:
#: torch's allocators of the CPU, of CUDA and of HIP, its own report of a full GPU (which asks NVML,
#: and fails), cuBLAS and cuDNN, NCCL, and mmap.
_NO_MEMORY = re.compile(
    r"(CUDA|HIP)( error:)? out of memory.*"
    r"|Allocation on device .*out of memory.*"
    r"|(CUDA error: )?(CUBLAS|HIPBLAS)_STATUS_ALLOC_FAILED.*"
    r"|(CUDA error: )?(CUBLAS|HIPBLAS)_STATUS_NOT_INITIALIZED when calling `?(cu|hip)blasCreate.*"
    r"|cuDNN error: CUDNN_STATUS_ALLOC_FAILED.*"
    r"|NVML_SUCCESS == r INTERNAL ASSERT FAILED at .*CUDACachingAllocator.*"
    r"|Cuda failure (2 )?'out of memory'.*"
    r"|unable to mmap \d+ bytes from file .*: Cannot allocate memory \(12\).*"
    r"|\[enforce fail at alloc_cpu\.cpp.*can't allocate memory.*",
    re.IGNORECASE,
)
#: What CUDA says if a GPU is broken: cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable,
#: cudaErrorHardwareStackError (CUDA Runtime API, error types).
_BROKEN_GPU = re.compile(
    r"CUDA error: (uncorrectable (ecc|nvlink) error|hardware stack error).*", re.IGNORECASE
)


def outcome_of(error: BaseException) -> Outcome:
    """The outcome of the run that an exception stands for, by its type and by whole lines of its
    message; ERROR where neither is known."""
    lines = [line.strip() for line in str(error).splitlines()]
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return Outcome.OUT_OF_MEMORY
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return Outcome.OUT_OF_MEMORY
    if isinstance(error, (NonfiniteLoss, NonfiniteGradient)):
        return Outcome.NONFINITE_LOSS
    if not isinstance(error, RuntimeError):
        return Outcome.ERROR
    if any(map(_NO_MEMORY.fullmatch, lines)):
        return Outcome.OUT_OF_MEMORY
    if any(map(_BROKEN_GPU.fullmatch, lines)):
        return Outcome.NODE_FAILURE
    of_collectives = isinstance(error, dist.DistError) or any(map(_OF_COLLECTIVES.match, lines))
    if of_collectives and any(map(_LOST_RANK.search, lines)):
        return Outcome.COMMUNICATION_TIMEOUT
    return Outcome.ERROR


def one_line(error: BaseException) -> str:
    """The first line of an exception, with its type if the message alone says little, and with what
    a compiler said, which comes after its command.
    """
    lines = str(error).strip().splitlines()
    if isinstance(error, (ValueError, OSError, ArithmeticError)) and lines:
        return lines[0]
    parts = [type(error).__name__, *lines[:1], *re.findall(r"fatal error: .*", str(error))[:1]]
    if "Python.h" in parts[-1]:
        parts.append("Python's header files are missing; on Debian, apt-get install python3-dev")
    return ": ".join(parts)


def memory_at_hand(cell: Cell) -> str:
    """The GPU memory that torch counts, and the planner's estimate by kind, as text."""
    expected = memory.estimate(cell.model, cell.degrees, cell.training).arithmetic()
    text = f"expected of the fullest rank, in GB: {expected}"
    if torch.cuda.is_available():
        allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        # The total that torch read at the start, because the driver may not answer without free
        # memory.
        total = torch.cuda.get_device_properties().total_memory
        text = (
            f"{allocated / 1e9:.1f} GB allocated and {reserved / 1e9:.1f} GB reserved of "
            f"{total / 1e9:.1f} GB; {text}"
        )
    return text


def describe(rank: int, phase: str, error: BaseException, cell: Cell | None = None) -> ErrorRecord:
    """The record of an exception for ``errors/rank<n>.json``. If memory ran out and ``cell`` is
    given, the message says what memory held."""
    outcome, message = outcome_of(error), one_line(error)
    if outcome is Outcome.OUT_OF_MEMORY and cell is not None:
        message += f" ({memory_at_hand(cell)})"
    return ErrorRecord(
        rank=rank,
        node=node_name(),
        unix_time_s=time.time(),
        phase=phase,
        outcome=outcome,
        message=message,
        traceback="".join(traceback.format_exception(error)),
    )
