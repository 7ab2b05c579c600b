"""Every layout trains the same model: its losses and gradient norms are those of one process.

One launch trains all cells of a world size. What `capabilities` claims is run here, by both
backends where both can: each degree alone, each pair, and all of them, with a model where it is
hardest (GPT's tied embedding in a pipeline, Mixtral's experts under expert parallelism). The
usual tests train the cells in USUAL, the long ones those in LONG too; `make equality` trains all.
"""

from __future__ import annotations

import functools
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.training import gpus
from tests.training.cells import GPT, LLAMA, MIXTRAL, MODERN, NEOX, cell
from tests.training.ranks import launch
from tests.training.reference import reference
from workflow_lib.records import Degrees, precisions_of
from workflow_lib.trainers.capabilities import refusal
from workflow_lib.trainers.native.tokenize import byte_tokenizer, tokenize

FULL = {"recomputation": "full"}
SELECTIVE = {"recomputation": "selective"}
BF16 = {"precision": "bf16"}
COMPILED = {"compile": True}
OVERLAP = {"overlap": True}
SEQUENCE = {"sequence_parallel": True}
DROPLESS = {"routing": "dropless"}
BALANCED = {"routing": "balanced"}
BALANCING = {"routing": "dropless", "balancing_loss": 0.01}
SIX = replace(LLAMA, name="llama-six", layers=6)

