"""A pair of cells beside another: effects of known size in made-up sweeps get their verdicts.

Runs of each pair took turns, so that its interval is Student's over three blocks; by hand, t of two
degrees of freedom is 4.303.
"""

import json
import math

import pytest

from tests import shipped
from tests.claims.made import NEAR, judged, ledger, of_sides, verdicts
from tests.comparison.sides import failed, known
from tests.comparison.sides import measured as of_cell
from workflow_lib.claims import page
from workflow_lib.claims.ledger import judge, project
from workflow_lib.claims.projected import Cells
from workflow_lib.records import cell_axes
from workflow_lib.records.verdict_tables import CLAIMS
from workflow_lib.table_files import table

T = 4.302653
WHOLE, TWIN = "llama3-70b", "llama3-70b-8-layers"
BESIDE = {
    "measure": "tokens_per_s",
    "first": {"tp": 2, "pp": 16},
    "second": {"tp": 4, "pp": 8},
    "pair": {"model": TWIN},
    "beside": {"model": WHOLE},
}
#: what nobody is told apart by
CLOSE = {"above": 0.98, "below": 1.02}


def cell(model, tp, pp, **axes):
    """The identity of a cell of a model, which has axes besides."""
    name = "-".join(f"{axis}{value}" for axis, value in axes.items())
    of_model = {"layers": 8 if model == TWIN else 80}
    identity = known(model=model, tp=tp, pp=pp)
    return {**identity, **of_model, **axes, "cell": f"{identity['cell']}{name}"}


def sides(twin, whole, measure="tokens_per_s", **axes):
    """The cells of both pairs: the values of the first and the second cell of each."""
    return [
        (cell(model, *layout, **axes), {measure: value})
        for model, values in ((TWIN, twin), (WHOLE, whole))
        for layout, value in zip(((2, 16), (4, 8)), values, strict=True)
    ]


def one_pair(test):
    """The test without what tells two pairs apart."""
    return {name: each for name, each in test.items() if name not in ("pair", "beside")}


def rows_of(test, *measured_):
    rows = judge(ledger(BESIDE | test), list(measured_))
    table(rows, CLAIMS)  # which checks the columns and their types
    return rows


@pytest.mark.parametrize(
    ("bounds", "twin", "verdict"),
    [
        (CLOSE, 1.10, "supported"),
        (CLOSE, 1.20, "contradicted"),
        (CLOSE, 1.00, "contradicted"),
        (CLOSE, 1.12, "undecided"),
        (CLOSE, 1.08, "undecided"),
        # The first pair's ratio is over the second's, and not the other way round.
        ({"above": 1.05}, 1.20, "supported"),
        ({"below": 1.0}, 1.20, "contradicted"),
        ({"below": 0.95}, 1.00, "supported"),
    ],
)
def test_a_planted_effect_gets_its_verdict(bounds, twin, verdict):
    """The whole model is 1.1 times as fast in the first layout; the twin ``twin`` times."""
    (row,) = rows_of(bounds, of_sides(sides((4 * twin, 4.0), (1.1, 1.0))))
    assert {row[name] for name in ("verdict", "test_verdict", "claim_verdict")} == {verdict}
    assert row["estimate"] == pytest.approx(twin / 1.1, abs=1e-5)
    assert row["contrast"] == "ratio_of_ratios"
    assert (" below that of the second" in row["in_words"]) == (twin < 1.1)
    assert json.loads(row["missing_reasons"]) == {}


def test_the_interval_by_hand():
    (row,) = rows_of(CLOSE, of_sides(sides((4.8, 4.0), (1.1, 1.0))))
    # In a block the logarithms of two cells' spreads differ by those of the next of NEAR.
    logs = [math.log(each) for each in NEAR]
    apart = [a - b for a, b in zip(logs, logs[1:] + logs[:1], strict=True)]
    half = T * math.sqrt(sum(each**2 for each in apart) / 2 / 3)
    # Cells 0 and 1 of the twin differ so, and cells 2 and 3 of the whole model in another order.
    reach = math.hypot(half, half)
    middle = math.log(1.2 / 1.1)
    assert row["low"] == pytest.approx(math.exp(middle - reach), rel=1e-5)
    assert row["high"] == pytest.approx(math.exp(middle + reach), rel=1e-5)
    assert (row["wide_low"], row["wide_high"]) == (row["low"], row["high"])
    assert row["coverage"] == 0.95
    assert row["in_words"] == (
        "the ratio of the first pair, +20 %, is 9.1 % above that of the second, +10 % (95 % "
        "interval +7.8 to +10 %; runs in blocks)"
    )


