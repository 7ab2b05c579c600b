"""A backward pass in two parts, as zero-bubble schedules run it, does the work of one in one."""

import pytest
import torch
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.utils.flop_counter import FlopCounterMode

from tests.training.cells import GPT, LLAMA, TRAINING
from workflow_lib.trainers.native.mesh import single_process
from workflow_lib.trainers.native.model import parts
from workflow_lib.trainers.native.weights import Weights


def layer_of(model):
    weights = Weights(single_process(torch.device("cpu")), 7, torch.float32)
    sequence = parts(model, weights, TRAINING)
    return next(part for part in sequence if part.kind.__name__ == "TransformerLayer").build()


def counted(work):
    """The products' and attention's FLOPs of what is done, and its result."""
    with FlopCounterMode(display=False) as counter:
        result = work()
    return counter.get_total_flops(), result


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
def test_the_two_parts_repeat_no_product_and_give_the_same_gradients(model):
    layer = layer_of(model)
    x = torch.randn(1, model.sequence_length, model.hidden_size, requires_grad=True)
    gradient = torch.randn(1, model.sequence_length, model.hidden_size)
    output = layer(x)
    at_once, _ = counted(lambda: output.backward(gradient))
    expected = [x.grad, *(each.grad for each in layer.parameters())]
    x.grad = None
    for each in layer.parameters():
        each.grad = None

    output = layer(x)
    of_input, (_, groups) = counted(
        lambda: stage_backward_input([output], [gradient], [x], layer.parameters())
    )
    of_weights, _ = counted(lambda: stage_backward_weight(layer.parameters(), groups))

    assert of_input + of_weights == at_once
    # Each matrix has one product in either part; attention has its four in the first.
    matrices = sum(each.numel() for each in layer.parameters() if each.dim() == 2)
    assert of_weights == 2 * matrices * model.sequence_length
    for part, whole in zip(
        [x.grad, *(each.grad for each in layer.parameters())], expected, strict=True
    ):
        torch.testing.assert_close(part, whole)
