"""Effects of known size are planted in runs, and claims about them get the verdicts they must.

Every pair of cells has runs of 110, 110.2 and 109.8 against 100, 100.2 and 99.8 tokens/s, so that
the ratio is 1.10. The runs lie apart: 2.7 % are allowed for dates and nodes.
"""

import json
import math

import pytest

from tests.claims.made import judged, ledger, measured
from tests.comparison.sides import failed, known
from tests.comparison.sides import measured as cell
from tests.report.full_matrix import identity
from workflow_lib.claims import page
from workflow_lib.claims.ledger import judge
from workflow_lib.claims.verdicts import of_claim, of_interval, of_test
from workflow_lib.config import ClaimTest
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.verdict_tables import CLAIMS
from workflow_lib.table_files import table

FIRST, SECOND = known(micro_batch=4), known(micro_batch=1)
MORE, LESS = [110.0, 110.2, 109.8], [100.0, 100.2, 99.8]
#: Welch's interval by hand: 0.0953 ± 2.79 · 0.00156, as logarithms. Ours holds it, since it takes a
#: drift away besides
WELCH = 1.0953, 1.1047
CONTRAST = {
    "measure": "tokens_per_s",
    "first": {"micro_batch_size": 4},
    "second": {"micro_batch_size": 1},
}
PAIR = cell(FIRST, tokens_per_s=MORE), cell(SECOND, tokens_per_s=LESS)


@pytest.mark.parametrize(
    ("low", "high", "above", "below", "verdict"),
    [
        (1.01, 1.05, 1.0, None, "supported"),
        (0.95, 0.99, 1.0, None, "contradicted"),
        (0.99, 1.01, 1.0, None, "undecided"),
        (0.95, 0.99, None, 1.0, "supported"),
        (1.01, 1.05, None, 1.0, "contradicted"),
        (0.97, 1.03, 0.95, 1.05, "supported"),
        (0.97, 1.06, 0.95, 1.05, "undecided"),
        (1.06, 1.08, 0.95, 1.05, "contradicted"),
        (0.90, 1.10, 0.95, 1.05, "undecided"),
        # Two cells that never throttle show no growth.
        (0.0, 0.0, 0.0, None, "contradicted"),
    ],
)
def test_the_verdict_of_an_interval(low, high, above, below, verdict):
    assert of_interval(low, high, above, below) == verdict


@pytest.mark.parametrize(
    ("planted", "verdict"),
    [
        ({"above": 1.0}, "supported"),
        ({"above": 1.05}, "supported"),
        ({"above": 1.10}, "undecided"),
        ({"above": 1.20}, "contradicted"),
        ({"below": 1.0}, "contradicted"),
        ({"above": 1.0, "below": 1.2}, "supported"),
        ({"above": 0.95, "below": 1.05}, "contradicted"),
    ],
)
def test_a_planted_effect_gets_its_verdict(planted, verdict):
    (row,) = judged(CONTRAST | planted, *PAIR)
    table([row], CLAIMS)  # which checks the columns and their types
    assert (row["verdict"], row["test_verdict"], row["claim_verdict"]) == (verdict,) * 3
    assert row["estimate"] == pytest.approx(
        math.exp(sum(math.log(a / b) for a, b in zip(MORE, LESS, strict=True)) / 3)
    )
    assert row["low"] < WELCH[0]
    assert row["high"] > WELCH[1]
    assert row["wide_low"] == pytest.approx(row["low"] / 1.027)
    assert (row["runs_a"], row["runs_b"], row["coverage"]) == ("1, 2, 3", "1, 2, 3", 0.95)
    assert (row["cell_a"], row["cell_b"]) == (FIRST["cell"], SECOND["cell"])
    assert json.loads(row["missing_reasons"]) == {}


@pytest.mark.parametrize(
    ("first", "second", "verdict", "why"),
    [
        (0.95, 0.93, "supported", "% faster"),
        (
            0.95,
            0.57,
            "not_testable",
            "the first ran kernels 95 % of the time and those of the second 57 %",
        ),
        (0.57, 0.95, "not_testable", "the hosts set the speed"),
        (0.95, None, "not_testable", "how much of the time the GPUs ran kernels is not known"),
    ],
)
def test_gpus_that_wait_for_their_host_show_its_speed(first, second, verdict, why):
    one = cell(FIRST, tokens_per_s=MORE, gpu_utilisation_share=[first] * 3)
    other = cell(SECOND, tokens_per_s=LESS, gpu_utilisation_share=[second] * 3)
    (row,) = judged(CONTRAST | {"above": 1.0, "busy_above": 0.9}, one, other)
    assert row["verdict"] == verdict
    assert why in row["in_words"]
    # Hosts differ by far more than 10 % where GPUs wait for them.
    (without,) = judged(CONTRAST | {"above": 1.0}, one, other)
    assert without["verdict"] == ("undecided" if 0.57 in (first, second) else "supported")


def test_no_effect_is_not_told_from_one():
    same = cell(FIRST, tokens_per_s=[100.0, 101.0, 99.0])
    (row,) = judged(CONTRAST | {"above": 1.0}, same, PAIR[1])
    assert row["verdict"] == "undecided"
    assert row["in_words"].startswith("not told apart: ")


