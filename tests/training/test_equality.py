"""Every layout trains the same model: its losses and gradient norms are those of one process.

One launch trains all cells of a world size. What `capabilities` claims is run here: each kind of
combination at least once, with a model where it is hardest (GPT's tied embedding in a pipeline,
Mixtral's experts under expert parallelism).
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.cells import GPT, LLAMA, MIXTRAL, cell
from tests.training.reference import reference
from workflow_lib.records import Degrees, write_json
from workflow_lib.training.tokenize import byte_tokenizer, tokenize

FULL = {"recomputation": "full"}
BF16 = {"precision": "bf16"}

CELLS = {
    "dp2 zero0": cell(LLAMA, Degrees(dp=2), zero_stage=0),
    "dp2 zero1": cell(LLAMA, Degrees(dp=2), zero_stage=1),
    "dp2 zero2": cell(LLAMA, Degrees(dp=2), zero_stage=2),
    "dp2 zero3": cell(LLAMA, Degrees(dp=2), zero_stage=3),
    "dp2 zero3 tied": cell(GPT, Degrees(dp=2), zero_stage=3),
    "dp2 one micro-batch": cell(GPT, Degrees(dp=2), zero_stage=1, micro_batch_size=2),
    "dp2 zero1 overlap": cell(LLAMA, Degrees(dp=2), zero_stage=1, overlap=True),
    "dp2 zero2 overlap": cell(LLAMA, Degrees(dp=2), zero_stage=2, overlap=True),
    "dp2 zero3 overlap recompute": cell(LLAMA, Degrees(dp=2), zero_stage=3, overlap=True, **FULL),
    "dp2 zero1 bf16": cell(LLAMA, Degrees(dp=2), zero_stage=1, **BF16),
    "dp2 zero2 bf16 overlap": cell(LLAMA, Degrees(dp=2), zero_stage=2, overlap=True, **BF16),
    "dp2 zero3 bf16": cell(LLAMA, Degrees(dp=2), zero_stage=3, **BF16),
    "pp2 zero0 tied": cell(GPT, Degrees(pp=2), zero_stage=0),
    "pp2 zero1 tied recompute": cell(GPT, Degrees(pp=2), zero_stage=1, **FULL),
    "pp2 zero0 bf16 tied": cell(GPT, Degrees(pp=2), zero_stage=0, **BF16),
    "tp2 zero0 tied": cell(GPT, Degrees(tp=2), zero_stage=0),
    "tp2 zero2 recompute": cell(LLAMA, Degrees(tp=2), zero_stage=2, **FULL),
    "tp2 zero3": cell(LLAMA, Degrees(tp=2), zero_stage=3),
    "tp2 zero0 bf16": cell(LLAMA, Degrees(tp=2), zero_stage=0, **BF16),
    "tp2 experts": cell(MIXTRAL, Degrees(tp=2), zero_stage=1),
    "pp2 experts": cell(MIXTRAL, Degrees(pp=2), zero_stage=1),
    "dp2 zero3 experts": cell(MIXTRAL, Degrees(dp=2), zero_stage=3),
    "ep2 zero0": cell(MIXTRAL, Degrees(dp=2, ep=2), zero_stage=0),
    "ep2 zero1": cell(MIXTRAL, Degrees(dp=2, ep=2), zero_stage=1),
    "ep2 zero2 recompute": cell(MIXTRAL, Degrees(dp=2, ep=2), zero_stage=2, **FULL),
    "ep2 zero1 bf16": cell(MIXTRAL, Degrees(dp=2, ep=2), zero_stage=1, **BF16),
    "pp2 dp2 zero0 tied": cell(GPT, Degrees(pp=2, dp=2), zero_stage=0),
    "pp2 dp2 zero1 tied": cell(GPT, Degrees(pp=2, dp=2), zero_stage=1),
    "tp2 pp2 zero0": cell(LLAMA, Degrees(tp=2, pp=2), zero_stage=0),
    "tp2 pp2 zero1 tied": cell(GPT, Degrees(tp=2, pp=2), zero_stage=1),
    "tp2 dp2 zero1": cell(LLAMA, Degrees(tp=2, dp=2), zero_stage=1),
    "tp2 dp2 zero3": cell(LLAMA, Degrees(tp=2, dp=2), zero_stage=3),
    "tp2 dp2 zero1 bf16": cell(LLAMA, Degrees(tp=2, dp=2), zero_stage=1, **BF16),
    "tp2 ep2 zero1": cell(MIXTRAL, Degrees(tp=2, dp=2, ep=2), zero_stage=1),
    "tp2 ep2 zero1 bf16": cell(MIXTRAL, Degrees(tp=2, dp=2, ep=2), zero_stage=1, **BF16),
    "pp2 ep2 zero1": cell(MIXTRAL, Degrees(pp=2, dp=2, ep=2), zero_stage=1),
    "dp4 ep2 zero0": cell(MIXTRAL, Degrees(dp=4, ep=2), zero_stage=0),
    "dp4 ep2 zero2": cell(MIXTRAL, Degrees(dp=4, ep=2), zero_stage=2),
    "tp2 pp2 ep2 zero1": cell(MIXTRAL, Degrees(tp=2, pp=2, dp=2, ep=2), zero_stage=1),
}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokens")
    source = Path(__file__).parents[2] / "workflow_lib" / "formulas.py"
    tokenize(directory, [str(source)], byte_tokenizer())
    return directory / "tokens.json"


@pytest.fixture(scope="module")
def trained(tokens, tmp_path_factory):
    """Train the cells of a world size together, once; return what each of its ranks saw."""

    @functools.cache
    def train(world_size):
        directory = tmp_path_factory.mktemp(f"world{world_size}")
        for name, one in CELLS.items():
            if one.degrees.world_size == world_size:
                write_json(directory / "cells" / f"{name}.json", one)
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", str(world_size), "-m", "tests.training.losses"),
                *(directory / "cells", directory / "results.json", tokens),
            ],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-8000:]
        return json.loads((directory / "results.json").read_text())

    return train


@functools.cache
def expected(model, tokens):
    return reference(cell(model), tokens)


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
def test_a_layout_trains_as_one_process_does(name, trained, tokens):
    one = CELLS[name]
    bf16 = one.training.precision == "bf16"
    losses, norms = expected(one.model, tokens)

    ranks = trained(one.degrees.world_size)[name]

    for rank in ranks:
        assert rank["losses"] == pytest.approx(losses, rel=2e-3 if bf16 else 5e-6)
    # The norm catches a gradient that is scaled wrongly, which AdamW would hide. In bf16 later
    # steps start from weights that differ already.
    steps = 1 if bf16 else len(norms)
    assert ranks[0]["norms"][:steps] == pytest.approx(norms[:steps], rel=5e-3 if bf16 else 1e-5)


def test_the_comparison_would_notice_a_training_that_does_not_clip_or_learn(tokens):
    losses, norms = expected(LLAMA, tokens)

    assert min(norms) > 1.5
    assert losses[-1] < losses[0] - 0.5
