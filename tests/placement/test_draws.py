"""GPUs' own values, and what goes with how much of a step they compute."""

from dataclasses import replace

import numpy as np
import pytest

from tests.placement.made import TWO, measured, square
from workflow_lib.placement.draws import Weights, by_gpu_and_duty


def drawn(watts_of, duties):
    """Power of two GPUs in both orders, three rounds, by the duties of the two stages in draws."""
    cells = square(2)
    of = measured(cells, TWO)
    readings = [replace(each, power_w=watts_of(each)) for each in of.readings]
    of = replace(of, readings=readings)
    duty = {cell.id: np.array(duties) for cell in cells}
    draws = len(duties)
    unknown = np.linspace(0, 1, draws)
    return by_gpu_and_duty(of, Weights(of, draws), [*TWO], duty, lambda each: each.power_w, unknown)


def at_duties(watts_at_duty, duties):
    """The same duties in every draw; the second GPU draws 10 W more."""
    return drawn(lambda each: watts_at_duty(duties[each.stage]) + 10 * each.gpu, [duties] * 50)


def test_power_is_that_of_waiting_and_that_of_computing():
    own, slope = at_duties(lambda duty: 300 + 400 * duty, (0.8, 0.9))
    assert slope == pytest.approx(400)
    assert own["n1", 0] == pytest.approx(300)
    assert own["n1", 1] == pytest.approx(310)


@pytest.mark.parametrize(("watts", "expected"), [(5000, 665 / 0.85), (-2000, 0)])
def test_a_gpu_that_waits_draws_no_less_than_nothing_and_no_more_than_one_that_computes(
    watts, expected
):
    # 660 W on the mean of two GPUs 10 W apart is 665 W, at a mean duty of 0.85.
    own, slope = at_duties(lambda duty: 660 + watts * (duty - 0.85), (0.84, 0.86))
    assert slope == pytest.approx(expected)
    # At the mean duty each GPU has what it had.
    assert own["n1", 0] + 0.85 * slope == pytest.approx(np.full(50, 660))
    assert own["n1", 1] + 0.85 * slope == pytest.approx(np.full(50, 670))


def test_where_duties_are_equal_what_computing_takes_may_be_anything_from_nothing_to_all():
    own, slope = at_duties(lambda duty: 650, (0.85, 0.85))
    # 650 W and 660 W on the two GPUs are 655 W in the mean.
    assert slope == pytest.approx(np.linspace(0, 655 / 0.85, 50))
    assert own["n1", 0] + 0.85 * slope == pytest.approx(np.full(50, 650))


def test_each_draw_has_duties_of_its_own():
    # Power is 300 W and 400 W more by duty. In the second draw duties differ by half as much, so
    # the same power is from twice the slope.
    _, slope = drawn(lambda each: 660 + 40 * each.stage, [[0.9, 1.0], [0.95, 1.0]])
    # 700 W at a duty of 1: no less than 40 / 0.05 = 800 is cut to 680 / 0.975.
    assert slope == pytest.approx([400, 680 / 0.975])