def untestable(*cells, test=CONTRAST, **other):
    """Why a contrast is not testable."""
    (row,) = judged(test | {"above": 1.0}, *cells, **other)
    assert (row["verdict"], row["claim_verdict"]) == ("not_testable", "not_testable")
    assert set(json.loads(row["missing_reasons"]).values()) <= {row["in_words"]}
    return row["in_words"]


def test_cells_that_are_not_there_are_named():
    assert untestable(PAIR[1]) == "no sweep has a cell that fits the first (micro_batch_size 4)"
    assert untestable(PAIR[0], cell(known(micro_batch=1, tp=4, pp=8), tokens_per_s=LESS)) == (
        "no two such cells are alike in every other axis"
    )


def test_a_list_of_numbers_is_one_value_and_an_empty_one_is_a_cell_without():
    def divided(*layers, order=()):
        degrees = Degrees(tp=1, pp=2, dp=1, stage_layers=layers, gpu_order=order)
        return identity("h200x2", "llama3-8b", degrees)

    even, by_work, swapped = divided(), divided(17, 15), divided(order=(1, 0))
    cells = [
        cell(even, tokens_per_s=LESS),
        cell(by_work, tokens_per_s=MORE),
        cell(swapped, tokens_per_s=LESS),
        cell(divided(15, 17), tokens_per_s=LESS),
    ]
    layers = {"first": {"stage_layers": [17, 15]}, "second": {"stage_layers": []}, "above": 1.05}
    (row,) = judged(CONTRAST | layers, *cells)
    assert (row["cell_a"], row["cell_b"]) == (by_work["cell"], even["cell"])
    assert row["verdict"] == "supported"
    order = {"first": {"gpu_order": [1, 0]}, "second": {"gpu_order": []}, "above": 1.05}
    (row,) = judged(CONTRAST | order, *cells)
    assert (row["cell_a"], row["cell_b"]) == (swapped["cell"], even["cell"])
    assert row["verdict"] == "contradicted"
    assert untestable(cells[2], test=CONTRAST | layers | {"second": order["second"]}) == (
        "no sweep has a cell that fits the first (stage_layers [17, 15]) nor the second "
        "(gpu_order none)"
    )


def test_a_cell_without_a_completed_run_is_no_evidence():
    words = untestable(failed(FIRST, "out_of_memory", "rank 3"), PAIR[1])
    assert words == "only the second ran: the first out of memory (rank 3)"


def test_a_missing_value_is_a_reason_and_never_a_number():
    first = cell(FIRST, tokens_per_s=[110.0, None, 109.0])
    first[1][1]["missing_reasons"] = json.dumps({"tokens_per_s": "rank 2 has no steps"})
    assert untestable(first, PAIR[1]) == "no value: the first, run 2: rank 2 has no steps"


def test_two_runs_give_no_interval_and_so_no_verdict():
    words = untestable(cell(FIRST, tokens_per_s=MORE[:2]), PAIR[1])
    assert words.startswith("2 against 3 runs give only a range, +9.8 to +10 %")
    # Nor has the page one, which takes what has ends for an interval.
    (row,) = judged(CONTRAST | {"above": 1.0}, cell(FIRST, tokens_per_s=MORE[:2]), PAIR[1])
    assert (row["coverage"], row["wide_low"], page.by_chance([row])) == (None, None, (0, 0))


def test_a_contrast_on_emulated_nodes_is_judged_and_says_so_on_both_pages():
    words = "two | <daemons>"
    pair = [
        cell(known(micro_batch=size) | {"emulated": words}, tokens_per_s=of)
        for size, of in ((4, [300.0, 300.5, 299.5]), (1, LESS))
    ]
    rows = judged(CONTRAST | {"above": 1.0}, *pair)
    assert (rows[0]["verdict"], rows[0]["emulated_a"]) == ("supported", words)
    (alone,) = judged({"measure": "tokens_per_s", "above": 1.0}, pair[0])
    assert (alone["emulated_a"], alone["emulated_b"]) == (words, None)
    of_one = ledger(CONTRAST | {"above": 1.0})
    told = page.markdown(of_one, rows, lambda *_: "")
    assert "The nodes or links of h200 are emulated: two \\| &lt;daemons>." in told
    assert "on h200 (emulated), 3 runs" in told
    html = page.html(of_one, rows, lambda *_: "")
    assert "<strong>EMULATED nodes or links.</strong>" in html


def test_simulated_readings_support_nothing_and_simulated_gpus_leave_clocks_of_ranks_alone():
    pair = [
        cell(known(micro_batch=size), simulated=True, temperature_mean_c=of, tokens_per_s=of)
        for size, of in ((4, MORE), (1, LESS))
    ]
    words = untestable(*pair, test=CONTRAST | {"measure": "temperature_mean_c"})
    assert words == "readings of GPUs were simulated"
    (row,) = judged(CONTRAST | {"above": 1.0}, *pair)
    assert row["verdict"] == "supported"


