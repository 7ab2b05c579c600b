"""Labels tell cells apart, and are as short as they can be."""

from __future__ import annotations

import dataclasses

from tests.made_cells import made_cell
from workflow_lib.records.cell_axes import identity
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.labels import group_labels, labels, shared, short_layout
from workflow_lib.report.figures.cell_names import layouts_of_two

TRAINING = made_cell().training


def row(degrees=None, software=None, **training):
    return identity(
        made_cell(
            degrees=degrees or Degrees(tp=2, pp=16),
            training=dataclasses.replace(TRAINING, **training),
            software=software or {},
        )
    )


def test_a_label_has_the_layout_and_the_options_that_not_all_have():
    cells = [row(), row(micro_batch_size=4, recomputation="full"), row(overlap=True)]
    assert labels(cells) == ["tp2-pp16 mb1", "tp2-pp16 mb4 recompute", "tp2-pp16 mb1 overlap"]
    # What is left out all of them have: with it a name says everything that an id does.
    assert shared(cells) == "gb128 bf16 zero1"


def test_cells_whose_names_are_one_are_told_apart_by_all_in_which_they_differ():
    cells = [row(), row(seed=2), row(balancing_loss=0.1), row(balancing_loss=0.01)]
    assert labels(cells) == [
        "tp2-pp16 seed 1",
        "tp2-pp16 seed 2",
        "tp2-pp16 auxloss balancing loss 0.1",
        "tp2-pp16 auxloss balancing loss 0.01",
    ]


def test_beside_other_trainers_ours_is_native_if_it_has_one_backend():
    other, torch = row(trainer="torchtitan", backend="own"), row(backend="torch")
    assert labels([other, torch]) == ["tp2-pp16 torchtitan", "tp2-pp16 native"]
    assert labels([other, torch, row()]) == [*("tp2-pp16 torchtitan", "tp2-pp16 torch", "tp2-pp16")]
    assert labels([torch, row()]) == ["tp2-pp16 torch", "tp2-pp16"]
    assert labels([]) == []


def test_variables_of_the_job_tell_cells_apart_by_name():
    cells = [row(software={"environment.NCCL_ALGO": "Ring", "module.0": "cuda"}), row()]
    assert labels(cells) == [
        "tp2-pp16 NCCL_ALGO Ring, module.0 cuda",
        "tp2-pp16 no NCCL_ALGO, no module.0",
    ]


def test_a_group_is_called_by_what_all_of_it_share():
    groups = [
        [row(recomputation=how, balancing_loss=loss) for how in ("full", "none")]
        for loss in (0.1, 0.2)
    ]
    assert group_labels(groups, ("recomputation",)) == [
        "tp2-pp16 balancing loss 0.1",
        "tp2-pp16 balancing loss 0.2",
    ]


def test_layouts_lose_degrees_of_one():
    assert short_layout(row(Degrees(tp=2, pp=16))) == "tp2-pp16"
    assert short_layout(row(Degrees())) == "dp1"
    assert short_layout(row(Degrees(pp=4, virtual_stages=2, dp=8, ep=8))) == "pp4x2-dp8-ep8"
    assert short_layout(row(Degrees(pp=2, stage_layers=(3, 1)))) == "pp2-l3.1"


def test_two_layouts_are_one_label_where_they_have_the_same_parts():
    def both(a: Degrees, b: Degrees) -> str:
        return layouts_of_two(row(a), row(b))

    assert both(Degrees(tp=2, pp=16), Degrees(tp=2, pp=32)) == "tp2-pp16|32"
    assert both(Degrees(tp=2, pp=16), Degrees(tp=2, pp=16)) == "tp2-pp16"
    assert both(Degrees(tp=2), Degrees(pp=2, stage_layers=(3, 1))) == "tp2 | pp2-l3.1"
