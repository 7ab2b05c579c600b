"""Peers get a cell's layout and options in their own words, and launches take turns."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchmarks.measuring import pairs
from benchmarks.measuring.pairs import NEW_TOKENS
from research import engine_on_gpus
from research.measuring import engine_steps, peer_torchtitan
from research.pages import engine, peers
from tests.texts import lacking, rows_of
from tests.training.cells import GPT, LLAMA, MIXTRAL, cell
from workflow_lib.records.degrees import Degrees

WIDE = replace(LLAMA, ffn_hidden_size=4 * LLAMA.hidden_size)


def torchtitan(degrees: Degrees, **options: object) -> dict[str, object]:
    """torchtitan's settings of a cell, those of all sections together."""
    sections = peer_torchtitan.settings(cell(WIDE, degrees, precision="bf16", **options))
    return {name: value for values in sections.values() for name, value in values.items()}


@pytest.mark.parametrize(
    ("degrees", "weights"),
    [
        *((of, "float32") for of in (Degrees(), Degrees(dp=4), Degrees(tp=2, dp=2), Degrees(cp=2))),
        *((of, "bfloat16") for of in (Degrees(tp=4), Degrees(tp=2, pp=2))),
    ],
)
def test_weights_are_bf16_where_torchtitan_has_no_mixed_precision(degrees, weights):
    assert torchtitan(degrees)["dtype"] == weights


def test_a_pipeline_gets_its_micro_batches_at_once_and_others_accumulate():
    batches = {"micro_batch_size": 2, "global_batch_size": 16}
    pipeline = torchtitan(Degrees(pp=2, dp=2), **batches)
    replicas = torchtitan(Degrees(dp=2), **batches)

    at_once = "pipeline_parallel_microbatch_size"
    assert (pipeline["local_batch_size"], replicas["local_batch_size"]) == (8, 2)
    assert pipeline[at_once] == 2
    assert {one["global_batch_size"] for one in (pipeline, replicas)} == {16}


def test_weights_are_freed_within_a_step_by_zero_3_alone():
    settings = [torchtitan(Degrees(dp=2), zero_stage=stage) for stage in (1, 2, 3)]

    policies = [one["fsdp_reshard_after_forward"] for one in settings]
    assert policies == ["never", "never", "default"]


BF16 = {"precision": "bf16", "zero_stage": 3, "backend": "torch"}


@pytest.mark.parametrize(
    ("model", "degrees", "options", "named"),
    [
        (GPT, Degrees(), {}, "gpt"),
        (MIXTRAL, Degrees(pp=2), {}, "stages"),
        (MIXTRAL, Degrees(), {"precision": "fp8"}, "experts"),
        (MIXTRAL, Degrees(), {"routing": "balanced"}, "balanced"),
        (WIDE, Degrees(), {"precision": "fp32"}, "fp32"),
        (WIDE, Degrees(), {"workload": "lora"}, "pretrain"),
        (WIDE, Degrees(dp=2), {"zero_stage": 1}, "ZeRO-3"),
        (WIDE, Degrees(pp=2, virtual_stages=4), {}, "chunks"),
        (WIDE, Degrees(pp=2, schedule="zero-bubble"), {}, "zero-bubble"),
        (replace(WIDE, ffn_hidden_size=64), Degrees(), {}, "8/3"),
    ],
)
def test_what_torchtitan_would_train_otherwise_is_refused(model, degrees, options, named):
    assert named in peer_torchtitan.refusal(cell(model, degrees, **{**BF16, **options}))


def test_what_peers_train_as_it_is_is_not_refused():
    for degrees in (Degrees(), Degrees(dp=2), Degrees(tp=2, pp=2), Degrees(tp=2, dp=2)):
        assert peer_torchtitan.refusal(cell(WIDE, degrees, **BF16)) is None


#: a peer that trains every cell
ANOTHER = SimpleNamespace(refusal=lambda _: None, parameters=engine_steps.our_parameters)


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """Trains a cell beside peers, of which torchtitan has so many parameters and its n-th launch
    fails; returns the exit code and who was launched.
    """

    def run(peers, alternations, parameters=engine_steps.our_parameters, fails=None):
        records, launches = tmp_path / "records.jsonl", []

        def launch(command):
            by = command[-1]
            launches.append(by)
            if by == "torchtitan" and launches.count(by) == fails:
                return SimpleNamespace(returncode=-9)
            with records.open("a") as stream:
                speed = {"triptych": 110.0}.get(by, 100.0)
                print(f'{{"by": "{by}", "tokens_per_s_per_gpu": {speed}}}', file=stream)
            return SimpleNamespace(returncode=0)

        monkeypatch.setattr(engine_on_gpus.subprocess, "run", launch)
        monkeypatch.setattr(peer_torchtitan, "parameters", parameters)
        monkeypatch.setitem(engine_steps.PEERS, "another", ANOTHER)
        one = cell(WIDE, precision="bf16", recomputation="none", zero_stage=1)
        options = SimpleNamespace(peer=peers, alternations=alternations)
        return engine_on_gpus.beside_peers(one, options, ["engine"], records), launches

    return run