#: name: model, degrees, options
BOTH = {
    "dp2 zero0": (LLAMA, Degrees(dp=2), {"zero_stage": 0}),
    "dp2 zero1": (LLAMA, Degrees(dp=2), {"zero_stage": 1}),
    "dp2 zero2": (LLAMA, Degrees(dp=2), {"zero_stage": 2}),
    "dp2 zero3 tied": (GPT, Degrees(dp=2), {"zero_stage": 3}),
    "dp2 one micro-batch of two": (GPT, Degrees(dp=2), {"micro_batch_size": 2}),
    "dp2 zero1 bf16": (LLAMA, Degrees(dp=2), BF16),
    "dp2 zero3 bf16": (LLAMA, Degrees(dp=2), {"zero_stage": 3, **BF16}),
    "dp2 zero2 overlap bf16": (LLAMA, Degrees(dp=2), {"zero_stage": 2, **OVERLAP, **BF16}),
    "dp2 zero3 overlap recompute": (LLAMA, Degrees(dp=2), {"zero_stage": 3, **OVERLAP, **FULL}),
    "dp2 zero3 tied selective": (GPT, Degrees(dp=2), {"zero_stage": 3, **SELECTIVE}),
    "dp2 zero3 selective": (LLAMA, Degrees(dp=2), {"zero_stage": 3, **SELECTIVE}),
    "dp2 zero3 experts": (MIXTRAL, Degrees(dp=2), {"zero_stage": 3, **DROPLESS}),
    "dp2 balancing loss": (MIXTRAL, Degrees(dp=2), BALANCING),
    "tp2 zero0 tied": (GPT, Degrees(tp=2), {"zero_stage": 0}),
    "tp2 zero3 recompute": (LLAMA, Degrees(tp=2), {"zero_stage": 3, **FULL}),
    "tp2 bf16": (LLAMA, Degrees(tp=2), BF16),
    "tp2 sequence": (LLAMA, Degrees(tp=2), SEQUENCE),
    "tp2 sequence tied overlap": (GPT, Degrees(tp=2), {**SEQUENCE, **OVERLAP}),
    "tp2 sequence selective bf16": (LLAMA, Degrees(tp=2), {**SEQUENCE, **SELECTIVE, **BF16}),
    "tp2 sequence recompute": (LLAMA, Degrees(tp=2), {**SEQUENCE, **FULL}),
    "tp2 experts": (MIXTRAL, Degrees(tp=2), DROPLESS),
    "tp2 sequence experts": (MIXTRAL, Degrees(tp=2), {**SEQUENCE, **DROPLESS}),
    "tp2 sequence balancing": (MIXTRAL, Degrees(tp=2), {**SEQUENCE, **BALANCING}),
    "tp2 balanced": (MIXTRAL, Degrees(tp=2), BALANCED),
    "pp2 zero0 tied": (GPT, Degrees(pp=2), {"zero_stage": 0}),
    "pp2 zero1 tied recompute": (GPT, Degrees(pp=2), FULL),
    "pp2 zero0 bf16 tied": (GPT, Degrees(pp=2), {"zero_stage": 0, **BF16}),
    "pp2 uneven selective": (LLAMA, Degrees(pp=2, stage_layers=(1, 3)), SELECTIVE),
    "pp2 two micro-batches of two": (LLAMA, Degrees(pp=2), {"micro_batch_size": 2}),
    "pp2 balancing loss": (MIXTRAL, Degrees(pp=2), BALANCING),
    "ep2 zero1": (MIXTRAL, Degrees(dp=2, ep=2), DROPLESS),
    "ep2 zero0": (MIXTRAL, Degrees(dp=2, ep=2), {"zero_stage": 0, **DROPLESS}),
    "ep2 zero2 recompute": (MIXTRAL, Degrees(dp=2, ep=2), {"zero_stage": 2, **FULL, **DROPLESS}),
    "ep2 zero2 overlap": (MIXTRAL, Degrees(dp=2, ep=2), {"zero_stage": 2, **OVERLAP, **DROPLESS}),
    "ep2 selective": (MIXTRAL, Degrees(dp=2, ep=2), {**SELECTIVE, **DROPLESS}),
    "ep2 bf16": (MIXTRAL, Degrees(dp=2, ep=2), {**BF16, **DROPLESS}),
    "ep2 balanced": (MIXTRAL, Degrees(dp=2, ep=2), BALANCED),
    "ep2 balancing loss": (MIXTRAL, Degrees(dp=2, ep=2), BALANCING),
    "tp2 dp2 zero1 bf16": (LLAMA, Degrees(tp=2, dp=2), BF16),
    "tp2 dp2 zero3 sequence overlap": (
        *(LLAMA, Degrees(tp=2, dp=2)),
        {"zero_stage": 3, **SEQUENCE, **OVERLAP},
    ),
    "tp2 pp2 zero1 tied": (GPT, Degrees(tp=2, pp=2), {}),
    "tp2 pp2 sequence uneven": (LLAMA, Degrees(tp=2, pp=2, stage_layers=(3, 1)), SEQUENCE),
    "pp4 two micro-batches": (LLAMA, Degrees(pp=4), {"micro_batch_size": 2}),
    "pp2 dp2 zero0 tied": (GPT, Degrees(pp=2, dp=2), {"zero_stage": 0}),
    "pp2 dp2 zero1 tied recompute": (GPT, Degrees(pp=2, dp=2), FULL),
    "tp2 ep2 zero1": (MIXTRAL, Degrees(tp=2, dp=2, ep=2), DROPLESS),
    "tp2 ep2 sequence balanced": (MIXTRAL, Degrees(tp=2, dp=2, ep=2), {**SEQUENCE, **BALANCED}),
    "pp2 ep2 zero1": (MIXTRAL, Degrees(pp=2, dp=2, ep=2), DROPLESS),
    "pp2 ep2 balanced": (MIXTRAL, Degrees(pp=2, dp=2, ep=2), BALANCED),
    "dp4 ep2 zero0": (MIXTRAL, Degrees(dp=4, ep=2), {"zero_stage": 0, **DROPLESS}),
    "dp4 ep2 zero2": (MIXTRAL, Degrees(dp=4, ep=2), {"zero_stage": 2, **DROPLESS}),
    "tp2 pp2 dp2 tied sequence selective": (
        *(GPT, Degrees(tp=2, pp=2, dp=2)),
        {**SEQUENCE, **SELECTIVE},
    ),
    "dp2 zero3 modern recompute": (MODERN, Degrees(dp=2), {"zero_stage": 3, **FULL}),
    "tp2 modern selective": (MODERN, Degrees(tp=2), SELECTIVE),
    "tp2 sequence modern overlap": (MODERN, Degrees(tp=2), {**SEQUENCE, **OVERLAP}),
    "tp2 sequence neox": (NEOX, Degrees(tp=2), SEQUENCE),
    "pp2 neox selective": (NEOX, Degrees(pp=2), SELECTIVE),
    "pp2 modern": (MODERN, Degrees(pp=2), {}),
    "pp2 zero0 modern bf16": (MODERN, Degrees(pp=2), {"zero_stage": 0, **BF16}),
    "tp2 pp2 modern sequence": (MODERN, Degrees(tp=2, pp=2), SEQUENCE),
    "tp2 pp2 ep2 zero1": (MIXTRAL, Degrees(tp=2, pp=2, dp=2, ep=2), DROPLESS),
    "tp2 pp2 ep2 sequence balancing": (
        *(MIXTRAL, Degrees(tp=2, pp=2, dp=2, ep=2)),
        {**SEQUENCE, **BALANCING},
    ),
}

