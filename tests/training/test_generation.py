"""Generation: with a cache as without, in every layout as in one process, and as a peer does it."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

import pytest
import torch

from tests.training import gpus
from tests.training.cells import GPT, LLAMA, MIXTRAL, MODERN, NEOX, cell, named
from tests.training.generated import generated
from tests.training.test_model import logits
from tests.training.test_peer_models import LIKE, peer_of
from tests.training.test_program import rows, run
from workflow_lib.records import Degrees, RunPaths
from workflow_lib.trainers.capabilities import refusal
from workflow_lib.trainers.native.data import SyntheticTokens, step_batches
from workflow_lib.trainers.native.generation import GenerationEngine, greedy
from workflow_lib.trainers.native.key_value_cache import KeyValueCache, MovingPlace, Place
from workflow_lib.trainers.native.mesh import single_process
from workflow_lib.trainers.native.model import Decoder, parts
from workflow_lib.trainers.native.weights import Weights

MESH = single_process(torch.device("cpu"))
INFERENCE = {
    "workload": "inference",
    "backend": "torch",
    "generated_tokens": 12,
    "zero_stage": 0,
    "global_batch_size": 8,
}


def inference(model, degrees=None, **options):
    return cell(model, degrees, **{**INFERENCE, **options})


NAMES = [
    "dp2 micro2",
    "tp2 micro4",
    "tp2 modern micro2",
    "tp2 gpt micro2",
    "pp2 gpt",
    "pp2 stages1,3 micro8",
    "pp2 micro2 tokens1",
    "ep2 micro2",
    "tp2 pp2 micro2",
    "pp2 ep2 micro2",
]
CELLS = {name: named(name, **INFERENCE) for name in NAMES}


@functools.cache
def alone(model, tokens=12, device="cpu"):
    """The tokens of each step and sequence, from one process."""
    one = inference(model, micro_batch_size=4, generated_tokens=tokens)
    return generated(one, single_process(torch.device(device)))


@pytest.mark.parametrize("model", [GPT, NEOX, LLAMA, MIXTRAL, MODERN], ids=lambda model: model.name)
def test_a_cache_changes_no_token(model):
    one = inference(model, micro_batch_size=4)
    weights = Weights(MESH, one.training.seed, torch.float32)
    decoder = Decoder(parts(model, weights, one.training), None)
    batches = step_batches(SyntheticTokens(model.vocabulary_size), one, MESH, 0)
    ids = torch.cat([tokens[:, :52] for tokens, _ in batches])
    with torch.no_grad():
        for _ in range(12):
            last = logits(decoder, ids)[:, -1, : model.vocabulary_size]
            ids = torch.cat([ids, last.argmax(-1, keepdim=True)], dim=1)

    assert alone(model)[0] == ids[:, 52:].tolist()


def test_the_comparison_would_notice_positions_or_prompts_that_are_not_seen():
    steps = alone(LLAMA)

    assert len({tuple(sequence) for step in steps for sequence in step}) == 16
    assert all(len(set(sequence)) > 3 for step in steps for sequence in step)


@pytest.mark.long
@pytest.mark.parametrize("name", CELLS)
def test_a_layout_generates_what_one_process_does(name, on_ranks):
    degrees, training = CELLS[name].degrees, CELLS[name].training
    # The ranks are on GPUs where there are enough.
    device = "cuda" if gpus.take(degrees.world_size) else "cpu"
    expected = alone(CELLS[name].model, training.generated_tokens, device)

    for rank, steps in enumerate(on_ranks("generated", name)):
        if rank // (degrees.tp * degrees.dp) < degrees.pp - 1:
            assert steps is None
            continue
        replica = rank // degrees.tp % degrees.dp
        count = 8 // degrees.dp
        mine = [step[replica * count : (replica + 1) * count] for step in expected]
        assert steps == mine


def test_padding_of_the_vocabulary_is_never_chosen():
    scores = torch.tensor([[[0.0, 3.0, 1.0, 9.0]]])

    assert greedy(scores, 3, None).tolist() == [[1]]


def test_a_cache_takes_a_prompt_and_then_single_tokens():
    cache, place = KeyValueCache(1, 8, 2, 4, torch.float32, torch.device("cpu")), Place()
    keys = torch.arange(24.0).view(1, 3, 2, 4)
    cache.extend(keys, keys + 100, place)
    place.length = 3
    seen_keys, seen_values = cache.extend(keys[:, :1], keys[:, :1], place)

    torch.testing.assert_close(seen_keys, torch.cat([keys, keys[:, :1]], dim=1))
    torch.testing.assert_close(seen_values[:, :3], keys + 100)
    assert place.rows(torch.arange(8), 1).tolist() == [3]
    with pytest.raises(ValueError, match="2 tokens after 3"):
        cache.extend(keys[:, :2], keys[:, :2], place)


def test_a_moving_place_writes_and_sees_what_a_growing_cache_does():
    cache = KeyValueCache(1, 5, 2, 4, torch.float32, torch.device("cpu"))
    growing, moving = Place(), MovingPlace(5, torch.float32, torch.device("cpu"))
    table, other = torch.arange(5), torch.arange(5, 10)
    keys = torch.arange(24.0).view(1, 3, 2, 4)
    cache.extend(keys, keys + 100, growing)
    moving.move(3)
    for token in (keys[:, 1:2], keys[:, 2:]):
        moving.look()
        all_keys, all_values = cache.extend(token, token + 100, moving)
        here = [moving.rows(each, 1).tolist() for each in (table, other, table)]
        moving.advance()

    assert here == [[4], [9], [4]]
    assert moving.bias.tolist() == [[[[0.0] * 5]]]
    torch.testing.assert_close(all_keys, torch.cat([keys, keys[:, 1:]], dim=1))
    torch.testing.assert_close(all_values, all_keys + 100)
    moving.move(1)
    moving.look()
    assert moving.bias.tolist() == [[[[0.0, 0.0, -torch.inf, -torch.inf, -torch.inf]]]]
    assert moving.rows(table, 1).tolist() == [1]


@pytest.mark.parametrize("model", [GPT, NEOX, LLAMA, MODERN], ids=lambda model: model.name)
def test_a_token_at_a_moving_place_is_that_of_a_growing_cache(model):
    one = inference(model, micro_batch_size=4, cuda_graphs=True)

    assert generated(one, MESH) == alone(model)


def test_a_single_token_needs_no_graph():
    one = inference(LLAMA, micro_batch_size=4, generated_tokens=1, cuda_graphs=True)

    assert generated(one, MESH) == alone(LLAMA, 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("model", [GPT, NEOX, LLAMA, MODERN], ids=lambda model: model.name)
def test_a_graph_repeats_on_a_gpu_what_its_operations_do(model):
    mesh = single_process(torch.device("cuda"))
    one = inference(model, micro_batch_size=4, cuda_graphs=True)
    assert generated(one, mesh) == alone(model, device="cuda")

    engine = GenerationEngine(replace(one, training=replace(one.training, precision="bf16")), mesh)
    prompts = [torch.randint(257, (4, 52), device="cuda") for _ in range(2)]
    engine.prefill(prompts)
    replayed = engine.decode()
    for graph in engine._graphs:
        graph._replay = graph._run
    engine.prefill(prompts)
    assert [tokens.tolist() for tokens in engine.decode()] == [x.tolist() for x in replayed]


def test_a_replica_holds_caches_of_all_its_sequences_and_no_gradients():
    engine = GenerationEngine(inference(LLAMA, micro_batch_size=2), MESH)
    prompts = [torch.zeros(2, 52, dtype=torch.int64)] * 4

    engine.prefill(prompts)
    first, *_ = engine.decode()

    assert first.shape == (2, 12)
    assert first.is_inference()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_tokens_are_those_that_transformers_generates(name):
    model, keys, as_ours = LIKE[name]
    model = replace(model, layers=2, vocabulary_multiple=1)
    peer = peer_of(model, **keys)
    peer.generation_config.eos_token_id = None
    engine = GenerationEngine(inference(model, micro_batch_size=8), MESH)
    theirs = as_ours(dict(peer.named_parameters()), model.layers)
    with torch.no_grad():
        for name, parameter in engine.parts.named_parameters():
            parameter.copy_(theirs[name])
    prompts = torch.randint(257, (8, 52), generator=torch.Generator().manual_seed(3))

    expected = peer.generate(
        prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=12, do_sample=False
    )
    engine.prefill([prompts])
    (chosen,) = engine.decode()

    assert chosen.tolist() == expected[:, 52:].tolist()
    assert len(set(chosen.flatten().tolist())) > 20


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"generated_tokens": 64}, "use 1 to 63"),
        ({"generated_tokens": 0}, "use 1 to 63"),
        ({"sequence_parallel": True}, "use sequence_parallel: false"),
        ({"routing": "balanced"}, "use routing: dropless"),
        ({"zero_stage": 3}, "use zero_stage: 0"),
        ({"backend": "deepspeed"}, "use backend: torch"),
        ({"cuda_graphs": True}, "use cuda_graphs: false, or tp 1"),
    ],
)
def test_what_cannot_generate_is_refused_with_a_remedy(changes, said):
    one = inference(MIXTRAL, Degrees(tp=2), **changes)

    assert refusal(one.degrees, one.training, one.model).endswith(said)


@pytest.mark.parametrize(
    ("model", "degrees", "said"),
    [
        (LLAMA, Degrees(pp=2), "or pp 1"),
        (MIXTRAL, Degrees(), "or a dense model"),
        (LLAMA, Degrees(dp=2), None),
    ],
)
def test_graphs_are_for_what_one_gpu_generates_with_fixed_shapes(model, degrees, said):
    one = inference(model, degrees, cuda_graphs=True)
    reason = refusal(one.degrees, one.training, one.model)

    assert reason is said is None or reason.endswith(said)


def test_all_but_one_token_can_be_generated():
    one = inference(MIXTRAL, Degrees(tp=2), generated_tokens=63)

    assert refusal(one.degrees, one.training, one.model) is None


@pytest.mark.slow
def test_a_run_writes_when_its_prefills_ended_and_no_loss(tmp_path):
    ended = run(tmp_path, inference(LLAMA, micro_batch_size=4))

    assert ended.returncode == 0, ended.stderr
    assert re.fullmatch(
        r"step 2/5 \(measured\) prefill \d\.\d{3} s of \d\.\d{3} s \d+ tokens/s",
        ended.stdout.splitlines()[1],
    )
    steps = rows(RunPaths(tmp_path), 0)
    assert [row["phase"] for row in steps] == ["warmup"] + ["measured"] * 4
    for row in steps:
        times = [row[f"{when}_unix_s"] for when in ("started", "prefill_ended", "ended")]
        assert sorted(times) == times
        assert len(set(times)) == 3
        assert (row["loss"], row["tokens"]) == ("", str(8 * 64))
