"""Clocks of two nodes compared over TCP, where the truth is known: 0.3 s ahead, 50 ppm fast."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.training.cells import GPT, cell
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.files import read_record
from workflow_lib.records.nodes import NodeClock
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import write_json
from workflow_lib.trainers.native import clocks

TOKEN = b"0123456789abcdef"
AHEAD_S, DRIFT = 0.3, 50e-6
#: when both clocks differed by AHEAD_S alone: as a test begins
BEGAN_S = 0.0


@pytest.fixture(autouse=True)
def began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "BEGAN_S", time.time())


def fast(true_s: float) -> float:
    """What the other node's clock shows."""
    return true_s + AHEAD_S + DRIFT * (true_s - BEGAN_S)


@contextlib.contextmanager
def answering(clock: Callable[[], float] = time.time) -> Iterator[int]:
    """Rank 0, which answers one node; gives its port."""
    with clocks.listen() as listener:
        serving = threading.Thread(target=clocks.answer, args=(listener, TOKEN, 1, clock))
        serving.start()
        yield listener.getsockname()[1]
        serving.join(60)
        assert not serving.is_alive()


def compared(later_s: float = 0.0, delay_s: float = 0.0) -> clocks.ClockReading:
    """The other node's reading so long after the beginning; its questions take longer to get to
    rank 0 than its answers do to come back."""

    def slow_s() -> float:
        time.sleep(delay_s)
        return time.time() + later_s

    with answering(slow_s) as port:
        return clocks.ask("127.0.0.1", port, TOKEN, lambda: fast(time.time() + later_s))


@pytest.mark.parametrize(
    ("delay_s", "least_error_s", "greatest_error_s"),
    # With a delay the ways there and back differ.
    [(0.0, 0.0, 0.01), (0.002, 0.001, 0.1)],
)
def test_a_clock_ahead_is_found_within_its_error(delay_s, least_error_s, greatest_error_s):
    found = compared(delay_s=delay_s)
    assert least_error_s < found.error_s < greatest_error_s
    assert abs(found.ahead_s - AHEAD_S) <= found.error_s + 1e-4
    assert abs(found.ahead_s - AHEAD_S) > delay_s / 4


def test_drift_is_corrected_in_between():
    # After ten minutes the other clock has gained another 30 ms.
    before, after = compared(), compared(later_s=600)
    clock = NodeClock("node2", before, after)
    tolerance_s = before.error_s + after.error_s + 1e-4
    assert clock.skew_s == pytest.approx(AHEAD_S + 600 * DRIFT, abs=tolerance_s)
    assert clock.error_s == max(before.error_s, after.error_s)
    for true_s in (BEGAN_S, BEGAN_S + 250, BEGAN_S + 600):
        shown_s = fast(true_s)
        assert shown_s - clock.ahead_at(shown_s) == pytest.approx(true_s, abs=tolerance_s)


def test_a_clock_that_was_set_in_between_is_off_by_as_much():
    before = clocks.ClockReading(1000.0, 0.3, 1e-4)
    after = clocks.ClockReading(1060.0, 0.0, 1e-4)  # 0.3 s in a minute is no drift
    assert NodeClock("node2", before, after).error_s == pytest.approx(0.3, abs=1e-3)


def test_a_stranger_on_the_port_is_not_answered():
    with answering() as port:
        with pytest.raises(ConnectionError):
            clocks.ask("127.0.0.1", port, b"x" * 16)
        assert clocks.ask("127.0.0.1", port, TOKEN).error_s > 0


def test_a_node_that_stays_away_is_waited_for_no_longer_than_it_is_given(monkeypatch):
    monkeypatch.setattr(clocks, "TIMEOUT_S", 0.1)
    with clocks.listen() as listener, pytest.raises(TimeoutError):
        clocks.answer(listener, TOKEN, 1)


@pytest.mark.slow
def test_a_run_of_two_nodes_compares_their_clocks_before_and_after(tmp_path):
    """Both nodes are this machine, so that their clocks agree."""
    one = replace(cell(GPT, Degrees(dp=2), warmup_steps=1, measured_steps=2), nodes=2)
    paths = RunPaths(tmp_path / "run1")
    write_json(paths.cell, one)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "workflow_lib.trainers.native", str(paths.cell)],
            env={**os.environ, **shared, "RANK": str(rank), "SLURMD_NODENAME": f"node{rank}"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        _, said = rank.communicate()
        assert rank.returncode == 0, said
    for node in ("node0", "node1"):
        clock = read_record(paths.clock(node), NodeClock)
        assert clock.node == node
        assert clock.before is not None
        assert clock.after is not None
        assert clock.after.unix_time_s > clock.before.unix_time_s
        for reading in (clock.before, clock.after):
            assert abs(reading.ahead_s) <= reading.error_s + 1e-6