DEEPSPEED = {
    "dp2 zero1 overlap": (LLAMA, Degrees(dp=2), OVERLAP),
}

INTERLEAVED = Degrees(pp=2, virtual_stages=2)
V_SHAPED = replace(INTERLEAVED, schedule="zero-bubble-v")
SPLIT_BF16 = {**OVERLAP, **BF16}
TORCH = {
    "one rank zero3": (GPT, Degrees(), {"zero_stage": 3}),
    "dp2 zero0 bf16 overlap": (GPT, Degrees(dp=2), {"zero_stage": 0, **BF16, **OVERLAP}),
    "dp2 zero1 bf16 overlap": (LLAMA, Degrees(dp=2), {**BF16, **OVERLAP}),
    "pp2 overlap tied": (GPT, Degrees(pp=2), OVERLAP),
    "pp2 zero2": (LLAMA, Degrees(pp=2), {"zero_stage": 2}),
    "pp2 zero3 overlap bf16": (LLAMA, Degrees(pp=2), {"zero_stage": 3, **OVERLAP, **BF16}),
    "pp2x2 tied": (GPT, INTERLEAVED, {}),
    "pp2x2 overlap recompute": (LLAMA, INTERLEAVED, {**OVERLAP, **FULL}),
    "pp2x2 uneven": (SIX, replace(INTERLEAVED, stage_layers=(1, 2, 2, 1)), {}),
    "pp2 zero-bubble tied": (GPT, Degrees(pp=2, schedule="zero-bubble"), OVERLAP),
    "pp2x2 zero-bubble bf16": (LLAMA, replace(INTERLEAVED, schedule="zero-bubble"), SPLIT_BF16),
    "pp2 zero-bubble-v": (LLAMA, V_SHAPED, {**OVERLAP, "zero_stage": 0}),
    "pp2 zero-bubble-v tied uneven bf16": (
        *(replace(GPT, name="gpt-six", layers=6), replace(V_SHAPED, stage_layers=(1, 2, 2, 1))),
        SPLIT_BF16,
    ),
    "pp2 dp2 zero-bubble": (LLAMA, Degrees(pp=2, dp=2, schedule="zero-bubble"), OVERLAP),
    "pp2 dp2 zero-bubble-v zero0 tied": (
        *(GPT, replace(V_SHAPED, dp=2)),
        {**OVERLAP, "zero_stage": 0, "global_batch_size": 8},
    ),
    "pp4 zero-bubble": (LLAMA, Degrees(pp=4, schedule="zero-bubble"), OVERLAP),
    "cp2": (LLAMA, Degrees(cp=2), {}),
    "cp2 zero3 tied recompute": (GPT, Degrees(cp=2), {"zero_stage": 3, **FULL}),
    "cp2 zero0 bf16 overlap selective": (
        *(LLAMA, Degrees(cp=2)),
        {"zero_stage": 0, **BF16, **OVERLAP, **SELECTIVE},
    ),
    "cp2 modern selective": (MODERN, Degrees(cp=2), SELECTIVE),
    "pp2 modern zero3 overlap": (MODERN, Degrees(pp=2), {"zero_stage": 3, **OVERLAP}),
    "pp2 zero-bubble-v modern": (MODERN, V_SHAPED, OVERLAP),
    "tp2 sequence modern compiled": (MODERN, Degrees(tp=2), {**SEQUENCE, **COMPILED}),
    "cp4 two micro-batches of two": (LLAMA, Degrees(cp=4), {"micro_batch_size": 2}),
    "tp2 cp2 tied sequence overlap": (GPT, Degrees(tp=2, cp=2), {**SEQUENCE, **OVERLAP}),
    "cp2 dp2 zero3 overlap": (LLAMA, Degrees(cp=2, dp=2), {"zero_stage": 3, **OVERLAP}),
    "pp2 cp2 tied zero0": (GPT, Degrees(pp=2, cp=2), {"zero_stage": 0}),
    "pp2 cp2 zero-bubble": (LLAMA, Degrees(pp=2, cp=2, schedule="zero-bubble"), OVERLAP),
    "ep2 zero3 overlap": (MIXTRAL, Degrees(dp=2, ep=2), {"zero_stage": 3, **OVERLAP, **DROPLESS}),
    "dp2 zero3 compiled": (LLAMA, Degrees(dp=2), {"zero_stage": 3, **COMPILED}),
    "tp2 compiled": (GPT, Degrees(tp=2), COMPILED),
    "tp2 sequence compiled": (LLAMA, Degrees(tp=2), {**SEQUENCE, **COMPILED}),
    "pp2 compiled": (LLAMA, Degrees(pp=2), COMPILED),
    "tp2 pp2 sequence compiled": (LLAMA, Degrees(tp=2, pp=2), {**SEQUENCE, **COMPILED}),
    "tp2 pp2 sequence compiled overlap bf16": (
        *(LLAMA, Degrees(tp=2, pp=2)),
        {**SEQUENCE, **COMPILED, **OVERLAP, **BF16},
    ),
    "ep2 overlap balanced bf16": (
        *(MIXTRAL, Degrees(dp=2, ep=2)),
        {**OVERLAP, **BALANCED, **BF16},
    ),
    "ep2 overlap compiled": (MIXTRAL, Degrees(dp=2, ep=2), {**OVERLAP, **BALANCED, **COMPILED}),
    "ep2 selective compiled": (MIXTRAL, Degrees(dp=2, ep=2), {**BALANCED, **SELECTIVE, **COMPILED}),
    "ep2 overlap selective compiled": (
        *(MIXTRAL, Degrees(dp=2, ep=2)),
        {**OVERLAP, **BALANCED, **SELECTIVE, **COMPILED},
    ),
    "ep2 compiled": (MIXTRAL, Degrees(dp=2, ep=2), {**BALANCED, **COMPILED}),
    "cp2 compiled": (LLAMA, Degrees(cp=2), COMPILED),
    "cp2 zero3 tied recompute compiled": (
        *(GPT, Degrees(cp=2)),
        {"zero_stage": 3, **FULL, **COMPILED},
    ),
    "cp2 zero0 bf16 overlap selective compiled": (
        *(LLAMA, Degrees(cp=2)),
        {"zero_stage": 0, **BF16, **OVERLAP, **SELECTIVE, **COMPILED},
    ),
    "tp2 cp2 sequence compiled": (MODERN, Degrees(tp=2, cp=2), {**SEQUENCE, **COMPILED}),
    "pp2 cp2 compiled": (LLAMA, Degrees(pp=2, cp=2), COMPILED),
    "cp2 dp2 bf16 overlap compiled": (
        *(LLAMA, Degrees(cp=2, dp=2)),
        {**BF16, **OVERLAP, **COMPILED},
    ),
    "pp4 tied": (GPT, Degrees(pp=4), {}),
    "pp4 overlap": (LLAMA, Degrees(pp=4), OVERLAP),
    "pp2 dp2 zero2 overlap": (GPT, Degrees(pp=2, dp=2), {"zero_stage": 2, **OVERLAP}),
    "pp2 dp2 zero3": (GPT, Degrees(pp=2, dp=2), {"zero_stage": 3}),
    "pp2 dp2 zero0 overlap": (LLAMA, Degrees(pp=2, dp=2), {"zero_stage": 0, **OVERLAP}),
    "pp2x2 dp2 zero3 overlap": (
        *(GPT, replace(INTERLEAVED, dp=2)),
        {"zero_stage": 3, **OVERLAP},
    ),
    "tp2 pp2x2 sequence": (LLAMA, replace(INTERLEAVED, tp=2), SEQUENCE),
    "dp4 ep2 zero3": (MIXTRAL, Degrees(dp=4, ep=2), {"zero_stage": 3, **DROPLESS}),
    # Three experts on a rank, over two ranks that hold the same.
    "dp4 ep2 six experts": (
        *(replace(MIXTRAL, name="mixtral-six", experts=6), Degrees(dp=4, ep=2)),
        {"zero_stage": 3, **DROPLESS},
    ),
    "dp4 ep2 six experts overlap recompute": (
        *(replace(MIXTRAL, name="mixtral-six", experts=6), Degrees(dp=4, ep=2)),
        {**OVERLAP, **FULL, **DROPLESS},
    ),
    "tp2 pp2 ep2 zero3 sequence overlap": (
        *(MIXTRAL, Degrees(tp=2, pp=2, dp=2, ep=2)),
        {"zero_stage": 3, **SEQUENCE, **OVERLAP, **DROPLESS},
    ),
}

