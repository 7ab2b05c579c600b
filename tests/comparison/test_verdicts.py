"""Which word a difference gets.

Ends of intervals that Welch's decides are those of scipy.stats.ttest_ind(equal_var=False) on
logarithms; the others are least squares by hand. What is made of them is worked out by hand.
"""

import json

import pytest

from workflow_lib.comparison.matching import Pair, layout_pairs
from workflow_lib.comparison.verdicts import rows
from workflow_lib.intervals.contrasts import design
from workflow_lib.power_errors import SensorError
from workflow_lib.records.verdict_tables import COMPARISON
from workflow_lib.table_files import table

from .sides import failed, known, measured, numbers, side

#: against runs of 100 each the ratio is 1.1199, the root of 1.10·1.12·1.14; the interval by the
#: runs is LOW (Welch's) to HIGH (without the drift of A's runs)
LOW, HIGH = 1.071284, 1.216591
#: what dates and nodes may do to a ratio, where runs are apart
DATES = 1.027
APART = (
    "assumes normal noise and, because the sides ran on different platforms, no drift other than a "
    "steady one"
)
MORE, REFERENCE = [110.0, 112.0, 114.0], [100.0, 100.0, 100.0]


def judged(a, b, *pairs):
    """The rows of pairs of two sides, or of those of equal layout, by measure."""
    found = rows(pairs or layout_pairs(a.cells, b.cells), a, b)
    table(found, COMPARISON)  # which checks the columns and their types
    return {row["measure"]: row for row in found}


def compared(measure, *of_sides, **more):
    """The row of one measure: see :func:`all_compared`."""
    return all_compared(measure, *of_sides, **more)[measure]


def all_compared(measure, of_a, of_b, simulated=(False, False), gpus=None, errors=None, **more):
    """The rows of the same cell on h200 and on h100; ``gpus`` are the UUIDs of each side's runs."""
    columns = {measure: (of_a, of_b), **more}
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
            errors=errors,
        )
        for number, platform in enumerate(("h200", "h100"))
    ]
    return judged(*sides)


def test_a_side_whose_memory_was_short_is_named_in_every_word():
    pressure = [[False, True, True], [False, False, None]]
    row = compared("tokens_per_s", MORE, REFERENCE, memory_pressure=pressure)
    assert row["memory"] == "memory pressure in 2 of 3 runs of h200"
    assert row["in_words"].endswith(f"; {row['memory']}")


def test_a_ratio_with_its_interval_and_its_word():
    row = compared("tokens_per_s", MORE, REFERENCE)
    expected = ((1.10 * 1.12 * 1.14) ** (1 / 3), LOW, HIGH)
    assert (row["estimate"], row["low"], row["high"]) == pytest.approx(expected, rel=1e-6)
    assert (row["coverage"], row["design"], row["date_allowance"]) == (0.95, "apart", 0.027)
    assert (row["value_a"], row["value_b"]) == (112.0, 100.0)
    assert row["verdict"] == "a_more"
    assert row["assumes"] == APART
    assert numbers(row["in_words"]) == ["200", "12", "95", "+4.3", "+25", "+7.1", "+22"]
    less = compared("tokens_per_s", REFERENCE, [200.0] * 3)
    assert less["verdict"] == "b_more"
    assert numbers(less["in_words"])[:5] == ["200", "50", "95", "−51", "−49"]
    assert "50 % slower" in less["in_words"]


def test_overlapping_runs_are_not_told_apart():
    row = compared("step_time_s", [99.0, 103.0, 105.0], REFERENCE)
    assert row["verdict"] == "not_told_apart"
    assert numbers(row["in_words"]) == ["−7.5", "+21", "95"]


@pytest.mark.parametrize(
    ("of_a", "of_b", "words"),
    [
        ([110.0], [100.0], "no verdict: one run each, +10 %; three of each give one"),
        (
            [110.0, 120.0],
            [100.0, 100.0],
            "no verdict: 2 against 2 runs give only a range, +10 to +20 %",
        ),
    ],
)
def test_few_runs_give_a_range_and_no_verdict(of_a, of_b, words):
    row = compared("tokens_per_s", of_a, of_b)
    assert (row["verdict"], row["in_words"]) == ("no_verdict", words)


#: (1 + 12.5/700)/0.9 over (1 − 12.5/700)/1.1: what gains of 10 % and offsets of 12.5 W may make of
#: the ratio of 700 W of one GPU and 700 W of another
OTHER_GPUS = 712.5 / 0.9 / (687.5 / 1.1)
#: what a meter showed of each of two GPUs: a gain within ±2 %, and no offset
METERED = {uuid: SensorError(-0.02, 0.02, 0.0) for uuid in ("GPU-1", "GPU-2")}


