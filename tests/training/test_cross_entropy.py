import pytest
import torch

from workflow_lib.trainers.native import cross_entropy as module
from workflow_lib.trainers.native.cross_entropy import cross_entropy


def drawn(tokens=50, vocabulary=37):
    generator = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(tokens, vocabulary, generator=generator)
    return logits, torch.randint(vocabulary, (tokens,), generator=generator)


@pytest.mark.parametrize("at_once", [1, 37 * 7, 10**6])
def test_loss_and_gradient_are_torchs_own_however_many_rows_are_taken_at_once(monkeypatch, at_once):
    monkeypatch.setattr(module, "FP32_LOGITS", at_once)
    logits, targets = drawn()
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss = cross_entropy(ours, targets, None)
    expected = torch.nn.functional.cross_entropy(theirs, targets)
    (3 * loss).backward()
    (3 * expected).backward()

    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(ours.grad, theirs.grad)
    assert torch.equal(ours, logits)


def test_bf16_logits_are_summed_in_fp32_and_get_bf16_gradients():
    logits, targets = drawn(vocabulary=4096)
    rounded = logits.bfloat16().requires_grad_()
    loss = cross_entropy(rounded, targets, None)
    loss.backward()

    expected = torch.nn.functional.cross_entropy(rounded.detach().double(), targets)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert rounded.grad.dtype == torch.bfloat16
