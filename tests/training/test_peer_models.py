"""With the same weights, the decoders compute what Hugging Face transformers' models compute."""

from dataclasses import replace

import pytest
import torch

from tests.training.cells import GPT, LLAMA, MIXTRAL, NEOX, TRAINING
from tests.training.test_model import logits
from workflow_lib.trainers.native.cross_entropy import cross_entropy
from workflow_lib.trainers.native.mesh import single_process
from workflow_lib.trainers.native.model import Decoder, parts
from workflow_lib.trainers.native.routing import balancing_loss
from workflow_lib.trainers.native.weights import Weights

TOKENS = torch.randint(257, (2, 65), generator=torch.Generator().manual_seed(3))
INPUTS, TARGETS = TOKENS[:, :-1], TOKENS[:, 1:]


def peer_of(model, kind, **options):
    """A model as transformers has that kind, with weights that are far from zero, biases and norms
    included.
    """
    import transformers

    # Keys that a kind does not have change nothing of it.
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=257,
        hidden_size=model.hidden_size,
        intermediate_size=model.ffn_hidden_size,
        n_inner=model.ffn_hidden_size,
        moe_intermediate_size=model.ffn_hidden_size,
        num_hidden_layers=model.layers,
        num_attention_heads=model.attention_heads,
        num_key_value_heads=model.kv_heads,
        num_experts_per_tok=model.experts_per_token,
        max_position_embeddings=model.sequence_length,
        rope_parameters=rotary_positions(model),
        rms_norm_eps=model.norm_epsilon,
        layer_norm_eps=model.norm_epsilon,
        head_dim=model.head_size,
        tie_word_embeddings=model.tied_embeddings or model.family == "gpt",
        pad_token_id=None,
        bos_token_id=0,
        eos_token_id=0,
        **options,
    )
    peer = transformers.AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(0)
    for parameter in peer.parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        parameter.data.copy_(drawn * 0.1 + (1.0 if parameter.dim() == 1 else 0.0))
    return peer.eval()  # it would drop out


def rotary_positions(model):
    base = {"rope_theta": model.rotary_base, "partial_rotary_factor": model.rotary_share}
    if not model.rotary_scaling:
        return base | {"rope_type": "default"}
    if len(model.rotary_scaling) == 1:
        return base | {"rope_type": "linear", "factor": model.rotary_scaling[0]}
    factor, low, high, length = model.rotary_scaling
    return base | {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": int(length),
    }


def renamed(theirs, layers, prefix, ends, names):
    """A peer's tensors under the names of our parameters, where both have the same parts: ``ends``
    are what is before the layers, and behind them; ``names`` are of what is in one.
    """
    before, behind = ends
    places = {str(place): name for place, name in enumerate(before)}
    first = len(before)
    for layer in range(layers):
        places |= {f"{layer + first}.{our}": f"{prefix}.{layer}.{name}" for our, name in names}
    places |= {str(first + layers + place): name for place, name in enumerate(behind)}
    return {
        f"{our}.{kind}": theirs[f"{name}.{kind}"]
        for our, name in places.items()
        for kind in ("weight", "bias")
        if f"{name}.{kind}" in theirs
    }


OUR_NAMES = (
    *("attention_norm", "attention.query_key_value", "attention.output"),
    *("feed_forward_norm", "feed_forward.up", "feed_forward.down"),
)


def gpt_as_ours(theirs, layers):
    """Its linear maps are transposed."""
    names = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
    ends = ["transformer.wte", "transformer.wpe"], ["transformer.ln_f"]
    pairs = list(zip(OUR_NAMES, names, strict=True))
    ours = renamed(theirs, layers, "transformer.h", ends, pairs)
    return {
        name: each if name in ("0.weight", "1.weight") else each.t() for name, each in ours.items()
    }


