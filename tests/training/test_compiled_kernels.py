"""What torch.compile makes of parts that the engine hands to it apart from whole layers."""

from types import SimpleNamespace

import pytest
import torch
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

from tests.training.ranks import HAS_COMPILER
from workflow_lib.trainers.native import feed_forward, sharding

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler"),
]


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_the_gates_gradients_are_those_of_what_is_not_compiled(activation):
    feed_forward.compile_join()
    torch._dynamo.reset()
    torch.manual_seed(0)
    x = torch.randn(6, 32, requires_grad=True)
    weights = torch.randn(6, 16)

    def layer(x):
        return (feed_forward.gated(x * 2, activation) * weights).sum()

    (expected,) = torch.autograd.grad(layer(x), x)
    (compiled,) = torch.autograd.grad(torch.compile(layer, dynamic=False)(x), x)

    torch.testing.assert_close(compiled, expected)
    assert (expected != 0).any(dim=0).all()


def test_gradients_of_micro_batches_are_added_up_in_fp32():
    assert callable(FSDPParam.accumulate_unsharded_grad_if_needed)  # which it replaces
    # In bf16 alone, 256 + 1 is 256.
    held = SimpleNamespace(grad=torch.ones(3, 5, dtype=torch.bfloat16))
    total = torch.full((3, 5), 256.0)
    parameter = SimpleNamespace(unsharded_accumulated_grad=total, unsharded_param=held)

    sharding._add_up(parameter)

    assert parameter.unsharded_accumulated_grad is total
    assert total.tolist() == [[257.0] * 5] * 3
    assert held.grad is None


def test_the_first_gradients_of_a_step_are_left_to_fsdp():
    held = SimpleNamespace(grad=torch.ones(3))
    sharding._add_up(SimpleNamespace(unsharded_accumulated_grad=None, unsharded_param=held))
    assert held.grad.tolist() == [1.0] * 3
