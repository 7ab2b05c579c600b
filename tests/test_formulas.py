"""Counts against what others published."""

import pytest

from workflow_lib import formulas
from workflow_lib.records import Model

LLAMA3_8B = Model("llama3-8b", "llama", 32, 4096, 14336, 32, 8, 8192, 128256)


@pytest.mark.parametrize(
    ("model", "published"),
    [
        (Model("gpt3", "gpt", 96, 12288, 49152, 96, 96, 2048, 50257), 174.6e9),
        (Model("llama3", "llama", 80, 8192, 28672, 64, 8, 8192, 128256), 70.55e9),
        (LLAMA3_8B, 8.03e9),
        (Model("8x7b", "mixtral", 32, 4096, 14336, 32, 8, 4096, 32000, 1, 8, 2), 46.70e9),
        (Model("8x22b", "mixtral", 56, 6144, 16384, 48, 8, 4096, 32768, 1, 8, 2), 140.6e9),
    ],
)
def test_parameters_are_the_published_ones_within_a_thousandth(model, published):
    assert formulas.parameters(model).total == pytest.approx(published, rel=1e-3)


def test_a_gpt_of_one_layer_is_counted_by_hand():
    model = Model("gpt", "gpt", 1, 4, 16, 2, 2, 8, 10)
    # Attention 4·(4·4 + 4) = 80, feed-forward 4·16 + 16 + 16·4 + 4 = 148, two norms 2·8 = 16;
    # embedding 10·4 = 40, positions 8·4 = 32, the final norm 8; the head is the embedding.
    assert formulas.parameters(model).total == 80 + 148 + 16 + 40 + 32 + 8


def test_only_the_chosen_experts_are_active():
    model = Model("moe", "mixtral", 1, 4, 8, 2, 2, 8, 10, 1, 4, 2)
    # Attention 4·16 = 64, router 4·4 = 16, two norms 8; one expert 3·4·8 = 96; embedding and head
    # 40 each, the final norm 4.
    assert formulas.parameters(model).total == 64 + 16 + 8 + 4 * 96 + 80 + 4
    assert formulas.parameters(model).active == 64 + 16 + 8 + 2 * 96 + 80 + 4


def test_one_rate_has_the_three_published_utilisations():
    # NVIDIA/dgxc-benchmarking v25.04.02: 10 682 tokens/s/GPU of Llama 3.1 8B on 8×H100 at sequence
    # 8192 is 62.5 % as NVIDIA counts; it is 52.0 % by 6·N and 55.6 % with causal attention.
    flops = formulas.flops_per_token(LLAMA3_8B)
    percents = [
        100 * each * 10682 / 989.4e12 for each in (flops.six_n, flops.causal, flops.full_attention)
    ]
    assert percents == pytest.approx([52.0, 55.6, 62.5], abs=0.05)


def test_gpt_flops_follow_megatrons_published_formula():
    # arXiv 2104.04473, section 5.1: F = 96·B·s·l·h²·(1 + s/6h + V/16lh) with recomputation, so
    # three quarters of it without.
    layers, hidden, batch, sequence, vocabulary = 96, 12288, 1536, 2048, 51200
    correction = 1 + sequence / (6 * hidden) + vocabulary / (16 * layers * hidden)
    theirs = 72 * batch * sequence * layers * hidden**2 * correction
    model = Model("gpt", "gpt", layers, hidden, 4 * hidden, 96, 96, sequence, vocabulary)
    ours = formulas.flops_per_token(model).full_attention * batch * sequence
    # They leave biases and norms out.
    assert ours == pytest.approx(theirs, rel=1e-3)