def apart(values, measure="tokens_per_s", **other):
    """The four cells, each with the values of its runs, which lie apart in time."""
    identities = [each for each, _ in sides((1.0, 1.0), (1.0, 1.0))]
    return [
        of_cell(each, **{measure: of}, **other) for each, of in zip(identities, values, strict=True)
    ]


def test_noise_adds_in_squares_and_what_hosts_and_sensors_may_do_whole():
    near = [(100.0, 100.2, 99.8), (100.0, 99.8, 100.2)]
    values = [*near, *near]
    energy = BESIDE | {"measure": "energy_per_token_j", "below": 2.0}
    cells = apart(values, "energy_per_token_j")
    (row,) = judged(energy, *cells)
    pair, _ = judged(one_pair(energy), *cells)
    # Of each pair: 2.7 % for hosts on the runs' interval, in logarithms; and of each of its other
    # GPUs a gain of 10 % and 12.5 of 700 W.
    noise = math.sqrt(2) * math.log(pair["high"] / pair["estimate"])
    assert math.log(row["high"] / row["estimate"]) == pytest.approx(noise, rel=1e-3)
    reach = noise + 2 * math.log(1.027) + 2 * math.log(712.5 / 0.9 / (687.5 / 1.1))
    assert math.log(row["wide_high"] / row["estimate"]) == pytest.approx(reach, rel=1e-3)
    assert math.log(row["estimate"] / row["wide_low"]) == pytest.approx(reach, rel=1e-3)


def test_temperatures_are_set_beside_each_other_by_differences():
    def temperatures(twin):
        made = sides((twin, 60.0), (75.0, 65.0), "temperature_mean_c")
        test = {"measure": "temperature_mean_c", "above": 0.0, "below": 20.0}
        (row,) = rows_of(test, of_sides(made))
        return row

    row = temperatures(80.0)
    assert row["contrast"] == "difference_of_differences"
    assert row["estimate"] == pytest.approx(10.0)
    # Whole degrees: half a degree of each of four cells.
    assert row["wide_high"] == pytest.approx(row["high"] + 2.0)
    assert row["wide_low"] == pytest.approx(row["low"] - 2.0)
    assert row["verdict"] == "supported"
    for told in ("first pair, +20 °C", "10 °C above", "second, +10 °C"):
        assert told in row["in_words"]
    assert temperatures(60.0)["verdict"] == "contradicted"
    assert temperatures(70.0)["verdict"] == "undecided"


@pytest.mark.parametrize(
    ("changed", "measure", "why"),
    [
        ((0, "few"), "tokens_per_s", "the first pair: 2 against 3 runs give only a range, "),
        ((3, "few"), "tokens_per_s", "the second pair: 3 against 2 runs give only a range, "),
        ((1, "failed"), "tokens_per_s", "the first pair: only the first ran: the second out of"),
        ((2, "failed"), "tokens_per_s", "the second pair: only the second ran: the first out of"),
        ((2, "none"), "tokens_per_s", "the second pair: no value: the first, run 1: "),
    ],
)
def test_without_the_interval_of_a_pair_there_is_none(changed, measure, why):
    cells = apart([(100.0, 100.2, 99.8)] * 4)
    number, how = changed
    known_ = cells[number][0]
    identity = {name: known_[name] for name in (*cell("x", 2, 16), "simulated")}
    cells[number] = {
        "few": of_cell(identity, tokens_per_s=[100.0, 100.2]),
        "failed": failed(identity, "out_of_memory", "rank 3"),
        "none": of_cell(identity, tokens_per_s=[None, 100.0, 100.0]),
    }[how]
    (row,) = judged(BESIDE | CLOSE, *cells)
    assert (row["verdict"], row["claim_verdict"]) == ("not_testable", "not_testable")
    assert row["in_words"].startswith(why)
    assert (row["low"], row["coverage"], row["wide_low"]) == (None, None, None)
    assert (row["estimate"] is None) == (how != "few")
    assert row["beside_cell_b"] == cells[3][0]["cell"]
    missing = json.loads(row["missing_reasons"])
    assert missing.keys() == {"low", "high", "coverage", "wide_low", "wide_high"} | (
        {"estimate"} if how != "few" else set()
    )


