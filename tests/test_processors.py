"""What is written of drifts and projections is the same to the last digit on every processor."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

#: prints the changes of noisy series of several lengths, and projected step times
PROGRAM = """
import random
from pathlib import Path
from workflow_lib.cells import expand_study
from workflow_lib.intervals.change import change
from workflow_lib.study import load_study
chance = random.Random(7)
for count in (10, 12, 20, 41, 100, 200):
    for _ in range(10):
        print(count, change([1 + chance.gauss(0, 0.01) for _ in range(count)]))
sweeps = expand_study(load_study(Path("config")))
for name in ("evidence-llama3-8b-x2", "evidence-experts-x2", "parallelism-h200"):
    for each in sweeps[name].cells:
        print(each.cell.id, each.estimate and each.estimate.step_time)
"""


@functools.cache
def printed(**environment: str) -> str:
    """What a process prints that has numerical libraries use other instructions."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-c", PROGRAM]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, env=env, cwd=root, capture_output=True, text=True, check=True)
    assert "source='projected'" in done.stdout
    return done.stdout


@pytest.mark.parametrize(
    "environment",
    [
        {"OPENBLAS_CORETYPE": "Haswell"},
        {"OPENBLAS_CORETYPE": "Nehalem"},
        {"OMP_NUM_THREADS": "2"},
        {"NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4"},
    ],
    ids=lambda environment: "_".join(environment.values()),
)
def test_every_digit_is_the_same_with_the_instructions_of_other_processors(environment):
    assert printed(**environment) == printed()
