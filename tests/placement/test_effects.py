"""What goes with the GPU, its slot and time, on nodes where that is known."""

import dataclasses

import numpy as np
import pytest

from tests.placement.made import measured, pipeline_cell, rotations
from workflow_lib.placement.effects import fit
from workflow_lib.placement.readings import Measured
from workflow_lib.placement.slots import characterise
from workflow_lib.records import RecordError

#: standard deviations of silicon and of slots
_SILICON, _SLOT = 0.012, 0.01


def squares(gpus=4):
    return [pipeline_cell(gpus, order=order) for order in rotations(gpus, gpus)]


def test_two_runs_without_noise_give_back_the_effects_by_hand():
    # Clocks of 1.02, 1 in order, then exchanged; stage 1 is 3 % up: ln 1.02 is halved by the mean.
    effects = {("n1", 0): np.log(1.02), ("n1", 1): 0.0}
    cells = [pipeline_cell(2, order=order) for order in ((), (1, 0))]
    found = fit(of := measured(cells, effects, noise=0.0), of.clock)
    half = np.log(1.02) / 2
    assert found.gpus["n1", 0].estimate == pytest.approx(half, abs=1e-12)
    assert found.gpus["n1", 1].estimate == pytest.approx(-half, abs=1e-12)
    assert found.residual == pytest.approx(0, abs=1e-12)


def test_intervals_of_gpus_and_of_drift_hold_what_is_true_in_nine_of_ten_cases():
    held = drifts = cases = 0
    for seed in range(120):
        random = np.random.default_rng(seed)
        true = dict(zip([("n1", gpu) for gpu in range(4)], random.normal(0, 0.02, 4), strict=True))
        of = measured(squares(), true, drift_per_h=-0.01, seed=seed)
        found = fit(of, of.clock)
        mean = np.mean([*true.values()])
        for place, effect in found.gpus.items():
            cases += 1
            held += effect.low <= true[place] - mean <= effect.high
        drifts += found.drift_per_h.low <= -0.01 <= found.drift_per_h.high
    assert 0.86 <= held / cases <= 0.94
    assert 0.82 <= drifts / 120 <= 0.98


def test_slots_and_silicon_are_told_apart_over_nodes_that_ran_apart():
    held_slots = held_silicon = cases = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        slots = random.normal(0, _SLOT, 4)
        silicon = {
            (node, gpu): random.normal(0, _SILICON)
            for node in ("n1", "n2", "n3")
            for gpu in range(4)
        }
        readings, runs = [], []
        for number, node in enumerate(("n1", "n2", "n3")):
            true = {(node, gpu): silicon[node, gpu] + slots[gpu] for gpu in range(4)}
            one = measured(squares(), true, nodes=(node,), seed=100 * seed + number, rounds=1)
            readings += [dataclasses.replace(each, run=number + 1) for each in one.readings]
            runs += [dataclasses.replace(each, run=number + 1) for each in one.runs]
        found = characterise(Measured("made", runs, readings, {}))
        centred = slots - slots.mean()
        for (node, gpu), effect in found.apart.silicon.items():
            own = [silicon[node, each] for each in range(4)]
            cases += 1
            held_silicon += effect.low <= silicon[node, gpu] - np.mean(own) <= effect.high
        for gpu, effect in found.apart.slots.items():
            held_slots += 3 * (effect.low <= centred[gpu] <= effect.high)
    assert 0.84 <= held_slots / cases <= 0.96
    assert held_silicon / cases >= 0.84


def test_one_node_cannot_tell_slots_from_silicon_and_says_so():
    of = measured(squares(), {("n1", gpu): 0.0 for gpu in range(4)})
    found = characterise(of)
    assert found.apart.slots == {}
    assert "one node" in found.apart.why_not
    assert all(row["slot_effect"] is None for row in found.rows)
    assert "one node" in found.rows[0]["missing_reasons"]


def test_gpus_that_fall_behind_are_named_and_others_are_not():
    true = {("n1", 0): 0.0, ("n1", 1): 0.0, ("n1", 2): -0.06, ("n1", 3): 0.0}
    found = characterise(measured(squares(), true))
    assert [(row["node"], row["gpu"]) for row in found.behind] == [("n1", 2)]


def test_gpus_that_never_changed_stages_are_refused():
    of = measured([pipeline_cell(4)], {("n1", gpu): 0.0 for gpu in range(4)})
    with pytest.raises(RecordError, match="did not change stages between runs: rotate gpu_order"):
        fit(of, of.clock)


def test_gpus_of_nodes_without_a_stage_in_common_are_refused():
    # Four stages on two nodes: whatever the order, the first node has stages 0 and 1.
    cells = [pipeline_cell(2, pp=4, nodes=2, order=order) for order in rotations(2, 2)]
    true = {(node, gpu): 0.0 for node in ("n1", "n2") for gpu in range(2)}
    of = measured(cells, true, nodes=("n1", "n2"))
    with pytest.raises(RecordError, match=r"nodes had no stage in common, .*fits into one node"):
        fit(of, of.clock)


def test_a_gpu_that_was_exchanged_is_refused():
    of = measured(squares(), {("n1", gpu): 0.0 for gpu in range(4)})
    last = dataclasses.replace(of.readings[-1], uuid="GPU-other")
    of = dataclasses.replace(of, readings=[*of.readings[:-1], last])
    with pytest.raises(RecordError, match=r"GPU \d of n1 was GPU-n1-\d in one run and GPU-other"):
        fit(of, of.clock)


def test_no_readings_say_why():
    of = Measured("made", [], [], {("a/b/c", 1): "it trained on CPUs"})
    with pytest.raises(RecordError, match="no readings of GPUs: it trained on CPUs"):
        characterise(of)


def test_means_are_used_where_a_gpu_was_not_at_its_cap():
    of = measured(squares(), {("n1", gpu): 0.0 for gpu in range(4)})
    assert of.at_cap
    one = dataclasses.replace(of.readings[0], capped_clock_share=None)
    other = dataclasses.replace(of, readings=[one, *of.readings[1:]])
    assert not other.at_cap
    assert other.clock(other.readings[1]) == of.readings[1].sm_clock_mhz


def test_a_square_of_tp_groups_compares_gpus_within_and_between_groups():
    true = {("n1", gpu): 0.01 * gpu for gpu in range(4)}
    cells = [pipeline_cell(4, tp=2, order=order) for order in rotations(4, 2)]
    found = fit(of := measured(cells, true, noise=1e-6), of.clock)
    for gpu in range(4):
        assert found.gpus["n1", gpu].estimate == pytest.approx(0.01 * gpu - 0.015, abs=1e-5)
