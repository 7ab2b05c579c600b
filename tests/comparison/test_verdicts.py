"""Which word a difference gets; all expected values are worked out by hand."""

from __future__ import annotations

import json

import pytest

from workflow_lib.analysis.tables import table
from workflow_lib.comparison.matching import Pair, layout_pairs
from workflow_lib.comparison.verdicts import rows
from workflow_lib.records import COMPARISON

from .sides import failed, known, measured, side

#: against runs of 100 each: ratios 1.10, 1.12 and 1.14, three times each
MORE, REFERENCE = [110.0, 112.0, 114.0], [100.0, 100.0, 100.0]


def compared(measure, of_a, of_b, share=None, simulated=(False, False), gpus=None, **more):
    """The row of one measure of the same cell on h200 and on h100; ``gpus`` are the UUIDs of each
    side's runs."""
    columns = {measure: (of_a, of_b), **more}
    if share is not None:
        columns["energy_systematic_share"] = [[share] * len(values) for values in (of_a, of_b)]
    sides = [
        side(
            platform,
            measured(
                known(platform),
                simulated=simulated[number],
                **{name: values[number] for name, values in columns.items()},
            ),
            gpus={
                (known(platform)["cell"], run): frozenset(uuids)
                for run, uuids in enumerate(gpus[number] if gpus else (), start=1)
            },
        )
        for number, platform in enumerate(("h200", "h100"))
    ]
    found = rows(layout_pairs(sides[0].cells, sides[1].cells), *sides)
    table(found, COMPARISON)  # which checks the columns and their types
    return {row["measure"]: row for row in found}


def test_a_ratio_with_its_interval_and_its_word():
    row = compared("tokens_per_s", MORE, REFERENCE)["tokens_per_s"]
    assert (row["estimate"], row["low"], row["high"]) == pytest.approx((1.12, 1.10, 1.14))
    assert row["coverage"] == pytest.approx(0.9)
    assert (row["value_a"], row["value_b"]) == (112.0, 100.0)
    assert row["verdict"] == "a_more"
    assert row["in_words"] == "h200 is 12 % faster (interval +10 to +14 %; coverage 90 %)"
    less = compared("tokens_per_s", REFERENCE, [200.0] * 3)["tokens_per_s"]
    assert less["verdict"] == "b_more"
    assert less["in_words"] == "h200 is 50 % slower (interval −50 to −50 %; coverage 90 %)"


def test_overlapping_runs_are_not_told_apart():
    row = compared("step_time_s", [99.0, 103.0, 105.0], REFERENCE)["step_time_s"]
    assert row["verdict"] == "not_told_apart"
    assert row["in_words"] == "not told apart: −1.0 to +5.0 % (coverage 90 %)"


@pytest.mark.parametrize(
    ("of_a", "of_b", "words"),
    [
        ([110.0], [100.0], "no verdict: one run each, +10 %"),
        (
            [110.0, 120.0],
            [100.0, 100.0],
            "no verdict: 2 against 2 runs give a range alone, +10 to +20 % (coverage 66.6 %)",
        ),
    ],
)
def test_few_runs_give_a_range_and_no_verdict(of_a, of_b, words):
    row = compared("tokens_per_s", of_a, of_b)["tokens_per_s"]
    assert (row["verdict"], row["in_words"]) == ("no_verdict", words)


def test_efficiencies_must_differ_by_more_than_their_sensors_may_be_off():
    # 1.10·0.94/1.06 and 1.14·1.06/0.94
    row = compared("tokens_per_j", MORE, REFERENCE, share=0.06)["tokens_per_j"]
    assert (row["wide_low"], row["wide_high"]) == pytest.approx((0.975472, 1.285532))
    assert row["verdict"] == "not_told_apart"
    assert row["in_words"] == (
        "not told apart: +10 to +14 % by the runs, but sensors off by ±6 % leave −2.5 to +29 % "
        "(coverage 90 %)"
    )
    # 1.10·0.98/1.02 and 1.14·1.02/0.98
    row = compared("tokens_per_j", MORE, REFERENCE, share=0.02)["tokens_per_j"]
    assert (row["wide_low"], row["wide_high"]) == pytest.approx((1.056863, 1.186531))
    assert row["in_words"] == (
        "h200 makes 12 % more tokens of a joule (interval +5.7 to +19 % with sensors off by ±2 %, "
        "+10 to +14 % by the runs alone; coverage 90 %)"
    )


def limited(*of_sides):
    """The words and the column of a step time, of sides whose GPUs have these power limits."""
    sides = []
    for platform, limits, times in zip(("h200", "h100"), of_sides, (MORE, REFERENCE), strict=True):
        cell = known(platform)
        by_run = {(cell["cell"], run): limits for run in (1, 2, 3)} if limits else {}
        sides.append(side(platform, measured(cell, step_time_s=times), limits_w=by_run))
    found = rows(layout_pairs(sides[0].cells, sides[1].cells), *sides)
    table(found, COMPARISON)
    row = next(row for row in found if row["measure"] == "step_time_s")
    return row["in_words"], row["power_limits"]