def test_efficiencies_of_other_gpus_must_differ_by_more_than_their_sensors_may_be_off():
    row = compared("tokens_per_j", MORE, REFERENCE)
    expected = (LOW / DATES / OTHER_GPUS, HIGH * DATES * OTHER_GPUS)
    assert (row["wide_low"], row["wide_high"]) == pytest.approx(expected, rel=1e-6)
    assert (row["sensors_low"], row["sensors_high"]) == pytest.approx((1 / OTHER_GPUS, OTHER_GPUS))
    assert row["verdict"] == "not_told_apart"
    told = ["+7.1", "+22", "±2.7", "−21", "+27", "−18", "+58", "95"]
    assert numbers(row["in_words"]) == told


def test_a_meter_of_the_site_narrows_what_sensors_may_do():
    gpus = [[("GPU-1",)] * 3, [("GPU-2",)] * 3]
    row = compared("tokens_per_j", MORE, REFERENCE, gpus=gpus, errors=METERED)
    expected = (LOW / DATES * 0.98 / 1.02, HIGH * DATES * 1.02 / 0.98)
    assert (row["wide_low"], row["wide_high"]) == pytest.approx(expected, rel=1e-6)
    assert row["verdict"] == "a_more"
    # A gain that is known is taken off: GPU-1 reads 2 to 4 % too much, so it made more of a joule.
    errors = METERED | {"GPU-1": SensorError(0.02, 0.04, 0.0)}
    row = compared("tokens_per_j", MORE, REFERENCE, gpus=gpus, errors=errors)
    expected = (LOW / DATES * 1.02 / 1.02, HIGH * DATES * 1.04 / 0.98)
    assert (row["wide_low"], row["wide_high"]) == pytest.approx(expected, rel=1e-6)


def limited(*of_sides):
    """The words and the column of a step time, of sides whose GPUs have these power limits."""
    sides = []
    for platform, limits, times in zip(("h200", "h100"), of_sides, (MORE, REFERENCE), strict=True):
        cell = known(platform)
        by_run = {(cell["cell"], run): limits for run in (1, 2, 3)} if limits else {}
        sides.append(side(platform, measured(cell, step_time_s=times), limits_w=by_run))
    row = judged(*sides)["step_time_s"]
    return row["in_words"], row["power_limits"]


def test_other_power_limits_are_named_beside_each_comparison():
    all_alike = (700.0,) * 4
    words, column = limited(all_alike, all_alike)
    assert "power limit" not in words
    assert column is None
    # One GPU of four at 400 W.
    words, column = limited(all_alike, (400.0, 700.0, 700.0, 700.0))
    assert numbers(column) == ["700", "200", "400", "1", "700", "3", "100"]
    assert words.endswith(f"; {column}")
    assert numbers(limited(all_alike, ())[1]) == ["700", "200", "100"]
    assert "unknown in h100" in limited(all_alike, ())[1]
    assert limited((), ())[1] is None


def allocated(*of_sides):
    """What is said of memory beside step time and efficiency, of sides with these allocators."""
    sides = []
    for platform, allocator, values in zip(
        ("h200", "h100"), of_sides, (MORE, REFERENCE), strict=True
    ):
        cell, runs = measured(known(platform), step_time_s=values, tokens_per_j=values)
        sides.append(side(platform, (cell | {"allocator": allocator}, runs)))
    found = judged(*sides)
    told = [found[measure] for measure in ("step_time_s", "tokens_per_j")]
    (column,) = {row["memory"] for row in told}
    assert all(row["in_words"].endswith(f"; {column}") for row in told if column)
    return column


def test_other_settings_of_the_allocator_are_named_beside_each_comparison():
    plain, expandable = "native", "native, expandable_segments:True"
    assert allocated(plain, plain) is None
    # Of runs of earlier versions nothing is known.
    assert allocated(None, None) is None
    assert allocated(plain, expandable) == f"allocator: {plain} in h200, {expandable} in h100"
    assert "unknown in h100" in allocated(plain, None)
    mixed = f"{plain}; {expandable}"
    assert allocated(mixed, mixed) == f"allocator: {mixed} in h200, {mixed} in h100"


SAME = ("GPU-1", "GPU-2")


def test_the_errors_of_the_same_gpus_cancel_where_these_have_like_shares():
    both = [[SAME] * 3, [SAME[::-1]] * 3]
    row = compared("tokens_per_j", MORE, REFERENCE, gpus=both)
    assert (row["wide_low"], row["wide_high"]) == pytest.approx(
        (LOW / DATES, HIGH * DATES), rel=1e-6
    )
    assert (row["sensors_low"], row["sensors_high"]) == pytest.approx((1, 1))
    assert row["verdict"] == "a_more"


