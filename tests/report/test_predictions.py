"""What cells were predicted to gain, beside what their runs gained."""

from __future__ import annotations

from typing import Any

import pytest

from workflow_lib.records.degrees import Degrees
from workflow_lib.report.figures.tables import Tables
from workflow_lib.report.predictions import predictions

from .full_matrix import cell_row, identity, run_row

PLACED = {
    "cell": "placed",
    "predicted_against": "plain",
    **{"predicted_time_gain": 0.03, "predicted_time_gain_low": 0.02},
    **{"predicted_time_gain_high": 0.04, "predicted_energy_gain": -0.01},
    **{"predicted_energy_gain_low": -0.02, "predicted_energy_gain_high": 0.0},
}
PLAIN = {"cell": "plain", "predicted_against": None}
KNOWN = identity("h200", "llama3-8b", Degrees(pp=2)) | {"gpus": 1}
#: of a GPU of 700 W in every run
RUN = run_row(KNOWN, 1, power_per_gpu_mean_w=700.0)


def runs(times_s: list[float], energies_j: list[float | None]) -> list[dict[str, Any]]:
    """Runs of the cell as placed, each after one of the plain cell of 2 s and 0.5 J a token."""
    rows: list[dict[str, Any]] = []
    for block, (time_s, energy_j) in enumerate(zip(times_s, energies_j, strict=True), start=1):
        known = {"run": block, "order_seed": 1, "order_block": block, "simulated": False}
        began = {"started_unix_s": 1e9 + 100 * block}
        values = {"step_time_s": 2.0, "energy_per_token_j": 0.5}
        rows.append(RUN | known | began | values | {"cell": "plain"})
        began = {"started_unix_s": 1e9 + 100 * block + 50}
        values = {"step_time_s": time_s, "energy_per_token_j": energy_j}
        rows.append(RUN | known | began | values | {"cell": "placed"})
    return rows


def shown(rows: list[dict[str, Any]], other_gpu_of: str = "") -> list[tuple[str, str, str]]:
    gpus = [
        {
            "cell": row["cell"],
            "run": row["run"],
            "gpu_uuid": "GPU-b" if row["cell"] == other_gpu_of else "GPU-a",
            **{"power_mean_w": 700.0, "power_peak_w": 705.0, "power_limit_w": None},
        }
        for row in rows
    ]
    cells = tuple(
        cell_row(KNOWN | {"cell": name}) | {"simulated": any(row["simulated"] for row in rows)}
        for name in ("plain", "placed")
    )
    labels = {"placed": "17, 15 layers", "plain": "16, 16 layers"}
    lines = predictions([PLAIN, PLACED], Tables(cells, tuple(rows), tuple(gpus)), labels)
    assert all(line["label"] == "17, 15 layers" for line in lines)
    assert [line["what"] for line in lines] == ["step time", "energy"]
    return [(line["predicted"], line["measured"], line["verdict"]) for line in lines]


def test_gains_are_by_hand():
    # Logarithms of the three ratios have the mean −0.030495 and the deviation 0.010310; Student's
    # t of two degrees of freedom is 4.3027: ± 0.025612.
    time, energy = shown(runs([1.92, 1.94, 1.96], [0.5, 0.5, 0.5]))
    assert time == ("3.0 % (2.0 to 4.0)", "3.0 % (0.5 to 5.5)", "holds")
    assert energy == ("−1.0 % (−2.0 to 0.0)", "0.0 % (0.0 to 0.0)", "holds")


@pytest.mark.parametrize(
    ("times_s", "verdict"),
    [([1.94, 1.94, 1.94], "holds"), ([2.0, 2.002, 1.998], "wrong"), ([1.8, 2.2, 2.0], "undecided")],
)
def test_the_verdict_is_by_both_intervals(times_s, verdict):
    assert shown(runs(times_s, [0.5, 0.5, 0.5]))[0][2].partition(":")[0] == verdict


def test_runs_of_two_dates_are_compared_within_dates():
    # The third runs are of the next day, where all takes twice as long, in the other order; a
    # fourth one of the plain cell was the only run of its own day.
    rows = runs([1.94, 1.94, 3.88], [0.5, 0.5, 0.5])
    day_s = 86400.0
    rows[4] |= {"step_time_s": 4.0, "started_unix_s": 1e9 + day_s + 100}
    rows[5] |= {"started_unix_s": 1e9 + day_s}
    rows.append(rows[0] | {"run": 4, "order_block": 4, "started_unix_s": 1e9 + 2 * day_s})
    _, measured, verdict = shown(rows)[0]
    assert measured.startswith("3.0 % (3.0 to 3.0); 1 run ")
    assert verdict == "holds"


def test_a_date_may_have_acted_on_one_cell_alone():
    # All runs as placed a day later: ±2.7 % for a date on a ratio of 0.97.
    rows = runs([1.94, 1.94, 1.94], [0.5, 0.5, 0.5])
    for row in rows[1::2]:
        row["started_unix_s"] += 86400.0
    assert shown(rows)[0][1] == "3.0 % (0.4 to 5.6)"


def test_what_cannot_be_judged_says_why():
    rows = runs([1.94, 1.94, 1.94], [0.5, None, 0.5])
    predicted, measured, verdict = shown(rows)[1]
    assert (predicted, measured) == ("−1.0 % (−2.0 to 0.0)", "")
    assert verdict.startswith("no value: ")
    assert "run 2" in verdict
    made_up = [row | {"simulated": True} for row in runs([1.94] * 3, [0.5] * 3)]
    time, energy = (line[2] for line in shown(made_up))
    assert time == "holds"
    assert energy.startswith("no verdict: ")
    assert "simulated" in energy
    assert "3 runs" in shown(rows[:-1])[0][2]


def test_other_gpus_widen_what_was_measured():
    time, energy = shown(runs([1.94] * 3, [0.5] * 3), other_gpu_of="plain")
    # 2.7 % for dates and nodes; of the energy also a gain of 10 % and 12.5 of 700 W of each GPU.
    assert time[1].startswith("3.0 % (0.4 to 5.6)")
    most = 712.5 / 0.9 / (687.5 / 1.1) * 1.027
    assert energy[1].startswith(f"0.0 % (−{100 * (most - 1):.1f} to {100 * (1 - 1 / most):.1f})")