def test_a_peer_that_fails_is_left_out_and_its_whole_pairs_count(beside, capsys):
    code, launches = beside(["torchtitan", "another", "torchtitan"], 4, fails=3)

    assert code == 1
    assert Counter(launches) == {"triptych": 4, "another": 4, "torchtitan": 3}
    said = capsys.readouterr().out
    pairs_of = {"torchtitan": 2, "another": 4}
    shown = [f"{by} 1.100 (1.100 to 1.100, {n} pairs)" for by, n in pairs_of.items()]
    assert lacking(said, "torchtitan failed", " -9)", *shown) == []


def test_a_peer_whose_model_has_another_size_is_not_launched(beside, capsys):
    code, launches = beside(["torchtitan", "another"], 1, lambda cell: 300_000)

    assert (code, launches) == (1, ["triptych", "another"])
    # 2 × 320 × 64 of embedding and head, 64 of the last norm, and of each of 4 layers 12 288 of
    # attention, 3 × 64 × 256 of the feed-forward part and 2 × 64 of norms.
    ours = 2 * 384 * 64 + 64 + 4 * (12_288 + 3 * 64 * 256 + 128)
    assert lacking(capsys.readouterr().out, "torchtitan", "300,000", f"{ours:,}") == []


def test_torchtitans_model_has_as_many_parameters_as_ours():
    pytest.importorskip("torchtitan")

    for model in (WIDE, MIXTRAL):
        assert engine_steps.other_size(cell(model), "torchtitan") is None


def test_records_say_how_layers_were_divided(monkeypatch):
    monkeypatch.setattr(engine_steps, "_begin", lambda: 0)
    monkeypatch.setattr(engine_steps, "_measured", lambda *_: {"loss": 1.0})
    monkeypatch.setattr("workflow_lib.trainers.native.mesh.create", lambda *_: None)
    monkeypatch.setattr("workflow_lib.trainers.engines.create", lambda *_: None)
    monkeypatch.setattr(engine_steps.tokens, "on_device", lambda *_: ())
    peer = SimpleNamespace(step=None, stage_layers=lambda: [3, 1])
    monkeypatch.setattr(peer_torchtitan, "Peer", lambda *_: peer)
    monkeypatch.setattr(peer_torchtitan, "parameters", lambda _: 5)
    one, gpu = cell(WIDE, Degrees(pp=2)), SimpleNamespace(torch=None)

    assert engine_steps.train(one, gpu, trace=False)["stage_layers"] == [2, 2]
    theirs = engine_steps.train_by_peer(one, gpu, "torchtitan")
    assert (theirs["stage_layers"], theirs["parameters"]) == ([3, 1], 5)


def test_chunks_of_pipeline_ranks_are_put_in_the_order_of_the_model():
    assert peer_torchtitan.in_order_of_stages({1: [3], 0: [4]}) == [4, 3]
    assert peer_torchtitan.in_order_of_stages({1: [2, 1], 0: [3, 2]}) == [3, 2, 2, 1]
    assert peer_torchtitan.in_order_of_stages({0: [8]}) == [8]


def test_a_setting_that_a_version_does_not_have_is_said():
    config = SimpleNamespace(training=SimpleNamespace(steps=1))

    peer_torchtitan.change(config, "training", {"steps": 7})
    assert config.training.steps == 7
    for section, settings, named in (
        ("training", {"dtype": "float32"}, r"training\.dtype.* 0\.2\.2"),
        ("quantize.linear", {}, r"quantize\.linear"),
    ):
        with pytest.raises(ValueError, match=named):
            peer_torchtitan.change(config, section, settings)


