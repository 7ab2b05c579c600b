"""Claims by projection: of planned cells on several nodes, and never among what was measured."""

import dataclasses
import math

import pytest

from tests import shipped
from tests.claims.made import ledger
from tests.comparison.sides import side
from workflow_lib.cells import expand_study
from workflow_lib.claims import page, projected
from workflow_lib.claims.ledger import judge, project
from workflow_lib.claims.measured import Measured
from workflow_lib.claims.projected import cells_of
from workflow_lib.study import Files

FASTER = {
    "measure": "tokens_per_s",
    "cells": {"model": "gpt3-175b", "workload": "pretrain", "tp": 2, "dp": 1},
    "first": {"gpu_model": "H200", "gpus": 32, "pp": 16},
    "second": {"gpu_model": "H100", "gpus": 64, "pp": 32},
    "above": 1.5,
}


@pytest.fixture(scope="module")
def planned():
    """By torch: of DeepSpeed, which these sweeps would take, nothing is projected."""
    study = shipped.study()
    by_torch = {}
    for name in ("parallelism", "evidence-llama3-8b", "mi250-counterpart"):
        spec = study.sweeps[name]
        training = spec.training.model_copy(update={"backend": "torch"})
        by_torch[name] = spec.model_copy(update={"training": training})
    sweeps = expand_study(dataclasses.replace(study, sweeps=Files(by_torch)))
    names = ("parallelism-h100", "parallelism-h200", "evidence-llama3-8b", "mi250-counterpart")
    return cells_of(sweeps[name] for name in names)


def test_of_deepspeed_s_cells_nothing_is_projected():
    of_study = cells_of([shipped.sweeps()["parallelism-h200"]])
    backends = {row["backend"] for row in of_study.rows}
    assert backends <= {"torch"}


def test_only_cells_of_several_nodes_whose_gpu_was_ever_fitted_are_projected(planned):
    assert {row["platform"] for row in planned.rows} == {"h100", "h200"}
    assert min(row["nodes"] for row in planned.rows) > 1


def test_a_contrast_is_the_ratio_of_what_both_are_projected_to_do(planned):
    (row,) = project(ledger(FASTER, by="study"), planned)
    one, other = (planned.projected[row[f"cell_{end}"]] for end in "ab")
    rates = [128 * 2048 / each.step_time_s for each in (one, other)]
    assert row["estimate"] == pytest.approx(rates[0] / rates[1])
    reach = row["high"] / row["estimate"]
    assert row["low"] == pytest.approx(row["estimate"] / reach)
    # An error of each of the two sites, as far as nobody tuned either layout: no pair is decided.
    assert math.log(reach) > 4 * math.hypot(0.08, 0.08)
    assert (row["basis"], row["coverage"], row["runs_a"]) == ("projected", 0.9, "")
    assert row["sweeps_b"] == "parallelism-h100"
    assert (row["verdict"], row["claim_verdict"]) == ("undecided", "undecided")
    assert "projected for this workflow's engine" in row["in_words"]


def test_among_others_a_projection_decides_by_a_wider_interval(planned):
    two = ledger(FASTER, FASTER | {"measure": "step_time_s", "above": 0.01}, by="study")
    row, *_ = project(two, planned)
    (alone,) = project(ledger(FASTER, by="study"), planned)
    assert (row["coverage"], row["deciding_coverage"]) == (0.9, pytest.approx(0.95))
    assert alone["deciding_coverage"] == 0.9
    (wider,) = projected.project_test(two.claims[0].tests[0], planned, 0.95)
    # Normal quantiles of 0.975 and 0.95.
    reach = math.log(alone["high"] / alone["estimate"]) * 1.95996 / 1.64485
    assert math.log(wider["high"] / wider["estimate"]) == pytest.approx(reach, rel=1e-4)
    assert math.log(wider["estimate"] / wider["low"]) == pytest.approx(reach, rel=1e-4)


def test_energy_has_the_uncertainty_of_power_besides(planned):
    time, energy = (
        project(ledger(FASTER | {"measure": measure}, by="study"), planned)[0]
        for measure in ("tokens_per_s", "tokens_per_j")
    )
    assert energy["high"] / energy["estimate"] > time["high"] / time["estimate"]


def test_no_other_measure_and_no_claim_of_ours_is_projected(planned):
    assert project(ledger(FASTER, by="triptych"), planned) == []
    other = FASTER | {"measure": "temperature_mean_c"}
    assert project(ledger(other, by="study"), planned) == []


def test_the_page_has_projections_apart_from_runs(planned):
    claims = ledger(FASTER, by="study")
    rows = judge(claims, [Measured(side("none"))])
    projected = project(claims, planned)
    text = page.markdown(claims, rows, lambda sweep, cell: "", projected=projected)
    assert "| **not testable here** | – | undecided: 1 undecided |" in text
    assert "| undecided (1 undecided); 1 pair of planned cells" in text
    assert "none of which has run here" in text
    alone = page.markdown(claims, rows, lambda sweep, cell: "")
    assert "rojection" not in alone.replace("by projection |", "")
    web = page.html(claims, rows, lambda sweep, cell: "", projected)
    assert "<small>1 undecided</small>" in web
