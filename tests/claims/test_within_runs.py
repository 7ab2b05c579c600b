"""Contrasts of GPUs of one run, and of sampling rates, by hand: Student's t of two degrees of
freedom is 4.303."""

import pytest

from tests.claims.made import judged
from tests.comparison.sides import known
from tests.comparison.sides import measured as cell
from workflow_lib.records.reasons import Reason, missing

CELL = known()
RUNS = cell(CELL, tokens_per_s=[100.0, 101.0, 99.0])
T = 4.302653


def gpus(*runs):
    """Rows of GPUS: of each run, which has GPUs of its own, of each GPU, where it sits, its
    temperature and its clock."""
    return {
        (CELL["cell"], number): [
            {
                "node": "one",
                "gpu_uuid": f"GPU-{number}-{gpu}",
                "airflow": airflow,
                "temperature_mean_c": warm,
                "sm_clock_mean_mhz": clock,
            }
            for gpu, (airflow, warm, clock) in enumerate(run)
        ]
        for number, run in enumerate(runs, start=1)
    }


def of_gpus(test, *runs):
    (row,) = judged(test, RUNS, gpus=gpus(*runs))
    return row


REAR = {"measure": "temperature_mean_c", "gpus": ["rear", "front"]}


def test_rear_gpus_that_are_hotter_by_more_than_their_sensors_round():
    runs = [
        [("rear", 70.0 + more, 1500.0), ("rear", 72.0 + more, 1500.0), ("front", 61.0, 1500.0)]
        for more in (-1.0, 0.0, 1.0)
    ]
    row = of_gpus({**REAR, "above": 0.0}, *runs)
    # Differences of 9, 10 and 11 °C; each group may be off by half a degree.
    half = T * 1.0 / 3**0.5
    assert (row["estimate"], row["low"]) == pytest.approx((10.0, 10.0 - half), rel=1e-4)
    assert (row["wide_low"], row["wide_high"]) == pytest.approx(
        (10.0 - half - 1.0, 10.0 + half + 1.0), rel=1e-4
    )
    assert (row["verdict"], row["contrast"]) == ("supported", "difference")
    assert of_gpus({**REAR, "above": 20.0}, *runs)["verdict"] == "contradicted"
    alike = [[("rear", 61.5, 1.0), ("front", 61.0, 1.0)]] * 3
    # Half a degree is less than what rounding may do.
    assert of_gpus({**REAR, "above": 0.0}, *alike)["verdict"] == "undecided"


def test_where_gpus_sit_has_to_be_known():
    row = of_gpus({**REAR, "above": 0.0}, *[[("unknown", 70.0, 1.0), ("unknown", 60.0, 1.0)]] * 3)
    assert (row["verdict"], row["in_words"]) == ("not_testable", "no GPU belongs to the group rear")


def test_the_hottest_gpus_clock():
    test = {"measure": "sm_clock_mean_mhz", "gpus": ["hottest", "coolest"], "above": 0.99}
    runs = [[("unknown", 60.0, 1600.0), ("unknown", 70.0 + n, 1504.0 + n)] for n in range(3)]
    row = of_gpus(test, *runs)
    assert row["estimate"] == pytest.approx(1505.0 / 1600.0, rel=1e-4)
    assert (row["verdict"], row["contrast"]) == ("contradicted", "ratio")
    assert "hottest against coolest GPUs: −6.1 % to −5.8 %" in row["in_words"]
    alone = of_gpus(test, *[[("unknown", 60.0, 1600.0)]] * 3)
    assert alone["verdict"] == "not_testable"
    unread = of_gpus(test, *[[("unknown", 60.0, 1600.0), ("unknown", 70.0, None)]] * 3)
    assert unread["in_words"] == "no value: in run 1 a GPU has none"


def test_two_sets_of_gpus_give_no_interval():
    cells = cell(CELL, tokens_per_s=[100.0, 101.0])
    run = [("rear", 70.0, 1.0), ("front", 61.0, 1.0)]
    (row,) = judged({**REAR, "above": 0.0}, cells, gpus=gpus(run, run))
    assert (row["verdict"], row["coverage"]) == ("not_testable", None)
    assert row["in_words"] == "2 sets of GPUs in 1 cell: 3 or more sets give an interval"


SLOWDOWN = {"measure": "slowdown", "sample_rate_hz": 10.0, "below": 0.005}


def costs(*slowdowns):
    alternating = {**CELL, "interleaved_rates_hz": "[0, 10]"}
    rows = [
        {
            "sample_rate_hz": 10.0,
            "slowdown": each,
            "slowdown_low": each - 0.002,
            "slowdown_high": each + 0.002,
            "missing_reasons": "{}",
        }
        for each in slowdowns
    ]
    of_cell = cell(alternating, tokens_per_s=[100.0] * len(slowdowns))
    (row,) = judged(SLOWDOWN, of_cell, overhead={CELL["cell"]: rows})
    return row


