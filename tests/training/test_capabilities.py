import re
from dataclasses import replace

import pytest

from tests.training.cells import GPT, LLAMA, MIXTRAL, TRAINING
from workflow_lib.records import Degrees
from workflow_lib.training.capabilities import refusal


@pytest.mark.parametrize(
    ("degrees", "changes", "model", "said"),
    [
        (Degrees(pp=2), {"zero_stage": 3}, LLAMA, "PP 2 with ZeRO-3: .* use zero_stage 0 or 1"),
        (Degrees(pp=2), {"zero_stage": 2}, LLAMA, "PP 2 with ZeRO-2"),
        (Degrees(dp=2), {"zero_stage": 4}, LLAMA, "ZeRO-4: the stages are 0 to 3"),
        (Degrees(dp=2), {"zero_stage": 0, "precision": "bf16"}, LLAMA, "use zero_stage 1"),
        (Degrees(pp=2, dp=2), {"overlap": True}, LLAMA, "silent copy .* without overlap"),
        (Degrees(tp=2), {"overlap": True}, LLAMA, "no gradient reduction to overlap"),
        (Degrees(dp=2), {"overlap": True, "zero_stage": 0}, LLAMA, "zero_stage 2 or 3"),
        (Degrees(dp=2), {"overlap": True, "precision": "bf16"}, LLAMA, "zero_stage 2 or 3"),
        (Degrees(tp=4), {}, LLAMA, "2 key and value heads"),
        (Degrees(tp=2), {}, replace(GPT, vocabulary_multiple=1), "another vocabulary_multiple"),
        (Degrees(pp=8), {}, LLAMA, "llama-test has 4 layers"),
        (Degrees(pp=3), {}, LLAMA, "has 4 layers, and 4 / 3 = 1.333; use a PP that divides them"),
        (Degrees(dp=2, ep=2), {}, LLAMA, "llama-test has no experts"),
        (Degrees(dp=8, ep=8), {}, MIXTRAL, "mixtral-test has 4 experts"),
        (Degrees(tp=2, dp=1, ep=2), {}, MIXTRAL, "EP must divide DP"),
        (Degrees(dp=2, ep=2), {"zero_stage": 3}, MIXTRAL, "EP 2 with ZeRO-3"),
    ],
)
def test_what_cannot_run_is_refused_with_a_remedy(degrees, changes, model, said):
    reason = refusal(degrees, replace(TRAINING, **changes), model)

    assert reason is not None
    assert re.search(said, reason)


def test_bf16_without_zero_runs_where_there_is_one_replica():
    training = replace(TRAINING, zero_stage=0, precision="bf16")

    assert refusal(Degrees(tp=2, pp=2), training, LLAMA) is None
