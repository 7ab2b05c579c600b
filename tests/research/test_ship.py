"""What is shipped of published runs and of the fit is what they give."""

import copy
import json

import pytest

from research.projection.ship import files, is_same
from workflow_lib.projection.own_stack import PUBLISHED_ROWS, SHIPPED_FIT


def test_published_rows_and_a_new_fit_give_what_is_shipped():
    shipped = {path: path.read_text(encoding="utf-8") for path in (PUBLISHED_ROWS, SHIPPED_FIT)}
    assert files() == shipped, "make it anew: python -m research.projection ship"


@pytest.mark.parametrize("altered", ["values", "covariance", "residuals"])
def test_a_number_beyond_the_tolerance_makes_another_fit(altered):
    shipped = json.loads(SHIPPED_FIT.read_text(encoding="utf-8"))
    for factor, same in ((1 + 1e-7, True), (1 + 3e-5, False)):
        other = copy.deepcopy(shipped)
        row = other[altered] if altered == "values" else other[altered][-1]
        row[-1] *= factor
        assert other != shipped
        assert is_same(shipped, other) is same


def test_a_number_more_or_another_gpu_makes_another_fit():
    shipped = json.loads(SHIPPED_FIT.read_text(encoding="utf-8"))
    assert not is_same(shipped, shipped | {"values": [*shipped["values"], 0.0]})
    assert not is_same(shipped, shipped | {"gpus": ["H100"]})
    assert not is_same(shipped, shipped | {"more": 1.0})