CELLS = {
    f"{backend} {name}": cell(model, degrees, backend=backend, **options)
    for backend, own in (("deepspeed", DEEPSPEED), ("torch", TORCH))
    for name, (model, degrees, options) in (BOTH | own).items()
}

#: what `make test` trains
USUAL = {
    "deepspeed dp2 zero1",
    "deepspeed dp2 zero3 tied selective",
    "deepspeed tp2 zero3 recompute",
    "deepspeed pp2 zero0 tied",
    "deepspeed ep2 zero1",
    "torch dp2 zero1 bf16",
    "torch dp2 zero3 overlap recompute",
    "torch tp2 sequence balancing",
    "torch pp2x2 tied",
    "torch pp2 zero-bubble-v tied uneven bf16",
    "torch ep2 zero3 overlap",
    "torch cp2 zero3 tied recompute",
    "torch tp2 cp2 tied sequence overlap",
    "torch pp2x2 dp2 zero3 overlap",
}
#: what `make test-older-cpu` trains besides
LONG = {
    "deepspeed dp2 zero2 overlap bf16",
    "deepspeed tp2 sequence selective bf16",
    "deepspeed pp2 uneven selective",
    "deepspeed ep2 balanced",
    "deepspeed pp2 balancing loss",
    "deepspeed tp2 sequence",
    "torch dp2 zero0",
    "torch dp2 zero2",
    "torch dp2 zero3 tied",
    "torch tp2 zero0 tied",
    "torch pp2 zero1 tied recompute",
    "torch pp2 overlap tied",
    "torch pp2x2 overlap recompute",
    "torch pp2 uneven selective",
    "torch ep2 balancing loss",
    "torch pp2 zero3 overlap bf16",
    "deepspeed pp2 ep2 zero1",
    "deepspeed tp2 dp2 zero3 sequence overlap",
    "torch pp2 zero-bubble tied",
    "torch tp2 ep2 sequence balanced",
    "torch tp2 pp2 ep2 zero3 sequence overlap",
    "deepspeed tp2 modern selective",
    "deepspeed pp2 modern",
    "torch tp2 sequence modern overlap",
    "torch pp2 modern",
    "torch cp2 modern selective",
    "torch tp2 sequence neox",
    "torch tp2 pp2 modern sequence",
}


