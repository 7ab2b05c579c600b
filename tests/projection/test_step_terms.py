"""Parts of a step at the peak, worked out by hand."""

from dataclasses import replace

import pytest

from workflow_lib.projection.layouts import Layout, Shape
from workflow_lib.projection.machines import Machine
from workflow_lib.projection.step_terms import terms

MACHINE = Machine(
    gpu="G",
    gpus_per_node=8,
    peak_flops_per_s=(("BF16", 1e12), ("FP8", 2e12)),
    memory_bytes=80e9,
    memory_bytes_per_s=1e12,
    link_bytes_per_s=1e11,
    network_bytes_per_s=1e10,
    power_limit_w=700,
)
# A layer has 4·100² + 2·100·400 = 120 000 weights; the head 1 000·100 = 100 000.
SHAPE = Shape("s", 8, 100, 400, False, 10, 10, 10, 1000, True)
LAYOUT = Layout(
    MACHINE, SHAPE, layers=8, sequence_length=50, micro_batch=2, micro_batches=4, tp=1, pp=1, dp=1
)


def seconds(**changes):
    return terms(replace(LAYOUT, **changes))


def test_products_take_six_flops_a_weight_and_token():
    # 8 layers · 6 · 120 000 · 100 tokens · 4 micro-batches over 10¹² FLOP/s.
    assert seconds()["product"] == pytest.approx(8 * 6 * 120_000 * 100 * 4 / 1e12)
    assert seconds()["head"] == pytest.approx(6 * 100_000 * 100 * 4 / 1e12)


def test_full_recomputation_does_the_forward_pass_again():
    assert seconds(recomputation="full")["product"] / seconds()["product"] == pytest.approx(4 / 3)


def test_fp8_speeds_up_products_with_weights_alone():
    assert seconds(precision="FP8")["product"] == pytest.approx(seconds()["product"] / 2)
    assert seconds(precision="FP8")["attention"] == seconds()["attention"]


def test_attention_is_over_half_the_matrix():
    # 6 · sequence · heads · size a token and layer: 6·50·100 = 30 000.
    assert seconds()["attention"] == pytest.approx(8 * 30_000 * 100 * 4 / 1e12)


def test_weights_are_read_and_gradients_added_to_with_every_micro_batch():
    # 12 bytes · (8 · 120 000 + 2 · 100 000 of embedding and head) · 4 micro-batches over
    # 10¹² bytes/s, however large the micro-batch.
    assert seconds()["weight"] == pytest.approx(12 * 1_160_000 * 4 / 1e12)
    assert seconds(micro_batch=4)["weight"] == seconds()["weight"]


def test_a_pipeline_adds_its_bubble():
    layout = replace(LAYOUT, pp=4, virtual_stages=2)
    # m + (p − 1)/v = 4 + 3/2; the slowest rank has 2 layers, and the last one the head besides.
    assert layout.bubble == 5.5
    assert terms(layout)["product"] == pytest.approx(2 * 6 * 120_000 * 100 * 5.5 / 1e12)


def test_tensor_parallel_ranks_exchange_activations():
    # 8 · 2 bytes · 100 tokens · 100 columns · (2 − 1)/2 a layer, over the links.
    each = 8 * 2 * 100 * 100 * 0.5
    assert seconds(tp=2)["tensor"] == pytest.approx(each * 8 * 4 / 1e11)
    assert seconds()["tensor"] == 0


def test_the_loss_reads_and_writes_the_logits():
    # 52 bytes · 100 tokens · 1 000 entries · 4 micro-batches over 10¹² bytes/s.
    loss = seconds()["element"] - seconds(loss_bytes=0)["element"]
    assert loss == pytest.approx(52 * 100 * 1000 * 4 / 1e12)
    # The last of four ranks has the head, and half of the tensor-parallel group's vocabulary.
    last = seconds(pp=4, tp=2)["element"] - seconds(pp=4, tp=2, loss_bytes=0)["element"]
    assert last == pytest.approx(52 * 100 * 500 * (4 + 3) / 1e12)


