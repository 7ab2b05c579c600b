"""Parts that take times measured alone: worked out by hand from a made-up line."""

import json
from dataclasses import replace

import pytest

from tests import shipped
from tests.projection.made_up_times import EXCHANGE, OPTIMISER, SIZES, records
from workflow_lib.projection import step_model
from workflow_lib.projection.gpu_power import levels
from workflow_lib.projection.layouts import Layout, Shape
from workflow_lib.projection.machines import published_machine
from workflow_lib.projection.own_runs import read_own
from workflow_lib.projection.own_stack import own_stack
from workflow_lib.projection.part_times import Rates, read_parts
from workflow_lib.projection.project import basis, project
from workflow_lib.projection.step_terms import not_hidden_s, terms
from workflow_lib.projection.timed_terms import measured

# A layer has 4·1000² + 2·1000·4000 = 12 000 000 weights; the head 10 000 000, and as many the
# embedding.
SHAPE = Shape("s", 8, 1000, 4000, False, 10, 10, 100, 10_000, False)
LAYOUT = Layout(
    published_machine("H200"), SHAPE, layers=8, sequence_length=5000, micro_batch=2,
    micro_batches=4, tp=1, pp=1, dp=1, overlap=False,
)  # fmt: skip


@pytest.fixture(scope="module")
def rates(tmp_path_factory):
    return rates_of(tmp_path_factory.mktemp("records"), records())


def rates_of(directory, of):
    path = directory / "parts.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in of), encoding="utf-8")
    return Rates(read_parts(path))


def took_s(calls, size, line=EXCHANGE):
    """Seconds of so many calls of ``size`` bytes each."""
    return calls * (line[0] + size / line[1])


def test_tensor_parallelism_gathers_six_times_and_scatters_four_times_a_layer(rates):
    layout = replace(LAYOUT, tp=2)
    # Of 10 000 tokens · 1000 · 2 bytes a rank receives half. 4 micro-batches, 8 layers.
    assert measured(layout, rates)["tensor alone"] == pytest.approx(32 * took_s(10, 1e7))
    # Forward again: two of each.
    again = measured(replace(layout, recomputation="full"), rates)
    assert again["tensor alone"] == pytest.approx(32 * took_s(14, 1e7))
    # An all-reduce receives twice as much.
    whole = measured(replace(layout, sequence_parallel=False), rates)
    assert whole["tensor alone"] == pytest.approx(32 * took_s(4, 2e7))


def test_exchanges_beside_computation_have_another_name(rates):
    found = measured(replace(LAYOUT, tp=2, overlap=True), rates)
    assert (found["tensor"], "tensor alone" in found) == (0, False)
    assert found["tensor beside"] == pytest.approx(32 * took_s(10, 1e7))


def test_zero_3_gathers_weights_twice_in_2_bytes_and_scatters_gradients_in_4(rates):
    found = measured(replace(LAYOUT, dp=2, sharding=3), rates)
    # Half of a layer's 12 000 000 weights: 12 MB twice and 24 MB once.
    assert found["gather alone"] == pytest.approx(32 * (took_s(2, 12e6) + took_s(1, 24e6)))
    assert "reduce alone" not in found


def test_replicas_exchange_once_a_step(rates):
    layout = replace(LAYOUT, dp=2)
    # 8 · 12 000 000 and 2 · 10 000 000 weights, half of each, in a call for each layer.
    half = 58_000_000
    expected = took_s(8, 4 * half / 8) + took_s(8, 2 * half / 8)
    assert measured(layout, rates)["reduce alone"] == pytest.approx(expected)
    whole = measured(replace(layout, sharding=0), rates)
    assert whole["reduce alone"] == pytest.approx(took_s(8, 8 * half / 8))
    # Beside computation it counts as far as that does not hide it.
    beside = replace(layout, overlap=True)
    shown = not_hidden_s(beside, took_s(8, 4 * half / 8), took_s(8, 2 * half / 8))
    assert measured(beside, rates)["reduce beside"] == pytest.approx(shown)
    assert shown < expected


def test_zero_2_scatters_gradients_in_every_pass_but_the_last(rates):
    layout = replace(LAYOUT, dp=2, sharding=2)
    found = measured(layout, rates)
    # 4 bytes of 12 000 000 weights of a layer, of which a rank receives half: 3 passes, 8 layers.
    assert found["gather alone"] == pytest.approx(3 * 8 * took_s(1, 2.4e7))
    assert found["reduce alone"] == measured(replace(layout, sharding=1), rates)["reduce alone"]
    assert "gather alone" not in measured(replace(layout, micro_batches=1), rates)


def test_pipeline_ranks_send_there_and_back_for_each_chunk(rates):
    layout = replace(LAYOUT, pp=2, virtual_stages=2, sequence_parallel=False)
    # 4 + 1/2 passes; each of 4 sends has 10 000 tokens · 1000 · 2 bytes.
    assert measured(layout, rates)["send alone"] == pytest.approx(4.5 * took_s(4, 2e7))