def test_other_power_limits_are_named_beside_each_comparison():
    all_alike = (700.0,) * 4
    words, column = limited(all_alike, all_alike)
    assert "power limit" not in words
    assert column is None
    # One GPU of four at 400 W.
    words, column = limited(all_alike, (400.0, 700.0, 700.0, 700.0))
    assert column == "power limits: 700 W in h200, 400 W (1), 700 W (3) in h100"
    assert words.endswith(f"; {column}")
    assert limited(all_alike, ())[1] == "power limits: 700 W in h200, unknown in h100"
    assert limited((), ())[1] is None


SAME = ("GPU-1", "GPU-2")


def test_the_gain_of_the_same_gpus_cancels():
    both = [[SAME] * 3, [SAME[::-1]] * 3]
    row = compared("tokens_per_j", MORE, REFERENCE, share=0.06, gpus=both)["tokens_per_j"]
    assert (row["wide_low"], row["wide_high"]) == pytest.approx((1.10, 1.14))
    assert (row["systematic_a"], row["verdict"]) == (None, "a_more")
    assert "the gain of each cancels" in json.loads(row["missing_reasons"])["systematic_a"]


@pytest.mark.parametrize(
    "gpus",
    [
        [[SAME] * 3, [("GPU-1", "GPU-3")] * 3],
        [[SAME] * 3, [SAME, SAME, ("GPU-1", "GPU-3")]],
        [[SAME] * 3, [SAME] * 2],  # of the third run one is not known
        [[], []],
    ],
)
def test_no_gain_cancels_unless_all_runs_of_both_sides_had_the_same_gpus(gpus):
    row = compared("tokens_per_j", MORE, REFERENCE, share=0.06, gpus=gpus)["tokens_per_j"]
    assert (row["systematic_a"], row["systematic_b"]) == (0.06, 0.06)
    assert row["verdict"] == "not_told_apart"


def test_an_unknown_error_of_the_same_gpus_is_unknown():
    shares, both = [[None] * 3] * 2, [[SAME] * 3] * 2
    found = compared("power_mean_w", MORE, REFERENCE, gpus=both, energy_systematic_share=shares)
    assert found["power_mean_w"]["verdict"] == "no_verdict"


def test_an_energy_is_as_wide_as_the_efficiency_that_is_its_inverse():
    energies = [[1 / value for value in side] for side in (MORE, REFERENCE)]
    found = compared("tokens_per_j", MORE, REFERENCE, share=0.02, energy_per_token_j=energies)
    energy, efficiency = found["energy_per_token_j"], found["tokens_per_j"]
    assert energy["estimate"] == pytest.approx(1 / 1.12)
    assert energy["wide_low"] == pytest.approx(1 / efficiency["wide_high"])
    assert energy["wide_high"] == pytest.approx(1 / efficiency["wide_low"])
    assert (energy["verdict"], energy["unit"]) == ("b_more", "J")


def test_the_error_of_each_side_counts_where_it_stands():
    # Power: 1.10·(1 − 0.1)/(1 + 0) to 1.14·(1 + 0.1)/(1 − 0), with A's sensors exact.
    shares = [[0.0] * 3, [0.1] * 3]
    row = compared("power_mean_w", MORE, REFERENCE, energy_systematic_share=shares)["power_mean_w"]
    assert (row["wide_low"], row["wide_high"]) == pytest.approx((0.99, 1.254))
    assert (row["systematic_a"], row["systematic_b"]) == (0.0, 0.1)
    assert "±0 % and ±10 %" in row["in_words"]


def test_sensors_of_unknown_error_support_no_word():
    row = compared("power_mean_w", MORE, REFERENCE)["power_mean_w"]
    assert row["verdict"] == "no_verdict"
    assert row["wide_low"] is None
    assert "unknown" in json.loads(row["missing_reasons"])["wide_low"]


def test_temperatures_differ_in_degrees_and_by_more_than_they_are_rounded():
    row = compared("temperature_mean_c", [61.2, 61.4, 62.0], [60.0] * 3)["temperature_mean_c"]
    assert row["contrast"] == "difference"
    assert (row["low"], row["high"]) == pytest.approx((1.2, 2.0))
    assert (row["wide_low"], row["wide_high"]) == pytest.approx((0.2, 3.0))
    assert row["in_words"].startswith("h200 is 1.4 °C hotter on average (interval +0.20 to +3.0 °C")
    row = compared("temperature_peak_c", [61.0] * 3, [60.0] * 3)["temperature_peak_c"]
    assert row["verdict"] == "not_told_apart"


