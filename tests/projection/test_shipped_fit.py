"""The fit that is shipped is that of the shipped runs, and predicts as it does."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest

from docs import fit
from workflow_lib import cells
from workflow_lib.projection import mixed, own_stack, planned, shipped_fit
from workflow_lib.study import load_study


def test_a_new_fit_gives_what_is_shipped():
    shipped = shipped_fit.SHIPPED.read_text(encoding="utf-8")
    assert fit.files() == {shipped_fit.SHIPPED: shipped}, "make it anew: python -m docs.fit"


@pytest.mark.parametrize("altered", ["values", "covariance", "residuals"])
def test_a_number_beyond_the_tolerance_makes_another_fit(altered):
    shipped = json.loads(shipped_fit.SHIPPED.read_text(encoding="utf-8"))
    for factor, same in ((1 + 1e-7, True), (1 + 3e-5, False)):
        other = copy.deepcopy(shipped)
        row = other[altered] if altered == "values" else other[altered][-1]
        row[-1] *= factor
        assert other != shipped
        assert shipped_fit.is_same(shipped, other) is same


def test_a_number_more_or_another_gpu_makes_another_fit():
    shipped = json.loads(shipped_fit.SHIPPED.read_text(encoding="utf-8"))
    assert not shipped_fit.is_same(shipped, shipped | {"values": [*shipped["values"], 0.0]})
    assert not shipped_fit.is_same(shipped, shipped | {"gpus": ["H100"]})
    assert not shipped_fit.is_same(shipped, shipped | {"more": 1.0})


def test_it_predicts_as_a_new_fit_does():
    kept, new = shipped_fit.own_stack(), own_stack.own_stack()
    assert kept is not new
    sweeps = cells.expand_study(load_study(Path("config"))).values()
    found = {each.cell.id: each.cell for sweep in sweeps for each in sweep.cells}
    layouts = [(planned.layout(cell), cell.hardware.platform) for cell in found.values()]
    for layout, platform in [each for each in layouts if each[0]][::20]:
        (one,), (other,) = kept.predict([layout], platform), new.predict([layout], platform)
        assert one.unseen == other.unseen
        assert (one.log_s, one.sd) == pytest.approx((other.log_s, other.sd), rel=1e-6)


def test_a_plan_fits_nothing(monkeypatch):
    def refuse(*_):
        raise AssertionError("fitted")

    monkeypatch.setattr(mixed, "fit", refuse)
    own_stack._fitted.cache_clear()
    shipped_fit.own_stack.cache_clear()
    sweep = cells.expand_study(load_study(Path("config")))["evidence-llama3-8b-x2"]
    times = [each.estimate.step_time for each in sweep.cells]
    assert {each.source for each in times} == {"projected"}
    # Processors differ in digits after the sixth.
    seconds = [s for each in times for s in (each.s, each.low_s, each.high_s)]
    assert seconds == [float(f"{s:.6g}") for s in seconds]


def test_of_other_runs_another_fit_is_made(tmp_path, monkeypatch):
    changed = json.loads(shipped_fit.SHIPPED.read_text(encoding="utf-8"))
    stale = tmp_path / "own_fit.json"
    stale.write_text(json.dumps(changed | {"fitted_to_sha256": "0" * 64}))
    monkeypatch.setattr(shipped_fit, "SHIPPED", stale)
    assert shipped_fit.own_stack.__wrapped__() is own_stack.own_stack()


def test_a_part_of_a_fit_has_its_covariance():
    """Within a node a row says nothing of growth, which keeps its prior."""
    problem = mixed.Problem(
        ("a",), (), {"a": mixed.Prior(0.0, 1.0)}, {"k": mixed.Prior(0.0, 1.0)}, {}, {"k": 1.0}
    )
    row = mixed.Row({"a": 1.0}, {}, "k", 0.0, time_s=np.e)
    fit = mixed.fit(problem, [row])
    names = [("rate", "a"), ("growth", "k")]
    values, covariance = fit.of(names)
    assert covariance[0, 0] == pytest.approx(fit.rate("a")[1] ** 2)
    assert covariance[1] == pytest.approx([0.0, 1.0])
    known = mixed.Fit.known(problem, names, values, covariance, (fit.effect_sd, fit.noise_sd))
    (one,), (other,) = fit.predict([row]), known.predict([row])
    assert (one.log_s, one.variance) == pytest.approx((other.log_s, other.variance))
