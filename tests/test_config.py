"""The shipped configuration is right, and a wrong one is refused with the remedy."""

import re

import pytest

from tests.conftest import load_sound
from workflow_lib import cells, formulas, plan
from workflow_lib.config import Invocation, sbatch
from workflow_lib.config.mistakes import nearest
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


def test_letters_in_another_order_lead_to_the_name():
    assert "'qos'?" in nearest("qso", ["python", "qos"])


def test_an_archive_gets_the_files_of_all_data_that_a_sweep_names(study_directory):
    study = load_study(study_directory)
    named = {
        path.name
        for path in study.files_of("evidence-data", "h200x1")
        if path.parent.name == "data"
    }
    assert named == {"synthetic.yaml", "python-sources.yaml"}


#: of each file: what is replaced, by what, how the message begins, and words that it must hold
MISTAKES = {
    "sweeps/demo.yaml": [
        ("micro_batch_size: 2", "micro_batch_size: 0", "training.micro_batch_size:", "not 0"),
        ("size: 2", "size: [1, -2]", "training.micro_batch_size.1:", "not -2"),
        ("micro_batch_size: 2", "micro_batch_size: two", "training.micro_batch_size:", "'two'"),
        ("rate: 1.0e-3", "rate: 1_000", "training.learning_rate:", "valid number", "'1_000'"),
        (
            "baseline_s: ",
            "baseline_s: 1:30 #",
            "protocol.idle_baseline_s:",
            "valid number",
            "'1:30'",
        ),
        ("precision: fp32", "precision: fp16", "training.precision:", "'bf16'", "'fp16'"),
        ("rate_hz: 10", "rate_hz: 1000", "protocol.sample_rate_hz: 1000 Hz", "1 to 50 Hz"),
        ("rate_hz: 10", "rate_hz: 0", "protocol.sample_rate_hz: 0 Hz", "1 to 50 Hz"),
        ("rate_hz: 10", "rate_hz: .nan", "protocol.sample_rate_hz:", "finite", "not nan"),
        ("  sample_rate_hz: 10\n", "", "protocol:", "sample_rate_hz or interleaved_rates_hz"),
        (
            *("rate_hz: 10", "rate_hz: 10\n  interleaved_rates_hz: [0, 10]\n  block_s: 5"),
            *("protocol:", "sample_rate_hz or interleaved_rates_hz"),
        ),
        ("rate_hz: 10", "rate_hz: 10\n  block_s: 5", "protocol: block_s", "interleaved_rates_hz"),
        (
            *("rate_hz: 10", "rate_hz: 10\n  profiled_steps: 11"),
            *("protocol: profiled_steps is 11", "measured_steps 10"),
        ),
        (
            *("rate_hz: 10", "rate_hz: 10\n  cool_down: {within_c: 0, limit_s: 600}"),
            *("protocol.cool_down.within_c:", "not 0"),
        ),
        (
            *("rate_hz: 10", "rate_hz: 10\n  cool_down: {within: 5, limit_s: 600}"),
            *("protocol.cool_down.within: unknown key", "'within_c'"),
        ),
        (
            *("models: ", "cool_down: {within_c: 5, limit_s: 600}, models: "),
            *("matrix.0.cool_down: platform local", "idle_temperature_c"),
        ),
        ("  overlap: false\n", "", "overlap", "training", "entry 1 of matrix"),
        ("overlap: false", "overlap: false\n  lora_rank: 8", "training gives lora_rank", ": lora;"),
        ("[local]", "[local, local]", "platforms has local twice"),
        ("zero_stage: 3}", "zero_stagee: 3}", "", "zero_stagee: unknown key", "'zero_stage'"),
        ("data: python-sources", "data: python-source", "data:", "'python-source';", "-sources'"),
    ],
    "sweeps/smoke.yaml": [
        ("platforms: [all]", "platforms: h200", "platforms:", "list", "'h200'"),
        ("tiny], nodes: 2", 'tiny], gpus: "16"', "matrix.0.gpus:", "integer", "'16'", "(line 22)"),
        ("tiny], nodes: 2", 'tiny], gpus: ["16"]', "matrix.0.gpus.0:", "integer", "'16'"),
        ("  seed: 1", "  seed: 1\n  lr: 1.0e-3", "training.lr: unknown", "learning_rate, "),
        (
            *("  global_batch_size: 96", "  batch_size: 32"),
            *("training.batch_size: unknown key", "'micro_batch_size'", "(line 13)"),
        ),
        (
            "repeats: 1",
            "repeats: 1\nwarmup_steps: 2",
            "warmup_steps: unknown",
            "'protocol.warmup_steps'",
        ),
        ("  seed: 1", "  seed: 1\n  repeats: 2", "training.repeats: unknown", "'repeats'"),
        ("  seed: 1", "  seed: 1\n  tp: 2", "training.tp: unknown key", "'matrix.tp'"),
        ("[llama3-tiny, ", "[llama3-7b, ", "matrix.0.models:", "'llama3-7b'; valid: gpt3-175b, "),
        ("[all]", "[a100]", "platforms:", "'a100'; valid: h100, h100x1, h100x2, h200, "),
        (
            *("protocol:\n  warmup_steps: 1", "protocol: short\ntraining:\n  warmup_steps: 1"),
            *("line 12:", "key training", "twice", "line 7"),
        ),
        ("precision: fp32", "precision: BF16", "training.precision:", "'bf16'", "'BF16'"),
        ("overlap: false", 'overlap: "false"', "training.overlap:", "boolean", "'false'"),
        ("data: synthetic", "data: [synthetic]", "data:", "string", "['synthetic']"),
        ("repeats: 1", "repeats: 1\nexclude: none", "exclude:", "a list", "'none'"),
        ("  - {models: gpt3-tiny, ", "exclude:\n  {model: gpt3-tiny} #", "exclude:", "a list"),
        ("precision: fp32", "precision: fp32, bf16", "training.precision:", "'fp32, bf16'"),
        ("precision: fp32", "precision: []", "training.precision:", "at least 1", "[]"),
        (
            *("data: synthetic", "data: synthetic\nsequence_length: 4096"),
            *("sequence_length: unknown key", "config/models"),
        ),
        (
            *("data: synthetic", "data: synthetic\ncpus_per_gpu: 2"),
            *("cpus_per_gpu: unknown key", "config/platforms"),
        ),
        ("repeats: 1", "repeats: 1\nexclude: [{}]", "exclude.0 has no key", "every cell"),
        ("gpt3-tiny, nodes: 2", "gpt3-tiny, nodes: 2, gpus: 4", "matrix.1:", "gpus or nodes"),
    ],
    "sweeps/overhead.yaml": [
        ("  block_s: 10\n", "", "protocol: interleaved_rates_hz", "needs block_s"),
        ("block_s: 10", "block_s: 4.9", "protocol.block_s:", "equal to 5", "not 4.9"),
        ("[0, 1, 10, 50]", "[0, 0.5]", "protocol.interleaved_rates_hz.1: 0.5 Hz", "1 to 50 Hz"),
        *(
            ("[0, 1, 10, 50]", rates, "protocol: interleaved_rates_hz", "2 to 8", "with 0")
            for rates in ("[1, 10, 50]", "[0, 1, 1]", "[0]", "[0, 1, 2, 3, 4, 5, 6, 7, 8]")
        ),
    ],
    "sweeps/parallelism.yaml": [
        (
            *("rate_hz: 10", "rate_hz: 10\n  cool_down: {within_c: 5, limit_s: 600}"),
            *("protocol.cool_down: platform h100", "idle_temperature_c"),
        ),
        (
            *("dp: 1, tp: [1, 2, 4, 8], pp: rest", "dp: rest, tp: 1, pp: rest"),
            *("matrix.0:", "only one", "pp and dp"),
        ),
        (
            *("mixtral-8x22b, ep: 8, dp: 8, tp: 8", "mixtral-8x22, ep: 8, dp: 8, tp: 8"),
            *("matrix.", "'mixtral-8x22';", "'mixtral-8x22b'"),
        ),
        # Another GPU is no misspelling: those that there are.
        ("[h200, h100]", "[h200, h1000]", "platforms:", "'h1000'; valid: h100, h100x1, h100x2, "),
    ],
    "sweeps/workloads.yaml": [
        (
            *("workload: inference, zero_stage: 0, generated", "zero_stage: 0, generated"),
            *("matrix.2 gives generated_tokens", ": inference;"),
        )
    ],
    "sweeps/evidence-data.yaml": [
        ("python-sources]", "python-source]", "matrix.0.data:", "'python-source';"),
        (
            *("python-sources]}", "python-sources]}\nexclude: [{data: text}]"),
            *("exclude.0.data:", "'text'; valid:"),
        ),
    ],
    "platforms/h200.yaml": [
        ("max_min: 1440", "max_min: 48:00:00", "time_limit_max_min:", "integer", "'48:00:00'"),
        ("cpus_per_gpu: 12", "cpus_per_gpu: 012", "cpus_per_gpu:", "integer", "'012'"),
        ("airflow: [unknown, ", "airflow: [", "airflow has 7 entries", "8 GPUs"),
        ("NCCL_DEBUG: WARN", "HF_TOKEN: hunter2", "environment: HF_TOKEN", "secret", "export"),
        ("partition: h200", "partition: null", "", "slurm needs a partition"),
        ("account: null", "account: 'a b; rm -rf $HOME'", "account:", "'a b; rm -rf $HOME'"),
        ("exclude_nodes: []", "exclude_nodes: [n7, /etc/x]", "exclude_nodes.1:", "'/etc/x'"),
        ("exclude_nodes: []", "exclude_nodes: n7", "exclude_nodes:", "a list", "'n7'"),
        ("options: {}", "options: {partition: gold}", "sbatch_options:", "--partition", "key part"),
        ("options: {}", "options: {no-req: true}", "sbatch_options:", "--no-req", "key requeue"),
        ("options: {}", "options: {export: NONE}", "sbatch_options:", "--export", "leave it out"),
        ("options: {}", "options: {--wckey: abc}", "sbatch_options.--wckey:", "not '--wckey'"),
        ("options: {}", "options: {comment: 'a b'}", "sbatch_options.comment:", "not 'a b'"),
        ("options: {}", "options: {contiguous: false}", "sbatch_options.contiguous:", "not false"),
        ("qos: null", "time_limit_margin: 0.5", "time_limit_margin:", "equal to 1", "not 0.5"),
        ("modules: []", 'modules: ["a\\n--account=b"]', "modules.0:", "not 'a\\n--account=b'"),
        ("gpu: H200", "gpu: A100", "gpu A100", "A100 SXM or A100 PCIe"),
        ("gpu: H200", "gpu: H200\npeak_bf16_tflops: 1979", "peak_bf16_tflops is 1979", "989.4"),
        ("gpu: H200", "gpu: h200", "gpu h200", "gpu: H200"),
        ("partition: h200", "partition: 7", "partition:", "string", "not 7"),
        ("python: .venv/bin/python", "python: on", "python:", "string", "not true"),
        ("requeue: true", "requeue: 1", "requeue:", "boolean", "not 1"),
        ("cpus_per_gpu", "cpus_per_gpus", "cpus_per_gpus: unknown key", "'cpus_per_gpu'"),
        ("nodes: 4", "nodes:", "nodes:", "integer", "not nothing"),
    ],
    "models/llama3-8b.yaml": [
        ("kv_heads: 8", "kv_heads: 7", "attention_heads 32", "multiple", "kv_heads 7"),
        ("layers: 32", "layers: 31", "", "7.8121e+09", "8.03e+09", "0.1 %"),
        ("layers: 32", "layers: 32\nsliding_window: 4096", "sequence_length 8192", "at most 4096"),
        (
            *("layers: 32", "layers: 32\nrotary_scaling: {kind: llama3, factor: 8}"),
            *("rotary_scaling: llama3", "low_frequency_factor"),
        ),
        ("layers: 32", "layers: 32\nrotary_share: 0.01", "rotary_share 0.01", "1 of 128", "pairs"),
        ("layers: 32", "layerz: 32", "layerz: unknown key", "'layers'"),
        ("layers: 32", "layerz: 32", "layers:", "required"),
        (
            *("attention_heads: 32", "num_attention_heads: 32"),
            *("num_attention_heads: unknown key", "'attention_heads'"),
        ),
        ("layers: 32", "layers: 32\nlayers: 31", "line 5: the key layers", "twice", "line 4"),
        ("published:\n", "published: 8\nx:\n", "published:", "dictionary", "not 8"),
    ],
    "models/mixtral-tiny.yaml": [
        ("per_token: 2", "per_token: 5", "experts_per_token", "between 1 and", "(4)", "not 5")
    ],
    "models/gpt3-175b.yaml": [
        ("family: gpt", "family: gpt\nrotary_base: 1.0e+6", "a gpt model", "no rotary_base"),
        ("family: gpt", "family: gpt\ntied_embeddings: true", "a gpt model", "tied_embeddings out"),
    ],
    "models/mixtral-8x7b.yaml": [
        ("layers: 32", "layers: 32\nactivation: gelu", "activation gelu", "mixtral", "silu")
    ],
    "data/python-sources.yaml": [
        ("[python-standard-library]", "[]", "data", "tokenizer", "sources")
    ],
}


