"""What ``make`` passes on to the commands."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import programs
from tests.conftest import ROOT


def command_of(*arguments: str) -> str:
    """The command that make would run, on a machine where everything is installed."""
    installed = (f"--old-file=.venv/.installed{kind}" for kind in ("", "-analysis"))
    done = programs.run(["make", "--dry-run", "--silent", *installed, *arguments])
    done.check_returncode()
    # A command may go over several lines.
    return " ".join(done.stdout.replace("\\\n", " ").splitlines()[-1].split())


def test_a_variable_in_small_letters_is_refused():
    done = subprocess.run(["make", "plan", "platform=h100"], cwd=ROOT, capture_output=True)
    assert done.returncode == 2
    assert b"not platform=h100" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("status",), "-m workflow_lib.status"),
        (("slots", "PLATFORM=h200x4"),
         '-m workflow_lib.placement slots "results/sweeps/slots-h200x4" '
         '--output "results/placements/slots-h200x4"'),
        (("place", "CELL=h200x4/m/c", "MEASURED=results/sweeps/mine"),
         '-m workflow_lib.placement place "results/sweeps/mine" --cell "h200x4/m/c" '
         '--output "results/placements/h200x4_m_c" --write config/sweeps/placed.yaml'),
        (("status", "RESULTS=/scratch/a study"),
         '-m workflow_lib.status --results "/scratch/a study"'),
        (("plan",),
         '-m workflow_lib.plan --platform h200 --output "results/plans/h200/plan.parquet"'),
        (("plan", "PLATFORM=h100", "RESULTS=/scratch/a study"),
         "-m workflow_lib.plan --platform h100 "
         '--output "/scratch/a study/plans/h100/plan.parquet"'),
        (("sensors", "PARTS=map counter", "OUTPUT=o.jsonl"),
         'research/sensors_on_gpus.py --parts map counter --output "o.jsonl"'),
        (("rebuild", "ARCHIVE=demo"), '-m workflow_lib.archive rebuild "demo"'),
        (("rebuild", "ARCHIVE=demo", "INTO=else where", "AGAIN=1"),
         '-m workflow_lib.archive rebuild "demo" --into "else where" --again'),
    ],
)  # fmt: skip
def test_a_target_passes_its_variables_on(arguments, expected):
    assert command_of(*arguments).strip().endswith(expected)


def test_status_reads_the_results_that_make_is_given(tmp_path):
    """As it is typed after `--config results_directory=…`."""
    command = command_of("status", f"RESULTS={tmp_path}").replace(
        ".venv/bin/python", shlex.quote(sys.executable)
    )
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"{tmp_path} holds no run" in done.stdout


def test_where_no_environment_can_be_made_it_is_said_what_else_to_do(tmp_path):
    place = tmp_path / "none" / ".venv"
    command = ["make", f"PYTHON={sys.executable}", f"VENV={place}", "plan"]
    done = programs.run(command)
    assert done.returncode
    assert f"{place} cannot be made: {place.parent} is" in done.stderr
    assert "make VENV=/tmp/" in done.stderr


def test_commands_of_the_environment_find_the_package_elsewhere(tmp_path):
    place = tmp_path / "environment"
    python = place / "bin" / "python"
    make = ["make", f"PYTHON={sys.executable}", f"VENV={place}", str(python)]
    subprocess.run(make, cwd=ROOT, check=True, capture_output=True)
    found = [python, "-c", "import workflow_lib; print(workflow_lib.__file__)"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = programs.run(found, tmp_path, environment)
    assert Path(done.stdout.strip()) == ROOT / "workflow_lib" / "__init__.py"


@pytest.mark.parametrize(
    ("package", "code", "said"),
    [
        ("pip", 0, "done: the 1 packages of "),
        ("no-such-package-of-anyone", 1, "docs/how-to/gpu-machine-without-network.md"),
    ],
)
def test_an_installation_says_in_a_file_how_it_ended(tmp_path, package, code, said):
    """As without a network: pip looks in no index."""
    pins = tmp_path / "pins.txt"
    pins.write_text(f"{package}\n", encoding="utf-8")
    command = [sys.executable, "envs/install.py", str(pins)]
    done = programs.run(command, env=os.environ | {"PIP_NO_INDEX": "1"})
    assert done.returncode == code
    last = (done.stderr or done.stdout).splitlines()[-1]
    assert said in last
    assert code == 0 or (ROOT / said).is_file()
