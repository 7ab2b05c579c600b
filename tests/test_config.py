"""The shipped configuration is right, and a wrong one is refused with the remedy."""

import re

import pytest

from workflow_lib import formulas, plan
from workflow_lib.study import ConfigError, all_sweeps, load_study, of_view


def refusal(directory) -> str:
    with pytest.raises(ConfigError) as caught:
        load_study(directory)
    return str(caught.value)


def test_the_shipped_study_loads(study_directory):
    study = load_study(study_directory)
    assert {"h200", "h100", "mi250", "local"} <= study.platforms.keys()
    assert {
        "parallelism",
        "optimisation",
        "microbatch",
        "mi250-counterpart",
        "demo",
    } <= study.sweeps.keys()


def test_no_sweep_is_longer_than_a_page(study_directory):
    for path in (study_directory / "sweeps").glob("*.yaml"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 60, path


def test_the_study_models_carry_their_published_totals(study_directory):
    models = load_study(study_directory).models
    for name in ("gpt3-175b", "llama3-70b", "llama3-8b", "mixtral-8x7b", "mixtral-8x22b"):
        published = models[name].published
        assert published is not None, name
        total = formulas.parameters(models[name].record(name)).total
        assert total == pytest.approx(published.parameters, rel=1e-3), name


def test_tiny_models_exist_of_every_family(study_directory):
    models = load_study(study_directory).models
    tiny = {models[name].family for name in models if name.endswith("-tiny")}
    assert tiny == {"gpt", "llama", "mixtral"}


def test_the_30b_variants_are_their_models_with_fewer_layers(study_directory):
    models = load_study(study_directory).models
    for small, large in (("gpt3-30b", "gpt3-175b"), ("llama3-30b", "llama3-70b")):
        ours = models[small].model_dump(exclude={"layers", "description", "published"})
        theirs = models[large].model_dump(exclude={"layers", "description", "published"})
        assert ours == theirs
        assert formulas.parameters(models[small].record(small)).total == pytest.approx(
            30e9, rel=0.03
        )


def test_a_misspelt_key_is_refused_with_the_nearest_one(study_directory, edit):
    path = edit("models/llama3-8b.yaml", "layers:", "layerz:")
    message = refusal(study_directory)
    assert f"{path}: layerz: unknown key; did you mean 'layers'?" in message
    assert "layers: missing" in message


def test_a_misspelt_key_inside_a_block_is_refused_with_the_nearest_one(study_directory, edit):
    edit("sweeps/demo.yaml", "zero_stage: 3}", "zero_stagee: 3}")
    assert "zero_stagee: unknown key; did you mean 'zero_stage'?" in refusal(study_directory)


def test_an_unknown_model_is_refused_with_the_nearest_one(study_directory, edit):
    path = edit(
        "sweeps/parallelism.yaml",
        "models: mixtral-8x22b, ep: 8, dp: 8, tp: 8",
        "models: mixtral-8x22, ep: 8, dp: 8, tp: 8",
    )
    message = refusal(study_directory)
    assert str(path) in message
    assert "no model is called 'mixtral-8x22'; did you mean 'mixtral-8x22b'?" in message


def test_an_unknown_platform_is_refused(study_directory, edit):
    edit("sweeps/parallelism.yaml", "platforms: [h200, h100]", "platforms: [h200, h1000]")
    assert "no platform is called 'h1000'; did you mean 'h100'?" in refusal(study_directory)


def test_unknown_data_are_refused(study_directory, edit):
    edit("sweeps/demo.yaml", "data: python-sources", "data: python-source")
    assert "no data is called 'python-source'; did you mean 'python-sources'?" in refusal(
        study_directory
    )


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        (
            "sweeps/demo.yaml",
            "micro_batch_size: 2",
            "micro_batch_size: 0",
            "training.micro_batch_size: Input should be greater than 0, not 0",
        ),
        (
            "sweeps/demo.yaml",
            "micro_batch_size: 2",
            "micro_batch_size: [1, -2]",
            "training.micro_batch_size.1: Input should be greater than 0, not -2",
        ),
        (
            "sweeps/demo.yaml",
            "micro_batch_size: 2",
            "micro_batch_size: two",
            "training.micro_batch_size: Input should be a valid integer, not 'two'",
        ),
        (
            "sweeps/demo.yaml",
            "learning_rate: 1.0e-3",
            "learning_rate: 1e-3",
            "not '1e-3'; YAML wants a point and a sign, as in 1.0e-4 or 1.0e+30",
        ),
        (
            "sweeps/demo.yaml",
            "precision: fp32",
            "precision: fp16",
            "Input should be 'bf16' or 'fp32', not 'fp16'",
        ),
        (
            "sweeps/demo.yaml",
            "sample_rate_hz: 10",
            "sample_rate_hz: 1000",
            "protocol.sample_rate_hz: 1000 Hz cannot be sampled at; use 1 to 50 Hz",
        ),
        (
            "sweeps/demo.yaml",
            "sample_rate_hz: 10",
            "sample_rate_hz: 0",
            "protocol.sample_rate_hz: 0 Hz cannot be sampled at; use 1 to 50 Hz",
        ),
        (
            "sweeps/demo.yaml",
            "sample_rate_hz: 10",
            "sample_rate_hz: .nan",
            "protocol.sample_rate_hz: Input should be a finite number, not nan",
        ),
        (
            "sweeps/demo.yaml",
            "  sample_rate_hz: 10\n",
            "",
            "protocol: give either sample_rate_hz or interleaved_rates_hz",
        ),
        (
            "sweeps/demo.yaml",
            "sample_rate_hz: 10",
            "sample_rate_hz: 10\n  interleaved_rates_hz: [0, 10]\n  block_s: 5",
            "protocol: give either sample_rate_hz or interleaved_rates_hz",
        ),
        (
            "sweeps/demo.yaml",
            "sample_rate_hz: 10",
            "sample_rate_hz: 10\n  block_s: 5",
            "protocol: block_s is only for interleaved_rates_hz; leave it out",
        ),
        (
            "sweeps/demo.yaml",
            "sample_rate_hz: 10",
            "sample_rate_hz: 10\n  profiled_steps: 11",
            "protocol: profiled_steps is 11, more than measured_steps 10",
        ),
        (
            "sweeps/overhead.yaml",
            "  block_s: 10\n",
            "",
            "protocol: interleaved_rates_hz needs block_s, how long each rate is kept",
        ),
        (
            "sweeps/overhead.yaml",
            "block_s: 10",
            "block_s: 4.9",
            "protocol.block_s: Input should be greater than or equal to 5, not 4.9",
        ),
        (
            "sweeps/overhead.yaml",
            "[0, 1, 10, 50]",
            "[0, 0.5]",
            "protocol.interleaved_rates_hz.1: 0.5 Hz cannot be sampled at; use 1 to 50 Hz",
        ),
        (
            "sweeps/overhead.yaml",
            "[0, 1, 10, 50]",
            "[1, 10, 50]",
            "interleaved_rates_hz is [1.0, 10.0, 50.0], expected 2 to 8 different rates with 0",
        ),
        ("sweeps/overhead.yaml", "[0, 1, 10, 50]", "[0, 1, 1]", "expected 2 to 8 different rates"),
        ("sweeps/overhead.yaml", "[0, 1, 10, 50]", "[0]", "expected 2 to 8 different rates"),
        (
            "sweeps/overhead.yaml",
            "[0, 1, 10, 50]",
            "[0, 1, 2, 3, 4, 5, 6, 7, 8]",
            "expected 2 to 8 different rates",
        ),
        (
            "sweeps/demo.yaml",
            "sample_rate_hz: 10",
            "sample_rate_hz: 10\n  cool_down: {within_c: 0, limit_s: 600}",
            "protocol.cool_down.within_c: Input should be greater than 0, not 0",
        ),
        (
            "sweeps/demo.yaml",
            "sample_rate_hz: 10",
            "sample_rate_hz: 10\n  cool_down: {within: 5, limit_s: 600}",
            "protocol.cool_down.within: unknown key; did you mean 'within_c'?",
        ),
        (
            "sweeps/parallelism.yaml",
            "sample_rate_hz: 10",
            "sample_rate_hz: 10\n  cool_down: {within_c: 5, limit_s: 600}",
            "protocol.cool_down: platform h100 has no idle_temperature_c to cool down to",
        ),
        (
            "sweeps/demo.yaml",
            "  overlap: false\n",
            "",
            "overlap is given neither in training nor in entry 1 of matrix",
        ),
        (
            "sweeps/parallelism.yaml",
            "dp: 1, tp: [1, 2, 4, 8], pp: rest",
            "dp: rest, tp: 1, pp: rest",
            "only one of pp and dp can be rest",
        ),
        (
            "models/llama3-8b.yaml",
            "kv_heads: 8",
            "kv_heads: 7",
            "attention_heads 32 must be a multiple of kv_heads 7",
        ),
        ("models/llama3-8b.yaml", "layers: 32", "layers: 31", "they must agree within 0.1 %"),
        (
            "models/mixtral-tiny.yaml",
            "experts_per_token: 2",
            "experts_per_token: 5",
            "experts_per_token must lie between 1 and experts (4), not 5",
        ),
        (
            "platforms/h200.yaml",
            "airflow: [unknown, ",
            "airflow: [",
            "airflow has 7 entries, expected one for each of 8 GPUs",
        ),
        (
            "platforms/h200.yaml",
            "NCCL_DEBUG: WARN",
            "HF_TOKEN: hunter2",
            "HF_TOKEN looks like a secret, which must not lie in a file",
        ),
        (
            "platforms/h200.yaml",
            "partition: h200",
            "partition: null",
            "a platform with scheduler slurm needs a partition",
        ),
        (
            "platforms/h200.yaml",
            "account: null",
            "account: 'a b; rm -rf $HOME'",
            "account: String should match pattern",
        ),
        (
            "platforms/h200.yaml",
            "exclude_nodes: []",
            "exclude_nodes: [node7, /etc/hosts]",
            "exclude_nodes.1: String should match pattern",
        ),
        (
            "platforms/h200.yaml",
            "exclude_nodes: []",
            "exclude_nodes: node7",
            "exclude_nodes: Input should be a valid tuple, not 'node7'",
        ),
        (
            "platforms/h200.yaml",
            "sbatch_options: {}",
            "sbatch_options: {partition: gold}",
            "sbatch_options: the workflow sets --partition itself; use the key partition instead",
        ),
        (
            "platforms/h200.yaml",
            "sbatch_options: {}",
            "sbatch_options: {no-req: true}",
            "sbatch_options: the workflow sets --no-req itself; use the key requeue instead",
        ),
        (
            "platforms/h200.yaml",
            "sbatch_options: {}",
            "sbatch_options: {export: NONE}",
            "sbatch_options: the workflow relies on --export being as it sets it; leave it out",
        ),
        (
            "platforms/h200.yaml",
            "sbatch_options: {}",
            "sbatch_options: {--wckey: abc}",
            "sbatch_options.--wckey",
        ),
        (
            "platforms/h200.yaml",
            "sbatch_options: {}",
            "sbatch_options: {comment: 'two words'}",
            "sbatch_options.comment: String should match pattern",
        ),
        (
            "platforms/h200.yaml",
            "sbatch_options: {}",
            "sbatch_options: {contiguous: false}",
            "sbatch_options.contiguous",
        ),
        (
            "platforms/h200.yaml",
            "qos: null",
            "time_limit_margin: 0.5",
            "time_limit_margin: Input should be greater than or equal to 1, not 0.5",
        ),
        (
            "platforms/h200.yaml",
            "modules: []",
            'modules: ["cuda\\n--account=other"]',
            "modules.0: String should match pattern",
        ),
        (
            "models/gpt3-175b.yaml",
            "family: gpt",
            "family: gpt\nrotary_base: 1.0e+6",
            "a gpt model has learned positions, so it has no rotary_base",
        ),
        (
            "models/gpt3-175b.yaml",
            "family: gpt",
            "family: gpt\ntied_embeddings: true",
            "a gpt model always has its embedding as its head; leave tied_embeddings out",
        ),
        (
            "models/llama3-8b.yaml",
            "layers: 32",
            "layers: 32\nsliding_window: 4096",
            "sequence_length 8192 is longer than the sliding_window of 4096 tokens",
        ),
        (
            "models/llama3-8b.yaml",
            "layers: 32",
            "layers: 32\nrotary_scaling: {kind: llama3, factor: 8}",
            "llama3 scaling needs low_frequency_factor",
        ),
        (
            "models/llama3-8b.yaml",
            "layers: 32",
            "layers: 32\nrotary_share: 0.01",
            "rotary_share 0.01 turns 1 of 128 columns of a head, and they turn in pairs",
        ),
        (
            "models/mixtral-8x7b.yaml",
            "layers: 32",
            "layers: 32\nactivation: gelu",
            "activation gelu: a mixtral model can have silu",
        ),
        (
            "platforms/h200.yaml",
            "gpu: H200",
            "gpu: A100",
            "gpu A100 may be A100 SXM or A100 PCIe: say which",
        ),
        (
            "platforms/h200.yaml",
            "gpu: H200",
            "gpu: H200\npeak_bf16_tflops: 1979",
            "peak_bf16_tflops is 1979, but the dense peak of H200 is 989.4: leave it out",
        ),
        (
            "data/python-sources.yaml",
            "sources: [python-standard-library]",
            "sources: []",
            "need a tokenizer and at least one file",
        ),
    ],
)
def test_an_impossible_value_is_refused_with_file_key_and_expectation(
    study_directory, edit, name, old, new, expected
):
    path = edit(name, old, new)
    message = refusal(study_directory)
    assert str(path) in message
    assert expected in message