def test_both_pairs_without_an_interval_have_both_reasons():
    cells = apart([(100.0, 100.2)] * 4)
    (row,) = judged(BESIDE | CLOSE, *cells)
    assert row["in_words"].count("2 against 2 runs") == 2
    assert "; the second pair: " in row["in_words"]


def test_a_power_that_is_unknown_leaves_the_interval_of_the_runs_alone():
    near = [(100.0, 100.2, 99.8)] * 4
    cells = apart(near, "tokens_per_j", power_per_gpu_mean_w=[None] * 3)
    (row,) = judged(BESIDE | CLOSE | {"measure": "tokens_per_j"}, *cells)
    assert (row["verdict"], row["wide_low"], row["coverage"]) == ("undecided", None, 0.95)
    assert row["low"] < 1 < row["high"]
    assert " by the runs alone; the first pair: " in row["in_words"]
    assert row["in_words"].count("is unknown") == 2


def test_what_is_assumed_of_sensors_is_said_of_each_pair():
    one_gpu = {"first": {"micro_batch_size": 2}, "second": {"micro_batch_size": 1}}
    cells = [
        (cell(model, 1, 1, micro_batch_size=size, gpus=1), {"tokens_per_j": value})
        for model, values in ((TWIN, (4.4, 4.0)), (WHOLE, (1.1, 1.0)))
        for size, value in zip((2, 1), values, strict=True)
    ]
    (row,) = rows_of(CLOSE | one_gpu | {"measure": "tokens_per_j"}, of_sides(cells))
    assert row["verdict"] == "supported"
    assert "offset of ±12.5 W" in row["assumes"]


def test_gpus_that_wait_for_their_host_give_no_interval():
    cells = apart([(100.0, 100.2, 99.8)] * 4, gpu_utilisation_share=[0.95] * 3)
    cells[2][0]["gpu_utilisation_share"] = 0.5
    (row,) = judged(BESIDE | CLOSE | {"busy_above": 0.9}, *cells)
    assert row["verdict"] == "not_testable"
    assert row["in_words"].startswith("the second pair: ")
    assert "ran kernels 50 %" in row["in_words"]


def test_simulated_readings_of_one_pair_support_nothing():
    cells = apart([(70.0, 70.2, 69.8)] * 4, "temperature_mean_c")
    for of_each, runs in cells[:2]:
        of_each["simulated"] = True
        for run in runs:
            run["simulated"] = True
    test = BESIDE | {"measure": "temperature_mean_c", "above": -9.0, "below": 9.0}
    (row,) = judged(test, *cells)
    assert (row["verdict"], row["simulated"]) == ("not_testable", True)
    assert "simulated" in row["in_words"]


def test_cells_that_are_not_there_are_named_with_their_pair():
    made = sides((4.4, 4.0), (1.1, 1.0))
    twin, whole = of_sides(made[:2]), of_sides(made[2:])
    (row,) = rows_of(CLOSE, twin)
    assert row["verdict"] == "not_testable"
    assert row["cell_a"] is None
    assert row["in_words"] == (
        f"the second pair: no sweep has a cell that fits the first (model {WHOLE}, tp 2, pp 16) "
        f"nor the second (model {WHOLE}, tp 4, pp 8)"
    )
    (row,) = rows_of(CLOSE, whole)
    assert row["in_words"].startswith("the first pair: ")
    (row,) = rows_of(CLOSE)
    assert row["in_words"].count("has a cell") == 2


def test_each_cell_has_a_counterpart_that_differs_by_the_model_and_what_follows_from_it():
    whole = [
        *sides((0.0, 0.0), (1.1, 1.0), measured_steps=12)[2:],
        # What is alike in both cells of one pair still has to be alike in both pairs.
        *sides((0.0, 0.0), (1.2, 1.0), micro_batch_size=4)[2:],
    ]
    twin = sides((4.4, 4.0), (0.0, 0.0), measured_steps=32)[:2]
    (row,) = rows_of(CLOSE, of_sides([*twin, *whole]))
    assert row["verdict"] == "supported"
    assert [row["beside_cell_a"], row["beside_cell_b"]] == [each["cell"] for each, _ in whole[:2]]
    (row,) = rows_of(CLOSE, of_sides([*twin, *whole[2:]]))
    assert row["in_words"] == "no two such pairs are alike in every other axis"
    assert row["cell_a"] is None


