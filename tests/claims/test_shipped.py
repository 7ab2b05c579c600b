"""Claims of the shipped ledger that have several parts: runs with effects of known size."""

import pytest

from tests import shipped
from tests.claims.made import SHIPPED, verdicts
from tests.comparison.sides import known
from tests.report.full_matrix import identity
from workflow_lib.claims.pairs import fitting, pairs
from workflow_lib.records import cell_axes
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.measures import MEASURES

#: what the study claims of nodes, and of pipelines of any model
OF_ANY_MODEL = ("C10", "C12", "C17")
OF_THE_STUDY = [
    (claim.id, test)
    for claim in SHIPPED.claims
    if claim.by == "study" and claim.id not in OF_ANY_MODEL
    for test in claim.tests
]


@pytest.mark.parametrize(("name", "test"), OF_THE_STUDY)
def test_a_rule_of_the_studys_claims_names_its_models_and_numbers_of_gpus(name, test):
    one_gpu = known(model="llama3-8b-4-layers", tp=1, pp=1, dp=1)
    for which in (test.first, test.second):
        wanted = {**test.cells, **which}
        assert "gpus" in wanted or {"tp", "pp", "dp"} <= {*wanted}
        assert {"model", "gpu_model"} & {*wanted}
        assert not fitting([one_gpu], wanted)


def test_efficiency_is_one_measure_in_all_of_the_studys_claims():
    measures = {
        test.measure
        for claim in SHIPPED.claims
        if claim.by == "study" and "efficien" in claim.says
        for test in claim.tests
        if MEASURES.get(test.measure) and MEASURES[test.measure].gain < 0
    }
    assert measures == {"samples_per_s_per_mj"}


def test_what_one_host_shows_of_sockets_is_not_said_of_any_network():
    (test,) = next(claim.tests for claim in SHIPPED.claims if claim.id == "T9")
    two_nodes = known(model="llama3-8b", platform="h200x2", tp=1, pp=2, dp=1) | {"nodes": 2}
    assert not fitting([two_nodes], test.cells, test.first)


@pytest.mark.parametrize(
    ("deep", "by_tensor", "expected"),
    [
        # At the power cap: pp 16 against pp 4 of one tp, and against tp 8 in place of stages.
        (0.6, 0.2, ("supported", "supported", "supported")),
        (0.2, 0.6, ("contradicted", "contradicted", "contradicted")),
        (0.6, 0.7, ("supported", "contradicted", "contradicted")),
    ],
)
def test_depth_is_told_from_tensor_parallelism(deep, by_tensor, expected):
    share = "throttle_power_share"
    found = verdicts(
        "C12",
        (known(tp=2, pp=16), {share: deep}),
        (known(tp=2, pp=4), {share: 0.4}),
        (known(tp=8, pp=4), {share: by_tensor}),
    )
    assert tuple(found.values()) == expected


def test_deeper_pipelines_with_less_tensor_parallelism_are_not_depth_alone():
    share = "throttle_power_share"
    sides = (known(tp=2, pp=16), {share: 0.6}), (known(tp=4, pp=4), {share: 0.4})
    found = verdicts("C12", *sides)
    assert [*found.values()] == ["not_testable", "supported", "not_testable"]


@pytest.mark.parametrize(
    ("model", "gain", "throttled", "expected"),
    [
        # Peak temperature, throttling, helps, costs a pipeline; and the claim.
        ("gpt3-175b", 1.05, 0.5, ["supported", "supported", "supported", "contradicted"]),
        ("gpt3-175b", 0.95, 0.1, ["supported", "contradicted", "contradicted", "supported"]),
        # A model that is not communication-bound says nothing of those that are.
        ("llama3-70b", 1.05, 0.5, ["supported", "supported", "not_testable", "contradicted"]),
    ],
)
def test_overlap_throttles_and_helps_what_communicates(model, gain, throttled, expected):
    def side(overlap, speed, share, hottest):
        measures = {
            "tokens_per_s": speed,
            "throttle_power_share": share,
            "temperature_peak_c": hottest,
        }
        return known(model=model, overlap=overlap), measures

    found = verdicts("C13", side(True, gain, throttled, 80.0), side(False, 1.0, 0.3, 60.0))
    assert [*found.values()] == [*expected, "contradicted"]


