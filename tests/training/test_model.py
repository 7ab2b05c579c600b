from dataclasses import replace

import pytest
import torch

from tests.training.cells import GPT, LLAMA, MODELS, MODERN, TRAINING
from workflow_lib.formulas import parameters
from workflow_lib.records.degrees import Degrees
from workflow_lib.trainers.native.layers import OutputHead, RMSNorm, TokenEmbedding
from workflow_lib.trainers.native.mesh import single_process
from workflow_lib.trainers.native.model import (
    Decoder,
    TransformerLayer,
    held_parameters,
    parts,
    split_into_stages,
    stage_bounds,
)
from workflow_lib.trainers.native.rotary import rotary_table, rotate
from workflow_lib.trainers.native.weights import Weights

MESH = single_process(torch.device("cpu"))


def build(model, seed=7, **options):
    weights = Weights(MESH, seed, torch.float32)
    return Decoder(parts(model, weights, replace(TRAINING, **options)), None)


def logits(decoder, ids):
    for part in decoder.parts:
        ids = part(ids)
    return ids


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_model_has_the_parameters_that_the_formulas_count(model):
    expected = parameters(model, model.padded_vocabulary_size).total

    assert held_parameters(build(model)) == expected


def test_the_seed_and_the_name_alone_decide_the_initial_weights():
    one, two, other = build(LLAMA), build(replace(LLAMA, layers=2)), build(LLAMA, seed=8)
    first = "parts.1.attention.query_key_value.weight"

    assert torch.equal(one.state_dict()[first], two.state_dict()[first])
    assert not torch.equal(one.state_dict()[first], other.state_dict()[first])


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_no_position_sees_a_later_one(model):
    decoder = build(model)
    tokens = torch.arange(64).view(1, 64)
    changed = tokens.clone()
    changed[0, 40:] = 200

    before, after = logits(decoder, tokens)[0], logits(decoder, changed)[0]

    torch.testing.assert_close(before[:40], after[:40])
    assert not torch.allclose(before[40:], after[40:])


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_recomputation_changes_neither_loss_nor_gradients(model):
    tokens = torch.randint(257, (2, 64), generator=torch.Generator().manual_seed(0))
    results = []
    for recomputation in ("none", "selective", "full"):
        decoder = build(model, recomputation=recomputation)
        loss = decoder(tokens, tokens.roll(-1, dims=1))
        loss.backward()
        results.append((loss, [p.grad for p in decoder.parameters()]))

    for loss, gradients in results[1:]:
        torch.testing.assert_close(loss, results[0][0])
        for kept, again in zip(results[0][1], gradients, strict=True):
            torch.testing.assert_close(kept, again)


@pytest.mark.parametrize("model", [GPT, LLAMA, MODERN], ids=lambda model: model.name)
@pytest.mark.parametrize("recomputation", ["none", "selective", "full"])
def test_a_layer_compiles_to_one_graph(model, recomputation):
    torch._dynamo.reset()
    layer = build(model, recomputation=recomputation).parts[2]
    x = torch.randn(2, 64, 64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=False)
    results = []
    for each in (layer, compiled):
        y = each(x)
        results.append((y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])))

    for eager, graph in zip(*results, strict=True):
        torch.testing.assert_close(graph, eager)


def test_rotary_positions_are_turned_in_fp32_and_their_gradients_back():
    x = torch.randn(1, 10, 2, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    table = [each.double() for each in rotary_table(((0, 10),), 8, 500_000.0, torch.device("cpu"))]
    far = [each[-1:] for each in rotary_table(((0, 8192),), 8, 500_000.0, torch.device("cpu"))]

    assert torch.autograd.gradcheck(lambda x: rotate(x, *table), x.requires_grad_())
    # Position 8191 is no bf16 number: turned by 8192 the first pair would be 55 degrees off.
    turned = rotate(torch.ones(1, 1, 1, 8, dtype=torch.bfloat16), *far)
    angle = torch.tensor(8191.0, dtype=torch.float64)
    assert turned.dtype == torch.bfloat16
    assert turned[0, 0, 0, 0].item() == pytest.approx((angle.cos() - angle.sin()).item(), rel=1e-2)


WEIGHTS = Weights(MESH, 7, torch.float32)


def test_the_ends_of_the_model_go_to_the_first_and_the_last_stage():
    # embedding, four layers, norm, head
    first, last = split_into_stages(parts(LLAMA, WEIGHTS, TRAINING), (1, 3))

    assert [part.kind for part in first] == [TokenEmbedding, TransformerLayer]
    assert [part.kind for part in last] == [*[TransformerLayer] * 3, RMSNorm, OutputHead]


@pytest.mark.parametrize(
    ("layers", "bounds"),
    # embedding, positions, four layers, norm, head: the layers are parts 2 to 5
    [((2, 1, 1), [0, 4, 5, 8]), (Degrees().layers_of_stages(4), [0, 8])],
)
def test_positions_stay_with_the_embedding_that_they_are_added_to(layers, bounds):
    assert stage_bounds(parts(GPT, WEIGHTS, TRAINING), layers) == bounds


def test_stages_that_leave_layers_over_are_refused():
    with pytest.raises(ValueError, match="3 layers"):
        stage_bounds(parts(LLAMA, WEIGHTS, TRAINING), (1, 2))
