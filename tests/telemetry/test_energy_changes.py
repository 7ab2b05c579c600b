"""An energy counter that is renewed every 0.1 s is read where it changes."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from workflow_lib.telemetry import recorder
from workflow_lib.telemetry.recorder import EnergyChanges

CALL_S = 0.0037
WATTS = 500.0
#: of a first renewal, and from one to the next
FIRST_S, RENEWED_S = 0.063, 0.1


class Counters:
    """GPUs at 500 W whose counters are renewed every 0.1 s; each call takes 3.7 ms."""

    def __init__(self, gpus: int, renewed_s: float = RENEWED_S, first_s: float = FIRST_S) -> None:
        self.energy_in_steps = tuple(range(gpus))
        self.now_s = 0.0
        self.calls: list[tuple[float, int]] = []
        self._renewed_s, self._first_s = renewed_s, first_s

    def read_energy(self, gpu: int) -> float:
        self.calls.append((self.now_s, gpu))
        self.now_s += CALL_S
        at_s = self._first_s + (self.now_s - self._first_s) // self._renewed_s * self._renewed_s
        return round(1e6 + WATTS * at_s, 3)


def searched(
    source: Counters, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    """The rows of some seconds, in which every call is made when it is due."""
    clock = SimpleNamespace(monotonic=lambda: source.now_s, time=lambda: 1e9 + source.now_s)
    monkeypatch.setattr(recorder, "time", clock)
    changes = EnergyChanges(source)
    changes.restart(0.0)
    rows = []
    while changes.next_s < seconds:
        source.now_s = max(source.now_s, changes.next_s)
        if row := changes.call(source.now_s):
            rows.append(row)
    return rows


def test_the_renewal_lies_within_the_age_before_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = searched(Counters(2), 60.0, monkeypatch)
    for row in rows:
        renewed_s = (row["energy_j"] - 1e6) / WATTS
        after_s = row["unix_time_s"] - 1e9 - renewed_s
        # A call every 10 ms, and the last one's 3.7 ms.
        assert row["energy_age_s"] == pytest.approx(0.01 + CALL_S)
        assert 0 <= after_s <= row["energy_age_s"]
    # Each GPU once in 2 s.
    assert [row["gpu"] for row in rows] == [0, 1] * 30


def test_a_change_costs_a_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Counters(8)
    rows = searched(source, 80.0, monkeypatch)
    # Searches of a second do not grow with GPUs: each of eight once in 8 s.
    assert [row["gpu"] for row in rows] == [*range(8)] * 10
    # At most one until the first value, and one in each 10 ms of 0.1 s.
    assert 2 * 80 <= len(source.calls) <= 12 * 80
    assert sum(row["read_cost_s"] for row in rows) == pytest.approx(
        CALL_S * len(source.calls), abs=1e-4
    )


def test_a_counter_that_stands_still_is_told_without_an_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = searched(Counters(1, renewed_s=1e6, first_s=-1.0), 4.0, monkeypatch)
    assert [row["energy_age_s"] for row in rows] == [None, None]
    assert [row["unix_time_s"] - 1e9 for row in rows] == pytest.approx([0.3, 2.3], abs=0.02)


def test_without_such_counters_no_call_is_due() -> None:
    changes = EnergyChanges(Counters(0))
    changes.restart(5.0)
    assert changes.next_s == math.inf


def test_a_failed_call_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Counters(1)
    monkeypatch.setattr(source, "read_energy", lambda gpu: None)
    changes = EnergyChanges(source)
    changes.restart(0.0)
    assert changes.call(0.0) is None
    assert changes.next_s == 2.0
