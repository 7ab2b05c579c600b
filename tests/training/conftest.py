"""What several tests of training train on."""

from __future__ import annotations

from pathlib import Path

import pytest

from workflow_lib.trainers.native.tokenize import byte_tokenizer, tokenize


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokens")
    source = Path(__file__).parents[2] / "workflow_lib" / "formulas.py"
    tokenize(directory, [str(source)], byte_tokenizer())
    return directory / "tokens.json"