#: half of each side is of GPU-1: (1/1.1 + 1/0.9)/(1/1.1 + 1/1.1)
HALF = (1 / 1.1 + 1 / 0.9) / (2 / 1.1)


@pytest.mark.parametrize(
    ("gpus", "bound"),
    [
        ([[SAME] * 3, [("GPU-1", "GPU-3")] * 3], HALF),
        ([[SAME] * 3, [SAME, SAME, ("GPU-1", "GPU-3")]], HALF ** (1 / 3)),
        ([[SAME] * 3, [("GPU-3", "GPU-4")] * 3], 1.1 / 0.9),
    ],
)
def test_errors_of_sensors_count_by_how_many_runs_had_other_gpus(gpus, bound):
    errors = {f"GPU-{number}": SensorError(-0.1, 0.1, 0.0) for number in range(1, 5)}
    row = compared("power_mean_w", MORE, REFERENCE, gpus=gpus, errors=errors)
    assert (row["sensors_low"], row["sensors_high"]) == pytest.approx((1 / bound, bound))


def test_gpus_that_are_not_known_are_no_gpus_of_the_other_side():
    gpus = [[SAME] * 3, [SAME] * 2]  # of the third run they are not known
    row = compared("power_mean_w", MORE, REFERENCE, gpus=gpus)
    assert (1.1 / 0.9) ** (1 / 3) < row["sensors_high"] < OTHER_GPUS ** (1 / 3)
    row = compared("power_mean_w", MORE, REFERENCE, gpus=[[], []])
    assert row["sensors_high"] == pytest.approx(OTHER_GPUS)


def layouts_on(gpus_a, gpus_b, powers=None):
    """The mean power's row of two layouts, by their runs' GPUs; ``powers`` are those of each side's
    GPUs, in W."""
    cells = known("h200x2", tp=2, pp=1, dp=1), known("h200x2", tp=1, pp=2, dp=1)
    sides = []
    for number, (cell, values, gpus) in enumerate(
        zip(cells, (MORE, REFERENCE), (gpus_a, gpus_b), strict=True)
    ):
        by_run = {(cell["cell"], run): frozenset(of) for run, of in enumerate(gpus, start=1)}
        made = side("h200x2", measured(cell | {"gpus": 2}, power_mean_w=values), gpus=by_run)
        if powers:
            for of_gpus in made.power_w.values():
                for uuid, power_w in powers[number].items():
                    of_gpus[uuid]["power_mean_w"] = power_w
        sides.append(made)
    pair = Pair("best", sides[0].cells[0], sides[1].cells[0])
    return judged(*sides, pair)["power_mean_w"]


ONE, OTHER = ("GPU-1",), ("GPU-2",)


def test_layouts_on_the_same_gpus_are_told_apart_but_for_their_unlike_shares():
    # Each run has 1400 W: tensor parallelism 700 and 700 W, a pipeline 650 and 750 W.
    powers = [{"GPU-1": 700.0, "GPU-2": 700.0}, {"GPU-1": 650.0, "GPU-2": 750.0}]
    row = layouts_on([SAME] * 3, [SAME] * 3, powers)
    # GPU-1 reads 10 % too little and GPU-2 too much, both 12.5 W more than they should:
    # (687.5/0.9 + 687.5/1.1)/(637.5/0.9 + 737.5/1.1) = 1388.889/1378.788; at the least
    # (687.5/1.1 + 687.5/0.9)/(637.5/1.1 + 737.5/0.9) = 1388.889/1398.990.
    assert row["sensors_high"] == pytest.approx(1388.889 / 1378.788, abs=1e-6)
    assert row["sensors_low"] == pytest.approx(1388.889 / 1398.990, abs=1e-6)
    assert (row["design"], row["verdict"]) == ("apart", "a_more")


def test_rows_of_gpus_that_do_not_make_up_the_power_tell_no_gpu_from_another():
    powers = [{"GPU-1": 700.0, "GPU-2": 700.0}, {"GPU-1": 700.0, "GPU-2": 0.0}]
    row = layouts_on([SAME] * 3, [SAME] * 3, powers)
    assert row["sensors_high"] == pytest.approx(OTHER_GPUS)


def test_the_errors_of_one_gpu_cancel_between_layouts():
    row = layouts_on([ONE, ONE, OTHER], [OTHER, ONE, ONE])
    assert (row["sensors_high"], row["verdict"]) == (pytest.approx(1), "a_more")


