"""The calibration sweep, run on a machine whose rates are made up: does a fit find the whole?"""

import dataclasses
import re
from dataclasses import replace

import pytest

from tests import shipped
from workflow_lib.projection.layouts import own_layout
from workflow_lib.projection.machines import hardware_machine
from workflow_lib.projection.own_runs import OwnRun
from workflow_lib.projection.own_stack import own_stack
from workflow_lib.projection.step_terms import terms
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.reading import RecordError

STUDY = shipped.study()
CELLS = [planned.cell for planned in shipped.sweeps()["calibration"].cells if planned.feasible]
#: none of them the middle of its prior
RATES = {
    **{"product": 1.55, "weight": 0.3, "attention": 2.6, "element": 1.6, "head": 1.5},
    **{"tensor": 0.9, "gather": 0.6, "send": 0.4, "launch": 0.5, "reduce": 0.35},
    **{"optimiser": 2.2, "constant": 1.2},
}


def took_s(layout):
    seconds = terms(layout)
    return sum(rate * seconds[part] for part, rate in RATES.items())


def layout_of(cell, **changes):
    machine = hardware_machine(cell.hardware)
    degrees = replace(cell.degrees, **changes)
    return own_layout(cell.model, degrees, cell.training, machine)


def made_up():
    """A run of every cell."""
    names = {field.name for field in dataclasses.fields(OwnRun)}
    known = {"sweep": "calibration", "platform": "h200x4", "gpu": "H200", "gpus_per_node": 4}
    for cell in CELLS:
        parts = map(dataclasses.asdict, (cell.model, cell.degrees, cell.training))
        shared = {name: value for part in parts for name, value in part.items() if name in names}
        shared |= {"cell": cell.id, "model": cell.model.name, "model_family": cell.model.family}
        shared |= {"runs": 2, "step_time_s": took_s(layout_of(cell)), "power_per_gpu_w": None}
        yield OwnRun(**shared, **known)


def test_the_sweep_has_two_depths_and_two_numbers_of_micro_batches_at_each_tp():
    for tp in (1, 2, 4):
        of = [cell for cell in CELLS if cell.degrees == Degrees(tp=tp)]
        assert {cell.model.layers for cell in of} == {2, 4}
        assert {cell.training.global_batch_size for cell in of} == {4, 16}


def test_the_whole_models_step_is_found_from_two_depths():
    stack = own_stack(list(made_up()))
    cell = next(each for each in CELLS if each.degrees == Degrees(tp=4))
    whole = STUDY.models["llama3-70b"].record("llama3-70b")
    layout = layout_of(replace(cell, model=whole))
    assert layout.layers == 80
    (found,) = stack.predict([layout], "h200x4")
    assert found.median_s == pytest.approx(took_s(layout), rel=0.02)
    assert "layer" not in found.unseen


def test_what_a_stack_loses_without_compilation_is_found_from_other_layouts():
    runs = list(made_up())
    slow = [replace(run, compile=False, step_time_s=1.2 * run.step_time_s) for run in runs]
    *known, asked = slow
    (found,) = own_stack([*runs[:-1], *known]).predict([asked.layout], asked.platform)
    assert "uncompiled" not in found.unseen
    assert found.median_s == pytest.approx(asked.step_time_s, rel=0.03)
    (unknown,) = own_stack(runs[:-1]).predict([asked.layout], asked.platform)
    assert "uncompiled" in unknown.unseen
    assert unknown.sd > 0.15 > found.sd


def test_a_run_has_the_layout_of_its_cell():
    for run, cell in zip(made_up(), CELLS, strict=True):
        expected = layout_of(cell)
        assert replace(run.layout, machine=expected.machine) == expected


def test_a_cell_is_found_from_the_others_and_a_disturbed_one_is_refused():
    runs = list(made_up())[:8]
    own_stack(runs).check()
    assert max(abs(each.error) for each in own_stack(runs).residuals) < 0.05
    runs[3] = replace(runs[3], step_time_s=2 * runs[3].step_time_s)
    with pytest.raises(RecordError, match=re.escape(runs[3].cell)):
        own_stack(runs).check()
