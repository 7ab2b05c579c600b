"""Bytes over links, counted from step to step: the simulated counters move in bursts within steps,
and show what went by a tenth of a second later.
"""

from __future__ import annotations

import pytest
import torch

from workflow_lib.records.nodes import LinkReading
from workflow_lib.telemetry.source import UnreadableError
from workflow_lib.trainers.native import links
from workflow_lib.trainers.native.device import Device
from workflow_lib.trainers.native.links import LinkCounting

GPU = Device(torch.device("cpu"), "NVIDIA H200", 0, "nccl", "GPU-a")
RENEWED_S = 0.1
#: of an all-reduce of 1 MiB over four GPUs, by ring arithmetic: 2 · 3/4 of it
STEP_BYTES = 1_572_864


class Machine:
    """A clock, and link counters that are renewed at every tenth of a second."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.moved: list[tuple[float, int]] = []
        self.barriers = 0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def barrier(self) -> None:
        self.barriers += 1

    def step(self, count: int = STEP_BYTES) -> None:
        """Compute for 0.37 s; then nine tenths of the bytes, and at the very end the rest."""
        self.now_s += 0.37
        self.moved.append((self.now_s, count - count // 10))
        self.now_s += 0.07
        self.moved.append((self.now_s, count // 10))

    def open(self, uuid: str | None) -> links.ReadLinks:
        assert uuid == "GPU-a"

        def read() -> LinkReading:
            shown_until_s = self.now_s // RENEWED_S * RENEWED_S - 1e-9
            shown = sum(count for at_s, count in self.moved if at_s <= shown_until_s)
            return LinkReading(self.now_s, 7 + shown, 9 + shown)

        return read


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(links.time, "sleep", made.sleep)
    return made


@pytest.mark.parametrize("steps", [1, 5, 20])
@pytest.mark.parametrize("warmup", [0, 1, 3])
def test_whole_steps_are_counted_exactly(machine, steps, warmup):
    counting = LinkCounting(0, GPU, warmup, machine.open, machine.barrier)
    for step in range(warmup + steps):
        if step == counting.first_step:
            counting.begin()
        # In the first step of a run groups connect, which takes bytes of its own.
        machine.step(STEP_BYTES + (5_000_000 if step == 0 and warmup else 0))
    count = counting.end(warmup + steps)
    assert count.before is not None
    assert count.after is not None
    assert count.steps == warmup + steps - counting.first_step
    assert count.after.sent_bytes - count.before.sent_bytes == count.steps * STEP_BYTES
    assert count.after.received_bytes - count.before.received_bytes == count.steps * STEP_BYTES
    # Nobody reads before all have ended their step, nor goes on before all have read.
    assert machine.barriers == 4


@pytest.mark.parametrize("readings", [None, 0, 1])
def test_a_rank_that_cannot_read_says_why_and_keeps_nobody_waiting(machine, readings):
    """It cannot open the counters, or reads them so many times."""
    left = [machine.open("GPU-a")] * (readings or 0)

    def read() -> LinkReading:
        if not left:
            raise UnreadableError("no links here")
        return left.pop()()

    def begin(uuid: str | None) -> links.ReadLinks:
        return read() if readings is None else read

    counting = LinkCounting(3, GPU, 1, begin, machine.barrier)
    counting.begin()
    count = counting.end(6)
    assert (count.before, count.after, count.reason) == (None, None, "no links here")
    assert machine.barriers == 4


def test_a_run_on_a_cpu_waits_for_nobody(machine):
    cpu = Device(torch.device("cpu"), "CPU", None, "gloo")
    counting = LinkCounting(0, cpu, 1, machine.open, machine.barrier)
    counting.begin()
    assert counting.end(6).reason == "trained on a CPU"
    assert machine.barriers == 0
