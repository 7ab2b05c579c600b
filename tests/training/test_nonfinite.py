"""A gradient that is not finite ends the run, whatever steps the model."""

from __future__ import annotations

import pytest

from tests.training.cells import LLAMA, cell
from tests.training.ranks import launch

CELLS = {
    f"{backend} zero{stage} {precision}": cell(
        LLAMA, backend=backend, zero_stage=stage, precision=precision
    )
    for backend in ("deepspeed", "torch")
    for stage, precision in ((0, "fp32"), (1, "fp32"), (3, "fp32"), (1, "bf16"))
}


@pytest.mark.slow
@pytest.mark.long
def test_a_gradient_that_is_not_finite_is_an_error_although_the_loss_is(tmp_path):
    results = launch("nonfinite", CELLS, tmp_path)

    assert results == {name: ["NonfiniteGradient"] for name in CELLS}