def test_evaluation_makes_passes_longer():
    assert seconds(evaluation=0.1)["product"] == pytest.approx(1.1 * seconds()["product"])
    assert seconds(evaluation=0.1)["optimiser"] == seconds()["optimiser"]


HELD = 8 * 120_000 + 100_000


def test_gradients_enter_a_node_by_all_adapters_of_its_replicas():
    # 6 bytes a weight · (n − 1)/n: over the links, or over 8 adapters of each node.
    assert seconds(dp=2, overlap=False)["reduce"] == pytest.approx(HELD * 6 * 0.5 / 1e11)
    two_nodes = seconds(dp=16, overlap=False)["reduce"]
    assert two_nodes == pytest.approx(HELD * 6 * 15 / 16 / 8e10)
    # With TP 4 two of the eight adapters are those of one group of replicas.
    assert MACHINE.ring_bytes_per_s(2, 4) == 1e11
    assert MACHINE.ring_bytes_per_s(4, 4) == 2e10
    assert MACHINE.ring_bytes_per_s(4, 8) == 1e10


def test_passes_hide_what_replicas_exchange():
    # A tenth always shows.
    hidden = seconds(dp=16)["reduce"]
    assert hidden == pytest.approx(0.1 * seconds(dp=16, overlap=False)["reduce"])
    # A pass takes 8 · 6 · 120 000 · 100 + 8 · 30 000 · 100 + 6 · 100 000 · 100 FLOPs: 1.4 · 660 µs.
    slow = replace(MACHINE, gpus_per_node=1, network_bytes_per_s=1e8)
    all_s = HELD * 6 * 0.5 / 1e8
    shown = seconds(machine=slow, dp=2)["reduce"]
    assert shown == pytest.approx(all_s - 1.4 * 660e-6)
    # Chunks leave passes of as many micro-batches as there are ranks. The fullest rank holds 4
    # layers and an end, and a pass takes half as long, with the head.
    held = 4 * 120_000 + 100_000
    a_pass = 1.4 * (4 * 6 * 120_000 * 100 + 4 * 30_000 * 100 + 6 * 100_000 * 100) / 1e12
    shown = seconds(machine=slow, dp=2, pp=2, virtual_stages=2)["reduce"]
    assert shown == pytest.approx(held * 6 * 0.5 / 1e8 - 2 * a_pass)


def test_zero_3_gathers_with_every_micro_batch_and_reduces_nothing_at_the_end():
    assert seconds(dp=2, sharding=3)["reduce"] == 0
    # 6 bytes · 120 000 weights · 1/2 for each of 8 layers and 4 micro-batches, over the links.
    each = 6 * 120_000 * 0.5 / 1e11
    assert seconds(dp=2, sharding=3)["gather"] == pytest.approx(8 * 4 * each)


def test_zero_2_scatters_gradients_in_every_pass_and_ends_a_step_as_zero_1_does():
    # 4 bytes · 120 000 weights · 1/2 for each of 8 layers, in 3 passes before the last one.
    found, each = seconds(dp=2, sharding=2), 4 * 120_000 * 0.5 / 1e11
    assert found["gather"] == pytest.approx(8 * 3 * each)
    assert found["reduce"] == seconds(dp=2)["reduce"]
    # Recomputation repeats no gradients, and a pipeline waits for those of its bubble's 1 pass.
    assert seconds(dp=2, sharding=2, recomputation="full")["gather"] == found["gather"]
    assert seconds(dp=2, sharding=2, pp=2)["gather"] == pytest.approx(4 * 4 * each)
    # With a single micro-batch nothing tells it from ZeRO-1.
    assert seconds(dp=2, sharding=2, micro_batches=1) == seconds(dp=2, micro_batches=1)