def test_each_mistake_is_reported_once(study_directory, edit):
    edit("sweeps/demo.yaml", "micro_batch_size: 2", "micro_batch_size: [0, x]")
    lines = refusal(study_directory).splitlines()
    assert [line.split(": ")[1] for line in lines] == [
        "training.micro_batch_size.0",
        "training.micro_batch_size.1",
    ]


def test_a_file_whose_name_could_not_be_a_directory_is_refused(study_directory):
    path = study_directory / "models" / "my model;.yaml"
    path.write_text("{}", encoding="utf-8")
    assert "'my model;' cannot be a name" in refusal(study_directory)


def test_a_file_that_is_not_utf8_is_refused(study_directory):
    path = study_directory / "models" / "latin.yaml"
    path.write_bytes(b"description: caf\xe9\n")
    assert f"{path}: not text in UTF-8" in refusal(study_directory)


def test_a_file_that_is_not_yaml_is_refused(study_directory):
    path = study_directory / "models" / "broken.yaml"
    path.write_text("layers: [1, 2", encoding="utf-8")
    assert f"{path}: not valid YAML" in refusal(study_directory)


def test_a_file_cannot_construct_python_objects(study_directory):
    path = study_directory / "models" / "evil.yaml"
    path.write_text("!!python/object/apply:os.system ['true']", encoding="utf-8")
    assert f"{path}: not valid YAML" in refusal(study_directory)