def test_numbers_of_steps_follow_from_a_model_alone():
    def on(platform, **axes):
        return [
            ({**each, "platform": platform, "cell": f"{platform}/{each['cell']}"}, value)
            for each, value in sides((0.0, 0.0), (1.1, 1.0), **axes)[2:]
        ]

    by_platform = {"pair": {"platform": "h100"}, "beside": {"platform": "h200"}}
    (row,) = rows_of(CLOSE | by_platform, of_sides([*on("h100"), *on("h200")]))
    assert row["verdict"] == "supported"
    other = of_sides([*on("h100"), *on("h200", measured_steps=12)])
    (row,) = rows_of(CLOSE | by_platform, other)
    assert row["in_words"] == "no two such pairs are alike in every other axis"
    steps = {
        "pair": {"platform": "h100", "measured_steps": 20},
        "beside": {"platform": "h200", "measured_steps": [12, 16]},
    }
    (row,) = rows_of(CLOSE | steps, other)
    assert row["verdict"] == "supported"


def test_an_axis_in_which_the_cells_of_a_pair_may_differ_is_alike_in_their_counterparts():
    """With overlap or without, each cell of the whole model has its own counterpart."""

    def both(model, speed, overlaps):
        return [
            (cell(model, *layout, overlap=on), {"tokens_per_s": speed})
            for layout, on in zip(((2, 16), (4, 8)), overlaps, strict=True)
        ]

    twin = both(TWIN, 4.0, (False, True))
    whole = [*both(WHOLE, 1.0, (False, True)), *both(WHOLE, 1.0, (True, False))]
    rows = rows_of(CLOSE | {"alike_but": ["overlap"]}, of_sides([*twin, *whole]))
    assert [(row["beside_cell_a"], row["beside_cell_b"]) for row in rows] == [
        (whole[0][0]["cell"], whole[1][0]["cell"])
    ]


@pytest.mark.parametrize(
    ("twin", "whole", "without", "second"),
    [
        (
            {"stage_layers": "[5, 3]"},
            {"stage_layers": "[17, 15]"},
            {"stage_layers": None},
            {"stage_layers": []},
        ),
        (
            {"cool_down_limit_s": 90.0, "cool_down_to_c": 37.0},
            {"cool_down_limit_s": 60.0, "cool_down_to_c": 42.0},
            {"cool_down_limit_s": 0.0, "cool_down_to_c": None},
            {"cool_down_limit_s": 0},
        ),
    ],
)
def test_any_division_and_any_cool_down_are_counterparts(twin, whole, without, second):
    cells = [
        (cell(model, 2, 16, **axes), {"tokens_per_s": value})
        for model, axes, value in (
            (TWIN, twin, 4.4),
            (TWIN, without, 4.0),
            (WHOLE, whole, 1.1),
            (WHOLE, without, 1.0),
        )
    ]
    test = {"first": dict.fromkeys(second, "any"), "second": second}
    (row,) = rows_of(CLOSE | test, of_sides(cells))
    assert row["verdict"] == "supported"
    named = ("cell_a", "cell_b", "beside_cell_a", "beside_cell_b")
    assert [row[name] for name in named] == [each["cell"] for each, _ in cells]


def test_every_measurement_of_a_pair_is_set_beside_every_one_of_the_other_and_none_twice():
    def whole(sweep, speed, later_s):
        return of_sides(sides((0.0, 0.0), (speed * 1.1, speed))[2:], later_s, sweep)

    twin = of_sides(sides((4.4, 4.0), (0.0, 0.0))[:2], sweep="t")
    # On the second host all is twice as fast, and each pair is of one host.
    both = whole("w1", 1.0, 0.0), whole("w2", 2.0, 1e6)
    rows = rows_of(CLOSE, twin, *both)
    assert [(row["sweeps_a"], row["beside_sweeps_b"]) for row in rows] == [("t", "w1"), ("t", "w2")]
    assert [row["estimate"] for row in rows] == [pytest.approx(1.0)] * 2
    assert {row["claim_verdict"] for row in rows} == {"supported"}
    # The runs of one host again, which a second results directory has as well.
    assert rows_of(CLOSE, twin, *both, whole("copy", 1.0, 0.0)) == rows


