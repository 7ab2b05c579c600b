"""What docs/reference/backends.md says "yes" to is a cell that a test trains, or generates with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from docs.schemas import CONFIG
from research.pages import backends
from research.pages.backends import Combination
from tests.training import test_equality, test_float8, test_generation
from tests.training.cells import LLAMA, MIXTRAL, cell
from workflow_lib.records.cell import Cell
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.training import Backend
from workflow_lib.study import load_study
from workflow_lib.trainers.capabilities import BACKENDS, refusal

STUDY = load_study(CONFIG)
#: the cells that are compared with one process
COMPARED = [
    one for module in (test_equality, test_float8, test_generation) for one in module.CELLS.values()
]


def claim_of(row: Combination, backend: Backend) -> Combination | None:
    """What the page says that the backend runs: the row, less a precision that makes no
    difference to the answer; None where it is refused.
    """
    own = row if row.refusal(backend, STUDY) is None else None
    if row.options.get("precision") == "fp8":
        return own
    rest = {key: value for key, value in row.options.items() if key != "precision"}
    either = [replace(row, options={**rest, "precision": each}) for each in ("bf16", "fp32")]
    if all(each.refusal(backend, STUDY) is None for each in either):
        return replace(row, options=rest)
    return own


def is_part_of(row: Combination, cell: Cell) -> bool:
    """Whether a cell has all that the row names, whatever else it has."""
    wanted, actual = row.degrees, cell.degrees
    axes = ("tp", "cp", "pp", "dp", "ep", "virtual_stages")
    return (
        all(getattr(actual, axis) > 1 for axis in axes if getattr(wanted, axis) > 1)
        and actual.schedule == wanted.schedule
        and (len(set(actual.stage_layers)) > 1 or not wanted.stage_layers)
        and (cell.model.experts > 0 or not row.experts)
        and all(getattr(cell.training, key) == value for key, value in row.options.items())
    )


CLAIMS = [
    pytest.param(claim, backend, id=f"{backend}-{title}-{row.name}")
    for title, rows in backends.combinations()
    for row in rows
    for backend in BACKENDS
    if (claim := claim_of(row, backend)) is not None
]


@pytest.mark.parametrize(("claim", "backend"), CLAIMS)
def test_a_claim_has_an_equality_cell(claim, backend):
    workload = claim.options.get("workload", "pretrain")
    assert any(
        is_part_of(claim, one)
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
    assert is_part_of(tp_pp, cell(LLAMA, Degrees(tp=2, pp=2, dp=2)))
    assert not is_part_of(tp_pp, cell(LLAMA, Degrees(tp=2, dp=2)))
    assert is_part_of(uneven, cell(LLAMA, Degrees(pp=2, stage_layers=(3, 1))))
    assert not is_part_of(uneven, cell(LLAMA, Degrees(pp=2, stage_layers=(2, 2))))
    assert not is_part_of(named["ZeRO", "DP × ZeRO-3"], cell(LLAMA, Degrees(dp=2), zero_stage=2))
    assert not is_part_of(named["Degrees", "EP"], cell(MIXTRAL, Degrees(dp=2)))


def test_a_claim_names_a_precision_only_where_it_matters():
    rows = {
        row.name: row for title, rows in backends.combinations() if title == "ZeRO" for row in rows
    }
    row = rows["DP × ZeRO-0, fp32"]
    assert claim_of(row, "deepspeed") == row
    assert claim_of(row, "torch").options == {"zero_stage": 0}
    assert claim_of(rows["DP × ZeRO-0, bf16"], "deepspeed") is None