def test_a_peak_is_of_whichever_gpu_truly_drew_most():
    peaks, sensors = [700.0] * 3, [["means of 1 s"] * 3] * 2
    more = {"power_peak_sensor": sensors, "gpus": [[ONE] * 3, [ONE] * 3]}
    row = compared("power_peak_w", peaks, peaks, **more)
    assert (row["sensors_low"], row["sensors_high"]) == pytest.approx((1, 1))
    # One cell's peak of 700 W may be of the GPU that reads 10 % too little, and in the other cell
    # this one read 650 W: not known here, as both read alike.
    more["gpus"] = [[ONE] * 3, [OTHER] * 3]
    row = compared("power_peak_w", peaks, peaks, **more)
    assert row["sensors_high"] == pytest.approx(OTHER_GPUS)


def test_an_energy_is_as_wide_as_the_efficiency_that_is_its_inverse():
    energies = [[1 / value for value in side] for side in (MORE, REFERENCE)]
    gpus = [[("GPU-1",)] * 3, [("GPU-2",)] * 3]
    found = all_compared(
        *("tokens_per_j", MORE, REFERENCE),
        **{"gpus": gpus, "errors": METERED, "energy_per_token_j": energies},
    )
    energy, efficiency = found["energy_per_token_j"], found["tokens_per_j"]
    assert energy["estimate"] == pytest.approx(1 / efficiency["estimate"])
    assert energy["wide_low"] == pytest.approx(1 / efficiency["wide_high"])
    assert energy["wide_high"] == pytest.approx(1 / efficiency["wide_low"])
    assert (energy["verdict"], energy["unit"]) == ("b_more", "J")


def test_a_load_in_step_with_the_sensor_widens_an_energy_even_on_the_same_gpus():
    both = [[SAME] * 3] * 2
    plain = compared("power_mean_w", MORE, REFERENCE, gpus=both)
    # A's energy may be 2 % too high or too low, B's 1 %.
    shares = [[0.0, 0.02, 0.001], [0.01, 0.0, 0.0]]
    row = compared("power_mean_w", MORE, REFERENCE, gpus=both, energy_error_share=shares)
    assert (row["energy_error_a"], row["energy_error_b"]) == (0.02, 0.01)
    assert row["wide_low"] == pytest.approx(plain["wide_low"] * 0.99 / 1.02)
    assert row["wide_high"] == pytest.approx(plain["wide_high"] * 1.01 / 0.98)
    shares = [[0.06] * 3, [0.01] * 3]
    row = compared("power_mean_w", MORE, REFERENCE, gpus=both, energy_error_share=shares)
    assert (plain["verdict"], row["verdict"]) == ("a_more", "not_told_apart")


def test_an_efficiency_is_widened_as_its_energy_is():
    both, shares = [[SAME] * 3] * 2, [[0.02] * 3, [0.01] * 3]
    plain = compared("tokens_per_j", MORE, REFERENCE, gpus=both)
    row = compared("tokens_per_j", MORE, REFERENCE, gpus=both, energy_error_share=shares)
    # Of A's energy at most 1/0.98, so that of its efficiency at least 0.98.
    assert row["wide_low"] == pytest.approx(plain["wide_low"] * 0.98 / 1.01)
    assert row["wide_high"] == pytest.approx(plain["wide_high"] * 1.02 / 0.99)


def test_an_energy_without_a_counter_supports_no_word():
    both = [[SAME] * 3] * 2
    shares = [[0.0, 0.0, None], [0.0] * 3]
    row = compared("power_mean_w", MORE, REFERENCE, gpus=both, energy_error_share=shares)
    assert (row["verdict"], row["wide_low"]) == ("no_verdict", None)
    assert "energy counter" in json.loads(row["missing_reasons"])["energy_error_a"]
    peak = compared(
        "power_peak_w", MORE, REFERENCE, gpus=both, energy_error_share=shares,
        power_peak_sensor=[["samples"] * 3] * 2,
    )  # fmt: skip
    assert peak["verdict"] == "a_more"


@pytest.mark.parametrize("power_w", [None, 12.0])
def test_a_power_that_is_unknown_or_no_more_than_an_offset_supports_no_word(power_w):
    powers = [[power_w] * 3] * 2
    row = compared("energy_per_step_j", MORE, REFERENCE, power_per_gpu_mean_w=powers)
    assert (row["verdict"], row["wide_low"]) == ("no_verdict", None)
    assert "unknown" in json.loads(row["missing_reasons"])["wide_low"]


def test_hosts_differ_by_far_more_where_gpus_wait_for_them():
    busy = compared("tokens_per_s", MORE, REFERENCE, gpu_utilisation_share=[[0.95] * 3] * 2)
    idle = compared("tokens_per_s", MORE, REFERENCE, gpu_utilisation_share=[[0.95] * 3, [0.5] * 3])
    assert busy["date_allowance"] == 0.027
    # 15.8 % between hosts by four degrees of freedom: e^(2.77645·√2·0.158).
    assert idle["date_allowance"] == pytest.approx(0.858, abs=0.002)
    assert idle["verdict"] == "not_told_apart"