def mark(name):
    marks = () if name in USUAL else pytest.mark.long if name in LONG else pytest.mark.equality
    return pytest.param(name, marks=marks)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokens")
    source = Path(__file__).parents[2] / "workflow_lib" / "records" / "cell.py"
    # Without runs: the first tokens of a sequence, where equal, are equally probable for an expert,
    # and which of them a full one drops would be up to rounding.
    text = re.sub(r"(.)\1+", r"\1", source.read_text(encoding="utf-8"), flags=re.DOTALL)
    (directory / "text").write_text(text, encoding="utf-8")
    tokenize(directory, [str(directory / "text")], byte_tokenizer())
    return directory / "tokens.json"


@pytest.fixture(scope="module")
def trained(request, tokens, tmp_path_factory):
    """Train the selected cells of a world size together, once; return what each rank saw.

    Those that are compiled are on their own, as they take minutes.
    """
    selected = {
        item.callspec.params["name"]
        for item in request.session.items
        if getattr(item, "originalname", "") == test_a_layout_trains_as_one_process_does.__name__
    }

    @functools.cache
    def train(world_size, compiled):
        cells = {
            name: CELLS[name]
            for name in selected
            if (CELLS[name].degrees.world_size, CELLS[name].training.compile)
            == (world_size, compiled)
        }
        return launch("losses", cells, tmp_path_factory.mktemp(f"world{world_size}"), tokens)

    return train


