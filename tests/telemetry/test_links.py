"""The link counters of a rank's GPU, whose bytes come in bursts within steps."""

from __future__ import annotations

import pytest

from tests.telemetry.nvml import Played
from workflow_lib.telemetry.nvidia.nvml import open_links
from workflow_lib.telemetry.source import UnreadableError

STEP_S = 3.1
#: KiB/s in the first and in the second half of each step: nearly all goes by in the backward pass
LOW, HIGH = 1e6, 23e6
STEP_BYTES = STEP_S * (LOW + HIGH) / 2 * 1024
BURSTS = {
    # The counters are the integral of this, which the library otherwise takes for power.
    "power_1": f"square {LOW} {HIGH} {STEP_S}",
    "field_138_1": "integral 5e9",
    "field_139_1": "integral 7e9",
}


@pytest.mark.parametrize("steps", [1, 5, 20])
def test_between_boundaries_of_steps_bytes_are_those_of_arithmetic(
    played: Played, steps: int
) -> None:
    played.say(**BURSTS)
    read = open_links("GPU-bbbb-1")
    played.set_time(2 * STEP_S)
    before = read()
    played.set_time((2 + steps) * STEP_S)
    after = read()
    for field in ("sent_bytes", "received_bytes"):
        rose = getattr(after, field) - getattr(before, field)
        assert rose == pytest.approx(steps * STEP_BYTES, rel=1e-6)


def test_between_readings_15_s_apart_they_are_not(played: Played) -> None:
    # What made figures before: 4.8 steps between two readings hold fewer bursts than they should.
    played.say(**BURSTS)
    read = open_links("GPU-bbbb-1")
    played.set_time(12.0)
    before = read()
    played.set_time(27.0)
    rate = (read().sent_bytes - before.sent_bytes) / 15.0
    assert abs(rate * STEP_S / STEP_BYTES - 1) > 0.03


@pytest.mark.parametrize(
    ("uuid", "changes", "reason"),
    [
        (None, {}, "has no NVIDIA GPU"),
        ("GPU-cccc-2", {}, "NVML does not open GPU-cccc-2: Not Found"),
        ("GPU-bbbb-1", {"field_138": None}, "were not read: Not Supported"),
        ("GPU-bbbb-1", {"gpu_error_1": "15"}, "were not read: GPU is lost"),
    ],
)
def test_why_there_are_no_counters_is_said_at_once(
    played: Played, uuid: str | None, changes: dict[str, str | None], reason: str
) -> None:
    played.say(**changes)
    with pytest.raises(UnreadableError, match=reason):
        open_links(uuid)
