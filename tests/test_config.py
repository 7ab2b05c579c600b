"""The shipped configuration is right, and a wrong one is refused with the remedy."""

import re

import pytest

from tests.conftest import load_sound
from workflow_lib import cells, formulas, plan
from workflow_lib.config import (
    DataSpec,
    Exclusion,
    Invocation,
    MatrixEntry,
    ModelSpec,
    Platform,
    Protocol,
    SweepSpec,
    sbatch,
)
from workflow_lib.config.mistakes import SYNONYMS, nearest
from workflow_lib.study import ConfigError, checked, load_study, lookup
from workflow_lib.yaml_files import read_yaml

_CONTAINER = "container: {runtime: apptainer, image: $WORK/a.sif, mounts: [/a, '${WORK}/my data']}"
_INVOCATION = {"config_directory": "config", "results_directory": "results", "sweeps": ("demo",)}


def refusal(directory) -> str:
    with pytest.raises(ConfigError) as caught:
        load_sound(directory)
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
    message = refusal(study_directory)
    # Another GPU is no misspelling: those that there are.
    assert "no platform is called 'h1000'; valid: h100, h100x1, h100x2, h200, " in message
    assert "did you mean" not in message


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        # The sweep's file has two platforms, so there are two views.
        ("lora", "did you mean 'lora-h100' or 'lora-h200'?"),
        # The sweep's file has one platform, so its view has the file's name.
        ("demo-local", "did you mean 'demo'?"),
        ("sweep", "valid: demo, lora-h100, lora-h200"),
    ],
)
def test_a_name_with_or_without_its_suffix_leads_to_those_that_there_are(name, remedy):
    assert nearest(name, ["lora-h200", "demo", "lora-h100"]) == remedy


def test_unknown_data_are_refused(study_directory, edit):
    edit("sweeps/demo.yaml", "data: python-sources", "data: python-source")
    assert "no data is called 'python-source'; did you mean 'python-sources'?" in refusal(
        study_directory
    )


def test_unknown_data_of_an_entry_or_an_exclusion_are_refused(study_directory, edit):
    edit("sweeps/evidence-data.yaml", "python-sources]", "python-source]")
    assert "matrix.0.data: no data is called 'python-source'; did" in refusal(study_directory)
    edit(
        "sweeps/evidence-data.yaml", "python-source]}", "python-sources]}\nexclude: [{data: text}]"
    )
    assert "exclude.0.data: no data is called 'text'; valid:" in refusal(study_directory)