def test_each_round_of_launches_is_in_the_reverse_order_of_the_one_before():
    assert pairs.in_rounds(["triptych", "peer", "other"], 3) == [
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
    assert pairs.ratio_in_words(ours, [100.0]) == "1.105 (1 pair, no interval)"
    assert pairs.ratio_in_words(ours, []) == "no pair"


CONDITIONS = {"gpu": "NVIDIA H200", "torch": "2.11.0", "begun": "2026-11-24T22:36Z"}


def test_the_page_has_a_row_for_each_and_ratios_of_whole_pairs():
    def record(by, speed, **more):
        measures = {"tokens_per_s_per_gpu": speed, "mfu_causal": 0.5, "peak_gb": 60.0, "loss": 0.1}
        known = {"gpus": 1, "cell": "h200/llama-8l/tp1_mb1_0", "by": by, "steps": 3}
        return {**CONDITIONS, **known, **measures, **more}

    theirs = [record("peer", speed, version="0.2") for speed in (100.0, 100.0)]
    ours = [record("triptych", speed) for speed in (110.0, 110.0, 500.0)]
    page = peers.page("note", "stem", ours + theirs)

    assert "8 layers, `tp1`, `mb1`" in page
    assert rows_of(page)[-2:] == [
        ["this engine", "3", "240", "50.0", "60.0", "–"],
        ["peer 0.2", "2", "100", "50.0", "60.0", "1.100 (1.100 to 1.100, 2 pairs)"],
    ]
    # Steps that repeat their tokens are learnt, which the loss shows.
    assert " 0.1 to 0.1" in page
    assert {"parameters", "stages"} & set(page.split()) == set()
    divided = [{**each, "parameters": 8_000, "stage_layers": [3, 5]} for each in theirs]
    divided += [{**each, "parameters": 8_000, "stage_layers": [4, 4]} for each in ours]
    *_, last = peers.page("note", "stem", divided).splitlines()
    assert lacking(last, "8,000", "0.2 3, 5;", "engine 4, 4.") == []
    new = peers.page("note", "stem", [{**each, "tokens": NEW_TOKENS} for each in ours + theirs])
    assert "new tokens" in new
    assert " 0.1 to 0.1" not in new


def test_ranks_that_shared_gpus_have_losses_and_memory_and_no_speeds():
    record = {
        **{**CONDITIONS, "gpus": 2, "ranks_per_gpu": 2, "steps": 3, "by": "triptych"},
        "cell": "h200/llama3-8b-4l/tp2-pp2-dp1-l3.1_mb1-gb16-bf16-zero1-compiled-torch_0",
        **{"tokens_per_s_per_gpu": None, "loss": 12.5803356, "stage_layers": [3, 1]},
        **{"peak_gb": 12.4215, "estimate_gb": 12.9659, "tokens": NEW_TOKENS},
    }
    page = engine.shared_page("shared", [record])
    (title,) = re.findall("^# .*$", page, re.MULTILINE)
    assert lacking(title, "4 ranks", "2 × NVIDIA H200", "2026-11-24") == []
    degrees, options = "`tp2-pp2-dp1-l3.1`", "`mb1-gb16-bf16-zero1-compiled-torch`"
    shown = ["llama3-8b, 4 layers", degrees, options, "3, 1", "12.58034", "12.4 / 13.0"]
    assert rows_of(page)[-1] == shown
    assert "tokens/s" not in page


def launch(options, speed=100, exposed=None, overlapped=0.0, communication_s=0.02, **stated):
    """The record of a launch of experts."""
    return {
        **{**CONDITIONS, "gpus": 2, "ranks_per_gpu": 1, "steps": 5, "by": "triptych"},
        "cell": f"h200/mixtral-8x7b-4l/tp1-pp1-dp2-ep2_{options}_0",
        **{"tokens_per_s_per_gpu": speed, "step_s": 0.5, "peak_gb": 58.25, "loss": 11.2},
        **{"communication_s": communication_s, "overlapped": overlapped, "exposed": exposed or {}},
        **{"tokens": NEW_TOKENS, **stated},
    }


RATIO = "1.100 (1.100 to 1.100, 2 pairs)"
OFF, ON = "mb1-zero1-torch", "mb1-zero1-overlap-torch"


def test_cells_with_and_without_overlap_are_paired_round_by_round():
    off = [launch(OFF, exposed={"SendRecv": 0.04}) for _ in range(2)]
    on = [
        launch(ON, 110, {"SendRecv": 0.01}, 0.5, 0.05),
        launch(ON, 110, {"SendRecv": 0.03, "AllGather": 0.01}, 0.7, 0.05),
    ]
    page = engine.overlap_page("overlap", [off[0], on[0], on[1], off[1]])

    assert re.search("^# .* 2 × NVIDIA H200, 2026-11-24$", page, re.MULTILINE)
    named, *values, exposed = rows_of(page)[-1][1:]
    assert named.split(", ") == ["`tp1-pp1-dp2-ep2`", f"`{OFF}`"]
    assert values == ["2 + 2", "100 → 110", RATIO, "58.2 → 58.2", "4.0 → 10.0", "0 → 60"]
    assert exposed.split("; ") == ["AllGather 0.0 → 0.5", "SendRecv 4.0 → 2.0"]


def test_a_lost_launch_leaves_out_its_partner_and_no_other():
    # The second round lost the launch without overlap: by their places, its partner of the third
    # would have been paired with that of the second.
    found = [(OFF, 100, 1), (ON, 110, 1), (ON, 150, 2), (OFF, 200, 3), (ON, 220, 3)]
    found.append(("mb2-zero1-torch", 90, 3))
    records = [launch(options, speed, round=f"begun/{n}") for options, speed, n in found]
    page = engine.overlap_page("overlap", records)

    assert rows_of(page)[-1][2:5] == ["2 + 2", "150 → 165", RATIO]
    left_out = page.splitlines()[-1]
    assert re.findall("`(.*?)`", left_out) == [records[2]["cell"], records[5]["cell"]]


@pytest.mark.parametrize(
    ("order", "rounds"),
    [((OFF, ON, ON, OFF, ON), [None] * 5), ((OFF, ON, ON), [None] * 3), ((OFF, ON, ON), [1, 1, 1])],
)
def test_launches_of_unknown_rounds_are_refused(order, rounds):
    records = [
        launch(options, **({"round": n} if n else {}))
        for options, n in zip(order, rounds, strict=True)
    ]
    with pytest.raises(ValueError, match=r"overlap\.jsonl.*round"):
        engine.overlap_page("overlap", records)