@functools.cache
def expected(
    model, micro_batch_size, routing, balancing_loss, tokens, device="cpu", global_batch_size=4
):
    one = cell(
        model,
        global_batch_size=global_batch_size,
        micro_batch_size=micro_batch_size,
        routing=routing,
        balancing_loss=balancing_loss,
    )
    return reference(one, tokens, device)


@pytest.mark.slow
@pytest.mark.parametrize("name", [mark(name) for name in CELLS])
def test_a_layout_trains_as_one_process_does(name, trained, tokens):
    one = CELLS[name]
    options = one.training
    bf16 = options.precision == "bf16"
    # The ranks train on GPUs where there are enough, and there NCCL does the sums.
    on_gpus = gpus.take(one.degrees.world_size)
    losses, norms = expected(
        *(one.model, options.micro_batch_size, options.routing, options.balancing_loss, tokens),
        "cuda" if on_gpus else "cpu",
        options.global_batch_size,
    )

    if options.compile and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("torch compiles for CPUs with a C++ compiler, and this machine has none")
    results = trained(one.degrees.world_size, options.compile)
    assert isinstance(results, dict), results
    ranks = results[name]

    for rank in ranks:
        assert "error" not in rank, rank["error"]
        assert rank["losses"] == pytest.approx(losses, rel=2e-3 if bf16 else 5e-6)
        assert (rank["compiled_graphs"] > 0) == options.compile
        assert rank["precisions"] == asdict(precisions_of(options, one.degrees))
        # AdamW makes its moments within the first step, of the precision of what it changes.
        assert rank["precisions_before"] == rank["precisions"] | {"moments": None}
    # The norm catches a gradient that is scaled wrongly, which AdamW would hide. In bf16 later
    # steps start from weights that differ already.
    steps = 1 if bf16 else len(norms)
    # Sums on GPUs have no fixed order, nor have those of a CPU one that holds between machines, and
    # Adam makes much of differences between tiny gradients: those of key biases are nothing else.
    close = 5e-3 if bf16 else 1e-3 if on_gpus else 1e-4
    assert ranks[0]["norms"][:steps] == pytest.approx(norms[:steps], rel=close)
    if not bf16 and not on_gpus:
        assert ranks[0]["norms"][0] == pytest.approx(norms[0], rel=1e-5)


@pytest.mark.parametrize("name", CELLS)
def test_every_layout_that_is_compared_is_one_that_the_planner_submits(name):
    one = CELLS[name]

    assert refusal(one.degrees, one.training, one.model) is None


def test_the_comparison_would_notice_a_training_that_does_not_clip_or_learn(tokens):
    losses, norms = expected(LLAMA, 1, None, 0.0, tokens)

    assert min(norms) > 1.5
    assert losses[-1] < losses[0] - 0.5


def test_cells_that_the_default_suite_trains_exist():
    assert CELLS.keys() >= USUAL | LONG
