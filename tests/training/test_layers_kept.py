"""What a layer keeps for the backward pass, in elements a token, counted by hand."""

import pytest
import torch

from tests.training.cells import GPT, LLAMA, MIXTRAL
from tests.training.kept import kept_bytes
from tests.training.test_model import build

HIDDEN, HEADS, KEY_VALUE = 64, 4, 32
#: of GPT, of the other two
PLAIN, GATED = 256, 192
#: torch has no RMSNorm kernel on a CPU, and keeps the normalised input of both norms besides
ON_CPU = 2 * HIDDEN

#: of Llama and Mixtral: queries, keys and values, attention's result, and a number a head
ATTENTION = HIDDEN + 2 * KEY_VALUE + HIDDEN + HEADS

#: beside the layer's input
KEPT = {
    # norm outputs and the input of the second one; queries, keys, values; attention's result and
    # a number a head; GELU's input and output; mean and deviation of both norms
    ("gpt", "none"): 3 * HIDDEN + 3 * HIDDEN + HIDDEN + HEADS + 2 * PLAIN + 4,
    # the results of four products and attention
    ("gpt", "selective"): 3 * HIDDEN + HIDDEN + HEADS + HIDDEN + PLAIN + HIDDEN,
    ("gpt", "full"): 0,
    # gate, up and their product; both norms' deviation
    ("llama", "none"): 3 * HIDDEN + ATTENTION + 3 * GATED + 2 + ON_CPU,
    ("llama", "selective"): ATTENTION + HIDDEN + 2 * GATED + HIDDEN,
    ("llama", "full"): 0,
    # two experts: their input, gate, up, product and output
    ("mixtral", "none"): 3 * HIDDEN + ATTENTION + 2 * (2 * HIDDEN + 3 * GATED) + 2 + ON_CPU,
    # the router's four logits, two experts' gate, up and output
    ("mixtral", "selective"): ATTENTION + HIDDEN + 4 + 2 * (2 * GATED + HIDDEN),
    ("mixtral", "full"): 0,
}


@pytest.mark.parametrize(("family", "recomputation"), KEPT)
def test_a_layer_keeps_what_was_counted(family, recomputation):
    model = {"gpt": GPT, "llama": LLAMA, "mixtral": MIXTRAL}[family]
    layer = build(model, recomputation=recomputation).parts[2]
    tokens = 2 * 64

    kept = kept_bytes(layer, torch.randn(2, 64, HIDDEN, requires_grad=True)) / 4 / tokens

    # A sparse layer's order of rows and shares come to a few numbers a token and choice.
    small = 16 if (family, recomputation) == ("mixtral", "none") else 0
    assert KEPT[family, recomputation] <= kept <= KEPT[family, recomputation] + small


def test_frozen_experts_keep_neither_their_input_nor_their_product():
    layer = build(MIXTRAL).parts[2]
    x = torch.randn(2, 64, HIDDEN, requires_grad=True)
    trained = kept_bytes(layer, x)
    layer.requires_grad_(False)
    attention = layer.attention
    attention.requires_grad_(True)
    layer.attention_norm.requires_grad_(True)
    layer.feed_forward_norm.requires_grad_(True)
    layer.feed_forward.router.requires_grad_(True)

    assert trained - kept_bytes(layer, x) == 4 * 128 * 2 * (HIDDEN + GATED)
