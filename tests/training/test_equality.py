"""Every layout trains the same model: its losses and gradient norms are those of one process.

One launch trains all cells of a world size. What `capabilities` claims is run here, by both
backends where both can: each degree alone, each pair, and all of them, with a model where it is
hardest (GPT's tied embedding in a pipeline, Mixtral's experts under expert parallelism).
"""

import re
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.training import gpus
from tests.training.cells import named
from tests.training.reference import reference
from workflow_lib.records.training import precisions_of
from workflow_lib.trainers.native.tokenize import byte_tokenizer, tokenize

#: what trains a layout: `make test`, `make test-older-cpu` too, or `make equality` alone
USUAL, LONG, EQUALITY = (), pytest.mark.long, pytest.mark.equality

#: names of layouts (see ``named``), and what trains them with DeepSpeed and with torch
BOTH = {
    "dp2 zero0": (EQUALITY, LONG),
    "dp2": (USUAL, EQUALITY),
    "dp2 zero2": (EQUALITY, LONG),
    "dp2 zero3 gpt": (EQUALITY, LONG),
    "dp2 gpt micro2": (EQUALITY, EQUALITY),
    "dp2 bf16": (EQUALITY, USUAL),
    "dp2 zero3 bf16": (EQUALITY, EQUALITY),
    "dp2 zero2 overlap bf16": (LONG, EQUALITY),
    "dp2 zero3 full overlap": (EQUALITY, USUAL),
    "dp2 zero3 gpt selective": (USUAL, EQUALITY),
    "dp2 zero3 selective": (EQUALITY, EQUALITY),
    "dp2 zero3 mixtral": (EQUALITY, EQUALITY),
    "dp2 mixtral balancing": (EQUALITY, EQUALITY),
    "tp2 zero0 gpt": (EQUALITY, LONG),
    "tp2 zero3 full": (USUAL, EQUALITY),
    "tp2 bf16": (EQUALITY, EQUALITY),
    "tp2 sequence": (LONG, EQUALITY),
    "tp2 gpt sequence overlap": (EQUALITY, EQUALITY),
    "tp2 sequence selective bf16": (LONG, EQUALITY),
    "tp2 sequence full": (EQUALITY, EQUALITY),
    "tp2 mixtral": (EQUALITY, EQUALITY),
    "tp2 mixtral sequence": (EQUALITY, EQUALITY),
    "tp2 mixtral sequence balancing": (EQUALITY, USUAL),
    "tp2 mixtral balanced": (EQUALITY, EQUALITY),
    "pp2 zero0 gpt": (USUAL, EQUALITY),
    "pp2 gpt full": (EQUALITY, LONG),
    "pp2 zero0 gpt bf16": (EQUALITY, EQUALITY),
    "pp2 stages1,3 selective": (LONG, LONG),
    "pp2 micro2": (EQUALITY, EQUALITY),
    "pp2 mixtral balancing": (LONG, EQUALITY),
    "ep2": (USUAL, EQUALITY),
    "ep2 zero0": (EQUALITY, EQUALITY),
    "ep2 zero2 full": (EQUALITY, EQUALITY),
    "ep2 zero2 overlap": (EQUALITY, EQUALITY),
    "ep2 selective": (EQUALITY, EQUALITY),
    "ep2 bf16": (EQUALITY, EQUALITY),
    "ep2 balanced": (LONG, EQUALITY),
    "ep2 balancing": (EQUALITY, LONG),
    "tp2 dp2 bf16": (EQUALITY, EQUALITY),
    "tp2 dp2 zero3 sequence overlap": (LONG, EQUALITY),
    "tp2 pp2 gpt": (EQUALITY, EQUALITY),
    "tp2 pp2 stages3,1 sequence": (EQUALITY, EQUALITY),
    "pp4 micro2": (EQUALITY, EQUALITY),
    "pp2 dp2 zero0 gpt": (EQUALITY, EQUALITY),
    "pp2 dp2 gpt full": (EQUALITY, EQUALITY),
    "tp2 ep2": (EQUALITY, EQUALITY),
    "tp2 ep2 sequence balanced": (EQUALITY, LONG),
    "pp2 ep2": (LONG, EQUALITY),
    "pp2 ep2 balanced": (EQUALITY, EQUALITY),
    "dp4 ep2 zero0": (EQUALITY, EQUALITY),
    "dp4 ep2 zero2": (EQUALITY, EQUALITY),
    "tp2 pp2 dp2 gpt sequence selective": (EQUALITY, EQUALITY),
    "dp2 zero3 modern full": (EQUALITY, EQUALITY),
    "tp2 modern selective": (LONG, EQUALITY),
    "tp2 modern sequence overlap": (EQUALITY, LONG),
    "tp2 neox sequence": (EQUALITY, LONG),
    "pp2 neox selective": (EQUALITY, EQUALITY),
    "pp2 modern": (LONG, LONG),
    "pp2 zero0 modern bf16": (EQUALITY, EQUALITY),
    "tp2 pp2 modern sequence": (EQUALITY, LONG),
    "tp2 pp2 ep2": (EQUALITY, EQUALITY),
    "tp2 pp2 ep2 sequence balancing": (EQUALITY, EQUALITY),
}
ALONE = {
    "deepspeed dp2 overlap": EQUALITY,
    "torch zero3 gpt": EQUALITY,
    "torch dp2 zero0 gpt overlap bf16": EQUALITY,
    "torch dp2 overlap bf16": EQUALITY,
    "torch pp2 gpt overlap": LONG,
    "torch pp2 zero2": EQUALITY,
    "torch pp2 zero3 overlap bf16": LONG,
    "torch pp2x2 gpt": USUAL,
    "torch pp2x2 full overlap": LONG,
    "torch pp2x2 stages1,2,2,1 layers6": EQUALITY,
    "torch pp2 zero-bubble gpt overlap": LONG,
    "torch pp2x2 zero-bubble overlap bf16": EQUALITY,
    "torch pp2x2 zero-bubble-v zero0 overlap": EQUALITY,
    "torch pp2x2 zero-bubble-v stages1,2,2,1 layers6 gpt overlap bf16": USUAL,
    "torch pp2 dp2 zero-bubble overlap": EQUALITY,
    "torch pp2x2 dp2 zero-bubble-v zero0 gpt batch8 overlap": EQUALITY,
    "torch pp4 zero-bubble overlap": EQUALITY,
    "torch cp2": EQUALITY,
    "torch cp2 zero3 gpt full": USUAL,
    "torch cp2 zero0 selective overlap bf16": EQUALITY,
    "torch cp2 modern selective": LONG,
    "torch pp2 zero3 modern overlap": EQUALITY,
    "torch pp2x2 zero-bubble-v modern overlap": EQUALITY,
    "torch tp2 modern sequence compiled": EQUALITY,
    "torch cp4 micro2": EQUALITY,
    "torch tp2 cp2 gpt sequence overlap": USUAL,
    "torch cp2 dp2 zero3 overlap": EQUALITY,
    "torch pp2 cp2 zero0 gpt": EQUALITY,
    "torch pp2 cp2 zero-bubble overlap": EQUALITY,
    "torch ep2 zero3 overlap": USUAL,
    "torch dp2 zero3 compiled": EQUALITY,
    "torch tp2 gpt compiled": EQUALITY,
    "torch tp2 sequence compiled": EQUALITY,
    "torch pp2 compiled": EQUALITY,
    "torch tp2 pp2 sequence compiled": EQUALITY,
    "torch tp2 pp2 sequence overlap compiled bf16": EQUALITY,
    "torch ep2 balanced overlap bf16": EQUALITY,
    "torch ep2 balanced overlap compiled": EQUALITY,
    "torch ep2 balanced selective compiled": EQUALITY,
    "torch ep2 balanced selective overlap compiled": EQUALITY,
    "torch ep2 balanced compiled": EQUALITY,
    "torch ep2 compiled": EQUALITY,
    "torch ep2 overlap compiled": EQUALITY,
    "torch ep2 zero3 selective overlap compiled": EQUALITY,
    "torch ep2 full compiled bf16": EQUALITY,
    "torch cp2 compiled": EQUALITY,
    "torch cp2 zero3 gpt full compiled": EQUALITY,
    "torch cp2 zero0 selective overlap compiled bf16": EQUALITY,
    "torch tp2 cp2 modern sequence compiled": EQUALITY,
    "torch pp2 cp2 compiled": EQUALITY,
    "torch cp2 dp2 overlap compiled bf16": EQUALITY,
    "torch pp4 gpt": EQUALITY,
    "torch pp4 overlap": EQUALITY,
    "torch pp2 dp2 zero2 gpt overlap": EQUALITY,
    "torch pp2 dp2 zero3 gpt": EQUALITY,
    "torch pp2 dp2 zero0 overlap": EQUALITY,
    "torch pp2x2 dp2 zero3 gpt overlap": USUAL,
    "torch tp2 pp2x2 sequence": EQUALITY,
    "torch dp4 ep2 zero3": EQUALITY,
    # Three experts on a rank, over two ranks that hold the same.
    "torch dp4 ep2 experts6 zero3": EQUALITY,
    "torch dp4 ep2 experts6 full overlap": EQUALITY,
    "torch tp2 pp2 ep2 zero3 sequence overlap": LONG,
}
#: with adapters
LORA = [
    "deepspeed lora dp2 zero0 gpt",
    "deepspeed lora dp2 bf16",
    "deepspeed lora dp2 zero2 full",
    "deepspeed lora dp2 zero3 gpt",
    "deepspeed lora tp2 gpt",
    "deepspeed lora tp2 gpt sequence full",
    "deepspeed lora tp2 mixtral sequence",
    "deepspeed lora pp2 modern",
    "deepspeed lora tp2 modern sequence",
    "deepspeed lora pp2 zero0 gpt",
    "deepspeed lora pp2 gpt full bf16",
    "deepspeed lora ep2",
    "deepspeed lora ep2 zero2 bf16",
    "torch lora dp2 zero0 gpt",
    "torch lora dp2",
    "torch lora dp2 zero3 bf16",
    "torch lora tp2 sequence overlap",
    "torch lora cp2 zero3 gpt",
    "torch lora pp2 gpt full",
    "torch lora ep2 zero3",
    "deepspeed lora ep2 zero2 overlap",
    "torch lora ep2 zero3 overlap",
    "torch lora ep2 selective overlap",
    "deepspeed lora tp2 pp2 sequence",
    "deepspeed lora tp2 dp2 zero3 sequence",
    "deepspeed lora pp2 ep2",
    "torch lora tp2 dp2 zero3 sequence bf16",
    "torch lora dp2 compiled",
    "torch lora tp2 gpt sequence compiled",
    "torch lora pp2 compiled",
    "torch lora cp2 full compiled",
    "torch lora pp2 dp2 zero3 gpt",
]