def test_the_page_names_all_four_cells_with_links():
    cells = sides((4.4, 4.0), (1.1, 1.0))
    for each, _ in cells[2:]:
        each["emulated"] = "two daemons"
    claims = ledger(BESIDE | CLOSE)
    rows = judge(claims, [of_sides(cells)])
    plain = page.markdown(claims, rows, lambda sweep, cell: f"{sweep}.html#{cell}")
    alike = "mb1 gb128 bf16 zero1 sp recompute torch"
    ids = [each["cell"] for each, _ in cells]
    assert (
        f"- {TWIN} {alike} on h200, 3 runs each: [`tp2-pp16`](made.html#{ids[0]}) against "
        f"[`tp4-pp8`](made.html#{ids[1]}); beside {WHOLE} {alike} on h200 (emulated), 3 runs each: "
        f"[`tp2-pp16`](made.html#{ids[2]}) against [`tp4-pp8`](made.html#{ids[3]}): "
        "supported; the ratio of the first pair, +10 %, is not told apart from that of the second"
    ) in plain
    assert (
        f"Throughput (the first over the second, and the ratio of model {TWIN} over that of model "
        f"{WHOLE}) is between −2.0 % and +2.0 %, in all such pairs. **Supported.**"
    ) in plain
    assert "The nodes or links of h200 are emulated: two daemons." in plain
    web = page.html(claims, rows, lambda sweep, cell: f"{sweep}.html#{cell}")
    for each in ids:
        assert f'<a href="made.html#{each}" title="{each}">' in web
    assert web.count("</a> against <a") == 2
    assert web.count(f"; beside {WHOLE} {alike} ") == 1


def test_two_pairs_are_not_projected():
    rows = [each for each, _ in sides((4.4, 4.0), (1.1, 1.0))]
    # Nothing is known of them that could be contrasted.
    of_none = Cells({}, rows, {row["cell"]: "made" for row in rows})
    with pytest.raises(KeyError):
        project(ledger(one_pair(BESIDE | CLOSE), by="study"), of_none)
    assert project(ledger(BESIDE | CLOSE, by="study"), of_none) == []


#: parts of R2, in their order
PARTS = ("tensor parallelism", "a pipeline", "ZeRO-3", "stages by work")


def planned(*names):
    """The identities of the cells of shipped sweeps, by model, layout and ZeRO stage."""
    return {
        (row["model"], row["parallelism"], row["zero_stage"]): row
        for name in names
        for row in (cell_axes.identity(each.cell) for each in shipped.sweeps()[name].cells)
    }


@pytest.mark.parametrize(
    ("off", "factor", "expected"),
    [
        (None, 1.0, ["supported"] * 5),
        ("tp2-pp1-dp1", 1.05, ["contradicted", *["supported"] * 3, "contradicted"]),
        ("tp1-pp2-dp1-l5.3", 0.98, [*["supported"] * 3, "undecided", "undecided"]),
        ("tp1-pp1-dp2", 0.9, [*["contradicted"] * 3, "supported", "contradicted"]),
    ],
)
def test_a_twin_beside_the_whole_model(off, factor, expected):
    """R2: of the planned cells, one of the twin's is faster or slower than its whole model says."""
    speeds = {
        ("tp1-pp1-dp2", 1): 1.0,
        ("tp1-pp1-dp2", 3): 0.95,
        ("tp2-pp1-dp1", 1): 0.8,
        ("tp1-pp2-dp1", 1): 0.9,
        ("tp1-pp2-dp1-l17.15", 1): 0.93,
        ("tp1-pp2-dp1-l5.3", 1): 0.93,
    }
    cells = planned("evidence-twin-x2", "evidence-llama3-8b-x2", "evidence-stages-x2")
    assert len(cells) == 10
    made = [
        (row, {"tokens_per_s_per_gpu": speeds[layout, zero] * (4 if twin else 1) * changed})
        for (model, layout, zero), row in cells.items()
        for twin in [model.endswith("-8-layers")]
        for changed in [factor if twin and (layout, zero) == (off, 1) else 1.0]
    ]
    found = verdicts("R2", *made)
    assert [found[part] for part in (*PARTS, None)] == expected
    assert len(found) == 5
