"""A gradient that is not finite ends the run, whatever steps the model."""

import pytest

from tests.training.cells import named
from tests.training.ranks import launch

CELLS = {
    f"{backend} {stage}": named(f"{backend} {stage}")
    for backend in ("deepspeed", "torch")
    for stage in ("zero0", "zero1", "zero3", "zero1 bf16")
}


@pytest.mark.slow
@pytest.mark.long
def test_a_gradient_that_is_not_finite_is_an_error_although_the_loss_is(tmp_path):
    results = launch("nonfinite", CELLS, tmp_path)

    assert results == {name: ["NonfiniteGradient"] for name in CELLS}
