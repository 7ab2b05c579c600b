"""Changes are the same to the last digit on every processor."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: prints the changes of noisy series of several lengths
CHANGES = """
import random
from workflow_lib.intervals.change import change
chance = random.Random(7)
for count in (10, 12, 20, 41, 100, 200):
    for _ in range(10):
        print(count, change([1 + chance.gauss(0, 0.01) for _ in range(count)]))
"""


def printed(**environment: str) -> str:
    """What a process prints that has numerical libraries use other instructions."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-c", CHANGES]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize(
    "environment",
    [
        {"OPENBLAS_CORETYPE": "Haswell"},
        {"OPENBLAS_CORETYPE": "Sandybridge"},
        {"OPENBLAS_CORETYPE": "Nehalem"},
        {"OMP_NUM_THREADS": "2"},
        {"NPY_DISABLE_CPU_FEATURES": "X86_V4"},
        {"NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4"},
    ],
    ids=lambda environment: "_".join(environment.values()),
)
def test_every_digit_is_the_same_with_the_instructions_of_other_processors(
    environment: dict[str, str],
) -> None:
    assert printed(**environment) == printed()
