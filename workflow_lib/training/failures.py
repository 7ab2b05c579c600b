"""The outcome that an exception stands for, and its record on disk."""

from __future__ import annotations

import errno
import re
import time
import traceback

import torch
import torch.distributed as dist

from workflow_lib import memory
from workflow_lib.records import Cell, ErrorRecord, Outcome, node_name


class NonfiniteLoss(ArithmeticError):
    """The loss of a step is NaN or infinite."""


#: What torch's collectives say if another rank does not answer or is gone. The cause lies there, so
#: this rank reports only that its wait timed out.
_SIGNS_OF_A_LOST_RANK = (
    "timed out",
    "timeout",
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "connection was closed",
    "broken pipe",
    "remote process exited",
)

#: what libraries say if an allocation fails and they do not raise an error of that kind
_SIGNS_OF_NO_MEMORY = ("out of memory", "can't allocate memory", "alloc_failed")
#: What CUDA says if a GPU is broken: cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable,
#: cudaErrorHardwareStackError (CUDA Runtime API, error types).
_SIGNS_OF_A_BROKEN_GPU = (
    "uncorrectable ecc error",
    "uncorrectable nvlink error",
    "hardware stack error",
)


def outcome_of(error: BaseException) -> Outcome:
    """The outcome of the run that an exception stands for."""
    message = str(error).lower()
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return Outcome.OUT_OF_MEMORY
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return Outcome.OUT_OF_MEMORY
    # The CPU allocator and some CUDA libraries raise a plain RuntimeError.
    if any(sign in message for sign in _SIGNS_OF_NO_MEMORY):
        return Outcome.OUT_OF_MEMORY
    if any(sign in message for sign in _SIGNS_OF_A_BROKEN_GPU):
        return Outcome.NODE_FAILURE
    if isinstance(error, ArithmeticError):
        return Outcome.NONFINITE_LOSS
    if isinstance(error, (dist.DistError, RuntimeError)) and any(
        sign in message for sign in _SIGNS_OF_A_LOST_RANK
    ):
        return Outcome.COMMUNICATION_TIMEOUT
    return Outcome.ERROR


def one_line(error: BaseException) -> str:
    """The first line of an exception, with its type if the message alone says little, and with what
    a compiler said, which comes after its command.
    """
    lines = str(error).strip().splitlines()
    if isinstance(error, (ValueError, OSError, ArithmeticError)) and lines:
        return lines[0]
    said = [type(error).__name__, *lines[:1], *re.findall(r"fatal error: .*", str(error))[:1]]
    if "Python.h" in said[-1]:
        said.append("Python's header files are missing; on Debian, apt-get install python3-dev")
    return ": ".join(said)


def memory_at_hand(cell: Cell) -> str:
    """The GPU memory that torch counts, and the planner's estimate by kind, as text."""
    expected = memory.estimate(cell.model, cell.degrees, cell.training).arithmetic()
    said = f"expected of the fullest rank, in GB: {expected}"
    if torch.cuda.is_available():
        allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        # The total that torch read at the start, because the driver may not answer without free
        # memory.
        total = torch.cuda.get_device_properties().total_memory
        said = (
            f"{allocated / 1e9:.1f} GB allocated and {reserved / 1e9:.1f} GB reserved of "
            f"{total / 1e9:.1f} GB; {said}"
        )
    return said


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
