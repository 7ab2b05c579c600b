"""What goes with the GPU, its slot and time, on nodes where that is known."""

from dataclasses import replace

import numpy as np
import pytest

from tests.placement.made import FOUR, TWO, measured, node, pipeline_cell, square
from workflow_lib.placement.__main__ import _draw_slots
from workflow_lib.placement.effects import fit
from workflow_lib.placement.readings import Measured
from workflow_lib.placement.slots import characterise
from workflow_lib.placement.text import slots_sentences, slots_table
from workflow_lib.records.reading import RecordError

#: standard deviations of silicon and of slots
_SILICON, _SLOT = 0.012, 0.01


def test_two_runs_without_noise_give_back_the_effects_by_hand():
    # Clocks of 1.02, 1 in order, then exchanged; stage 1 is 3 % up: ln 1.02 is halved by the mean.
    of = measured(square(2), node(np.log(1.02), 0.0), noise=0.0)
    found = fit(of, of.clock)
    half = np.log(1.02) / 2
    assert found.gpus["n1", 0].estimate == pytest.approx(half, abs=1e-12)
    assert found.gpus["n1", 1].estimate == pytest.approx(-half, abs=1e-12)
    assert found.residual == pytest.approx(0, abs=1e-12)


def test_intervals_of_gpus_and_of_drift_hold_what_is_true_in_nine_of_ten_cases():
    held = drifts = cases = 0
    for seed in range(120):
        random = np.random.default_rng(seed)
        true = node(*random.normal(0, 0.02, 4))
        of = measured(square(), true, drift_per_h=-0.01, seed=seed)
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
        names = ("n1", "n2", "n3")
        silicon = {(name, gpu): random.normal(0, _SILICON) for name in names for gpu in range(4)}
        readings, runs = [], []
        for number, name in enumerate(names):
            true = node(*(silicon[name, gpu] + slots[gpu] for gpu in range(4)), name=name)
            one = measured(square(), true, nodes=(name,), seed=100 * seed + number, rounds=1)
            readings += [replace(each, run=number + 1) for each in one.readings]
            runs += [replace(each, run=number + 1) for each in one.runs]
        found = characterise(Measured("made", runs, readings, {}))
        centred = slots - slots.mean()
        for (name, gpu), effect in found.apart.silicon.items():
            own = [silicon[name, each] for each in range(4)]
            cases += 1
            held_silicon += effect.low <= silicon[name, gpu] - np.mean(own) <= effect.high
        for gpu, effect in found.apart.slots.items():
            held_slots += 3 * (effect.low <= centred[gpu] <= effect.high)
    assert 0.84 <= held_slots / cases <= 0.96
    assert held_silicon / cases >= 0.84


def test_one_node_cannot_tell_slots_from_silicon_and_says_so():
    of = measured(square(), FOUR)
    found = characterise(of)
    assert found.apart.slots == {}
    assert "one node" in found.apart.why_not
    assert all(row["slot_effect"] is None for row in found.rows)
    assert "one node" in found.rows[0]["missing_reasons"]


def test_gpus_that_fall_behind_are_named_and_others_are_not():
    found = characterise(measured(square(), node(0.0, 0.0, -0.06, 0.0)))
    assert [(row["node"], row["gpu"]) for row in found.behind] == [("n1", 2)]


def test_effects_on_logarithms_are_shown_as_shares():
    # One GPU has a quarter of the other's clock. Their (geometric) mean is twice the one and half
    # of the other. What both have halves every hour.
    of = measured(square(2), node(np.log(0.25), 0.0), drift_per_h=np.log(0.5), noise=0.0)
    found = characterise(of, threshold=0.6)
    shown = [line["clock, from the mean"].split(" (")[0] for line in slots_table(found)]
    assert shown == ["−50.00 %", "+100.00 %"]
    assert "−50.0 % (−50.0 to −50.0)" in " ".join(slots_sentences(found, False))
    # It is 50 % below, which is less than 60 %, and its logarithm is −0.69.
    assert found.behind == []
    assert [row["gpu"] for row in characterise(of, threshold=0.49).behind] == [0]
    (axes, _) = _draw_slots(found, "").axes
    (points,) = [
        line for line in axes.lines if len(line.get_ydata()) == 2 and line.get_marker() == "o"
    ]
    assert list(points.get_xdata()) == pytest.approx([-50.0, 100.0])


def test_gpus_that_cannot_be_compared_are_refused():
    of = measured([pipeline_cell(4)], FOUR)
    with pytest.raises(RecordError, match="rotate gpu_order"):
        fit(of, of.clock)
    # Four stages on two nodes: whatever the order, the first node has stages 0 and 1.
    true = {**TWO, **node(0.0, 0.0, name="n2")}
    of = measured(square(2, pp=4, nodes=2), true, nodes=("n1", "n2"))
    with pytest.raises(RecordError, match="one node"):
        fit(of, of.clock)


def test_a_gpu_that_was_exchanged_is_refused():
    of = measured(square(), FOUR)
    last = replace(of.readings[-1], uuid="GPU-other")
    of = replace(of, readings=[*of.readings[:-1], last])
    with pytest.raises(RecordError, match=rf"\b{last.gpu} of n1 .*GPU-n1-{last.gpu} .*GPU-other"):
        fit(of, of.clock)


def test_no_readings_say_why():
    of = Measured("made", [], [], {("a/b/c", 1): "it trained on CPUs"})
    with pytest.raises(RecordError, match=": it trained on"):
        characterise(of)


def test_means_are_used_where_a_gpu_was_not_at_its_cap():
    of = measured(square(), FOUR)
    assert of.at_cap
    one = replace(of.readings[0], capped_clock_share=None)
    other = replace(of, readings=[one, *of.readings[1:]])
    assert not other.at_cap
    assert other.clock(other.readings[1]) == of.readings[1].sm_clock_mhz


def test_a_square_of_tp_groups_compares_gpus_within_and_between_groups():
    of = measured(square(tp=2), node(0.0, 0.01, 0.02, 0.03), noise=1e-6)
    found = fit(of, of.clock)
    for gpu in range(4):
        assert found.gpus["n1", gpu].estimate == pytest.approx(0.01 * gpu - 0.015, abs=1e-5)