def test_temperatures_differ_in_degrees_and_by_more_than_they_are_rounded():
    row = compared("temperature_mean_c", [90.2, 90.0, 90.2], [60.0] * 3)
    assert row["contrast"] == "difference"
    # A's runs have no trend, with a variance of 2·0.2²/3/2 and a t of 4.3027 for 2 degrees of
    # freedom; the ends without a drift lie further out.
    assert row["low"] < 70.4 / 3 + 140 / 3 - 40 - 4.3027 * (0.04 / 3 / 3) ** 0.5
    assert row["wide_low"] == pytest.approx(row["low"] - 12.7 - 1.0)
    assert row["wide_high"] == pytest.approx(row["high"] + 12.7 + 1.0)
    assert "30 °C hotter" in row["in_words"]
    row = compared("temperature_peak_c", [63.0] * 3, [60.0] * 3)
    assert row["verdict"] == "not_told_apart"


def test_a_spread_is_of_two_gpus_each_of_which_rounds():
    row = compared("temperature_spread_c", [40.2, 40.0, 40.2], [10.0] * 3)
    assert row["wide_low"] == pytest.approx(row["low"] - 12.7 - 2.0)
    assert "30 °C wider" in row["in_words"]


def test_shares_of_time_differ_in_percentage_points_and_get_no_word_unless_in_blocks():
    row = compared("throttle_power_share", [0.5, 0.5, 0.5], [0.0, 0.25, 0.25])
    assert row["estimate"] == pytest.approx(1 / 3)
    assert row["in_words"].startswith("no verdict: −3.5 to +108 percentage points")
    assert "unknown" in json.loads(row["missing_reasons"])["date_allowance"]


def test_simulated_readings_are_not_compared_with_real_ones_but_times_are():
    others = ("temperature_mean_c", "tokens_per_s", "memory_peak_bytes")
    values = {name: [MORE, REFERENCE] for name in others}
    found = all_compared("tokens_per_j", MORE, REFERENCE, simulated=(True, False), **values)
    for name in ("tokens_per_j", "energy_per_token_j", "temperature_mean_c", "memory_peak_bytes"):
        assert found[name]["verdict"] == "refused"
        assert found[name]["estimate"] is None
        assert "simulated" in json.loads(found[name]["missing_reasons"])["estimate"]
    assert found["tokens_per_s"]["verdict"] == "a_more"


def test_two_simulated_sides_have_no_sensor_that_is_off():
    row = compared("tokens_per_j", MORE, REFERENCE, simulated=(True, True))
    assert row["wide_low"] == pytest.approx(row["low"] / DATES)
    assert (row["verdict"], row["simulated"]) == ("a_more", True)


def test_temperatures_of_different_places_are_refused():
    a = side("h200", measured(known(), temperature_mean_c=[60.0] * 3))
    b = side("mi250", measured(known("mi250"), sensors="amd", temperature_mean_c=[90.0] * 3))
    row = judged(a, b, Pair("named", a.cells[0], b.cells[0]))["temperature_mean_c"]
    assert (row["verdict"], row["estimate"]) == ("refused", None)


def test_a_value_that_one_run_lacks_is_null_and_says_why():
    a, runs = measured(known(), tokens_per_j=[1.0, None, 1.0])
    runs[1]["missing_reasons"] = json.dumps({"tokens_per_j": "a sensor was silent"})
    a, b = side("h200", (a, runs)), side("h100", measured(known("h100"), tokens_per_j=[1.0] * 3))
    row = judged(a, b)["tokens_per_j"]
    assert (row["verdict"], row["value_a"], row["value_b"]) == ("missing", None, 1.0)
    assert row["in_words"].endswith("h200, run 2: a sensor was silent")


def test_there_is_no_ratio_of_nothing():
    row = compared("tokens_per_s", [0.0] * 3, REFERENCE)
    assert row["verdict"] == "missing"
    assert "h200 has 0" in row["in_words"]


@pytest.mark.parametrize(("more", "named"), [(0, []), (1, ["1", "2", "3"])])
def test_runs_that_are_on_both_sides_are_no_comparison(more, named):
    """Two sweeps share the runs of a cell, and the second may have a run more."""
    cell, runs = measured(known(), tokens_per_s=[*MORE, MORE[0]])
    a, b = side("three", (cell, runs[:3])), side("others", (cell, runs[: 3 + more]))
    row = judged(a, b)["tokens_per_s"]
    assert row["verdict"] == "same_runs"
    assert numbers(row["in_words"]) == named


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
    assert "h200 not run" in row["in_words"]
    assert "h100 infeasible" in row["in_words"]