def mark_of_adapters(one):
    """Four ranks take half a minute, compiled layers more."""
    return EQUALITY if one.degrees.world_size > 2 or one.training.compile else LONG


MARKS = {
    f"{backend} {name}": mark
    for name, marks in BOTH.items()
    for backend, mark in zip(("deepspeed", "torch"), marks, strict=True)
} | ALONE
CELLS = {name: named(name) for name in MARKS}
ADAPTED = {name: named(name, learning_rate=1e-3) for name in LORA}
CELLS |= ADAPTED
MARKS |= {name: mark_of_adapters(one) for name, one in ADAPTED.items()}


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


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS[name]) for name in CELLS])
def test_a_layout_trains_as_one_process_does(name, on_ranks, tokens):
    one = CELLS[name]
    options = one.training
    bf16, lora = options.precision == "bf16", options.workload == "lora"
    # The ranks train on GPUs where there are enough, and there NCCL does the sums.
    on_gpus = gpus.take(one.degrees.world_size)
    losses, norms = reference(one, tokens, "cuda" if on_gpus else "cpu")
    ranks = on_ranks("losses", name, tokens)

    for rank in ranks:
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
    close = (2e-2 if lora else 5e-3) if bf16 else 1e-3 if on_gpus else 1e-5 if lora else 1e-4
    assert ranks[0]["norms"][:steps] == pytest.approx(norms[:steps], rel=close)
    if not bf16 and not on_gpus:
        assert ranks[0]["norms"][0] == pytest.approx(norms[0], rel=1e-5)


@pytest.mark.parametrize(
    ("words", "least_norm", "greatest_norm", "learned"),
    [("", 1.5, 1.5, 0.5), *((f"lora {model}", 0.0, 1.0, 0.1) for model in ("", "gpt", "mixtral"))],
)
def test_the_comparison_notices_no_clipping(words, least_norm, greatest_norm, learned, tokens):
    one = named(words, learning_rate=1e-3) if words else named(words)
    losses, norms = reference(one, tokens)

    assert min(norms) > least_norm
    assert max(norms) > greatest_norm
    assert losses[-1] < losses[0] - learned
