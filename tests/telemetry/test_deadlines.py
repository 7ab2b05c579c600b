"""Which deadlines are met, late and missed, by made-up clocks."""

from __future__ import annotations

import math

import pytest

from workflow_lib.telemetry.schedule import Deadlines


def test_deadlines_do_not_drift_with_what_ticks_take() -> None:
    deadlines = Deadlines(100.0, 0.25)
    lateness_s = []
    for number in range(8):
        assert deadlines.next_s == 100.0 + number * 0.25
        lateness_s.append(deadlines.begin(deadlines.next_s + 0.0625))
    assert lateness_s == [0.0625] * 8
    assert (deadlines.begun, deadlines.late, deadlines.missed) == (8, 0, 0)


def test_over_half_a_period_is_late() -> None:
    deadlines = Deadlines(100.0, 0.25)
    assert deadlines.begin(100.125) == 0.125
    assert deadlines.late == 0
    assert deadlines.begin(100.375 + 1e-6) == pytest.approx(0.125, abs=2e-6)
    assert (deadlines.begun, deadlines.late, deadlines.missed) == (2, 1, 0)


def test_deadlines_that_passed_are_missed_and_not_made_up_for() -> None:
    deadlines = Deadlines(100.0, 0.25)
    deadlines.begin(100.0)
    # The one of 100.25 begins at 100.8: those of 100.5 and 100.75 have passed.
    assert deadlines.begin(100.8) == pytest.approx(0.55)
    assert deadlines.next_s == 101.0
    assert (deadlines.begun, deadlines.late, deadlines.missed) == (2, 1, 2)
    assert deadlines.begin(101.0) == 0.0
    assert (deadlines.begun, deadlines.late, deadlines.missed) == (3, 1, 2)


def test_what_was_due_at_the_end_is_missed() -> None:
    deadlines = Deadlines(100.0, 0.25)
    deadlines.begin(100.0)
    deadlines.end(100.2)
    assert deadlines.missed == 0
    # 100.25, 100.5 and 100.75
    deadlines.end(100.75)
    assert (deadlines.begun, deadlines.missed) == (1, 3)


def test_a_start_that_never_comes_has_no_deadline() -> None:
    deadlines = Deadlines(math.inf, 1.0)
    assert deadlines.next_s == math.inf
    deadlines.end(1e9)
    assert deadlines.missed == 0
