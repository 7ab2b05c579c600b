"""Fits of made-up rows, whose rates and effects are known."""

import math

import pytest

from workflow_lib.projection.hierarchical_fit import EffectKind, Prior, Problem, Row, fit

PROBLEM = Problem(
    pass_parts=("work", "wait"),
    step_parts=("end",),
    rates={"work": Prior(0.0, 1.0), "wait": Prior(0.0, 1.0), "end": Prior(0.0, 1.0)},
    growth={"all": Prior(0.0, 1e-6)},
    effects={"stack": EffectKind("pass", 0.5)},
    noise_sd={"all": 0.01},
)


def row(work, wait, end, time_s=math.nan, stack="a"):
    parts = {"work": work, "wait": wait, "end": end}
    return Row(parts, {"stack": stack}, "all", 0.0, time_s)


def known(stack="a", factor=1.0):
    """Rows of 1.5·work + 0.5·wait (times a stack's factor) + 2·end."""
    return [
        row(w, x, e, factor * (1.5 * w + 0.5 * x) + 2 * e, stack)
        for w in (1.0, 2.0, 8.0)
        for x in (0.5, 2.0, 5.0)
        for e in (0.1, 1.0, 3.0)
    ]


def test_times_that_parts_explain_are_predicted():
    found = fit(PROBLEM, known()).predict([row(4.0, 1.0, 0.5)])[0]
    assert found.median_s == pytest.approx(1.5 * 4 + 0.5 + 1.0, rel=0.002)


def test_a_stack_has_its_own_factor():
    fitted = fit(PROBLEM, [*known(), *known("b", 1.2)])
    a, b = fitted.predict([row(4.0, 1.0, 0.0), row(4.0, 1.0, 0.0, stack="b")])
    assert b.median_s / a.median_s == pytest.approx(1.2, rel=0.005)


def test_a_stack_that_was_never_seen_is_as_uncertain_as_stacks_differ():
    seen, unseen = fit(PROBLEM, known()).predict(
        [row(4.0, 1.0, 0.0), row(4.0, 1.0, 0.0, stack="z")]
    )
    assert unseen.unseen == ("stack",)
    # All of this row's time is a pass's, so the whole spread of 0.5 bears on it.
    assert unseen.variance >= 0.5**2
    assert seen.sd < 0.05


def test_without_rows_the_priors_are_what_is_known():
    found = fit(PROBLEM, []).predict([row(1.0, 0.0, 0.0)])[0]
    assert found.log_s == pytest.approx(0.0)
    # The rate's prior, and the stack that nobody has seen.
    assert found.variance == pytest.approx(1.0**2 + 0.5**2, rel=1e-6)


def test_one_run_with_a_long_tail_does_not_bend_the_rest():
    rows = known()
    rows[13] = row(2.0, 2.0, 1.0, 3 * (1.5 * 2 + 1 + 2))
    found = fit(PROBLEM, rows).predict([row(4.0, 1.0, 0.5)])[0]
    assert found.median_s == pytest.approx(7.5, rel=0.02)


def test_what_two_rows_do_not_know_cancels_where_both_share_it():
    fitted = fit(PROBLEM, known())
    noise = 2 * fitted.noise_sd["all"] ** 2
    one, same = row(4.0, 1.0, 0.0, stack="z"), row(4.0, 1.0, 0.0, stack="z")
    log_ratio, variance = fitted.contrast(one, same)
    assert log_ratio == pytest.approx(0.0)
    assert variance == pytest.approx(noise)
    # Twice as much of everything in the same unseen stack: all uncertainty is common.
    log_ratio, variance = fitted.contrast(row(8.0, 2.0, 0.0, stack="z"), same)
    assert log_ratio == pytest.approx(math.log(2))
    assert variance == pytest.approx(noise)
    # In two unseen stacks the spread of 0.5 is there twice.
    _, variance = fitted.contrast(one, row(4.0, 1.0, 0.0, stack="y"))
    assert variance == pytest.approx(noise + 2 * 0.5**2)