def test_an_archive_gets_the_files_of_all_data_that_a_sweep_names(study_directory):
    study = load_study(study_directory)
    named = {
        path.name
        for path in study.files_of("evidence-data", "h200x1")
        if path.parent.name == "data"
    }
    assert named == {"synthetic.yaml", "python-sources.yaml"}


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        (
            "sweeps/demo.yaml",
            "micro_batch_size: 2",
            "micro_batch_size: 0",
            "training.micro_batch_size: must be greater than 0, not 0",
        ),
        (
            "sweeps/demo.yaml",
            "micro_batch_size: 2",
            "micro_batch_size: [1, -2]",
            "training.micro_batch_size.1: must be greater than 0, not -2",
        ),
        (
            "sweeps/demo.yaml",
            "micro_batch_size: 2",
            "micro_batch_size: two",
            "training.micro_batch_size: expected a whole number or a list, not the text 'two'",
        ),
        (
            "sweeps/demo.yaml",
            "learning_rate: 1.0e-3",
            "learning_rate: 1_000",
            "expected a number or a list, not the text '1_000'",
        ),
        (
            "platforms/h200.yaml",
            "time_limit_max_min: 1440",
            "time_limit_max_min: 48:00:00",
            "expected a whole number, not the text '48:00:00'; write time_limit_max_min: 2880",
        ),
        (
            "platforms/h200.yaml",
            "time_limit_max_min: 1440",
            "time_limit_max_min: 2-12",
            "expected a whole number, not the text '2-12'; write time_limit_max_min: 3600",
        ),
        (
            "sweeps/demo.yaml",
            "idle_baseline_s: ",
            "idle_baseline_s: 1:30 #",
            "expected a number, not the text '1:30'; write idle_baseline_s: 90",
        ),
        (
            "platforms/h200.yaml",
            "cpus_per_gpu: 12",
            "cpus_per_gpu: 012",
            "cpus_per_gpu: expected a whole number, not the text '012'",
        ),
        (
            "sweeps/demo.yaml",
            "precision: fp32",
            "precision: fp16",
            "precision: expected 'bf16', 'fp32', 'fp8' or a list, not the text 'fp16'",
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
            "protocol.sample_rate_hz: must be a finite number, not nan",
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
            "protocol.block_s: must be greater than or equal to 5, not 4.9",
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
            "protocol.cool_down.within_c: must be greater than 0, not 0",
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
            "models: ",
            "cool_down: {within_c: 5, limit_s: 600}, models: ",
            "matrix.0.cool_down: platform local has no idle_temperature_c to cool down to",
        ),
        (
            "sweeps/demo.yaml",
            "  overlap: false\n",
            "",
            "overlap is given neither in training nor in entry 1 of matrix",
        ),
        (
            "sweeps/demo.yaml",
            "  overlap: false\n",
            "  overlap: false\n  lora_rank: 8\n",
            "training gives lora_rank, but none of its cells has workload: lora; add that workload",
        ),
        (
            "sweeps/workloads.yaml",
            "workload: inference, zero_stage: 0, generated_tokens: 32, dp: 2",
            "zero_stage: 0, generated_tokens: 32, dp: 2",
            "gives generated_tokens, but none of its cells has workload: inference",
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
            "account: expected a word of letters, digits and _.,:@+- that begins with a letter or",
        ),
        (
            "platforms/h200.yaml",
            "exclude_nodes: []",
            "exclude_nodes: [node7, /etc/hosts]",
            "exclude_nodes.1: expected names of nodes as Slurm writes them, such as node7 or",
        ),
        (
            "platforms/h200.yaml",
            "exclude_nodes: []",
            "exclude_nodes: node7",
            "expected a list, not the text 'node7'; write a list: exclude_nodes: [node7]",
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
            "sbatch_options.comment: expected a word of letters, digits and",
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
            "time_limit_margin: must be greater than or equal to 1, not 0.5",
        ),
        (
            "platforms/h200.yaml",
            "modules: []",
            'modules: ["cuda\\n--account=other"]',
            "modules.0: expected one line of text without control characters",
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


@pytest.mark.parametrize(
    ("name", "old", "new", "key", "instead"),
    [
        ("platforms/h200.yaml", "python: .venv", "python: $WORK", "python", "/w/bin"),
        ("platforms/h200.yaml", "python: .venv", "python: ~", "python", "/home/me/bin"),
        ("platforms/h200.yaml", "container: null", _CONTAINER, "container.image", "/w/a.sif"),
        ("platforms/h200.yaml", "container: null", _CONTAINER, "container.mounts.1", "/w/my data"),
        ("platforms/h200.yaml", "DEBUG: WARN", "DEBUG: ~/log", "the value of NCCL_DEBUG", "/home"),
        ("platforms/h200.yaml", "DEBUG: WARN", "DEBUG: /a:~/b", "the value of NCCL_DEBUG", "/home"),
        ("data/python-sources.yaml", "tokenizer: bytes", "tokenizer: $WORK/t", "tokenizer", "/w/t"),
        ("data/python-sources.yaml", "python-standard", "$WORK/*.txt, a", "sources.0", "/w/*.txt"),
        # What this shell does not have, or must not be shown.
        ("platforms/h200.yaml", "python: .venv", "python: $NOT_HERE", "python", "what it stands"),
        ("platforms/h200.yaml", "python: .venv", "python: /$MY_TOKEN", "python", "what it stands"),
    ],
)
def test_a_path_that_only_a_shell_would_complete_is_refused_with_the_whole_one(
    study_directory, edit, monkeypatch, name, old, new, key, instead
):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("WORK", "/w")
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    monkeypatch.delenv("NOT_HERE", raising=False)
    path = edit(name, old, new)
    message = refusal(study_directory)
    assert str(path) in message
    assert f"{key}: " in message
    assert instead in message
    assert "hunter2" not in message


def test_the_results_directory_is_no_exception():
    with pytest.raises(ConfigError, match="results_directory: "):
        checked("it", Invocation, {**_INVOCATION, "results_directory": "~/results"})
    checked("it", Invocation, {**_INVOCATION, "results_directory": "it's ~ a $ (dollar)"})


def test_numbers_are_those_of_yaml_1_2(tmp_path):
    path = tmp_path / "numbers.yaml"
    path.write_text("[48:00:00, 1:30.5, 010, 2026-11-25, 1_0, 1e-4, 8.03e9, -7, .5]")
    read = read_yaml(path)
    assert read == ["48:00:00", "1:30.5", "010", "2026-11-25", "1_0", 1e-4, 8.03e9, -7, 0.5]


def test_an_option_of_sbatch_keeps_its_time(study_directory, edit):
    edit("platforms/h200.yaml", "sbatch_options: {}", "sbatch_options: {deadline: 16:00:00}")
    platform = load_study(study_directory).platforms["h200"]
    assert platform.sbatch_options == {"deadline": "16:00:00"}


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        # The forms of `man sbatch`, --time.
        ("30:15", 1815),
        ("48:00:00", 172_800),
        ("2-00", 172_800),
        ("2-06:30", 196_200),
        ("2-06:30:15", 196_215),
        ("infinite", None),
        ("48:00:00:00", None),
    ],
)
def test_a_time_is_read_as_slurm_does(time, seconds):
    assert sbatch.seconds(time) == seconds


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