def llama_as_ours(theirs, layers):
    """The tensors of Llama or Mixtral under the names of our parameters."""
    ours = {"0.weight": theirs["model.embed_tokens.weight"]}
    for layer in range(layers):

        def of(*names, prefix=f"model.layers.{layer}."):
            return torch.cat([theirs[prefix + name] for name in names])

        at = f"{layer + 1}."
        ours[at + "attention_norm.weight"] = of("input_layernorm.weight")
        ours[at + "attention.query_key_value.weight"] = of(
            *(f"self_attn.{each}_proj.weight" for each in "qkv")
        )
        if f"model.layers.{layer}.self_attn.q_proj.bias" in theirs:
            ours[at + "attention.query_key_value.bias"] = of(
                *(f"self_attn.{each}_proj.bias" for each in "qkv")
            )
        if f"model.layers.{layer}.self_attn.q_norm.weight" in theirs:
            ours[at + "attention.norm.query"] = of("self_attn.q_norm.weight")
            ours[at + "attention.norm.key"] = of("self_attn.k_norm.weight")
        ours[at + "attention.output.weight"] = of("self_attn.o_proj.weight")
        ours[at + "feed_forward_norm.weight"] = of("post_attention_layernorm.weight")
        if f"model.layers.{layer}.mlp.gate.weight" in theirs:
            ours[at + "feed_forward.router"] = of("mlp.gate.weight")
            ours[at + "feed_forward.local.gate_up"] = of("mlp.experts.gate_up_proj")
            ours[at + "feed_forward.local.down"] = of("mlp.experts.down_proj")
        else:
            ours[at + "feed_forward.gate_up.weight"] = of(
                "mlp.gate_proj.weight", "mlp.up_proj.weight"
            )
            ours[at + "feed_forward.down.weight"] = of("mlp.down_proj.weight")
    ours[f"{layers + 1}.weight"] = theirs["model.norm.weight"]
    if "lm_head.weight" in theirs:  # it is no parameter of its own where it is tied
        ours[f"{layers + 2}.weight"] = theirs["lm_head.weight"]
    return ours


