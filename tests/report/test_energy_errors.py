"""Which cells a page names for loads in step with the sensor of power."""

from __future__ import annotations

from typing import Any

import pytest

from tests.comparison.sides import known, measured
from workflow_lib.report.page.energy_errors import energy_errors


@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ([0.0, 0.0021, 0.0076], "up to ±0.76 % in 2 of 3 runs"),
        ([0.0076], "up to ±0.76 %"),
        ([0.0, 0.0019, None], None),
    ],
)
def test_runs_above_a_fifth_of_a_percent_are_named(shares: list[Any], told: str | None) -> None:
    cell, runs = measured(known(), energy_error_share=shares)
    found = energy_errors([cell], ["tp2-pp16"], runs)
    expected = () if told is None else (f"tp2-pp16 (llama3-70b on h200): {told}",)
    assert found == expected
