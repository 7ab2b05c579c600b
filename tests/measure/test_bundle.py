"""dist/triptych.pyz: one file, for old Pythons, that needs nothing."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.measure.runs import environment, measured
from workflow_lib.measure import bundle


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dist") / "triptych.pyz"
    bundle.write(path)
    return path


def interpreters() -> list[str]:
    """This Python, and the oldest one that is supported, where it is installed."""
    # Some sites have a stand-in of that name, which only says where to get it: pyenv has.
    of_pyenv = map(str, sorted(Path.home().glob(".pyenv/versions/3.9.*/bin/python3.9")))
    for old in filter(None, (shutil.which("python3.9"), *of_pyenv)):
        if subprocess.run([old, "-V"], capture_output=True, check=False).returncode == 0:
            return [sys.executable, old]
    return [sys.executable]


@pytest.mark.parametrize("python", interpreters())
def test_it_measures_in_an_empty_environment(tmp_path, archive, python):
    words = [python, "-S", str(archive), "--output", str(tmp_path / "run"), "--simulate=2"]
    words += ["--steps=hook", "--", "sh", "-c", "sleep 2; exit 3"]
    ended = subprocess.run(words, env=environment(PYTHONPATH=""), cwd=tmp_path, check=False)
    assert ended.returncode == 3
    assert measured(tmp_path)["values"]["energy_j"] > 0
    audited = [python, "-S", str(archive), "audit", str(tmp_path / "run")]
    assert subprocess.run(audited, cwd=tmp_path, check=False).returncode == 0


def test_the_same_files_give_the_same_bytes(tmp_path, archive):
    again = tmp_path / "again.pyz"
    bundle.write(again)
    assert again.read_bytes() == archive.read_bytes()


def test_it_has_no_package_but_ours_and_nvidias_binding(archive):
    names = set(sys.stdlib_module_names) | {"workflow_lib", "pynvml", "amdsmi", "triptych_steps"}
    # of programs that are measured, imported only where they have been
    names |= {"torch", "transformers", "lightning", "pytorch_lightning"}
    with zipfile.ZipFile(archive) as stream:
        for name in stream.namelist():
            if name.endswith(".py") and name != "pynvml.py":
                tree = ast.parse(stream.read(name), name, feature_version=(3, 9))
                assert {top(node) for node in ast.walk(tree)} - {""} <= names


def top(node: ast.AST) -> str:
    """The package that an import names; "" for another node."""
    if isinstance(node, ast.ImportFrom) and not node.level:
        return str(node.module).partition(".")[0]
    return node.names[0].name.partition(".")[0] if isinstance(node, ast.Import) else ""