def neox_as_ours(theirs, layers):
    """Its queries, keys and values lie head by head."""
    names = (
        *("input_layernorm", "attention.query_key_value", "attention.dense"),
        *("post_attention_layernorm", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    )
    ends = ["gpt_neox.embed_in"], ["gpt_neox.final_layer_norm", "lm_head"]
    pairs = list(zip(OUR_NAMES, names, strict=True))
    ours = renamed(theirs, layers, "gpt_neox.layers", ends, pairs)
    for name, each in ours.items():
        if "query_key_value" in name:
            ours[name] = each.unflatten(0, (4, 3, -1)).transpose(0, 1).flatten(0, 2)
    return ours


def phi3_as_ours(theirs, layers):
    """As Llama's; but queries, keys and values lie in one matrix, and gate and up in another."""
    kv = 16 * LLAMA.kv_heads
    apart = dict(theirs)
    for layer in range(layers):
        at = f"model.layers.{layer}."
        together = apart.pop(f"{at}self_attn.qkv_proj.weight")
        parts_of = together.split([together.shape[0] - 2 * kv, kv, kv])
        for each, part in zip("qkv", parts_of, strict=True):
            apart[f"{at}self_attn.{each}_proj.weight"] = part
        gate, up = apart.pop(f"{at}mlp.gate_up_proj.weight").chunk(2)
        apart |= {f"{at}mlp.gate_proj.weight": gate, f"{at}mlp.up_proj.weight": up}
    return llama_as_ours(apart, layers)


def gemma_as_ours(theirs, layers):
    """As Llama's; but Gemma's norms multiply by one more than their weight."""
    ours = llama_as_ours(theirs, layers)
    return {name: each + 1.0 if each.dim() == 1 else each for name, each in ours.items()}


#: names of models like those that people have: (ours, transformers' kind with its own keys, whose
#: tensors are named how)
LIKE = {
    "gpt": (GPT, {"kind": "GPT2"}, gpt_as_ours),
    "llama": (LLAMA, {"kind": "Llama"}, llama_as_ours),
    "mixtral": (MIXTRAL, {"kind": "Mixtral", "num_local_experts": 4}, llama_as_ours),
    "neox": (NEOX, {"kind": "GPTNeoX", "hidden_act": "gelu"}, neox_as_ours),
    "llama-3.2": (
        replace(LLAMA, tied_embeddings=True, rotary_scaling=(32.0, 1.0, 4.0, 32.0)),
        {"kind": "Llama"},
        llama_as_ours,
    ),
    "llama-linear": (replace(LLAMA, rotary_scaling=(4.0,)), {"kind": "Llama"}, llama_as_ours),
    "qwen2": (
        replace(LLAMA, tied_embeddings=True, qkv_bias=True, norm_epsilon=1e-6, rotary_base=1e6),
        {"kind": "Qwen2"},
        llama_as_ours,
    ),
    "qwen3": (
        replace(LLAMA, head_dimension=24, qk_norm=True, norm_epsilon=1e-6, rotary_base=1e6),
        {"kind": "Qwen3"},
        llama_as_ours,
    ),
    "qwen3-moe": (
        replace(MIXTRAL, head_dimension=24, qk_norm=True, norm_epsilon=1e-6),
        {"kind": "Qwen3Moe", "num_experts": 4, "norm_topk_prob": True},
        llama_as_ours,
    ),
    # A window as long as the sequence leaves nothing out.
    "mistral": (
        replace(LLAMA, rotary_base=1e4),
        {"kind": "Mistral", "sliding_window": 64},
        llama_as_ours,
    ),
    "phi3": (replace(LLAMA, rotary_base=2.5e5), {"kind": "Phi3"}, phi3_as_ours),
    "phi3-partial": (replace(LLAMA, rotary_share=0.5), {"kind": "Phi3"}, phi3_as_ours),
    "gemma": (
        replace(
            LLAMA,
            kv_heads=1,
            head_dimension=32,
            tied_embeddings=True,
            activation="gelu_tanh",
            embedding_scale=8.0,
            norm_epsilon=1e-6,
            rotary_base=1e4,
        ),
        {"kind": "Gemma", "hidden_act": "gelu_pytorch_tanh"},
        gemma_as_ours,
    ),
}


def with_weights_of(peer, model, as_ours, **options):
    weights = Weights(single_process(torch.device("cpu")), 0, torch.float32)
    training = replace(TRAINING, global_batch_size=1, **options)
    decoder = Decoder(parts(model, weights, training), None)
    theirs = as_ours(dict(peer.named_parameters()), model.layers)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            parameter.copy_(theirs[name.removeprefix("parts.")])
    return decoder


def assert_same_gradients(decoder, peer, model, as_ours):
    theirs = {name: parameter.grad for name, parameter in peer.named_parameters()}
    # Gradients have no ones added.
    expected = (llama_as_ours if as_ours is gemma_as_ours else as_ours)(theirs, model.layers)
    assert len(expected) == len(list(decoder.parameters()))
    for name, parameter in decoder.named_parameters():
        gradient = expected[name.removeprefix("parts.")]
        # in parts of the largest number of the same weight
        error = (parameter.grad - gradient).abs().max() / gradient.abs().max()
        assert error < 1e-5, name


@pytest.mark.slow
@pytest.mark.parametrize("name", LIKE)
def test_logits_and_gradients_are_those_of_transformers(name):
    model, keys, as_ours = LIKE[name]
    model = replace(model, layers=2, vocabulary_multiple=1)
    peer = peer_of(model, **keys)
    decoder = with_weights_of(peer, model, as_ours)

    expected = peer(INPUTS).logits
    ours = logits(decoder, INPUTS)
    torch.nn.functional.cross_entropy(expected.flatten(0, 1), TARGETS.flatten()).backward()
    cross_entropy(ours.flatten(0, 1), TARGETS.flatten(), None).backward()

    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    assert_same_gradients(decoder, peer, model, as_ours)


@pytest.mark.slow
def test_the_balancing_loss_and_its_gradient_are_those_of_transformers():
    model = replace(MIXTRAL, layers=1, vocabulary_multiple=1)
    losses = {"output_router_logits": True, "router_aux_loss_coef": 0.3}
    peer = peer_of(model, "Mixtral", num_local_experts=4, **losses)
    decoder = with_weights_of(peer, model, llama_as_ours, balancing_loss=0.3)

    theirs = peer(INPUTS)
    loss = torch.nn.functional.cross_entropy(theirs.logits.flatten(0, 1), TARGETS.flatten())
    (loss + 0.3 * theirs.aux_loss).backward()
    ours = decoder(INPUTS, TARGETS)
    ours.backward()

    # Ours takes part in the training, but not in the loss that is reported.
    torch.testing.assert_close(ours, loss)
    router_logits = theirs.router_logits[0]
    chosen = router_logits.topk(2).indices
    torch.testing.assert_close(balancing_loss(router_logits, chosen), theirs.aux_loss)
    assert_same_gradients(decoder, peer, model, llama_as_ours)