# What a newcomer wrote, and the sentence that a newcomer expects.


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        (
            "sweeps/smoke.yaml",
            "platforms: [all]",
            "platforms: h200",
            "platforms: expected a list, not the text 'h200'; write a list: platforms: [h200]",
        ),
        (
            "sweeps/smoke.yaml",
            "mixtral-tiny], nodes: 2",
            'mixtral-tiny], gpus: "16"',
            "matrix.0.gpus: expected a whole number or a list, not the text '16'; leave out the "
            "quotes: gpus: 16",
        ),
        (
            "sweeps/smoke.yaml",
            "mixtral-tiny], nodes: 2",
            'mixtral-tiny], gpus: ["16"]',
            "matrix.0.gpus.0: expected a whole number, not the text '16'; leave out the quotes: "
            "- 16",
        ),
        (
            "sweeps/smoke.yaml",
            "  micro_batch_size: 1\n",
            "  micro_batch_size: 1\n  lr: 1.0e-3\n",
            "training.lr: unknown key; did you mean 'learning_rate'?",
        ),
        (
            "sweeps/smoke.yaml",
            "  global_batch_size: 96",
            "  batch_size: 32",
            "training.batch_size: unknown key; did you mean 'global_batch_size'?",
        ),
        (
            "sweeps/smoke.yaml",
            "repeats: 1",
            "repeats: 1\nwarmup_steps: 2",
            "warmup_steps: unknown key; it belongs in protocol",
        ),
        (
            "sweeps/smoke.yaml",
            "  seed: 1",
            "  seed: 1\n  tensor_parallel_size: 2",
            "training.tensor_parallel_size: unknown key; did you mean 'tp' in matrix?",
        ),
        (
            "sweeps/smoke.yaml",
            "  seed: 1",
            "  seed: 1\n  repeats: 2",
            "training.repeats: unknown key; it belongs in the file itself, without indentation",
        ),
        (
            "sweeps/smoke.yaml",
            "models: [llama3-tiny, mixtral-tiny]",
            "models: [llama3-7b, mixtral-tiny]",
            "matrix.0.models: no model is called 'llama3-7b'; valid: gpt3-175b, ",
        ),
        (
            "sweeps/smoke.yaml",
            "platforms: [all]",
            "platforms: [a100]",
            "platforms: no platform is called 'a100'; valid: h100, h100x1, h100x2, h200, ",
        ),
        (
            "sweeps/smoke.yaml",
            "protocol:\n  warmup_steps: 1",
            "protocol: short\ntraining:\n  warmup_steps: 1",
            "line 12: the key training is given twice, first in line 7; keep one of them",
        ),
        (
            "models/llama3-8b.yaml",
            "layers: 32",
            "num_hidden_layers: 32",
            "num_hidden_layers: unknown key; did you mean 'layers'?",
        ),
        (
            "models/llama3-8b.yaml",
            "attention_heads: 32",
            "num_attention_heads: 32",
            "num_attention_heads: unknown key; did you mean 'attention_heads'?",
        ),
        (
            "models/llama3-8b.yaml",
            "kv_heads: 8",
            "num_key_value_heads: 8",
            "num_key_value_heads: unknown key; did you mean 'kv_heads'?",
        ),
        (
            "models/llama3-8b.yaml",
            "layers: 32",
            "layers: 32\nlayers: 31",
            "line 5: the key layers is given twice, first in line 4; keep one of them",
        ),
        (
            "models/llama3-8b.yaml",
            "published:\n",
            "published: 8\nx:\n",
            "published: expected keys and values, not 8, as in published: {key: value}",
        ),
        (
            "platforms/h200.yaml",
            "partition: h200",
            "partition: 7",
            'partition: expected text, not 7; put it in quotes: partition: "7"',
        ),
        (
            "platforms/h200.yaml",
            "python: .venv/bin/python",
            "python: on",
            "python: expected text, not true; YAML reads yes, no, on and off as true and false: "
            "put it in quotes",
        ),
        (
            "sweeps/smoke.yaml",
            "precision: fp32",
            "precision: BF16",
            "training.precision: expected 'bf16', 'fp32', 'fp8' or a list, not the text 'BF16'; "
            "write precision: bf16",
        ),
        (
            "sweeps/smoke.yaml",
            "overlap: false",
            'overlap: "false"',
            "training.overlap: expected true, false or a list, not the text 'false'; leave out "
            "the quotes: overlap: false",
        ),
        (
            "sweeps/smoke.yaml",
            "data: synthetic",
            "data: [synthetic]",
            "data: expected text, not the list ['synthetic']; give one value: data: synthetic",
        ),
        (
            "sweeps/smoke.yaml",
            "repeats: 1",
            "repeats: 1\nexclude: none",
            "exclude: expected a list, not the text 'none'; for none write exclude: []",
        ),
        (
            "sweeps/smoke.yaml",
            "  - {models: gpt3-tiny, nodes: 2, pp: 2, dp: rest, micro_batch_size: 2}",
            "exclude:\n  model: gpt3-tiny",
            "exclude: expected a list, not keys and values; begin each of its entries with a "
            "hyphen and a blank",
        ),
        ("platforms/h200.yaml", "gpu: H200", "gpu: h200", "gpu h200 is called H200 here"),
        (
            "sweeps/smoke.yaml",
            "precision: fp32",
            "precision: fp32, bf16",
            "training.precision: expected 'bf16', 'fp32', 'fp8' or a list, not the text "
            "'fp32, bf16'; write a list: precision: [fp32, bf16]",
        ),
        (
            "sweeps/smoke.yaml",
            "precision: fp32",
            "precision: []",
            "training.precision: the list is empty; give it a value, or leave the key out",
        ),
        (
            "sweeps/smoke.yaml",
            "data: synthetic",
            "data: synthetic\nsequence_length: 4096",
            "sequence_length: unknown key; it belongs in the file of a model, config/models/",
        ),
        (
            "sweeps/smoke.yaml",
            "data: synthetic",
            "data: synthetic\nwalltime: 60",
            "walltime: unknown key; did you mean 'time_limit_max_min'? it belongs in the file of a "
            "platform, config/platforms/",
        ),
        (
            "sweeps/smoke.yaml",
            "repeats: 1",
            "repeats: 1\nexclude: [{}]",
            "exclude.0 has no key, so it would leave out every cell; say which cells",
        ),
        (
            "sweeps/demo.yaml",
            "platforms: [local]",
            "platforms: [local, local]",
            "platforms has local twice; keep one of them",
        ),
        (
            "platforms/h200.yaml",
            "requeue: true",
            "requeue: 1",
            "requeue: expected true or false, not 1",
        ),
        (
            "platforms/h200.yaml",
            "network:\n",
            "walltime: 60\nnetwork:\n",
            "walltime: unknown key; did you mean 'time_limit_max_min'?",
        ),
        (
            "platforms/h200.yaml",
            "nodes: 4",
            "nodes:",
            "nodes: expected a whole number, not nothing",
        ),
    ],
)
def test_what_a_newcomer_writes_gets_the_sentence_that_helps(
    study_directory, edit, name, old, new, expected
):
    path = edit(name, old, new)
    lines = refusal(study_directory).splitlines()
    assert any(line.startswith(f"{path}: {expected}") for line in lines), lines