@pytest.mark.parametrize(
    ("speeds", "verdict"),
    [
        # Three micro-batches: recomputation costs speed in most, in one, in half of two.
        ((0.8, 0.8, 1.1), "supported"),
        ((0.8, 1.1, 1.1), "contradicted"),
        ((0.8, 1.1), "contradicted"),
    ],
)
def test_recomputation_that_usually_costs_speed_is_half_of_a_claim(speeds, verdict):
    sides = [
        side
        for size, speed in zip((1, 2, 4), speeds, strict=False)
        for side in (
            (known(micro_batch=size), {"tokens_per_s": speed}),
            (known(micro_batch=size, recomputation="none"), {"tokens_per_s": 1.0}),
        )
    ]
    half, other, whole = verdicts("C14", *sides).values()
    assert (half, other) == (verdict, "not_testable")
    assert whole == ("contradicted" if verdict == "contradicted" else "not_testable")


@pytest.mark.parametrize(
    ("gain", "verdict"), [(2.5, "supported"), (1.5, "contradicted"), (2.0, "undecided")]
)
def test_what_recomputation_lets_fit_is_set_beside_the_best_that_fits_without(gain, verdict):
    def side(tp, pp, recomputation, efficiency):
        degrees = Degrees(tp=tp, pp=pp, dp=8, ep=8)
        cell = identity("h200", "mixtral-8x22b", degrees, recomputation=recomputation)
        cell["gpu_model"] = "H200"
        return cell, {"samples_per_s_per_mj": efficiency, "tokens_per_s": efficiency}

    found = verdicts(
        "C14",
        side(1, 4, "full", gain),
        side(2, 2, "none", 1.0),
        side(4, 1, "none", 0.5),
        # This is better, but not the layout that the claim is about.
        side(4, 1, "full", 9.0),
    )
    assert found["Mixtral 8x22B as EP8-TP1-PP4, against what fits without"] == verdict


@pytest.mark.parametrize(
    ("step_s", "verdict"), [(1.1, "supported"), (0.9, "contradicted"), (1.0, "undecided")]
)
def test_a_lower_cap_is_a_control(step_s, verdict):
    capped = {**known(), "cell": "h200/llama3-70b/capped", "power_limits_w": "[500, 500]"}
    found = verdicts("R6", (capped, {"step_time_s": step_s}), (known(), {"step_time_s": 1.0}))
    assert found == {None: verdict}


@pytest.mark.parametrize(("gain", "verdict"), [(1.0, "supported"), (1.03, "contradicted")])
def test_a_cool_start_is_set_beside_a_warm_one_of_its_own_platform(gain, verdict):
    def measures(of):
        return {"tokens_per_s_per_gpu": 9000.0, "tokens_per_j": 10.0 * of}

    cooled = {"cell": "h200/cooled", "cool_down_to_c": 40.0, "cool_down_limit_s": 90.0}
    found = verdicts(
        "T22",
        ({**known(), **cooled}, measures(gain)),
        (known(), measures(1.0)),
        # Two platforms are not two starts.
        (known("h100"), measures(2.0)),
    )
    assert found == {"speed": "supported", "energy": verdict, None: verdict}


def test_every_question_of_the_reviewers_has_a_rule_or_a_reason_for_none():
    asked = [claim for claim in SHIPPED.claims if claim.by == "reviewers"]
    assert [claim.id for claim in asked] == [f"R{number}" for number in range(1, 8)]
    assert all(bool(claim.tests) != bool(claim.no_rule) for claim in asked)


@pytest.mark.parametrize(
    ("name", "part", "sweep"),
    [
        ("C4", 0, "kernel-time"),
        ("C4", 1, "kernel-time"),
        ("C12", 0, "depth-h200x8"),
        ("C12", 1, "evidence-twins-x8"),
        ("C12", 1, "parallelism-h200"),
        ("C13", 2, "optimisation-h200"),
        ("C14", 0, "optimisation-h200"),
        ("T22", 0, "evidence-cool-down-h200x1"),
    ],
)
def test_a_sweep_that_would_test_a_part_has_its_cells(name, part, sweep):
    planned = shipped.sweeps()[sweep].cells
    rows = [cell_axes.identity(each.cell) for each in planned if each.feasible]
    (claim,) = [each for each in SHIPPED.claims if each.id == name]
    test = claim.tests[part]
    assert sweep.partition("-h200")[0] in claim.would_test
    assert pairs(test, rows) if test.first else fitting(rows, test.cells)


def test_three_seeds_are_three_profiled_runs_of_one_cell():
    (view,) = [view for view in shipped.sweeps().values() if view.name == "kernel-time"]
    rows = [cell_axes.identity(each.cell) for each in view.cells]
    assert {len(group) for group in cell_axes.alike(rows, ("seed",))} == {3}
    assert all(each.profiled_steps for each in view.cells)
