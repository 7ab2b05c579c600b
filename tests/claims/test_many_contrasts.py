"""Claims whose truth lies at the limit, by many contrasts: how often they get a wrong verdict."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.claims.made import ledger, measured
from tests.comparison.sides import known
from tests.comparison.sides import measured as of_cell
from workflow_lib.claims.ledger import judge
from workflow_lib.claims.measured import Measured

#: the stated rate of wrong verdicts, and by how much that of the trials below may exceed it
STATED, WITHIN = 0.05, 0.03
TRIALS = 150
LAYOUTS = [(tp, pp) for tp in (1, 2, 4) for pp in (1, 2, 4, 8)]
OF_TWO = {
    "measure": "tokens_per_s",
    "first": {"micro_batch_size": 4},
    "second": {"micro_batch_size": 1},
    "above": 1.0,
}


def in_blocks(chance, layouts):
    """Two equal cells of each layout, in three blocks on the same GPUs."""
    cells, gpus = [], {}
    for number, (tp, pp) in enumerate(layouts):
        for size in (4, 1):
            values = 100 * np.exp(chance.normal(0, 0.003, 3))
            cell, runs = of_cell(known(tp=tp, pp=pp, micro_batch=size), tokens_per_s=[*values])
            for run in runs:
                began = 1e4 * run["run"] + 100 * number + size
                run |= {"order_seed": 0, "order_block": run["run"], "started_unix_s": began}
                gpus[cell["cell"], run["run"]] = frozenset({"GPU-1"})
            cells.append((cell, runs))
    made = measured(*cells)
    made.side.gpus.update(gpus)
    return made


def rate(verdict, test, make):
    chance = np.random.default_rng(21)
    of_one = ledger(test)
    found = [judge(of_one, [make(chance)])[0]["claim_verdict"] for _ in range(TRIALS)]
    return found.count(verdict) / TRIALS


@pytest.mark.parametrize(
    ("holds_in", "verdict"),
    # In a quarter of trials one contrast of twelve has such a verdict by itself.
    [("all", "contradicted"), ("any", "supported")],
)
def test_many_contrasts_at_the_limit_are_judged_as_rarely_wrong_as_one(holds_in, verdict):
    test = {**OF_TWO, "holds_in": holds_in}
    assert rate(verdict, test, lambda chance: in_blocks(chance, LAYOUTS)) <= STATED + WITHIN


def test_a_contrast_that_contradicts_by_itself_and_not_among_others_says_so():
    chance = np.random.default_rng(21)
    while True:
        rows = judge(ledger(OF_TWO), [in_blocks(chance, LAYOUTS)])
        if "contradicted" in [row["verdict"] for row in rows]:
            break
    (row,) = (row for row in rows if row["verdict"] == "contradicted")
    assert (row["deciding_verdict"], row["claim_verdict"]) == ("undecided", "undecided")
    assert (row["coverage"], row["deciding_coverage"]) == (0.95, pytest.approx(1 - 0.05 / 12))
    assert "for one of 12 contrasts" in row["in_words"]


HOTTEST = {"measure": "sm_clock_mean_mhz", "gpus": ["hottest", "coolest"], "above": 0.99}


def on_pairs(chance, pairs, layouts, between=0.01):
    """Layouts that all ran on some pairs of GPUs, of which the hottest is 1 % slower on average."""
    cells, rows = [], {}
    of_pairs = math.log(0.99) + chance.normal(0, between, pairs)
    for tp, pp in layouts:
        cell, runs = of_cell(known(tp=tp, pp=pp), tokens_per_s=[100.0] * 3 * pairs)
        for run in runs:
            pair = (run["run"] - 1) // 3
            slower = math.exp(of_pairs[pair] + chance.normal(0, 0.001))
            rows[cell["cell"], run["run"]] = [
                {
                    "node": "one",
                    "gpu_uuid": f"GPU-{pair}{name}",
                    "temperature_mean_c": warm,
                    "sm_clock_mean_mhz": clock,
                }
                for name, warm, clock in (("a", 70.0, slower), ("b", 60.0, 1.0))
            ]
        cells.append((cell, runs))
    return measured(*cells, gpus=rows)


def test_layouts_on_one_pair_of_gpus_are_one_observation():
    wrong = rate("contradicted", HOTTEST, lambda chance: on_pairs(chance, 4, LAYOUTS[:3]))
    assert wrong <= STATED + WITHIN


def test_the_interval_over_sets_of_gpus_is_students():
    made = on_pairs(np.random.default_rng(3), 4, LAYOUTS[:3])
    (row,) = judge(ledger(HOTTEST), [made])
    of_pairs = {}
    for gpus in made.gpus.values():
        ratio = math.log(gpus[0]["sm_clock_mean_mhz"])
        of_pairs.setdefault(gpus[0]["gpu_uuid"], []).append(ratio)
    means = [np.mean(of_pair) for of_pair in of_pairs.values()]
    # t of 3 degrees of freedom: 3.18245
    half = 3.18245 * np.std(means, ddof=1) / 2
    assert math.log(row["wide_low"]) == pytest.approx(np.mean(means) - half, abs=1e-6)
    assert math.log(row["wide_high"]) == pytest.approx(np.mean(means) + half, abs=1e-6)
    assert (row["gpu_sets"], row["coverage"]) == (4, 0.95)
    # The same runs in another results directory count once, and a shared GPU makes one set of two.
    again = Measured(made.side, made.gpus, sweeps=made.sweeps)
    (twice,) = judge(ledger(HOTTEST), [made, again])
    assert [twice[name] for name in ("estimate", "low", "gpu_sets")] == [
        row[name] for name in ("estimate", "low", "gpu_sets")
    ]
    for gpus in made.gpus.values():
        for gpu in gpus:
            gpu["gpu_uuid"] = gpu["gpu_uuid"].replace("GPU-3a", "GPU-2a")
    (shared,) = judge(ledger(HOTTEST), [made])
    assert shared["gpu_sets"] == 3


def test_each_node_of_a_run_is_an_observation():
    made = on_pairs(np.random.default_rng(3), 4, LAYOUTS[:1])
    (alone,) = judge(ledger(HOTTEST), [made])
    # The four pairs are nodes of one run.
    (cell,), runs = made.side.cells, made.side.runs
    nodes = [gpu | {"node": gpu["gpu_uuid"][:-1]} for gpus in made.gpus.values() for gpu in gpus]
    side = replace(made.side, runs=tuple(run for run in runs if run["run"] == 1))
    of_one = Measured(side, {(cell["cell"], 1): nodes[0::6] + nodes[1::6]}, sweeps=made.sweeps)
    (row,) = judge(ledger(HOTTEST), [of_one])
    assert row["gpu_sets"] == alone["gpu_sets"] == 4
    assert row["estimate"] == pytest.approx(alone["estimate"], abs=0.002)
