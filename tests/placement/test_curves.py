"""What runs at several limits say, against values by hand."""

from dataclasses import replace

import numpy as np
import pytest

from tests.placement.made_limits import Node, cells, limited
from workflow_lib.placement import levels
from workflow_lib.placement.levels import CLOCK, POWER


def runs(steps=(1.0, 1.25, 1.1, 1.05), powers=(600.0, 360.0, 450.0, 540.0)):
    """Two runs as it is and at each of 400, 500 and 600 W, with these steps and powers; a cell."""
    plain, _, _, _, *limits = cells()
    of = Node([0.0] * 4).measured([plain, *limits], rounds=2)
    ids = [plain.id, *(each.id for each in limits)]
    at = dict(zip(ids, zip(steps, powers, strict=True), strict=True))
    of = replace(
        of,
        runs=[replace(run, step_time_s=at[run.cell.id][0]) for run in of.runs],
        readings=[
            replace(each, power_w=at[each.cell][1], temperature_c=60.0) for each in of.readings
        ],
    )
    return of, plain


def test_curves_are_lines_over_the_logarithm_of_the_limit():
    of, cell = runs()
    found = levels.find_levels(of, cell, POWER)
    assert (found.own, found.every, found.runs) == (700, (400, 500, 600, 700), 8)
    drawn = levels.draw_curves(of, found, 50)
    assert np.exp(drawn.at(drawn.log_speed, 400)[0]) == pytest.approx(1 / 1.25)
    assert np.exp(drawn.at(drawn.log_speed, 700)[0]) == pytest.approx(1)
    assert np.exp(drawn.at(drawn.log_power, 600)[0]) == pytest.approx(0.9)
    # Half the way from 400 to 500 W by their ratio is √(400 · 500), and so is the speed.
    between = drawn.at(drawn.log_speed, np.sqrt(400 * 500))[0]
    assert np.exp(between) == pytest.approx(1 / np.sqrt(1.25 * 1.1))
    assert drawn.at(drawn.warmth_c, 450) == pytest.approx(0)


@pytest.mark.parametrize("limit", [399, 701])
def test_nothing_is_said_beyond_the_measured_levels(limit):
    of, cell = runs()
    drawn = levels.draw_curves(of, levels.find_levels(of, cell, POWER), 5)
    with pytest.raises(ValueError, match=rf"{limit} .*\b400\b.*\b700\b"):
        drawn.at(drawn.log_speed, limit)


def test_draws_spread_as_means_of_the_runs_do():
    # Deviations of 1 % from a mean of two runs: each run has a standard deviation of √2 %, their
    # mean of 1 %, and a difference of two such means of √2 %.
    of, cell = runs((1.0,) * 4, (600.0,) * 4)
    spread = [
        replace(run, step_time_s=float(np.exp(0.01 if run.run == 1 else -0.01))) for run in of.runs
    ]
    of = replace(of, runs=spread)
    drawn = levels.draw_curves(of, levels.find_levels(of, cell, POWER), 4000)
    assert drawn.log_speed[:, 0].std() == pytest.approx(0.01 * np.sqrt(2), rel=0.05)
    assert drawn.log_speed[:, 3] == pytest.approx(0)


def test_the_highest_level_stands_for_itself_where_the_limit_as_it_is_is_not_known():
    of, cell = runs()
    unknown = [
        replace(each, power_limit_w=None) if each.cell == cell.id else each for each in of.readings
    ]
    of = replace(of, readings=unknown)
    found = levels.find_levels(of, cell, POWER)
    assert (found.own, found.every) == (None, (400, 500, 600))
    drawn = levels.draw_curves(of, found, 5)
    assert np.exp(drawn.at(drawn.log_speed, 600)[0]) == pytest.approx(1 / 1.05)


def test_where_no_run_tried_limits_there_is_nothing_to_say():
    of, cell = runs()
    assert levels.find_levels(of, cell, CLOCK) is None
    # Other orders are other cells.
    assert levels.find_levels(of, cells()[1], POWER) is None


def test_too_few_levels_are_named():
    of_cells = cells((500,))
    of = Node([0.0] * 4).measured([of_cells[0], of_cells[4]], rounds=2)
    why = levels.find_levels(of, of_cells[0], POWER)
    assert why.startswith("3 levels")
    assert " 2 runs" in why
    assert why.endswith(" 500 W, 700 W")


def test_limits_that_differ_between_gpus_are_no_level():
    of_cells = cells()
    uneven = replace(POWER.set_on(of_cells[0], (500, 600, 700, 700)), id="a/b/uneven")
    of = Node([0.0] * 4).measured([uneven, *of_cells[4:]], rounds=2)
    assert POWER.name in levels.find_levels(of, uneven, POWER)
    of = Node([0.0] * 4).measured([of_cells[0], uneven, *of_cells[4:]], rounds=2)
    assert levels.find_levels(of, of_cells[0], POWER).every == (400, 500, 600, 700)


def test_runs_that_say_the_limit_and_runs_that_have_it_are_one_level():
    of_cells = cells()
    said = limited(of_cells[0], POWER, 700)
    of = Node([0.0] * 4).measured([of_cells[0], said, *of_cells[4:]], rounds=2)
    found = levels.find_levels(of, of_cells[0], POWER)
    assert found.every == (400, 500, 600, 700)
    assert len(found.as_it_is) == 4
