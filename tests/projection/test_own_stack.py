"""The fit that is shipped predicts as a new one does, and a plan fits nothing."""

import json
from pathlib import Path

import numpy as np
import pytest

from workflow_lib import cells
from workflow_lib.projection import hierarchical_fit, own_stack, planned
from workflow_lib.projection.hierarchical_fit import Fit, Prior, Problem, Row
from workflow_lib.study import load_study


def test_it_predicts_as_a_new_fit_does():
    kept, new = own_stack.shipped_stack(), own_stack.own_stack()
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

    monkeypatch.setattr(own_stack, "fit", refuse)
    own_stack._fitted.cache_clear()
    own_stack.shipped_stack.cache_clear()
    sweep = cells.expand_study(load_study(Path("config")))["evidence-llama3-8b-x2"]
    times = [each.estimate.step_time for each in sweep.cells]
    assert {each.source for each in times} == {"projected"}
    # Processors differ in digits after the sixth.
    seconds = [s for each in times for s in (each.s, each.low_s, each.high_s)]
    assert seconds == [float(f"{s:.6g}") for s in seconds]


def test_of_other_runs_another_fit_is_made(tmp_path, monkeypatch):
    changed = json.loads(own_stack.SHIPPED_FIT.read_text(encoding="utf-8"))
    stale = tmp_path / "own_fit.json"
    stale.write_text(json.dumps(changed | {"fitted_to_sha256": "0" * 64}))
    monkeypatch.setattr(own_stack, "SHIPPED_FIT", stale)
    assert own_stack.shipped_stack.__wrapped__() is own_stack.own_stack()


def test_a_part_of_a_fit_has_its_covariance():
    """Within a node a row says nothing of growth, which keeps its prior."""
    problem = Problem(
        ("a",),
        (),
        {"a": Prior(0.0, 1.0)},
        {"k": Prior(0.0, 1.0)},
        {},
        {"k": 1.0},
    )
    row = Row({"a": 1.0}, {}, "k", 0.0, time_s=np.e)
    fit = hierarchical_fit.fit(problem, [row])
    names = [("rate", "a"), ("growth", "k")]
    values, covariance = fit.parameters(names)
    assert covariance[0, 0] == pytest.approx(fit.posterior.variances(np.eye(2)[:1])[0])
    assert covariance[1] == pytest.approx([0.0, 1.0])
    known = Fit.of_parameters(problem, names, values, covariance, (fit.effect_sd, fit.noise_sd))
    (one,), (other,) = fit.predict([row]), known.predict([row])
    assert (one.log_s, one.variance) == pytest.approx((other.log_s, other.variance))