@pytest.mark.parametrize(
    ("name", "old", "new", "begins", "words"),
    [(name, *row[:3], row[3:]) for name, rows in MISTAKES.items() for row in rows],
)
def test_a_mistake_names_file_key_and_remedy(study_directory, edit, name, old, new, begins, words):
    path = edit(name, old, new)
    lines = refusal(study_directory).splitlines()
    of_key = [line for line in lines if line.startswith(f"{path}: {begins}")]
    assert any(all(word in line for word in words) for line in of_key), lines


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
def test_a_path_for_a_shell_is_refused(
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


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("my model;", b"{}", "'my model;' cannot be"),
        ("latin", b"description: caf\xe9\n", "latin.yaml: not text in UTF-8"),
        ("broken", b"layers: [1, 2", "broken.yaml: not valid YAML"),
        ("tab", b"layers: 1\npublished:\n\tyear: 1", "line 3, column 1"),
        # It constructs no Python object.
        ("evil", b"!!python/object/apply:os.system ['true']", "evil.yaml: not valid YAML"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(study_directory, name, content, expected):
    (study_directory / "models" / f"{name}.yaml").write_bytes(content)
    assert expected in refusal(study_directory)


def test_an_absent_configuration_is_refused(tmp_path):
    assert "no such directory" in refusal(tmp_path / "nowhere")


def test_a_file_with_the_other_ending_of_yaml_is_not_passed_over(study_directory):
    sweeps = study_directory / "sweeps"
    (sweeps / "demo.yaml").rename(sweeps / "demo.yml")
    with pytest.raises(ConfigError, match=rf"{sweeps}/demo\.yml: .* rename it to demo\.yaml"):
        load_study(study_directory).sweeps["demo"]


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
    with pytest.raises(ConfigError, match="'llama-9'"):
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
def test_a_plan_goes_on_without_what_is_bad(study_directory, capsys, name, text, lacking):
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