@pytest.mark.parametrize(
    ("power_w", "above", "verdict"),
    [
        # Other GPUs: at 1 W over their offsets' 12.5 there is hardly a bound.
        (13.5, 1.0, "undecided"),
        (None, 1.0, "undecided"),
        (700.0, 0.7, "supported"),
    ],
)
def test_an_efficiency_is_judged_with_what_its_sensors_may_do(power_w, above, verdict):
    pair = [
        cell(known(micro_batch=size), tokens_per_j=of, power_per_gpu_mean_w=[power_w] * 3)
        for size, of in ((4, MORE), (1, LESS))
    ]
    (row,) = judged(CONTRAST | {"measure": "tokens_per_j", "above": above}, *pair)
    assert row["verdict"] == verdict
    assert ("the power of a run is unknown" in row["in_words"]) == (power_w is None)


def test_a_claim_of_all_cells_and_one_of_some():
    def verdict(holds_in, *verdicts):
        test = ClaimTest(
            measure="tokens_per_s", first={"tp": 2}, second={"tp": 1}, above=1.0, holds_in=holds_in
        )
        # A verdict with a comma is one by itself, and one among others.
        return of_test(test, [(each.split(",")[0], each.split(",")[-1]) for each in verdicts])

    yes, no, open_, none = "supported", "contradicted", "undecided", "not_testable"
    assert verdict("all", yes, yes, none) == yes
    assert verdict("all", yes, open_) == open_
    assert verdict("all", yes, open_, no) == no
    assert verdict("all", yes, f"{no},{open_}") == open_
    assert verdict("all", f"{yes},{open_}", f"{yes},{open_}") == yes
    assert verdict("all", f"{no},{open_}", f"{no},{open_}") == no
    assert verdict("any", f"{yes},{open_}", no) == open_
    assert verdict("most", f"{yes},{open_}", yes) == open_
    assert verdict("any", yes, no) == yes
    assert verdict("any", no, open_) == open_
    assert verdict("any", no, no, none) == no
    assert verdict("most", yes, yes, no, none) == yes
    assert verdict("most", yes, open_) == open_
    assert verdict("most", yes, no) == no
    assert verdict("most", no, no, open_) == no
    assert verdict("most", yes, no, open_) == open_
    assert (
        verdict("any", none)
        == verdict("most", none)
        == verdict("all", none)
        == verdict("all")
        == none
    )
    assert of_claim([yes, yes]) == yes
    assert of_claim([yes, none]) == none
    assert of_claim([none, open_]) == open_
    assert of_claim([open_, no, yes]) == no


def test_a_claim_of_which_a_part_has_no_cells_is_not_supported_by_the_rest():
    whole = ledger(
        CONTRAST | {"above": 1.0, "part": "micro-batch"},
        {**CONTRAST, "first": {"tp": 1}, "second": {"tp": 2}, "above": 1.0, "part": "tensor"},
    )
    rows = judge(whole, [measured(*PAIR)])
    assert [(row["part"], row["test_verdict"]) for row in rows] == [
        ("micro-batch", "supported"),
        ("tensor", "not_testable"),
    ]
    assert {row["claim_verdict"] for row in rows} == {"not_testable"}


def test_a_claim_without_a_rule_says_so():
    (row,) = judge(ledger(no_rule="No sensor reads it."), [measured(*PAIR)])
    assert (row["claim_verdict"], row["test_verdict"]) == ("not_testable", None)
    assert row["in_words"] == "No sensor reads it."


def test_best_cells_are_of_any_layout():
    cells = [
        cell(known("h100", tp=2, pp=16), tokens_per_s=[90.0, 91.0, 89.0]),
        cell(known("h100", tp=4, pp=8), tokens_per_s=MORE),
        cell(known("h200", tp=8, pp=4), tokens_per_s=LESS),
    ]
    test = {
        "measure": "tokens_per_s",
        "first": {"platform": "h100"},
        "second": {"platform": "h200"},
        "choose": "best",
        "above": 1.0,
    }
    (row,) = judged(test, *cells)
    assert (row["cell_a"], row["cell_b"]) == (cells[1][0]["cell"], cells[2][0]["cell"])
    assert row["verdict"] == "supported"


TEXT = {"cell": "h200/l/text", "data": "text", "data_kind": "text", "data_definition": "12345678"}


@pytest.mark.parametrize(
    ("axis", "first"),
    [
        ("data", known() | TEXT),
        ("model", known(model="llama3-8b") | {"hidden_size": 4096}),
        ("workload", known(workload="lora") | {"cell": "h200/l/lora", "lora_rank": 16}),
    ],
)
def test_cells_may_differ_in_what_follows_from_an_axis_but_not_in_their_layout(axis, first):
    second, other = known(), known(tp=4, pp=8)
    cells = [
        cell(first, tokens_per_s=MORE),
        *(cell(each, tokens_per_s=LESS) for each in (second, other)),
    ]
    test = {"first": {axis: first[axis]}, "second": {axis: second[axis]}, "above": 1.0}
    (row,) = judged({"measure": "tokens_per_s", **test}, *cells)
    assert (row["cell_a"], row["cell_b"]) == (first["cell"], second["cell"])
    assert row["verdict"] == "supported"