def test_an_absent_configuration_is_refused(tmp_path):
    assert "no such directory" in refusal(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "needed_by"),
    [("models/llama3-70b.yaml", "parallelism"), ("platforms/mi250.yaml", "mi250-counterpart")],
)
def test_a_mistake_in_a_file_stops_only_the_sweeps_that_need_it(study_directory, name, needed_by):
    path = study_directory / name
    path.write_text("made_up: 1\n", encoding="utf-8")
    study = load_study(study_directory, of_view("demo"))
    assert "demo" in study.sweeps
    assert needed_by not in study.sweeps
    assert path.stem not in {**study.models, **study.platforms}
    # Told once, however many sweeps need it.
    (told,) = study.left_out
    assert told.startswith(f"{path}: ")
    for stopped in (all_sweeps, of_view(needed_by), of_view(f"{needed_by}-h200")):
        with pytest.raises(ConfigError, match=re.escape(str(path))):
            load_study(study_directory, stopped)


def test_a_sweep_that_cannot_be_read_stops_only_its_own_plan(study_directory):
    path = study_directory / "sweeps" / "mine.yaml"
    path.write_text("[", encoding="utf-8")
    assert load_study(study_directory, of_view("demo")).left_out
    with pytest.raises(ConfigError, match=re.escape(str(path))):
        load_study(study_directory, of_view("mine-h200"))


def test_a_plan_tells_what_it_left_out(study_directory, monkeypatch, capsys):
    (study_directory / "models" / "broken.yaml").write_text("layers: [1", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["plan", "--config", str(study_directory), "--sweep", "demo"])
    assert plan.main() == 0
    printed = capsys.readouterr()
    assert "left out, as no planned sweep needs it" in printed.err
    assert "models/broken.yaml: not valid YAML" in printed.err
    assert "llama3-tiny" in printed.out
