"""The command that is measured notices nothing, and leaves nothing."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.measure.runs import command, environment, measure, measured
from tests.waiting import until


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("kill -SEGV $$", -signal.SIGSEGV), ("kill -KILL $$", -9)],
)
def test_it_ends_as_the_command_ends(tmp_path, script, code):
    assert measure(tmp_path, "sh", "-c", script).returncode == code
    record = measured(tmp_path)
    assert record["signal"] == (-code if code < 0 else None)
    assert record["exit_code"] == (128 - code if code < 0 else code)


def test_a_command_that_cannot_run_has_the_exit_code_of_a_shell(tmp_path):
    assert measure(tmp_path, "no-such-command").returncode == 127
    (tmp_path / "again").mkdir()
    assert measure(tmp_path / "again", str(tmp_path)).returncode == 126


def test_output_and_variables_are_its_own(tmp_path):
    alone = subprocess.run(
        ["env"], env=environment(), capture_output=True, text=True, check=True, cwd=tmp_path
    )
    under = measure(tmp_path, "env")
    assert under.stdout.splitlines() == alone.stdout.splitlines()


def test_two_runs_of_one_directory_are_both_kept(tmp_path):
    for code in (0, 5):
        assert measure(tmp_path, "sh", "-c", f"exit {code}").returncode == code
    assert (tmp_path / "run/measured.json").is_file()
    assert (tmp_path / "run-2/measured.json").is_file()


def test_what_cannot_be_measured_runs_all_the_same(tmp_path):
    (tmp_path / "run").write_text("a file where the directory should be")
    ended = measure(tmp_path, "sh", "-c", "echo here; exit 4")
    assert (ended.returncode, ended.stdout) == (4, "here\n")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_is_passed_on_once(tmp_path, number):
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo got >> {tmp_path}/got; exit 7' {name}; touch {tmp_path}/up; "
    script += "while true; do sleep 0.05; done"
    with subprocess.Popen(
        command(tmp_path, "sh", "-c", script), env=environment(), stderr=subprocess.DEVNULL
    ) as process:
        until((tmp_path / "up").exists)
        process.send_signal(number)
        assert process.wait() == 7
    assert (tmp_path / "got").read_text() == "got\n"


def test_a_machine_without_gpus_says_so(tmp_path):
    ended = measure(tmp_path, "sh", "-c", "exit 2", options=("--simulate=0",))
    assert ended.returncode == 2
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        assert measured(tmp_path)["missing"]["energy_j"] == "no_gpus"


def test_no_argument_and_no_variable_is_written(tmp_path):
    secrets = {f"API_TOKEN_{number}": f"planted-{number}-secret" for number in range(40)}
    arguments = [f"--key={value}" for value in secrets.values()]
    measure(tmp_path, "true", *arguments, **secrets)
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert not any(b"planted-" in content for content in written)


@pytest.mark.parametrize("words", [("mesure",), ("compare", "a", "b")])
def test_a_word_that_is_no_command_starts_nothing(tmp_path, words):
    own = [sys.executable, "-m", "workflow_lib.measure", *words]
    done = subprocess.run(own, cwd=tmp_path, env=environment(), capture_output=True, check=False)
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [("--rate=0",), ("--simulate=-1",), ("--tokens=1M",), ("--pattern=(",), ("--simul=1",)],
)
def test_an_option_that_cannot_be_starts_nothing_and_leaves_nothing(tmp_path, options):
    done = measure(tmp_path, "touch", "started", options=options)
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_numbers_may_be_written_as_people_write_them(tmp_path):
    measure(tmp_path, "true", options=("--tokens=1e6", "--tokens-per-step=1_024"))
    assert (measured(tmp_path)["tokens"], measured(tmp_path)["tokens_per_step"]) == (10**6, 1024)


def test_a_command_that_never_started_has_no_energy_to_rely_on(tmp_path):
    assert measure(tmp_path, "no-such-command").returncode == 127
    assert len(measured(tmp_path)["invalid"]) == 1
