"""The code that jobs run: what is in its zip, and that jobs import nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

import workflow_lib
from tests import programs
from tests.programs import well
from workflow_lib.launch import snapshot


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return snapshot.write(tmp_path / "code").archive


def said_by(program: str, directory: Path, environment: dict[str, str]) -> str:
    """What a program prints that ends well in a directory."""
    done = well(programs.run([sys.executable, "-c", program], directory, os.environ | environment))
    return done.stdout


def test_its_modules_are_those_that_scripts_run():
    package = Path(workflow_lib.__file__).parent
    template = package / "launch" / "templates" / "job.sh.j2"
    run = set(re.findall(r"-m workflow_lib\.([a-z_.]+)", template.read_text()))
    mains = {
        f"{name}.__main__" if (package / name.replace(".", "/")).is_dir() else name for name in run
    }
    hook = {"trainers.sitecustomize", "trainers.triptych_steps"}  # read as files
    assert mains | hook == {*snapshot.RUN_BY_JOBS}


def test_it_is_named_by_its_content_and_written_once(code, tmp_path):
    written = code.stat().st_mtime_ns
    assert snapshot.write(code.parent).archive.stat().st_mtime_ns == written
    package = tmp_path / "copy" / "workflow_lib"
    shutil.copytree(Path(workflow_lib.__file__).parent, package)
    for path in package.rglob("*.py"):
        os.utime(path, (1e9, 1e9))
    assert snapshot.write(code.parent, snapshot.take(package)).archive == code
    (package / "report" / "page.py").write_text("")
    assert snapshot.take(package).name == code.name
    (package / "trainers" / "native" / "loop.py").write_text("")
    assert snapshot.take(package).name != code.name


def test_one_that_was_damaged_is_written_again(code):
    content = code.read_bytes()
    code.chmod(0o666)
    code.write_bytes(content[:1000])
    snapshot.write(code.parent)
    assert (code.read_bytes(), code.stat().st_mode & 0o777) == (content, 0o444)


@pytest.mark.parametrize("entry", snapshot.RUN_BY_JOBS)
def test_a_job_imports_it_whatever_lies_in_its_directory(code, entry, tmp_path):
    changed = tmp_path / "repository" / "workflow_lib"
    changed.mkdir(parents=True)
    (changed / "__init__.py").write_text("raise SystemExit('of the repository')")
    ask = (
        f"import json, sys, workflow_lib.{entry}, workflow_lib.records.paths as paths; "
        "own = [m for n, m in sys.modules.items() if n.partition('.')[0] == 'workflow_lib']; "
        "print(json.dumps([paths.code_sha256(), sorted({m.__loader__.archive for m in own})]))"
    )
    # As job.sh has it.
    own = {"PYTHONPATH": f"{code}:{changed.parent}", "PYTHONSAFEPATH": "1"}
    assert json.loads(said_by(ask, changed.parent, own)) == [code.stem, [str(code)]]


def test_a_process_that_renders_goes_on_with_the_code_that_it_began_with(tmp_path):
    package = tmp_path / "copy" / "workflow_lib"
    shutil.copytree(Path(workflow_lib.__file__).parent, package)
    config = Path(workflow_lib.__file__).parents[1] / "config"
    program = f"""
from pathlib import Path
from workflow_lib import cells
from workflow_lib.launch import rendering
from workflow_lib.launch import snapshot
from workflow_lib.study import load_study

snapshot.taken()
package = Path({str(package)!r})
for path in ("launch/job/node.py", "launch/templates/job.sh.j2"):
    text = (package / path).read_text()
    assert "--telemetry-exit" in text
    (package / path).write_text(text.replace("--telemetry-exit", "--sampler-exit"))
study = load_study(Path({str(config)!r}))
planned = next(each for each in cells.expand_study(study)["demo"].cells if each.feasible)
rendering.render_run(study, planned, 1, package.parent / "results", package.parent)
"""
    said_by(program, package.parent, {"PYTHONPATH": str(package.parent)})
    (script,) = (package.parent / "results").rglob("job.sh")
    (code,) = (package.parent / "results" / "code").glob("*/*.zip")
    with zipfile.ZipFile(code) as archive:
        step = archive.read("workflow_lib/launch/job/node.py").decode()
    assert "--telemetry-exit" in script.read_text()
    assert "--telemetry-exit" in step