def test_shares_of_time_differ_in_percentage_points():
    row = compared("throttle_power_share", [0.5, 0.5, 0.5], [0.0, 0.25, 0.25])
    row = row["throttle_power_share"]
    assert (row["low"], row["high"]) == (0.25, 0.5)
    assert row["in_words"] == (
        "h200 spends 25 percentage points more of the time at the power cap (interval +25 to "
        "+50 percentage points; coverage 90 %)"
    )


def test_simulated_readings_are_not_compared_with_real_ones_but_times_are():
    found = compared(
        "tokens_per_j",
        MORE,
        REFERENCE,
        share=0.01,
        simulated=(True, False),
        temperature_mean_c=[MORE, REFERENCE],
        tokens_per_s=[MORE, REFERENCE],
        memory_peak_bytes=[MORE, REFERENCE],
    )
    for name in ("tokens_per_j", "energy_per_token_j", "temperature_mean_c", "memory_peak_bytes"):
        assert found[name]["verdict"] == "refused"
        assert found[name]["estimate"] is None
        assert "simulated" in json.loads(found[name]["missing_reasons"])["estimate"]
    assert found["tokens_per_s"]["verdict"] == "a_more"


def test_two_simulated_sides_have_no_sensor_that_is_off():
    found = compared("tokens_per_j", MORE, REFERENCE, simulated=(True, True))
    row = found["tokens_per_j"]
    assert (row["wide_low"], row["verdict"], row["simulated"]) == (row["low"], "a_more", True)


def test_temperatures_of_different_places_are_refused():
    a = side("h200", measured(known(), temperature_mean_c=[60.0] * 3))
    b = side("mi250", measured(known("mi250"), sensors="amd", temperature_mean_c=[90.0] * 3))
    [row] = [r for r in rows([Pair("named", a.cells[0], b.cells[0])], a, b) if r["value_a"]]
    assert (row["verdict"], row["estimate"]) == ("refused", None)


def test_a_value_that_one_run_lacks_is_null_and_says_why():
    a, runs = measured(known(), tokens_per_j=[1.0, None, 1.0])
    runs[1]["missing_reasons"] = json.dumps({"tokens_per_j": "a sensor was silent"})
    a, b = side("h200", (a, runs)), side("h100", measured(known("h100"), tokens_per_j=[1.0] * 3))
    found = {row["measure"]: row for row in rows(layout_pairs(a.cells, b.cells), a, b)}
    row = found["tokens_per_j"]
    assert (row["verdict"], row["value_a"], row["value_b"]) == ("missing", None, 1.0)
    assert row["in_words"] == "no value: h200, run 2: a sensor was silent"


def test_there_is_no_ratio_of_nothing():
    row = compared("tokens_per_s", [0.0] * 3, REFERENCE)["tokens_per_s"]
    assert row["verdict"] == "missing"
    assert row["in_words"] == "no value: h200 has 0, of which there is no ratio"


def test_the_same_runs_on_both_sides_are_no_comparison():
    cell = measured(known(), tokens_per_s=MORE)
    a, b = side("before", cell), side("after", cell)
    [row] = [r for r in rows(layout_pairs(a.cells, b.cells), a, b) if r["estimate"]]
    assert (row["verdict"], row["in_words"]) == ("same_runs", "both sides show the same runs")


def test_what_ran_on_one_side_alone_is_a_finding():
    a = side("h200", measured(known(), tokens_per_s=MORE))
    for outcome, cause, verdict, words in (
        (
            "out_of_memory",
            "rank 3",
            "only_a_completed",
            "only h200 ran: h100 out of memory (rank 3)",
        ),
        ("infeasible", "", "only_a_completed", "only h200 ran: h100 infeasible"),
    ):
        b = side("h100", failed(known("h100"), outcome, cause))
        [row] = rows(layout_pairs(a.cells, b.cells), a, b)
        assert (row["verdict"], row["in_words"], row["measure"]) == (verdict, words, None)
        assert (row["runs_a"], row["runs_b"], row["outcome_b"]) == (3, 0, outcome)
    neither = side("h200", failed(known(), "not_run"))
    [row] = rows(layout_pairs(neither.cells, b.cells), neither, b)
    assert row["in_words"] == "neither ran to the end: h200 not run; h100 infeasible"


def test_a_cell_without_a_partner_has_a_row():
    a, b = side("h200", measured(known(), tokens_per_s=MORE)), side("h100")
    [row] = rows(layout_pairs(a.cells, b.cells), a, b)
    assert (row["match"], row["verdict"], row["cell_b"]) == (
        "unmatched",
        "no_partner_in_b",
        None,
    )
    assert row["in_words"].startswith("no partner in h100: ")
