"""Layers cut over four ranks compute what they do on one, however their ranks communicate."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.layouts import CASES


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """Run all cases in one launch, when the first is asked for."""

    @functools.cache
    def run():
        results = tmp_path_factory.mktemp("layouts") / "results.json"
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", "4", "-m", "tests.training.layouts", results),
            ],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-8000:]
        return json.loads(results.read_text())

    return run


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_those_of_one_process(name, errors):
    for loss_error, gradient_error in errors()[name]:
        assert loss_error < 1e-6
        assert gradient_error < 3e-6