def test_no_message_speaks_of_pydantic(study_directory):
    wrong = "x: !!set {a}\n" + "\n".join(f"{key}: [[{{}}]]" for key in Platform.model_fields)
    path = study_directory / "platforms" / "wrong.yaml"
    path.write_text(wrong, encoding="utf-8")
    message = refusal(study_directory)
    assert len(message.splitlines()) > 20
    for word in ("Input", "tuple", "dictionary", "instance", "String", "valid integer", "mapping"):
        assert word not in message


def test_a_tab_is_answered_with_blanks(study_directory, edit):
    edit("sweeps/smoke.yaml", "  precision: fp32", "\tprecision: fp32")
    assert refusal(study_directory).endswith("indent by blanks: YAML takes no tabs there")


def test_a_file_with_the_other_ending_of_yaml_is_not_passed_over(study_directory):
    sweeps = study_directory / "sweeps"
    (sweeps / "demo.yaml").rename(sweeps / "demo.yml")
    expected = f"{sweeps}/demo.yml: only *.yaml is read; rename it to demo.yaml"
    with pytest.raises(ConfigError, match=re.escape(expected)):
        load_study(study_directory).sweeps["demo"]


def test_every_synonym_is_of_a_key_that_there_is():
    kinds = (Invocation, Platform, ModelSpec, DataSpec, SweepSpec, Protocol, MatrixEntry, Exclusion)
    keys = {key for kind in kinds for key in kind.model_fields}
    assert set(SYNONYMS.keys()) <= keys