def test_what_sampling_costs_is_judged_over_runs_and_of_few_by_their_own_intervals():
    row = costs(0.001, 0.002, 0.003)
    assert row["wide_high"] == pytest.approx(0.002 + T * 0.001 / 3**0.5, rel=1e-4)
    assert row["verdict"] == "supported"
    row = costs(0.001, 0.002)
    assert (row["wide_low"], row["wide_high"]) == pytest.approx((-0.001, 0.004))
    assert row["verdict"] == "supported"
    assert costs(0.004)["verdict"] == "undecided"
    assert costs(0.008)["verdict"] == "contradicted"
    (row,) = judged(SLOWDOWN, RUNS)
    assert row["in_words"] == "no sweep has runs in which sampling rates alternate"


def test_a_rate_with_too_few_pairs_has_the_reason_of_its_interval():
    too_few = Reason("too_few_pairs", fewest_pairs=4, have=2)
    row = {
        "sample_rate_hz": 10.0,
        "slowdown": 0.001,
        **dict.fromkeys(("slowdown_low", "slowdown_high")),
        **missing(dict.fromkeys(("slowdown_low", "slowdown_high"), too_few)),
    }
    of_cell = cell({**CELL, "interleaved_rates_hz": "[0, 10]"}, tokens_per_s=[100.0])
    (judged_row,) = judged(SLOWDOWN, of_cell, overhead={CELL["cell"]: [row]})
    assert judged_row["verdict"] == "not_testable"
    assert judged_row["in_words"].endswith(too_few)
    (other_rate,) = judged(
        {**SLOWDOWN, "sample_rate_hz": 50.0}, of_cell, overhead={CELL["cell"]: [row]}
    )
    assert other_rate["verdict"] == "not_testable"
    assert too_few not in other_rate["in_words"]


KERNEL_TIME = {"measure": "communication_kernel_share", "above": 0.5}


def profiled(*shares, **other):
    """The row by which the profiled runs of cells that differ in their seeds are judged."""
    cells = []
    for seed, share in enumerate(shares, start=1):
        known_cell = {**CELL, "cell": f"{CELL['cell']}-{seed}", "seed": seed}
        of_cell = cell(known_cell, tokens_per_s=[100.0], **other)
        of_cell[0]["communication_kernel_share"] = share
        cells.append(of_cell)
    (row,) = judged(KERNEL_TIME, *cells)
    return row


def test_a_profiled_run_alone_gives_no_interval():
    row = profiled(0.6)
    assert (row["verdict"], row["estimate"]) == ("not_testable", 0.6)
    assert row["in_words"] == (
        "1 profiled run gives no interval; 3 would, of cells that differ in their seed alone"
    )
    assert profiled(0.6, 0.61)["verdict"] == "not_testable"
    assert profiled(None)["in_words"] == "no profiled run of the cell completed"


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ((0.60, 0.61, 0.62), "supported"),
        ((0.40, 0.41, 0.42), "contradicted"),
        ((0.45, 0.51, 0.57), "undecided"),
        ((0.60, 0.61, 0.62, None), "supported"),
        ((None, 0.60, 0.62), "not_testable"),
    ],
)
def test_profiled_runs_of_cells_that_differ_in_their_seed_give_an_interval(shares, verdict):
    row = profiled(*shares)
    assert row["verdict"] == verdict
    if verdict == "supported":
        half = T * 0.01 / 3**0.5
        assert (row["wide_low"], row["wide_high"]) == pytest.approx((0.61 - half, 0.61 + half))
        assert row["runs_a"] == "0 of seed 1, 2, 3"


def test_cells_that_differ_in_more_than_their_seed_are_no_repeats():
    cells = [cell({**known(tp=tp), "seed": tp}, tokens_per_s=[100.0]) for tp in (1, 2, 4)]
    for of_cell, _ in cells:
        of_cell["communication_kernel_share"] = 0.6
    rows = judged(KERNEL_TIME, *cells)
    assert [row["verdict"] for row in rows] == ["not_testable"] * 3


def test_operators_of_a_cpu_are_no_kernels():
    row = profiled(0.6, 0.61, 0.62, simulated=True)
    assert (row["verdict"], row["in_words"]) == (
        "not_testable",
        "operators of a CPU stand for kernels",
    )


def test_a_temperature_itself():
    of_cell = cell(CELL, temperature_peak_c=[70.0, 70.0, 70.0])
    test = {"measure": "temperature_peak_c", "above": 69.0}
    (row,) = judged(test, of_cell)
    assert (row["wide_low"], row["wide_high"], row["verdict"]) == (69.5, 70.5, "supported")
