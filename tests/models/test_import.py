"""Published configurations become models of the same size, and no key is lost on the way."""

import json
import re

import pytest
import yaml

from tests.models.published import (
    GEMMA,
    GPT2,
    MISTRAL,
    MIXTRAL,
    NEOX,
    PUBLISHED,
    QWEN3,
    QWEN3_MOE,
)
from workflow_lib import formulas
from workflow_lib.models.__main__ import import_model, main
from workflow_lib.models.config_json import ImportRefusedError
from workflow_lib.study import load_study

LLAMA_1B = PUBLISHED["Llama-3.2-1B"].config
QWEN_HALF = PUBLISHED["Qwen2.5-0.5B"].config
QWEN_8B = PUBLISHED["Qwen3-8B"].config
PHI_3 = PUBLISHED["Phi-3-mini-4k-instruct"].config


@pytest.fixture
def written(tmp_path):
    """Write a config.json into a directory called after a model."""

    def write(config, name="model"):
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)
        (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return directory

    return write


@pytest.fixture
def config(tmp_path):
    """An empty configuration of a study."""
    (tmp_path / "config").mkdir()
    return tmp_path / "config"


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


def test_llama_3_2_1b_is_written_as_a_file_that_the_study_reads(written, config, capsys):
    path = written(LLAMA_1B, "Llama-3.2-1B")
    assert main(["import", str(path), "--config", str(config)]) == 0
    assert re.search("1.236 B .* 8192", capsys.readouterr().out)
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


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            QWEN_HALF,
            {"qkv_bias": True, "qk_norm": False, "tied_embeddings": True}
            | {"norm_epsilon": 1e-6, "rotary_base": 1e6},
        ),
        (QWEN_8B, {"qkv_bias": False, "qk_norm": True, "tied_embeddings": False}),
        (
            PUBLISHED["gemma-7b"].config,
            # 3072 columns, and 16 heads of 256.
            {"head_size": 256, "query_size": 4096, "embedding_scale": pytest.approx(3072**0.5)}
            | {"activation": "gelu_tanh", "tied_embeddings": True},
        ),
        (
            MIXTRAL,
            {"family": "mixtral", "experts": 8, "experts_per_token": 2, "rotary_base": 1e6},
        ),
        # A quarter of 4096 / 32 columns.
        (NEOX, {"family": "neox", "rotary_size": 32, "rotary_base": 10_000}),
        (GPT2, {"family": "gpt", "ffn_hidden_size": 3072, "sequence_length": 1024}),
        # A Llama without a base has that of its time.
        (PUBLISHED["llama-30b"].config, {"rotary_base": 10_000.0}),
    ],
)
def test_what_families_differ_in_is_taken_over(config, expected, written):
    model = import_model(written(config)).spec.record("model")
    assert {name: getattr(model, name) for name in expected} == expected


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
    assert "sliding_window: " in refusal(path, sequence_length=8192)
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
    ("config", "key", "value"),
    [
        (LLAMA_1B, "attention_bias", True),
        (QWEN_HALF, "use_mrope", True),
        (LLAMA_1B, "mlp_bias", True),
        (LLAMA_1B, "hidden_act", "relu2"),
        (LLAMA_1B, "rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
        (LLAMA_1B, "rope_scaling", {"rope_type": "llama3", "factor": 4.0}),
        (PHI_3, "rope_scaling", {"type": "longrope"}),
        (LLAMA_1B, "residual_multiplier", 0.2),
        (LLAMA_1B, "sliding_window", 4096),
        (LLAMA_1B, "quantization_config", {}),
        (LLAMA_1B, "architectures", ["LlamaForSequenceClassification"]),
        (LLAMA_1B, "vocab_size", "many"),
        (LLAMA_1B, "num_attention_heads", None),
        (LLAMA_1B, "rope_interleaved", True),
        (LLAMA_1B, "add_cross_attention", True),
        (NEOX, "use_parallel_residual", False),
        (NEOX, "hidden_act", "quick_gelu"),
        (QWEN_8B, "layer_types", ["linear_attention"]),
        (QWEN3_MOE, "norm_topk_prob", False),
        (QWEN3_MOE, "mlp_only_layers", [0]),
        (MIXTRAL, "router_jitter_noise", 0.1),
        (GPT2, "tie_word_embeddings", False),
        (GPT2, "scale_attn_by_inverse_layer_idx", True),
        (QWEN3, "model_type", "qwen3_next"),
        (GEMMA, "model_type", "gemma2"),
        (LLAMA_1B, "model_type", "olmo2"),
        (LLAMA_1B, "model_type", "smollm3"),
        (GEMMA, "model_type", "new"),
    ],
)
def test_what_the_engine_cannot_follow_is_refused_by_its_key(config, key, value, written):
    path = written(config | {key: value})
    named, said = refusal(path).removeprefix(f"{path}/config.json: ").split(": ", maxsplit=1)

    assert named == key
    if key == "model_type":
        # Of a type that is known the reason is why it cannot be followed.
        assert said.startswith(f"{value}: ")
        assert ("does not know" in said) == (value == "new")


def test_a_key_that_nobody_knows_is_left_out_only_when_asked(written):
    path = written(LLAMA_1B | {"made_up": 3, "other": 4})
    assert re.search("--ignore made_up .*other", refusal(path))
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


def test_what_training_leaves_out_is_listed(written):
    notes = " ".join(import_model(written(GPT2 | {"initializer_range": 0.01})).notes)
    assert "attn_pdrop is 0.1" in notes
    assert "initializer_range is 0.01" in notes
    notes = import_model(written(PHI_3)).notes
    assert any(note.startswith("auto_map ") for note in notes)


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


def test_an_existing_file_is_kept_unless_asked(written, config, capsys):
    arguments = ["import", str(written(GPT2, "mine")), "--config", str(config)]
    assert main(arguments) == main(arguments) == 0
    path = config / "models" / "mine.yaml"
    path.write_text("layers: 3\n", encoding="utf-8")
    assert main(arguments) == 1
    assert "exists with other" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == "layers: 3\n"
    assert main([*arguments, "--overwrite"]) == 0
    assert path.read_text(encoding="utf-8") != "layers: 3\n"


@pytest.mark.parametrize("content", ["", "[]", '{"hidden_size": NaN}', "\x00", None])
def test_what_is_no_configuration_is_one_message(content, tmp_path, capsys):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    assert main(["import", str(tmp_path), "--config", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"import: {path}: ")
    assert "Traceback" not in error