def test_a_cell_without_a_partner_has_a_row():
    a, b = side("h200", measured(known(), tokens_per_s=MORE)), side("h100")
    [row] = rows(layout_pairs(a.cells, b.cells), a, b)
    assert (row["match"], row["verdict"], row["cell_b"]) == (
        "unmatched",
        "no_partner_in_b",
        None,
    )
    assert row["in_words"].startswith("no partner in h100: ")


DAY = 86400.0
#: blocks of A and B, in the order b a, a b, b a; each on a day of its own
BEGAN = ([100.0, DAY, 2 * DAY + 100], [0.0, DAY + 100, 2 * DAY])
#: the same on one day
ONE_DAY = ([100.0, 1000.0, 2100.0], [0.0, 1100.0, 2000.0])
#: all runs of a side, then all of the other
ONE_AFTER_THE_OTHER = ([0.0, 1.0, 2.0], [3.0, 4.0, 5.0])


def in_blocks(of_a, of_b, began=BEGAN, seeds=(0, 0), platforms=("h200", "h200"), gpus=SAME, **more):
    """Two layouts of one platform, as one random order had them, in tokens/s."""
    sides = []
    for number, (name, values) in enumerate((("before", of_a), ("after", of_b))):
        cell, runs = measured(known(platforms[number], tp=2 + number), tokens_per_s=values, **more)
        for block, (run, start) in enumerate(zip(runs, began[number], strict=True), start=1):
            place = {"order_seed": seeds[number], "order_block": block, "started_unix_s": start}
            run.update(place)
        uuids = frozenset(gpus if isinstance(gpus, tuple) else gpus[number])
        of_runs = {(cell["cell"], run["run"]): uuids for run in runs}
        sides.append(side(name, (cell, runs), gpus=of_runs))
    pair = Pair("named", sides[0].cells[0], sides[1].cells[0])
    return judged(*sides, pair)["tokens_per_s"]


def test_a_date_acts_on_both_runs_of_a_block_and_is_estimated():
    # Days 10 and 20 % slower than the first; in each block A has 1, 2 and 3 % more.
    days = [100.0, 90.0, 80.0]
    row = in_blocks([101.0, 91.8, 82.4], days)
    assert row["estimate"] == pytest.approx((1.01 * 1.02 * 1.03) ** (1 / 3))
    # scipy.stats.ttest_rel of logarithms
    assert (row["low"], row["high"]) == pytest.approx((0.995426, 1.045114), rel=1e-5)
    assert (row["design"], row["date_allowance"]) == ("in_blocks", 0.0)
    assert row["date_effect"] == pytest.approx(100 / 80 * (1.01 / 1.03) ** 0.5 - 1)
    assert row["verdict"] == "not_told_apart"
    assert row["design"] == "in_blocks"
    row = in_blocks([101.9, 91.8, 81.68], days)
    assert row["verdict"] == "a_more"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"seeds": (0, 1), "began": ONE_DAY}, "not submitted in one random order"),
        ({"seeds": (None, None), "began": ONE_DAY}, "not submitted in one random order"),
        ({"platforms": ("h200", "h100")}, "different platforms"),
        (
            {"began": ONE_AFTER_THE_OTHER},
            "the runs did not begin in the order of the blocks, no drift",
        ),
        ({"began": ([0.0, 1.0, None], [3.0, 4.0, 5.0])}, "the start of a run was not recorded"),
        # The last run of A failed, and was repeated a day later.
        ({"began": ([0.0, 101.0, 200.0 + DAY], [1.0, 100.0, 200.0])}, "long after the other run"),
        ({"gpus": [("GPU-1",), ("GPU-2",)]}, "the sides ran on different GPUs"),
        (
            {"began": ONE_AFTER_THE_OTHER, "gpus": [("GPU-1", "GPU-2"), ("GPU-3", "GPU-4")]},
            "in the order of the blocks and the sides ran on different GPUs, no drift",
        ),
        (
            {"began": ONE_AFTER_THE_OTHER, "gpus": [("GPU-1", "GPU-2"), ("GPU-2", "GPU-3")]},
            "in the order of the blocks, no drift",
        ),
        ({"began": ONE_AFTER_THE_OTHER, "gpus": ()}, "in the order of the blocks, no drift"),
        ({"gpus": ()}, "the GPUs of a run are not known"),
    ],
)
def test_what_keeps_runs_from_being_in_blocks_is_said_and_allowed_for(changed, why):
    row = in_blocks([102.0, 102.1, 101.9], [100.0, 100.1, 99.9], **changed)
    assert (row["design"], row["date_allowance"]) == ("apart", 0.027)
    assert why in row["assumes"]


