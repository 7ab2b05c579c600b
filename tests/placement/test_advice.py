"""Whether a placement is advised, on made-up nodes whose speeds are known."""

from dataclasses import replace

import numpy as np
import pytest

from tests.placement.made import FOUR, TWO, heavier, interleaved, measured, node, square
from tests.texts import lacking
from workflow_lib.placement import text
from workflow_lib.placement.advice import WORTH, advise
from workflow_lib.placement.readings import Measured
from workflow_lib.records.reading import RecordError

_CASES = 40


def test_without_an_effect_it_is_left_in_nineteen_of_twenty_cases():
    cells = square()
    every = [advise(measured(cells, FOUR, seed=seed), cells[0].id) for seed in range(_CASES)]
    assert sum(not advice.is_recommended for advice in every) >= 0.95 * _CASES


def test_one_slow_gpu_below_the_threshold_is_left_with_threshold_and_ratio():
    # One GPU 3 % slow, where 20 layers a stage need 5 %.
    cells = square() + heavier(square())
    slow = np.log(0.97)
    of = measured(cells, node(slow, 0.0, 0.0, 0.0), share=0.7, of_gain=0.875)
    advice = advise(of, cells[0].id)
    assert not advice.is_recommended
    assert advice.move.needed_ratio == pytest.approx(1.05, abs=0.001)
    assert advice.move.ratio.estimate == pytest.approx(np.exp(-0.7 * slow), abs=0.003)
    said = " ".join(text.advice_sentences(advice))
    assert lacking(said, "1.050", "GPU-n1-0") == []
    assert "emulated" not in said
    hardware = replace(advice.cell.hardware, emulated="two daemons of one host")
    emulated = replace(advice, cell=replace(advice.cell, hardware=hardware))
    first, *others = text.advice_sentences(emulated)
    assert first.endswith(f"{hardware.platform} are emulated: {hardware.emulated}.")
    assert " ".join(others) == said


def test_where_runs_do_not_tell_what_clocks_do_the_advice_says_how_to_learn_it():
    # By clocks alone a layer would pay: GPUs are 16 % apart, and the threshold is 5 %. But steps of
    # equal stages hardly tell whether they follow the clock.
    cells, effects = square(), node(-0.1, 0.05, 0.06, -0.01)
    vague = advise(measured(cells, effects, share=0.7, of_gain=0.875), cells[0].id)
    assert vague.share.high - vague.share.low > text.VAGUE
    assert not vague.is_recommended
    assert "vague" in " ".join(text.advice_sentences(vague))
    told = advise(measured(cells + heavier(cells), effects, share=0.7, of_gain=0.875), cells[0].id)
    said = " ".join(text.advice_sentences(told))
    assert told.is_recommended
    assert told.share.estimate == pytest.approx(0.7, abs=0.1)
    assert f"{100 * told.share.estimate:.0f} % (" in said
    assert "vague" not in said


def test_one_very_slow_gpu_has_layers_taken_away():
    cells = square()
    advice = advise(measured(cells, node(np.log(0.85), 0.0, 0.0, 0.0)), cells[0].id)
    assert advice.is_recommended
    assert advice.best.time_gain.low > WORTH
    slow_stage = advice.best.order.index(0)
    assert advice.best.layers[slow_stage] < 20
    assert sum(advice.best.layers) == 80


def test_work_alone_can_pay_and_is_told_apart_from_gpus():
    # The head has the work of two and a half layers, and GPUs are equal.
    cells = square(2, layers=32, head=True)
    advice = advise(measured(cells, TWO), cells[0].id)
    best, by_work = advice.best, advice.by_work
    assert advice.is_recommended
    assert best.layers == by_work.layers == (17, 15)
    assert by_work.time_gain.estimate == pytest.approx(best.time_gain.estimate, abs=0.003)


def test_what_does_not_fit_into_memory_is_not_advised():
    cells = square(2, layers=32, head=True)
    small = replace(cells[0].hardware, gpu_memory_bytes=1)
    cells = [replace(cell, hardware=small) for cell in cells]
    advice = advise(measured(cells, TWO), cells[0].id)
    assert advice.best.layers == (16, 16)
    assert not advice.is_recommended


def test_layers_of_interleaved_stages_stay():
    cells = [interleaved(cell) for cell in square(2)]
    advice = advise(measured(cells, node(0.0, -0.1)), cells[0].id)
    assert (advice.by_work, advice.move, advice.best.layers) == (None, None, (40, 40))


def test_a_cell_that_was_not_measured_or_too_little_is_refused_with_what_there_is():
    cells = square()
    with pytest.raises(RecordError, match=f"a/b/c.* {cells[0].id}"):
        advise(measured(cells, FOUR), "a/b/c")
    cells = square(2)
    with pytest.raises(RecordError, match=r"\b2 runs.*\b4\b"):
        advise(measured(cells, node(0.0, -0.2), rounds=1), cells[0].id)


def test_of_several_nodes_that_ran_apart_one_has_to_be_chosen():
    cells = square()
    one, other = measured(cells, FOUR), measured(cells, node(*[0.0] * 4, name="n2"), nodes=("n2",))
    later = [replace(each, run=each.run + 3) for each in other.readings]
    runs = [replace(each, run=each.run + 3) for each in other.runs]
    both = Measured("made", [*one.runs, *runs], [*one.readings, *later], {})
    with pytest.raises(RecordError, match="n1; n2"):
        advise(both, cells[0].id)
    assert advise(both, cells[0].id, ["n2"]).uuids["n2", 0] == "GPU-n2-0"
