"""Peers get a cell's layout and options in their own words, and launches take turns."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import pytest

from benchmarks import engine_on_gpus
from benchmarks.measuring import pairs, peer_torchtitan, peer_transformers
from docs import peers
from tests.training.cells import GPT, LLAMA, MIXTRAL, cell
from workflow_lib.records import Degrees

WIDE = dataclasses.replace(LLAMA, ffn_hidden_size=4 * LLAMA.hidden_size)


def torchtitan(degrees: Degrees, **options: object) -> dict[str, object]:
    """torchtitan's settings of a cell, those of all sections together."""
    sections = peer_torchtitan.settings(cell(WIDE, degrees, precision="bf16", **options))
    return {name: value for values in sections.values() for name, value in values.items()}


@pytest.mark.parametrize(
    ("degrees", "weights"),
    [
        (Degrees(), "float32"),
        (Degrees(dp=4), "float32"),
        (Degrees(tp=2, dp=2), "float32"),
        (Degrees(cp=2), "float32"),
        (Degrees(tp=4), "bfloat16"),
        (Degrees(tp=2, pp=2), "bfloat16"),
    ],
)
def test_weights_are_bf16_where_torchtitan_has_no_mixed_precision(degrees, weights):
    assert torchtitan(degrees)["dtype"] == weights


def test_a_pipeline_gets_its_micro_batches_at_once_and_others_accumulate():
    batches = {"micro_batch_size": 2, "global_batch_size": 16}
    pipeline = torchtitan(Degrees(pp=2, dp=2), **batches)
    replicas = torchtitan(Degrees(dp=2), **batches)

    assert (pipeline["local_batch_size"], replicas["local_batch_size"]) == (8, 2)
    assert pipeline["pipeline_parallel_microbatch_size"] == 2
    assert {one["global_batch_size"] for one in (pipeline, replicas)} == {16}


def test_zero_3_frees_weights_within_a_step_and_less_does_not():
    policies = [
        torchtitan(Degrees(dp=2), zero_stage=stage)["fsdp_reshard_after_forward"]
        for stage in (1, 2, 3)
    ]

    assert policies == ["never", "never", "default"]


def test_what_a_peer_cannot_train_as_it_is_is_refused():
    assert peer_torchtitan.refusal(cell(WIDE, Degrees(tp=2, pp=2))) is None
    assert "gpt" in peer_torchtitan.refusal(cell(GPT))
    assert "pipeline" in peer_torchtitan.refusal(cell(MIXTRAL, Degrees(pp=2)))
    narrow = dataclasses.replace(WIDE, ffn_hidden_size=2 * WIDE.hidden_size)
    assert "8/3" in peer_torchtitan.refusal(cell(narrow))
    kept = {"precision": "bf16", "recomputation": "none", "zero_stage": 1}
    assert peer_transformers.refusal(cell(WIDE, Degrees(dp=2), **kept)) is None
    assert "replicas" in peer_transformers.refusal(cell(WIDE, Degrees(tp=2), **kept))


def test_a_setting_that_a_version_does_not_have_is_said():
    config = SimpleNamespace(training=SimpleNamespace(steps=1))

    peer_torchtitan.change(config, "training", {"steps": 7})
    assert config.training.steps == 7
    with pytest.raises(ValueError, match=r"no setting training\.dtype; use 0\.2\.2"):
        peer_torchtitan.change(config, "training", {"dtype": "float32"})
    with pytest.raises(ValueError, match=r"no settings quantize\.linear"):
        peer_torchtitan.change(config, "quantize.linear", {})


def test_each_round_of_launches_is_in_the_reverse_order_of_the_one_before():
    assert engine_on_gpus.order_of_launches(["peer", "other"], 3) == [
        *("triptych", "peer", "other"),
        *("other", "peer", "triptych"),
        *("triptych", "peer", "other"),
    ]


def test_the_ratio_is_a_geometric_mean_with_students_interval():
    # Logarithms 0.10 and 0.20: mean 0.15, standard error 0.05, t of one degree of freedom 12.706.
    ours = [100 * math.exp(0.1), 100 * math.exp(0.2)]
    found = pairs.ratio(ours, [100, 100])

    assert found.mean == pytest.approx(math.exp(0.15))
    assert math.log(found.t_low) == pytest.approx(0.15 - 12.706 * 0.05, abs=1e-4)
    assert math.log(found.t_high) == pytest.approx(0.15 + 12.706 * 0.05, abs=1e-4)
    assert "2 pairs" in engine_on_gpus.ratio_in_words("peer", ours, [100, 100])
    assert "no interval" in engine_on_gpus.ratio_in_words("peer", ours[:1], [100])


def test_the_page_has_a_row_for_each_and_ratios_of_whole_pairs():
    def record(by, speed, **more):
        shown = {"gpus": 1, "gpu": "H200", "begun": "2026-11-24T02:15Z", "torch": "2.11"}
        measures = {"tokens_per_s_per_gpu": speed, "mfu_causal": 0.5, "peak_gb": 60.0}
        return {**shown, **measures, "cell": "h200/llama-8l/tp1_mb1_0", "by": by, **more}

    theirs = [record("peer", speed, version="0.2") for speed in (100.0, 100.0)]
    ours = [record("triptych", speed) for speed in (110.0, 110.0, 500.0)]
    page = peers.page("note", "stem", ours + theirs)

    assert "## llama, 8 layers, `tp1`, `mb1`" in page
    assert "| this engine | 3 | 240 | 50.0 | 60.0 | – |" in page
    assert "| peer 0.2 | 2 | 100 | 50.0 | 60.0 | 1.100 (1.100 to 1.100, 2 pairs) |" in page