def test_a_side_that_had_one_gpu_is_apart_from_one_that_never_had_it():
    began = [{"order_seed": 0, "order_block": n, "started_unix_s": 100.0 * n} for n in (1, 2, 3)]
    one, two, three = (frozenset({f"GPU-{number}"}) for number in (1, 2, 3))
    for run in began:
        run["platform"] = "h200"
    assert "different GPUs" in design(began, began, [one] * 3, [two, two, three]).apart_because
    # A host in the differences of two blocks makes these alike.
    four, five, six = (frozenset({f"GPU-{number}"}) for number in (4, 5, 6))
    assert not design(began, began, [one] * 3, [one, two, three]).in_blocks
    assert not design(began, began, [one, one, two], [three, three, four]).in_blocks
    # Where no two blocks share one, hosts are noise; where both runs of a block do, it cancels.
    assert design(began, began, [one, two, three], [four, five, six]).in_blocks
    assert design(began, began, [one, one, two], [one, one, three]).in_blocks


def test_blocks_that_differ_in_length_by_chance_are_blocks():
    # The third block is nine times as long as the longest of the others; runs that start together
    # on many nodes are seconds apart, or minutes if a node was busy.
    long_blocks = ([0.0, 10_000.0, 20_000.0], [1000.0, 10_500.0, 29_000.0])
    at_once = ([0.0, 10_000.0, 20_000.0], [1.0, 10_001.0, 20_900.0])
    for began in (long_blocks, at_once):
        assert in_blocks([102.0, 102.1, 101.9], [100.0] * 3, began=began)["design"] == "in_blocks"


def test_a_drift_is_no_difference_and_is_estimated():
    # 1 % a run, all of A before all of B, with a little noise.
    values = [100 * 1.01**place * noise for place, noise in enumerate((1, 1.001, 1, 1.001, 1, 1))]
    row = in_blocks(values[3:], values[:3], began=([3.0, 4.0, 5.0], [0.0, 1.0, 2.0]))
    assert row["drift_per_run"] == pytest.approx(0.01, abs=0.001)
    assert row["drift_per_run_low"] < 0.01 < row["drift_per_run_high"]
    assert row["verdict"] == "not_told_apart"


#: hosts that a campaign went over
HOSTS = {"x": ("GPU-1", "GPU-2"), "y": ("GPU-3", "GPU-4"), "z": ("GPU-5", "GPU-6")}


def on_hosts(order, of_a, of_b, measure="tokens_per_s"):
    """The row of two cells of which each run is named with its side and host: "ax bx by ay" …"""
    starts = {"a": [], "b": []}
    for place, (end, host) in enumerate(order.split()):
        # Each host has a day of its own.
        starts[end].append((DAY * "xyz".index(host) + 100.0 * place, HOSTS[host]))
    sides = []
    for name, values, (end, of) in zip(
        ("before", "after"), (of_a, of_b), starts.items(), strict=True
    ):
        cell, runs = measured(known("h200", tp=2 + (end == "b")), **{measure: values})
        gpus = {}
        for run, (start, uuids) in zip(runs, of, strict=True):
            run["started_unix_s"] = start
            gpus[cell["cell"], run["run"]] = frozenset(uuids)
        sides.append(side(name, (cell, runs), gpus=gpus))
    pair = Pair("named", sides[0].cells[0], sides[1].cells[0])
    return judged(*sides, pair)[measure]


WITHIN = (
    "assumes normal noise, the same difference in each of 2 sessions on the same GPUs, and no "
    "drift within them other than a steady one"
)


def test_runs_of_two_hosts_are_compared_within_them():
    # Host y is 2 % faster. A has 1 % more on each.
    row = on_hosts("ax ax bx by by ay", [101.0, 101.1, 103.0], [100.05, 102.0, 102.1])
    assert (row["design"], row["date_allowance"], row["verdict"]) == ("within_hosts", 0.0, "a_more")
    assert row["estimate"] == pytest.approx(1.01, abs=0.001)
    assert row["wide_low"] > 1.005
    # Medians of all runs say the opposite, because they are of other hosts: that stands with it.
    assert row["value_a"] < row["value_b"]
    assert numbers(row["medians"])[-2:] == ["2", "−0.88"]
    assert row["in_words"].endswith(f"; {row['medians']}")
    assert row["assumes"] == WITHIN
    assert abs(row["drift_per_run"]) < 0.001
    assert row["drift_per_run_low"] < row["drift_per_run"] < row["drift_per_run_high"]


