"""Generation: with a cache as without, in every layout as in one process, and as a peer does it."""

import functools
import re
from dataclasses import replace

import pytest
import torch

from tests.programs import well
from tests.training import gpus
from tests.training.cells import named
from tests.training.generated import generated
from tests.training.test_model import logits
from tests.training.test_peer_models import LIKE, peer_of
from tests.training.test_program import rows, run
from workflow_lib.records.paths import RunPaths
from workflow_lib.trainers.native.data import SyntheticTokens, step_batches
from workflow_lib.trainers.native.generation import GenerationEngine
from workflow_lib.trainers.native.key_value_cache import KeyValueCache, Place
from workflow_lib.trainers.native.mesh import single_process
from workflow_lib.trainers.native.model import Decoder, parts
from workflow_lib.trainers.native.weights import Weights

MESH = single_process(torch.device("cpu"))
NAMES = [
    "dp2 micro2",
    "tp2 micro4",
    "tp2 modern micro2",
    "tp2 gpt micro2",
    "tp2 graphs micro2",
    "pp2 gpt",
    "pp2 stages1,3 micro8",
    "pp2 micro2 tokens1",
    "ep2 mixtral micro2",
    "tp2 pp2 micro2",
    "pp2 ep2 mixtral micro2",
]
CELLS = {name: named(f"torch inference batch8 {name}") for name in NAMES}
MODELS = ["gpt", "neox", "llama", "modern", "mixtral"]


def inference(words):
    return named(f"torch inference batch8 micro4 {words}")


@functools.cache
def alone(words, device="cpu"):
    """The tokens of each step and sequence, from one process."""
    return generated(inference(words), single_process(torch.device(device)))


@pytest.mark.parametrize("model", MODELS)
def test_a_cache_changes_no_token_and_padding_is_never_chosen(model):
    one = inference(model)
    weights = Weights(MESH, one.training.seed, torch.float32)
    decoder = Decoder(parts(one.model, weights, one.training), None)
    batches = step_batches(SyntheticTokens(257), one, MESH, 0)
    ids = torch.cat([tokens[:, :52] for tokens, _ in batches])
    with torch.no_grad():
        for _ in range(12):
            last = logits(decoder, ids)[:, -1, :257]
            ids = torch.cat([ids, last.argmax(-1, keepdim=True)], dim=1)

    assert alone(model)[0] == ids[:, 52:].tolist()


def test_the_comparison_would_notice_positions_or_prompts_that_are_not_seen():
    steps = alone("llama")

    assert len({tuple(sequence) for step in steps for sequence in step}) == 16
    assert all(len(set(sequence)) > 3 for step in steps for sequence in step)


@pytest.mark.long
@pytest.mark.parametrize("name", CELLS)
def test_a_layout_generates_what_one_process_does(name, on_ranks):
    degrees = CELLS[name].degrees
    # The ranks are on GPUs where there are enough.
    device = "cuda" if gpus.take(degrees.world_size) else "cpu"
    what = {"gpt", "modern", "mixtral", "tokens1"}.intersection(name.split())
    expected = alone(" ".join(what), device)

    for rank, steps in enumerate(on_ranks("generated", name)):
        if rank // (degrees.tp * degrees.dp) < degrees.pp - 1:
            assert steps is None
            continue
        replica = rank // degrees.tp % degrees.dp
        count = 8 // degrees.dp
        mine = [step[replica * count : (replica + 1) * count] for step in expected]
        assert steps == mine


def test_a_cache_takes_one_token_at_a_time_after_a_prompt():
    cache, place = KeyValueCache(1, 8, 2, 4, torch.float32, torch.device("cpu")), Place()
    keys = torch.zeros(1, 3, 2, 4)
    cache.extend(keys, keys, place)
    place.length = 3

    with pytest.raises(ValueError, match="2 tokens after"):
        cache.extend(keys[:, :2], keys[:, :2], place)


@pytest.mark.parametrize("words", ["gpt", "neox", "llama", "modern", "llama tokens1"])
def test_a_token_at_a_moving_place_is_that_of_a_growing_cache(words):
    assert generated(inference(f"{words} graphs"), MESH) == alone(words)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("model", ["gpt", "neox", "llama", "modern"])
def test_a_graph_repeats_on_a_gpu_what_its_operations_do(model):
    mesh = single_process(torch.device("cuda"))
    assert generated(inference(f"{model} graphs"), mesh) == alone(model, "cuda")

    engine = GenerationEngine(inference(f"{model} graphs bf16"), mesh)
    prompts = [torch.randint(257, (4, 52), device="cuda") for _ in range(2)]
    engine.prefill(prompts)
    replayed = engine.decode()
    for graph in engine._graphs:
        graph._replay = graph._run
    engine.prefill(prompts)
    assert [tokens.tolist() for tokens in engine.decode()] == [x.tolist() for x in replayed]


def test_a_replica_holds_caches_of_all_its_sequences_and_no_gradients():
    engine = GenerationEngine(inference("micro2"), MESH)
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
    engine = GenerationEngine(replace(inference("micro8"), model=model), MESH)
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


@pytest.mark.slow
def test_a_run_writes_when_its_prefills_ended_and_no_loss(tmp_path):
    ended = well(run(tmp_path, inference("llama")))
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
