"""Bad input gives one message that names the file or flag and the remedy, and loses nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from tests import programs
from tests.programs import well
from tests.workflow.conftest import SNAKEMAKE

pytestmark = pytest.mark.slow


def message_of(done: subprocess.CompletedProcess[str]) -> str:
    """What a failed command said; it must have failed, and not with a traceback."""
    output = done.stdout + done.stderr
    assert done.returncode != 0, output
    assert "Traceback" not in output
    return output


#: what config/sweeps/tiny.yaml holds, what is put there, and what the message holds
MISTAKES = (
    ("- gpt3-tiny", "- gpt-tiny", "matrix.0.models: .*'gpt-tiny'; .*'gpt3-tiny'"),
    ("repeats:", "repeat:", "repeat: unknown key; .*'repeats'"),
    ("micro_batch_size: 2", "micro_batch_size: 0", "training.micro_batch_size: .*not 0"),
    (
        *("dp: 1", "dp: 3"),
        r"none of its 2 cells (.|\n)*tp × pp × dp = 1 × 1 × 3 = 3, .* 1 GPU",
    ),
    (
        *("global_batch_size: 8", "global_batch_size: 7"),
        r"(.|\n)*global batch 7 .*dp × micro-batch = 1 × 2 = 2",
    ),
)
#: each by the plan; by Snakemake, which takes long to start, only one of them every time
COMMANDS = [
    *(("plan", *mistake) for mistake in MISTAKES),
    *(
        pytest.param("snakemake", *mistake, marks=pytest.mark.kills if number else ())
        for number, mistake in enumerate(MISTAKES)
    ),
]


@pytest.mark.parametrize(("command", "old", "new", "expected"), COMMANDS)
def test_a_wrong_configuration_is_refused_before_anything_runs(
    checkout, command, old, new, expected
):
    checkout.edit("config/sweeps/tiny.yaml", old, new)
    if command == "plan":
        done = checkout.call(sys.executable, "-m", "workflow_lib.plan", "--platform", "local")
    else:
        done = checkout.snakemake()
    assert re.search(rf"config/sweeps/tiny\.yaml: {expected}", message_of(done))
    assert not (checkout.directory / "results" / "cells").exists()


def test_no_platform_names_the_flag(checkout):
    done = checkout.call(str(sys.executable), "-m", "snakemake", "--cores", "1")
    assert re.search("--profile profiles/local`, .*platform=NAME`", message_of(done))


def test_an_unknown_sweep_is_refused_with_the_nearest_one(checkout):
    done = checkout.snakemake("--config", "sweeps=[tinny]")
    assert re.search("'tinny'; .*'tiny'", message_of(done))


@pytest.mark.parametrize("target", ["sweeps/tinny/report.html", "comparisons/tiny_vs_tinny/all"])
def test_a_target_of_an_unknown_sweep_is_refused_with_the_nearest_one(checkout, target):
    said = message_of(checkout.snakemake(f"results/{target}"))
    assert re.search("'tinny'; .*'tiny'", said)
    assert "InputFunctionException" not in said


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (["results/cells/local/gpt3-tiny/none/run1/outcome.json"], "no cell is called 'local/gpt3"),
        (
            ["--config", "sweeps=[tiny]", "platform=mi250"],
            "none of the sweeps tiny is for platform",
        ),
    ],
)
def test_what_cannot_be_made_is_refused_without_frames_of_a_function(checkout, asked, expected):
    said = message_of(checkout.snakemake(*asked, "--dry-run"))
    assert expected in said
    assert "InputFunctionException" not in said


def test_a_profile_by_its_absolute_path_is_read_elsewhere(checkout, tmp_path):
    clone, elsewhere = checkout.directory, tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [SNAKEMAKE, "--profile", clone / "profiles" / "local", "--dry-run"]
    here, there = (
        programs.run([*command, "--snakefile", clone / "workflow" / "Snakefile"], cwd)
        for cwd in (clone, elsewhere)
    )
    assert here.returncode == 0, here.stderr
    assert f"by cd {clone}" in message_of(there)


def test_a_bad_file_stops_only_what_needs_it(checkout):
    bad = checkout.directory / "config" / "sweeps" / "broken.yaml"
    bad.write_text("[", encoding="utf-8")
    chosen = "--config=sweeps=[broken]"
    done = checkout.snakemake("results/sweeps/tiny/report.html", chosen, "--dry-run")
    assert done.returncode == 0
    assert "broken.yaml: not valid YAML" in done.stdout + done.stderr
    for asked in (["results/sweeps/broken-local/report.html"], [chosen], ["all", chosen]):
        said = message_of(checkout.snakemake(*asked, "--dry-run"))
        assert "broken.yaml: not valid YAML" in said
        assert "InputFunctionException" not in said


def test_runs_on_this_machine_follow_one_another_with_the_profile_of_a_cluster(checkout):
    done = checkout.call(
        str(SNAKEMAKE),
        "--profile",
        "profiles/slurm_h200",
        "results/sweeps/tiny/report.html",
        "--dry-run",
    )
    # The profile allows eight runs in flight.
    taken = re.findall(r"runs_in_flight=(\d+)", done.stdout + done.stderr)
    # Two runs, and a script for each.
    assert taken == ["8"] * 4


def test_a_key_twice_in_what_snakemake_reads_itself_is_refused_with_its_line(checkout):
    path = checkout.directory / "config" / "config.yaml"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([*lines, "results_directory: elsewhere", ""]), encoding="utf-8")
    first = 1 + next(n for n, line in enumerate(lines) if line.startswith("results_directory:"))
    expected = (
        f"config.yaml: line {len(lines) + 1}: the key results_directory is given twice, first in "
        f"line {first}; keep one of them"
    )
    assert expected in message_of(checkout.snakemake())


def test_too_few_open_files_for_any_run_are_said_before_anything_starts(checkout):
    command = [str(SNAKEMAKE), "--profile", "profiles/local", "results/sweeps/tiny/report.html"]
    done = checkout.call("prlimit", "--nofile=99:99", *command)
    assert re.search("takes 100 open files, .* 99", message_of(done))
    assert not (checkout.directory / "results" / "cells").exists()


def test_an_unwritable_results_directory_is_named(checkout):
    done = checkout.snakemake("--config", "results_directory=/proc/results", "sweeps=[tiny]")
    assert "/proc/results" in message_of(done)


def test_results_that_are_a_link_to_nothing_are_refused_with_what_to_do(checkout):
    (checkout.directory / "results").symlink_to("/no/such/disk")
    done = checkout.snakemake()
    assert "results is a link to /no/" in message_of(done)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(b"", "corpus.txt", id="empty", marks=pytest.mark.kills),
        pytest.param(b"caf\xe9 au lait", "corpus.txt", id="not UTF-8"),
        pytest.param(None, "corpus.txt", id="missing", marks=pytest.mark.kills),
    ],
)
def test_a_bad_corpus_is_named_before_anything_trains(checkout, content, expected):
    corpus = checkout.directory / "corpus.txt"
    if content is not None:
        corpus.write_bytes(content)
    data = checkout.directory / "config" / "data" / "mine.yaml"
    data.write_text(
        "description: mine\nkind: text\ntokenizer: bytes\nsources: [corpus.txt]\n", encoding="utf-8"
    )
    checkout.write_sweep(data="mine")
    assert expected in message_of(checkout.snakemake())
    assert not any(run.job.exists() for run in checkout.runs().values())
    assert not (checkout.directory / "results" / "data" / "mine" / "tokens.json").exists()


@pytest.mark.long
def test_tokens_that_did_not_come_along_are_made_anew_and_have_to_be_the_same(checkout):
    corpus = checkout.directory / "corpus.txt"
    corpus.write_text("the first text " * 50, encoding="utf-8")
    (checkout.directory / "config" / "data" / "mine.yaml").write_text(
        "description: mine\nkind: text\ntokenizer: bytes\nsources: [corpus.txt]\n", encoding="utf-8"
    )
    checkout.write_sweep(data="mine")
    assert checkout.snakemake().returncode == 0
    # As unpacked from an archive, in which one of the runs had not ended.
    array = checkout.directory / "results" / "data" / "mine" / "tokens.bin"
    done, other = (checkout.runs()[name] for name in ("gpt3-tiny", "llama3-tiny"))
    trained = done.outcome.stat().st_mtime_ns
    tokens = array.read_bytes()
    array.unlink()
    assert not {rule for rule, _ in checkout.planned_jobs()} & {"tokenize", "run"}
    shutil.rmtree(other.directory)
    shutil.rmtree(checkout.directory / "results" / "sweeps")
    message = message_of(checkout.snakemake())
    assert f"{array} is not there" in message
    asked = re.search(r"`snakemake --profile … (.*)` makes it", message)
    assert asked is not None
    assert not other.job.exists()

    target = "results/sweeps/tiny/report.html"
    corpus.write_text("another text " * 50, encoding="utf-8")
    message = message_of(checkout.snakemake(target, *asked[1].split()))
    assert re.search(r"tokens\.json: .* corpus\.txt", message)
    assert not array.exists()

    corpus.write_text("the first text " * 50, encoding="utf-8")
    assert checkout.snakemake(target, *asked[1].split()).returncode == 0
    assert array.read_bytes() == tokens
    well(checkout.snakemake())
    assert other.outcome.exists()
    assert done.outcome.stat().st_mtime_ns == trained


@pytest.mark.long
def test_a_script_edited_by_hand_is_noticed_and_not_submitted(checkout):
    rendered = checkout.snakemake("results/sweeps/tiny/report.html", "--until", "render")
    assert rendered.returncode == 0
    script = checkout.runs()["gpt3-tiny"].script
    script.write_text(script.read_text() + "# one more line\n")
    message = message_of(checkout.snakemake())
    assert f"{script.relative_to(checkout.directory)} was edited" in message
    assert not checkout.runs()["gpt3-tiny"].job.exists()
    # The other cell ran all the same.
    assert checkout.runs()["llama3-tiny"].outcome.exists()


@pytest.mark.long
def test_corrupt_telemetry_is_named_with_its_line_and_kept(checkout):
    checkout.write_sweep(matrix=[{"models": "gpt3-tiny", "gpus": 1, "dp": 1}])
    well(checkout.snakemake("results/sweeps/tiny/report.html", "--until", "run"))
    (run,) = checkout.runs().values()
    (node,) = run.sampled_nodes()
    samples = run.gpu_samples(node)
    lines = samples.read_text().splitlines(keepends=True)
    lines[20] = "not,a,number\n"
    samples.write_text("".join(lines))
    message = message_of(checkout.snakemake())
    assert samples.name in message
    assert "21" in message
    assert samples.read_text() == "".join(lines)


@pytest.mark.long
def test_a_rule_whose_command_fails_halfway_fails_and_leaves_nothing_half(checkout):
    # A figure that cannot be drawn, after others that could.
    checkout.write_sweep(matrix=[{"models": "gpt3-tiny", "gpus": 1, "dp": 1}])
    well(checkout.snakemake("results/sweeps/tiny/report.html", "--until", "collect"))
    checkout.edit(
        "workflow_lib/report/__main__.py",
        "from __future__ import annotations\n",
        "from __future__ import annotations\n\nimport atexit\nimport os\n\n"
        "atexit.register(lambda: os._exit(3))\n",
    )
    assert checkout.snakemake().returncode != 0
    view = checkout.directory / "results" / "sweeps" / "tiny"
    assert not (view / "figures").exists()
    assert not (view / "report.html").exists()
