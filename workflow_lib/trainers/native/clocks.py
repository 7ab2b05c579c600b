"""Compares the clocks of a run's nodes with rank 0's, over a TCP connection for each node.

:mod:`workflow_lib.records.nodes` defines the comparison and its error. Torch's own messages would
wait for GPUs or for threads; a plain connection answers within about 50 µs.
"""

from __future__ import annotations

import secrets
import socket
import struct
import time
from collections.abc import Callable

from workflow_lib.records.nodes import ClockReading
from workflow_lib.trainers.native.launch import Launch

#: number of questions; the quickest answer counts
_QUESTIONS = 50
_TOKEN_BYTES = 16
_TIME = struct.Struct("!d")
_QUESTION = b"?"
#: a node that is not reached within this time is reported as not compared
TIMEOUT_S = 30.0
#: a node that connects must identify itself within this time
_GREETING_S = 2.0

Clock = Callable[[], float]


def compare(launch: Launch, nodes: int) -> ClockReading | str | None:
    """Compare this node's clock with rank 0's; every rank of a run of several nodes calls this.

    Returns None on ranks other than their node's first, and a message if the comparison fails.
    """
    import torch.distributed as dist

    listener, where = None, [0, b""]
    if launch.rank == 0:
        listener = listen()
        where = [listener.getsockname()[1], secrets.token_bytes(_TOKEN_BYTES)]
    dist.broadcast_object_list(where, src=0)
    port, token = where
    assert isinstance(port, int)
    assert isinstance(token, bytes)
    reading: ClockReading | str | None = None
    try:
        if listener is not None:
            with listener:
                answer(listener, token, nodes - 1)
            reading = ClockReading(time.time(), 0.0, 0.0)
        elif launch.local_rank == 0:
            reading = ask(launch.master_address, port, token)
    except OSError as error:
        reading = f"its clock was not compared with rank 0's over TCP: {error}"
    dist.barrier()
    return reading


def listen() -> socket.socket:
    """A listening socket on a free port, on all interfaces."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def answer(listener: socket.socket, token: bytes, nodes: int, clock: Clock = time.time) -> None:
    """Tell the time to ``nodes`` other nodes, one after the other. Raises OSError if one does not
    connect in time."""
    ends_s = time.monotonic() + TIMEOUT_S
    while nodes:
        listener.settimeout(max(0.1, ends_s - time.monotonic()))
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(_GREETING_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                greeting = _received(connection, _TOKEN_BYTES)
            except OSError:
                continue  # for example a port scanner
            if not secrets.compare_digest(greeting, token):
                continue  # not from this run
            connection.settimeout(TIMEOUT_S)
            for _ in range(_QUESTIONS):
                _received(connection, len(_QUESTION))
                connection.sendall(_TIME.pack(clock()))
            nodes -= 1


def ask(address: str, port: int, token: bytes, clock: Clock = time.time) -> ClockReading:
    """Ask rank 0 for its time, and return the comparison with the least error. Raises OSError."""
    best: ClockReading | None = None
    with socket.create_connection((address, port), TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(token)
        for _ in range(_QUESTIONS):
            asked_s = clock()
            connection.sendall(_QUESTION)
            (theirs_s,) = _TIME.unpack(_received(connection, _TIME.size))
            told_s = clock()
            middle_s, error_s = (asked_s + told_s) / 2, (told_s - asked_s) / 2
            if best is None or error_s < best.error_s:
                best = ClockReading(middle_s, middle_s - theirs_s, error_s)
    assert best is not None
    return best


def _received(connection: socket.socket, size: int) -> bytes:
    """Receive ``size`` bytes. Raises ConnectionError if the other side ends before."""
    text = b""
    while len(text) < size:
        part = connection.recv(size - len(text))
        if not part:
            raise ConnectionError("the other node ended the comparison of clocks")
        text += part
    return text