def test_experts_exchange_alone_even_where_others_do_not(rates):
    shape = replace(SHAPE, experts=4, experts_per_token=2)
    found = measured(replace(LAYOUT, shape=shape, dp=2, ep=2, overlap=True), rates)
    # Half of 10 000 tokens' two copies go to the other rank: 10 000 · 1000 · 2 bytes.
    assert found["expert alone"] == pytest.approx(32 * took_s(4, 2e7))
    # Replicas of experts and of other weights are different groups.
    assert not {"reduce alone", "reduce beside"} & set(found)


def test_the_optimiser_is_of_a_ranks_own_weights(rates):
    held = 116_000_000
    whole = measured(LAYOUT, rates)
    assert whole["optimiser alone"] == pytest.approx(took_s(1, 26 * held, OPTIMISER))
    assert whole["optimiser"] == 0
    cut = measured(replace(LAYOUT, dp=2), rates)
    assert cut["optimiser alone"] == pytest.approx(took_s(1, 13 * held, OPTIMISER))
    # Of the other replica's half the weights in 2 bytes and the gradients in 4.
    assert cut["optimiser"] == pytest.approx(3 * held / 4.8e12)
    # Together at the peak they are what parts.py counts.
    at_peak = cut["optimiser"] + 13 * held / 4.8e12
    assert at_peak == pytest.approx(terms(replace(LAYOUT, dp=2))["optimiser"])


def test_what_was_not_measured_keeps_its_part(rates):
    optimiser = {"optimiser", "optimiser alone"}
    # Groups of four have no line, and two GPUs of two nodes none either.
    assert set(measured(replace(LAYOUT, tp=4), rates)) == optimiser
    small = replace(LAYOUT.machine, gpus_per_node=1)
    for of in ({"dp": 2}, {"pp": 2}, {"tp": 2}, {"dp": 2, "sharding": 3}):
        assert set(measured(replace(LAYOUT, machine=small, **of), rates)) == optimiser
    assert measured(replace(LAYOUT, tp=2, machine=published_machine("H100")), rates) == {}


def test_a_refused_line_keeps_the_usual_part(tmp_path):
    bad = records()
    for each in bad:
        if each.get("collective") == "reduce-scatter" and each["received_bytes"] == SIZES[3]:
            each["repeats_s"] = [0.1]
    found = rates_of(tmp_path, bad)
    assert "tensor alone" not in measured(replace(LAYOUT, tp=2), found)
    assert "send alone" in measured(replace(LAYOUT, pp=2), found)
    stack = own_stack([run for run in read_own() if run.gpu == "H200"][:3], found.times)
    model = shipped.study().models["llama3-8b"].record("llama3-8b")
    best, *_ = project(model, published_machine("H200"), "h200", 2, 64, 1e12, stack)
    said = basis(best, stack, levels(stack.runs, "H200"), "h200x2")
    (why,) = (how for what, how in said if "reduce-scatter of 2" in what)
    assert why == f"refused: {found.refused['H200', 'reduce-scatter', 2]}"
    (parts,) = (how for what, how in said if what.startswith("parts"))
    assert "optimiser" in parts.split(", ")


def test_rows_of_this_workflow_alone_take_measured_times(rates):
    without, with_times = own_stack(None, ()), own_stack(None, rates.times)
    assert without.fit.problem is step_model.PROBLEM
    layout = next(run.layout for run in read_own() if run.tp == 2 and not run.overlap)
    row = with_times.row(layout, "h200x2")
    assert row.seconds["tensor"] == 0
    assert row.seconds["tensor alone"] == measured(layout, rates)["tensor alone"] > 0
    assert without.row(layout, "h200x2").seconds["tensor"] > 0
    # An H100 has no line, so its rows are as before.
    alone = next(run.layout for run in read_own() if run.gpu == "H100")
    assert with_times.row(alone, "h100x1") == without.row(alone, "h100x1")


def test_slower_exchanges_make_a_longer_step(tmp_path, rates):
    one = [run for run in read_own() if run.layout.gpus == 1]
    layout = next(run.layout for run in read_own() if run.tp == 2 and not run.overlap)
    slower = rates_of(tmp_path, records(slower=3.0))
    times = [own_stack(one, of.times).predict([layout], "h200x2")[0] for of in (rates, slower)]
    added = measured(layout, slower)["tensor alone"] - measured(layout, rates)["tensor alone"]
    # The factor of what was measured alone is near 1, and the stack's near that.
    assert times[1].median_s - times[0].median_s == pytest.approx(added, rel=0.25)
    assert times[1].shares["tensor alone"] > times[0].shares["tensor alone"] > 0