def test_a_key_of_two_mappings_and_one_that_an_alias_repeats_are_not_given_twice(study_directory):
    path = study_directory / "sweeps" / "demo.yaml"
    entries = path.read_text(encoding="utf-8").split("matrix:\n")
    aliased = (
        "matrix:\n  - &first {models: gpt3-tiny, dp: 2}\n  - {<<: *first, models: llama3-tiny}\n"
    )
    path.write_text(entries[0] + aliased, encoding="utf-8")
    matrix = load_study(study_directory).sweeps["demo"].matrix
    assert [(entry.models, entry.dp) for entry in matrix] == [("gpt3-tiny", 2), ("llama3-tiny", 2)]


@pytest.mark.parametrize(
    ("name", "needed_by"),
    [("models/llama3-70b.yaml", "parallelism-h200"), ("platforms/mi250.yaml", "smoke-mi250")],
)
def test_a_mistake_in_a_file_stops_only_the_sweeps_that_need_it(study_directory, name, needed_by):
    path = study_directory / name
    path.write_text("made_up: 1\n", encoding="utf-8")
    study = load_study(study_directory)
    sweeps = cells.expand_study(study)
    assert sweeps["demo"].cells
    assert sweeps["smoke-h200"].cells
    assert needed_by not in sweeps
    # Told once, however many sweeps need it.
    (told,) = sweeps.mistakes
    assert told.startswith(f"{path}: ")
    for stopped, known in ((needed_by, sweeps), (path.stem, getattr(study, path.parent.name))):
        with pytest.raises(ConfigError, match=re.escape(str(path))):
            lookup("file", stopped, known)


