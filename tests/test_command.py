"""``triptych``, installed from a wheel into a fresh environment, does what its modules do."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.test_status import CELL, end, make_run
from workflow_lib import __main__ as command
from workflow_lib import __version__
from workflow_lib.records.outcomes import Outcome


def call(*argv: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | variables
    return subprocess.run(
        list(map(str, argv)), cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that ``make release`` builds, of what stands in the release's list of checksums."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", "Makefile"):
        shutil.copy(ROOT / name, copy)
    for name in ("workflow_lib", "envs"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    installed = f"--old-file={sys.prefix}/.installed-analysis"
    built = call("make", f"VENV={sys.prefix}", installed, "release", cwd=copy)
    assert built.returncode == 0, built.stderr
    checked = call("sha256sum", "--check", "--quiet", "SHA256SUMS", cwd=copy / "dist")
    assert (checked.returncode, checked.stdout) == (0, "")
    assert not (copy / "build").exists()
    (found,) = (copy / "dist").glob("*.whl")
    return found


@pytest.fixture(scope="module")
def triptych(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command in an environment of its own, which sees the packages of this one."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, symlinks=True)
    python = directory / "bin" / "python"
    asked = call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=ROOT)
    beside = Path(asked.stdout.strip()) / "beside.pth"
    beside.write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    installed = call(
        *(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index"),
        *("--no-deps", wheel),
        cwd=directory,
    )
    assert installed.returncode == 0, installed.stderr
    return directory / "bin" / "triptych"


def test_the_wheel_holds_the_whole_package_and_asks_for_what_is_pinned(wheel):
    with zipfile.ZipFile(wheel) as files:
        held = {name for name in files.namelist() if name.startswith("workflow_lib/")}
        (name,) = (name for name in files.namelist() if name.endswith("/METADATA"))
        metadata = files.read(name).decode("utf-8").partition("\n\n")[0].splitlines()
    package = (path for path in (ROOT / "workflow_lib").rglob("*") if path.is_file())
    assert held == {str(p.relative_to(ROOT)) for p in package if "__pycache__" not in p.parts}
    assert f"Version: {__version__}" in metadata
    pinned = (ROOT / "envs" / "analysis.txt").read_text(encoding="utf-8").splitlines()[1:]
    asked = [line.removeprefix("Requires-Dist: ") for line in metadata if "Requires-Dist" in line]
    assert [each for each in asked if "extra" not in each] == pinned


@pytest.mark.parametrize("name", command.COMMANDS)
def test_every_option_says_what_it_is(name):
    own = command._module(command.COMMANDS[name]).command_line(f"triptych {name}")
    options = [
        action
        for parser in (own, *command._subcommands(own).values())
        for action in parser._actions
    ]
    assert [action.dest for action in options if not action.help and action.dest != "command"] == []


def test_a_command_is_its_module(triptych, tmp_path):
    end(make_run(tmp_path / "results"), Outcome.NODE_FAILURE, "The node n2 failed.")
    called = call(triptych, "status", "--json", cwd=tmp_path)
    module = call(
        *(sys.executable, "-m", "workflow_lib.status", "--json"), cwd=tmp_path, PYTHONPATH=str(ROOT)
    )
    assert json.loads(called.stdout)["cell"] == CELL
    assert (called.stdout, called.returncode) == (module.stdout, 0)


@pytest.mark.long
def test_the_installed_package_finds_its_templates(triptych, tmp_path):
    """Elsewhere than in a clone; pages come of templates, and the page is the last that is made."""
    archive = ROOT / "evidence" / "evidence-one-gpu-h100x1.zip"
    done = call(triptych, "archive", "rebuild", archive, "--into", tmp_path / "out", cwd=tmp_path)
    page = tmp_path / "out" / "results" / "sweeps" / "evidence-one-gpu-h100x1" / "report.html"
    assert page.is_file(), done.stderr


@pytest.mark.parametrize(
    "argv", [("run", "demo"), ("archive", "pack", "--sweep", "demo")], ids=lambda argv: argv[0]
)
def test_what_needs_the_clone_says_so_elsewhere(triptych, tmp_path, argv):
    done = call(triptych, *argv, cwd=tmp_path)
    assert done.returncode == 1
    assert "clone of the repository" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_run_starts_snakemake_with_the_sweeps_profile(triptych, tmp_path):
    results = tmp_path / "results"
    done = call(triptych, "run", "demo", "--results", results, "-n", "--", "--quiet", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert shlex.split(done.stdout.splitlines()[0]) == [
        *("snakemake", "--profile", "profiles/local", "--config"),
        *(f"results_directory={results}", "sweeps=[demo]", "--dry-run", "--quiet"),
    ]
    assert not results.exists()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "say what to run: a sweep, as in `triptych run demo`"),
        (["demos"], "no sweep is called 'demos'; did you mean 'demo'?"),
        (["--platform", "locall"], "no platform is called 'locall'; valid: h100, "),
        (["smoke-h200", "--platform", "h100"], "smoke-h200 means h200, --platform means h100"),
        (["demo", "--", "--config", "sweeps=[demo]"], "--config goes before the --"),
    ],
)
def test_run_says_what_is_wrong(argv, said, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert command.main(["run", *argv]) == 1
    assert said in capsys.readouterr().err


class RanError(Exception):
    """The process would have become Snakemake."""


@pytest.mark.parametrize(
    ("argv", "failed", "checked", "ran"),
    [
        (["smoke-h200"], 0, ["h200"], True),
        (["smoke-h200"], 1, ["h200"], False),
        (["smoke-h200", "--dry-run"], 1, [], True),
        (["smoke-h200", "--", "-n"], 1, [], True),
        (["smoke-local"], 1, [], True),
    ],
)
def test_a_first_run_waits_for_its_check(argv, failed, checked, ran, tmp_path, monkeypatch):
    def became(*_: object) -> None:
        raise RanError

    asked = []
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("os.execv", became)
    monkeypatch.setattr("workflow_lib.check.main", lambda given: asked.append(given[1]) or failed)
    run = ["run", "--results", str(tmp_path), *argv]
    if ran:
        with pytest.raises(RanError):
            command.main(run)
    else:
        assert command.main(run) == failed
    assert asked == checked
    # Where runs were rendered before, jobs have started.
    asked.clear()
    (tmp_path / "cells" / "h200").mkdir(parents=True)
    with pytest.raises(RanError):
        command.main(run)
    assert asked == []


def test_run_says_where_snakemakes_cache_could_be(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    # Nobody may make a directory below a file, not even root.
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    assert command.main(["run", "demo", "--dry-run"]) == 1
    said = capsys.readouterr().err
    assert f"{tmp_path}/file cannot be written" in said
    assert "set XDG_CACHE_HOME" in said


@pytest.mark.parametrize("given", [{}, {"USER": "me"}, {"HOME": "/"}])
def test_run_says_that_the_system_does_not_know_the_user(given, monkeypatch, capsys):
    def nobody(number: int) -> None:
        raise KeyError(number)

    monkeypatch.chdir(ROOT)
    for name in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert command.main(["run", "demo", "--dry-run"]) == 1
    assert "set USER and HOME" in capsys.readouterr().err


def test_run_names_a_link_to_nothing_among_its_results(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    (tmp_path / "link").symlink_to("/no/such/disk")
    assert command.main(["run", "demo", "--brief", "--results", str(tmp_path / "link")]) == 1
    assert f"{tmp_path}/link is a link to /no/" in capsys.readouterr().err


@pytest.mark.parametrize("name", command.COMMANDS)
def test_a_command_calls_itself_by_its_name(name, capsys):
    with pytest.raises(SystemExit, match="0"):
        command.main([name, "--help"])
    assert capsys.readouterr().out.startswith(f"usage: triptych {name} ")


def test_help_lists_every_command_and_a_wrong_one_is_refused(capsys):
    assert command.main([]) == 0
    listed = capsys.readouterr().out
    assert [name for name in command.COMMANDS if f"\n  {name} " not in listed] == []
    with pytest.raises(SystemExit, match="2"):
        command.main(["stauts"])
    assert re.search("'stauts'; .*'status'", capsys.readouterr().err)


def completed(script: str, words: str) -> set[str]:
    """What bash offers after these words."""
    typed = words.split(" ")
    done = subprocess.run(
        ["bash", "-c", f"{script}\nCOMP_WORDS=({words})\nCOMP_CWORD={len(typed) - 1}\n"
         '_shtab_triptych\nprintf "%s\\n" "${COMPREPLY[@]}"'],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(done.stdout.split())


def test_bash_completes_commands_options_and_values():
    pytest.importorskip("shtab", reason="envs/analysis.txt has shtab: run make environment")
    script = command.completion("bash")
    assert completed(script, "triptych sta") == {"status"}
    assert completed(script, "triptych archive p") == {"pack"}
    assert completed(script, "triptych status --out") == {"--outcome"}
    assert completed(script, "triptych status --state q") == {"queued"}
    assert completed(script, "triptych project --mod") == {"--model"}
