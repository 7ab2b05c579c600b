"""Placements against the cells as they were: runs of made sweeps, with effects of known size, give
the shipped claims C17 to C19 and T19 their verdicts.

Runs of each pair took turns and spread by 0.2 %, so that intervals of three blocks are ±0.9 %.
"""

from dataclasses import replace

import pytest

from tests import shipped
from tests.claims.made import verdicts
from tests.report.full_matrix import identity
from workflow_lib.cells import expand_study
from workflow_lib.config import SweepSpec
from workflow_lib.records import cell_axes
from workflow_lib.records.degrees import Degrees
from workflow_lib.study import Files, checked

UUIDS = tuple(f"GPU-{number}" for number in range(4))
ORDER = (1, 0, 3, 2)


def degrees(pp=4, **lists):
    return Degrees(tp=1, pp=pp, dp=1, **lists)


def pair(model, placed, plain, gain=1.0, gap_c=0.0, platform="h200"):
    """A placed cell and the plain one: its speed is ``gain`` times the other's, and so is the
    study's efficiency; its spread of temperatures is ``gap_c`` wider."""
    return [
        (
            identity(platform, model, which) | {"gpus": 32},
            {
                "tokens_per_s": 100.0 * factor,
                "step_time_s": 1.0 / factor,
                "samples_per_s_per_mj": 10.0 * factor,
                "temperature_spread_c": 30.0 + wider,
            },
        )
        for which, factor, wider in ((placed, gain, gap_c), (plain, 1.0, 0.0))
    ]


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [(1.0, "supported"), (1.05, "contradicted"), (1.02, "undecided")],
)
def test_an_order_of_gpus_alone(gain, verdict):
    placed = degrees(gpu_uuids=UUIDS, gpu_order=ORDER)
    found = verdicts("C17", *pair("llama3-8b", placed, degrees(), gain))
    assert found == dict.fromkeys(("throughput", "the study's efficiency", None), verdict)


@pytest.mark.parametrize(
    "placed",
    [
        # A sweep that rotates GPUs places nothing, and moved layers are no symmetric placement.
        {"gpu_order": ORDER},
        {"gpu_uuids": UUIDS},
        {"gpu_uuids": UUIDS, "gpu_order": ORDER, "stage_layers": (9, 8, 8, 7)},
    ],
)
def test_what_is_no_order_of_named_gpus_says_nothing_of_one(placed):
    found = verdicts("C17", *pair("llama3-8b", degrees(**placed), degrees()))
    assert set(found.values()) == {"not_testable"}


@pytest.mark.parametrize(
    ("gain", "gap_c", "efficiency", "gap"),
    [
        (1.04, -10.0, "supported", "supported"),
        (0.96, 10.0, "contradicted", "contradicted"),
        (1.06, -1.0, "undecided", "undecided"),
    ],
)
@pytest.mark.parametrize("order", [(), ORDER])
def test_a_layer_moved_of_llama(gain, gap_c, efficiency, gap, order):
    placed = degrees(gpu_uuids=UUIDS, gpu_order=order, stage_layers=(21, 20, 20, 19))
    found = verdicts("C18", *pair("llama3-70b", placed, degrees(), gain, gap_c))
    worse = "contradicted" if "contradicted" in (efficiency, gap) else efficiency
    assert found == {"efficiency": efficiency, "gap, by any amount": gap, None: worse}


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [(0.93, "supported"), (1.0, "contradicted"), (0.95, "undecided")],
)
def test_a_layer_moved_of_gpt(gain, verdict):
    placed = degrees(8, gpu_uuids=UUIDS, stage_layers=(13, 12, 12, 12, 12, 12, 12, 11))
    found = verdicts("C19", *pair("gpt3-175b", placed, degrees(8), gain, -10.0))
    assert (found["efficiency"], found["gap, by any amount"]) == (verdict, "supported")


@pytest.mark.parametrize("name", ["C18", "C19"])
def test_a_twin_says_nothing_of_the_whole_models_layer(name):
    placed = degrees(gpu_uuids=UUIDS, stage_layers=(3, 2, 2, 1))
    found = verdicts(name, *pair("llama3-70b-8-layers", placed, degrees(), 1.04, -10.0))
    assert set(found.values()) == {"not_testable"}


@pytest.mark.parametrize(
    ("gain", "verdict"), [(1.03, "supported"), (0.97, "contradicted"), (1.0, "undecided")]
)
def test_a_sweep_as_make_place_writes_it(gain, verdict):
    own = {"models": "llama3-8b", "gpus": 2, "tp": 1, "pp": 2, "dp": 1}
    named = {"gpu_uuids": ["GPU-a", "GPU-b"], "stage_layers": [17, 15]}
    study = shipped.study()
    plain = study.sweeps["evidence-stages-x2"].model_dump(mode="json", exclude_unset=True)
    predicted = {"time_gain": [0.038, 0.032, 0.044], "energy_gain": [0.026, 0.02, 0.032]}
    spec = {**plain, "repeats": 4, "matrix": [own, own | named]}
    (view,) = expand_study(
        replace(study, sweeps=Files({"placed": checked("placed", SweepSpec, spec)}))
    ).values()
    against = next(p.cell.id for p in view.cells if not p.cell.degrees.gpu_uuids)
    spec["matrix"][1]["predicted"] = {"against": against, **predicted}
    (view,) = expand_study(
        replace(study, sweeps=Files({"placed": checked("placed", SweepSpec, spec)}))
    ).values()
    sides = [
        (cell_axes.identity(each.cell), {"step_time_s": 1 / (gain if placed else 1.0)})
        for each in view.cells
        for placed in [bool(each.cell.degrees.gpu_uuids)]
    ]
    assert len(sides) == 2
    assert verdicts("T19", *sides) == {None: verdict}
