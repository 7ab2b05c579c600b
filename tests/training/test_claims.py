"""What docs/reference/backends.md says "yes" to is a cell that a test trains, or generates with."""

from __future__ import annotations

import pytest

from research.pages import backends
from tests.training import test_equality, test_float8, test_generation
from tests.training.cells import LLAMA, MIXTRAL, cell
from workflow_lib.records.degrees import Degrees
from workflow_lib.trainers.capabilities import BACKENDS, refusal

STUDY = backends.the_study()
#: the cells that are compared with one process
COMPARED = [
    one for module in (test_equality, test_float8, test_generation) for one in module.CELLS.values()
]

CLAIMS = [
    pytest.param(claim, backend, id=f"{backend}-{title}-{row.name}")
    for title, rows in backends.combinations()
    for row in rows
    for backend in BACKENDS
    if (claim := row.claim(backend, STUDY)) is not None
]


@pytest.mark.parametrize(("claim", "backend"), CLAIMS)
def test_a_claim_has_an_equality_cell(claim, backend):
    workload = claim.options.get("workload", "pretrain")
    assert any(
        claim.is_part_of(one)
        for one in COMPARED
        if (one.training.backend, one.training.workload) == (backend, workload)
    ), (
        f"research/pages/backends.py: no cell that a test compares has all of {claim.name!r} "
        f"{claim.options} on {backend}; add one, or have capabilities.py refuse it"
    )


def test_every_layout_that_is_compared_is_one_that_the_planner_submits():
    assert {refusal(one.degrees, one.training, one.model) for one in COMPARED} == {None}


@pytest.mark.parametrize("backend", BACKENDS)
def test_claims_of_both_backends_are_looked_up(backend):
    assert sum(param.values[1] == backend for param in CLAIMS) > 30


def test_a_cell_with_less_than_a_claim_does_not_bear_it_out():
    named = {(title, row.name): row for title, rows in backends.combinations() for row in rows}
    tp_pp, uneven = named["Degrees", "TP × PP"], named["Stages", "PP, uneven"]
    assert tp_pp.is_part_of(cell(LLAMA, Degrees(tp=2, pp=2, dp=2)))
    assert not tp_pp.is_part_of(cell(LLAMA, Degrees(tp=2, dp=2)))
    assert uneven.is_part_of(cell(LLAMA, Degrees(pp=2, stage_layers=(3, 1))))
    assert not uneven.is_part_of(cell(LLAMA, Degrees(pp=2, stage_layers=(2, 2))))
    assert not named["ZeRO", "DP × ZeRO-3"].is_part_of(cell(LLAMA, Degrees(dp=2), zero_stage=2))
    assert not named["Degrees", "EP"].is_part_of(cell(MIXTRAL, Degrees(dp=2)))


def test_a_claim_names_a_precision_only_where_it_matters():
    rows = {
        row.name: row for title, rows in backends.combinations() if title == "ZeRO" for row in rows
    }
    row = rows["DP × ZeRO-0, fp32"]
    assert row.claim("deepspeed", STUDY) == row
    assert row.claim("torch", STUDY).options == {"zero_stage": 0}
    assert rows["DP × ZeRO-0, bf16"].claim("deepspeed", STUDY) is None