def test_what_hosts_alone_make_is_no_difference():
    row = on_hosts("ax by ay bx by ay", [100.05, 102.0, 102.1], [102.0, 99.95, 102.05])
    assert (row["design"], row["verdict"]) == ("within_hosts", "not_told_apart")
    assert row["medians"] is None
    row = on_hosts(
        "ax bx bx bx bx ay ay by ay ay",
        [100.0, 102.0, 102.1, 101.9, 102.0],
        [100.1, 99.9, 100.0, 100.05, 102.0],
    )
    assert (row["design"], row["verdict"]) == ("within_hosts", "not_told_apart")


def test_runs_of_sessions_of_one_side_are_left_out_and_counted():
    order, of_b = "ax ax bx by by ay", [100.05, 102.0, 102.1]
    both = on_hosts(order, [101.0, 101.1, 103.0], of_b)
    # The third host had two runs of A alone.
    row = on_hosts(order + " az az", [101.0, 101.1, 103.0, 50.0, 51.0], of_b)
    assert [row[name] for name in ("estimate", "low", "high")] == pytest.approx(
        [both[name] for name in ("estimate", "low", "high")]
    )
    left_out = "; 2 runs are left out, because no run of the other side was in the session"
    assert row["assumes"] == WITHIN + left_out
    assert row["runs_a"] == 5


@pytest.mark.parametrize(
    "order",
    [
        "ax bx ax bx ax bx",  # one session
        "ax bx ax bx bx ay",  # only one session has both
        "ax ay ay bx bx bx",  # too few runs of A share a session with B
    ],
)
def test_runs_that_no_two_sessions_show_stay_apart(order):
    row = on_hosts(order, [101.0, 101.1, 103.0], [100.05, 102.0, 102.1])
    assert (row["design"], row["date_allowance"]) == ("apart", 0.027)


def test_what_comes_with_the_first_runs_of_sessions_is_allowed_for():
    row = on_hosts("ax ax bx ay by by", [101.0, 101.1, 103.0], [100.05, 102.0, 102.1])
    assert (row["design"], row["date_allowance"]) == ("within_hosts", 0.027)
    assert row["assumes"].startswith(f"{WITHIN}; ")
    shares = [0.5, 0.5, 0.6], [0.1, 0.2, 0.2]
    row = on_hosts("ax ax bx ay by by", *shares, measure="throttle_power_share")
    assert row["in_words"].startswith("no verdict")
    row = on_hosts("ax ax bx by by ay", *shares, measure="throttle_power_share")
    assert (row["verdict"], row["date_allowance"]) == ("a_more", 0.0)


@pytest.mark.parametrize("of_hosts", [(ONE, OTHER), HOSTS.values()])
def test_within_sessions_the_errors_of_their_gpus_cancel(of_hosts, monkeypatch):
    # Host y has two of A's runs and one of B's; its sensors read 10 % less.
    monkeypatch.setattr(f"{__name__}.HOSTS", dict(zip("xyz", of_hosts, strict=False)))
    row = on_hosts(
        "ax by ay bx ay bx", [300.0, 270.5, 270.0], [252.0, 280.0, 280.5], "power_mean_w"
    )
    assert (row["design"], row["verdict"]) == ("within_hosts", "a_more")
    assert (row["sensors_low"], row["sensors_high"]) == pytest.approx((1, 1), abs=5e-4)
    assert row["estimate"] == pytest.approx(30 / 28, rel=2e-3)


def test_a_drift_that_cannot_be_told_from_a_side_leaves_runs_apart():
    began = [0.0, 1.0], [DAY, DAY + 1], [2 * DAY, 2 * DAY + 1]
    a, b = (
        [{"platform": "h200", "order_seed": None, "started_unix_s": start} for start in side]
        for side in zip(*began, strict=True)
    )
    gpus = [frozenset({"GPU-1"})] * 3
    assert design(a, b, gpus, gpus).name == "apart"
    a[1]["started_unix_s"], b[1]["started_unix_s"] = DAY + 1, DAY
    assert design(a, b, gpus, gpus).name == "within_hosts"
    a[0]["platform"] = "h100"
    assert design(a, b, gpus, gpus).name == "apart"


@pytest.mark.parametrize(
    ("sensors", "why"),
    [
        (("samples of 20 ms", "means of 1 s"), "peaks come from means of 1 s and samples of 20 ms"),
        (("samples of 20 ms", None), "peaks come from an unknown sensor and samples of 20 ms"),
        ((None, None), "were not recorded"),
        (("means of 1 s", "means of 1 s"), ""),
    ],
)
def test_peaks_of_unlike_sensors_are_not_compared(sensors, why):
    # What one GPU under one load showed by two of its sensors, in W.
    of_runs = [[each] * 3 for each in sensors]
    row = compared("power_peak_w", [929.0] * 3, [703.0] * 3, power_peak_sensor=of_runs)
    assert (row["verdict"] == "refused") == bool(why)
    assert why in row["in_words"]
    assert (row["estimate"] is None) == bool(why)