@pytest.mark.parametrize("name", ["mine", "mine-h200"])
def test_a_sweep_that_cannot_be_read_stops_only_itself(study_directory, name):
    path = study_directory / "sweeps" / "mine.yaml"
    path.write_text("[", encoding="utf-8")
    sweeps = cells.expand_study(load_study(study_directory))
    assert sweeps["demo"].cells
    with pytest.raises(ConfigError, match=re.escape(str(path))):
        lookup("sweep", name, sweeps)


def test_a_name_that_no_file_has_is_still_no_name(study_directory):
    (study_directory / "models" / "llama.yaml").write_text("[", encoding="utf-8")
    with pytest.raises(ConfigError, match="no model is called 'llama-9'"):
        lookup("model", "llama-9", load_study(study_directory).models)


#: a file that the sweep "demo" and the platform "local" do without, and a sweep that needs it
BAD = [
    ("sweeps/broken.yaml", "[", "broken"),
    ("models/llama3-70b.yaml", "layers: [1", "parallelism-h200"),
    ("data/synthetic.yaml", "made_up: 1", "smoke-h200"),
    ("platforms/mi250.yaml", "made_up: 1", "mi250-counterpart"),
]


@pytest.mark.parametrize(("name", "text", "needed_by"), BAD)
def test_a_named_sweep_is_planned_beside_a_bad_file(study_directory, capsys, name, text, needed_by):
    (study_directory / name).write_text(text, encoding="utf-8")
    arguments = ["--config", str(study_directory), "--sweep"]
    assert plan.main([*arguments, "demo"]) == 0
    printed = capsys.readouterr()
    assert f"left out: {study_directory / name}: " in printed.err
    assert "llama3-tiny" in printed.out
    assert plan.main([*arguments, needed_by]) == 1
    printed = capsys.readouterr()
    assert f"triptych: {study_directory / name}: " in printed.err
    assert not printed.out


@pytest.mark.parametrize(
    ("name", "text", "lacking"),
    [
        ("sweeps/broken.yaml", "[", "broken"),
        ("sweeps/smoke.yaml", "platforms: [h200]", "smoke"),
        ("data/synthetic.yaml", "made_up: 1", "parallelism-h200"),
        ("models/llama3-70b.yaml", "layers: [1", "parallelism-h200"),
        ("config.yaml", "made_up: 1", "config.yaml"),
    ],
)
def test_a_platforms_plan_goes_on_without_what_is_bad_and_fails(
    study_directory, capsys, name, text, lacking
):
    (study_directory / name).write_text(text, encoding="utf-8")
    assert plan.main(["--config", str(study_directory), "--platform", "h200"]) == 1
    printed = capsys.readouterr()
    assert printed.err.count(f"left out: {study_directory / name}: ") == 1
    assert re.search(rf"the plan lacks .*\b{lacking}\b", printed.err)
    assert ("slots-h200" in printed.out) == (name != "data/synthetic.yaml")


def test_a_platforms_plan_does_not_need_the_sweeps_of_others(study_directory, edit, capsys):
    edit("sweeps/mi250-counterpart.yaml", "data: synthetic", "data: synthetics")
    assert plan.main(["--config", str(study_directory), "--platform", "local"]) == 0
    assert "mi250-counterpart.yaml" in capsys.readouterr().err
