"""Published configurations become models of the same size, and no key is lost on the way."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from tests.models.published import (
    GEMMA,
    GPT2,
    LLAMA,
    MISTRAL,
    MIXTRAL,
    NEOX,
    PUBLISHED,
    QWEN3,
    QWEN3_MOE,
)
from workflow_lib import formulas
from workflow_lib.models.__main__ import main
from workflow_lib.models.config_json import ImportRefusedError
from workflow_lib.models.model_file import import_model
from workflow_lib.study import load_study

LLAMA_1B = PUBLISHED["Llama-3.2-1B"].config
QWEN_HALF = PUBLISHED["Qwen2.5-0.5B"].config
QWEN_8B = PUBLISHED["Qwen3-8B"].config
GEMMA_2B = PUBLISHED["gemma-2b"].config
PHI_4 = PUBLISHED["phi-4"].config


@pytest.fixture
def written(tmp_path):
    """Write a config.json into a directory called after a model."""

    def write(config, name="model"):
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)
        (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return directory

    return write


def refusal(path, **options):
    with pytest.raises(ImportRefusedError) as caught:
        import_model(path, **options)
    return str(caught.value)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_has_as_many_parameters_as_are_published(name, written):
    imported = import_model(written(PUBLISHED[name].config, name))
    total = formulas.parameters(imported.spec.record(name)).total
    assert total == pytest.approx(PUBLISHED[name].parameters, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_has_as_many_parameters_as_that_of_transformers(name, written):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    path = written(PUBLISHED[name].config, name)
    with torch.device("meta"):
        peer = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.from_pretrained(path)
        )
        if peer.config.tie_word_embeddings:
            peer.tie_weights()
    total = formulas.parameters(import_model(path).spec.record(name)).total
    assert total == sum(each.numel() for each in set(peer.parameters()))


def test_llama_3_2_1b_is_written_as_a_file_that_the_study_reads(written, tmp_path, capsys):
    config = tmp_path / "config"
    config.mkdir()
    path = written(LLAMA_1B, "Llama-3.2-1B")
    assert main(["import", str(path), "--config", str(config)]) == 0
    assert re.search("1B.yaml: 1.236 B .* 8192 tokens", capsys.readouterr().out)
    (spec,) = load_study(config).models.values()
    model = spec.record("Llama-3.2-1B")
    assert model.tied_embeddings
    assert model.rotary_base == 500_000.0
    assert model.rotary_scaling == (32.0, 1.0, 4.0, 8192.0)
    assert model.head_dimension is None  # 64 is 2048 / 32
    text = (config / "models" / "Llama-3.2-1B.yaml").read_text(encoding="utf-8")
    schema, note = text.splitlines()[:2]
    assert schema.endswith("$schema=../schemas/model.json")
    assert re.match("# max_position_embeddings is 131072: .* 8192 ", note)
    keys = yaml.safe_load(text)
    assert keys.pop("description").startswith("Llama-3.2-1B, ")
    scaling = {"kind": "llama3", "factor": 32.0, "original_length": 8192}
    scaling |= {"low_frequency_factor": 1.0, "high_frequency_factor": 4.0}
    sizes = {"layers": 16, "hidden_size": 2048, "ffn_hidden_size": 8192, "vocabulary_size": 128256}
    heads = {"attention_heads": 32, "kv_heads": 8, "sequence_length": 8192}
    one_of = {"family": "llama", "rotary_scaling": scaling, "tied_embeddings": True}
    assert keys == sizes | heads | one_of


def test_what_families_differ_in_is_taken_over(written):
    qwen2 = import_model(written(QWEN_HALF)).spec.record("qwen2")
    assert (qwen2.qkv_bias, qwen2.qk_norm, qwen2.tied_embeddings) == (True, False, True)
    assert (qwen2.norm_epsilon, qwen2.rotary_base) == (1e-6, 1e6)
    qwen3 = import_model(written(QWEN_8B)).spec.record("qwen3")
    assert (qwen3.qkv_bias, qwen3.qk_norm, qwen3.tied_embeddings) == (False, True, False)
    gemma = import_model(written(PUBLISHED["gemma-7b"].config)).spec.record("gemma")
    # 3072 columns, and 16 heads of 256.
    assert (gemma.head_size, gemma.query_size) == (256, 4096)
    assert (gemma.activation, gemma.tied_embeddings) == ("gelu_tanh", True)
    assert gemma.embedding_scale == pytest.approx(3072**0.5)
    mixtral = import_model(written(MIXTRAL)).spec.record("mixtral")
    assert (mixtral.family, mixtral.experts, mixtral.experts_per_token) == ("mixtral", 8, 2)
    assert mixtral.rotary_base == 1e6
    neox = import_model(written(NEOX)).spec.record("neox")
    # A quarter of 4096 / 32 columns.
    assert (neox.family, neox.rotary_size, neox.rotary_base) == ("neox", 32, 10_000)
    gpt = import_model(written(GPT2)).spec.record("gpt")
    assert (gpt.family, gpt.ffn_hidden_size, gpt.sequence_length) == ("gpt", 3072, 1024)


def test_llama_without_a_base_has_that_of_its_time(written):
    assert import_model(written(PUBLISHED["llama-30b"].config)).spec.rotary_base == 10_000.0


def test_the_keys_of_transformers_5_mean_the_same(written):
    newer = dict(LLAMA_1B)
    positions = newer.pop("rope_scaling") | {"rope_theta": newer.pop("rope_theta")}
    old, new = (
        import_model(written(c)) for c in (LLAMA_1B, newer | {"rope_parameters": positions})
    )
    assert old.spec == new.spec
    linear = {"type": "linear", "factor": 4.0}
    spec = import_model(written(LLAMA_1B | {"rope_scaling": linear})).spec
    assert spec.record("linear").rotary_scaling == (4.0,)


def test_a_window_changes_nothing_up_to_its_length(written):
    path = written(MISTRAL)
    imported = import_model(path)
    assert (imported.spec.sequence_length, imported.spec.sliding_window) == (4096, 4096)
    assert re.search("sliding_window: .* 4096 tokens", refusal(path, sequence_length=8192))
    unsaid = {key: value for key, value in MISTRAL.items() if key != "sliding_window"}
    assert import_model(written(unsaid)).spec.sliding_window == 4096
    later = import_model(written(MISTRAL | {"sliding_window": None}), sequence_length=32768)
    assert (later.spec.sequence_length, later.spec.sliding_window) == (32768, None)
    used = QWEN_HALF | {"use_sliding_window": True, "sliding_window": 2048}
    assert import_model(written(used)).spec.sequence_length == 2048
    mixed = QWEN_8B | {
        "layer_types": ["full_attention", "sliding_attention"],
        "sliding_window": 1024,
    }
    assert import_model(written(mixed)).spec.sequence_length == 1024


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA_1B | {"attention_bias": True}, "attention_bias: is True, and a bias of attention's"),
        (QWEN_HALF | {"use_mrope": True}, "use_mrope: is True, and positions in images"),
        (LLAMA_1B | {"mlp_bias": True}, "mlp_bias: is True"),
        (LLAMA_1B | {"hidden_act": "relu2"}, "hidden_act: relu2: the engine has silu"),
        (
            LLAMA_1B | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            "rope_scaling: yarn: the engine stretches positions as linear and llama3 do",
        ),
        (
            LLAMA_1B | {"rope_scaling": {"rope_type": "llama3", "factor": 4.0}},
            "rope_scaling: llama3 positions need high_freq_factor",
        ),
        (LLAMA_1B | {"residual_multiplier": 0.2}, "residual_multiplier: is 0.2, and this import"),
        (LLAMA_1B | {"sliding_window": 4096}, "sliding_window: is 4096, and this import"),
        (LLAMA_1B | {"quantization_config": {}}, "quantization_config: the weights are quantised"),
        (
            LLAMA_1B | {"architectures": ["LlamaForSequenceClassification"]},
            "does not predict the next token",
        ),
        (LLAMA_1B | {"vocab_size": "many"}, "vocab_size: is 'many', expected a whole number"),
        ({**LLAMA, "hidden_size": 64}, "num_attention_heads: is missing"),
        (QWEN3 | {"model_type": "qwen3_next"}, "qwen3_next: most of its layers have linear"),
        (GEMMA_2B | {"model_type": "gemma2"}, "gemma2: it caps logits (attn_logit_softcapping"),
        (GEMMA | {"model_type": "new"}, "new: this import does not know it"),
        (LLAMA_1B | {"rope_interleaved": True}, "rope_interleaved: is True"),
        (LLAMA_1B | {"add_cross_attention": True}, "add_cross_attention: is True"),
        (PHI_4 | {"rope_scaling": {"type": "longrope"}}, "rope_scaling: longrope: the engine"),
        (LLAMA_1B | {"model_type": "olmo2"}, "olmo2: it has norms behind its parts"),
        (LLAMA_1B | {"model_type": "smollm3"}, "smollm3: some of its layers have no positions"),
        (NEOX | {"use_parallel_residual": False}, "use_parallel_residual: is False, and neox"),
        (NEOX | {"hidden_act": "quick_gelu"}, "hidden_act: quick_gelu: the engine has"),
        (QWEN_8B | {"layer_types": ["linear_attention"]}, "layer_types: linear_attention"),
        (QWEN3_MOE | {"norm_topk_prob": False}, "norm_topk_prob: is false"),
        (QWEN3_MOE | {"mlp_only_layers": [0]}, "mlp_only_layers: is [0], and all layers"),
        (MIXTRAL | {"router_jitter_noise": 0.1}, "router_jitter_noise: is 0.1"),
        (GPT2 | {"tie_word_embeddings": False}, "tie_word_embeddings: is False"),
        (GPT2 | {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ],
)
def test_what_the_engine_cannot_follow_is_refused_by_its_key(config, expected, written):
    assert expected in refusal(written(config))


def test_a_key_that_nobody_knows_is_left_out_only_when_asked(written):
    path = written(LLAMA_1B | {"made_up": 3, "other": 4})
    assert "--ignore made_up (so also other)" in refusal(path)
    imported = import_model(path, ignored=["made_up", "other"])
    assert any(note.startswith("made_up is 3: ") for note in imported.notes)
    assert "# made_up is 3: " in imported.text


def test_keys_of_every_configuration_of_transformers_are_known(written):
    # As transformers 4 writes them all where a file is saved with its defaults.
    saved = {"_num_labels": 2, "num_labels": 2, "is_decoder": True, "typical_p": 1.0}
    saved |= {"num_beam_groups": 1, "bad_words_ids": [[1]], "tie_encoder_decoder": False}
    plain, imported = import_model(written(LLAMA_1B)), import_model(written(LLAMA_1B | saved))
    assert imported.spec == plain.spec
    assert imported.notes == plain.notes


def test_code_beside_a_file_is_told(written):
    notes = import_model(written(PUBLISHED["Phi-3-mini-4k-instruct"].config)).notes
    assert any(note.startswith("auto_map ") for note in notes)


def test_what_training_leaves_out_is_listed(written):
    notes = " ".join(import_model(written(GPT2 | {"initializer_range": 0.01})).notes)
    assert "attn_pdrop is 0.1: " in notes
    assert "initializer_range is 0.01" in notes


def test_a_model_with_learned_positions_keeps_all_of_them(written):
    assert "1024 positions" in refusal(written(GPT2), sequence_length=512)


def test_the_name_is_that_of_the_directory_or_of_the_model_in_the_cache(written, tmp_path):
    assert import_model(written(GPT2, "gpt2")).name == "gpt2"
    cached = tmp_path / "models--openai-community--gpt2" / "snapshots" / "607a30d783df"
    cached.mkdir(parents=True)
    (cached / "config.json").write_text(json.dumps(GPT2), encoding="utf-8")
    assert import_model(cached / "config.json").name == "gpt2"
    assert "use --name" in refusal(cached, name="a b")


def test_outside_of_a_checkout_nothing_is_written(written, tmp_path, monkeypatch, capsys):
    path = written(GPT2, "mine")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert main(["import", str(path)]) == 1
    assert "no config/ here" in capsys.readouterr().err
    assert not list(elsewhere.iterdir())


def test_an_existing_file_is_kept_unless_asked(written, tmp_path, capsys):
    config = tmp_path / "config"
    config.mkdir()
    arguments = ["import", str(written(GPT2, "mine")), "--config", str(config)]
    assert main(arguments) == main(arguments) == 0
    path = config / "models" / "mine.yaml"
    path.write_text("layers: 3\n", encoding="utf-8")
    assert main(arguments) == 1
    assert "exists with other" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == "layers: 3\n"
    assert main([*arguments, "--overwrite"]) == 0
    assert path.read_text(encoding="utf-8") != "layers: 3\n"


@pytest.mark.parametrize("content", ["", "[]", '{"hidden_size": NaN}', "\x00"])
def test_what_is_no_configuration_is_one_message(content, tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(content, encoding="utf-8")
    assert main(["import", str(path), "--config", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert re.match(r"import: \S+config\.json: ", error)
    assert "Traceback" not in error


def test_a_directory_without_a_configuration_is_named(tmp_path, capsys):
    assert main(["import", str(tmp_path), "--config", str(tmp_path)]) == 1
    assert f"{tmp_path}/config.json: No " in capsys.readouterr().err
