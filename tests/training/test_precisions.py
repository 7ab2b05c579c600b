"""A rank that holds or exchanges anything in a precision that is not the cell's does not train."""

import re
from dataclasses import asdict, replace

import pytest

from tests.training.cells import cell, named
from tests.training.fakes import Fake, run_of
from tests.training.mistakes import MISTAKES
from workflow_lib.records.contract import RankRecord
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.files import read_record
from workflow_lib.records.training import Precisions, precisions_of
from workflow_lib.trainers.native.loop import train
from workflow_lib.trainers.native.precisions import WrongPrecision, checked

BF16 = {"precision": "bf16"}
#: mistake, cell, and what is then said to be in which precision instead
CASES = {
    "zero3": ("weights", "deepspeed zero3", {"weights": "bf16", "gathering": "bf16"}),
    "zero1": ("reduction", "deepspeed bf16", {"reduction": "bf16"}),
    "zero2": ("reduction", "deepspeed zero2 bf16", {"reduction": "bf16"}),
    "zero3 bf16": ("reduction", "deepspeed zero3 bf16", {"reduction": "bf16"}),
    "sums": ("sums", "deepspeed zero2 bf16", {"gradients": "bf16"}),
    "fp32": ("computing in fp32", "torch bf16", {"weights": "fp32", "gathering": "fp32"}),
    "torch": ("all in bf16", "torch bf16", {"gradients": "bf16 and fp32", "reduction": "bf16"}),
    "deepspeed moments": ("moments", "deepspeed", {"moments": "bf16"}),
    "torch moments": ("moments", "torch", {"moments": "bf16"}),
}
CELLS = {
    name: named(f"{words} dp2", seed=list(MISTAKES).index(mistake))
    for name, (mistake, words, _) in CASES.items()
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_rank_names_what_it_has_and_what_it_should_have(name, on_ranks):
    expected, one = CASES[name][2], CELLS[name]
    wanted = asdict(precisions_of(one.training, one.degrees))
    for words, stepped in on_ranks("mistakes", name):
        assert words.startswith(f"{one.training.backend} with ")
        assert re.findall(r"(\w+) in ([\w ]+) instead of (\w+)", words) == [
            (what, found, wanted[what]) for what, found in expected.items()
        ]
        # All but moments, which AdamW makes in its first step, is looked at before.
        assert stepped == ("moments" in expected)


@pytest.fixture
def run(tmp_path):
    """One rank's run of a cell with one replica."""
    return run_of(tmp_path, cell())


FOUND = Precisions("fp32", "fp32", None, None, "fp32", None)


def test_a_rank_with_a_wrong_precision_takes_no_step(run):
    engine = Fake(replace(FOUND, weights="bf16"))

    with pytest.raises(WrongPrecision):
        train(run, engine)

    assert engine.frozen == []
    assert not run.paths.rank_steps(0).exists()


def test_a_rank_records_its_precisions_when_all_are_known(run):
    train(run, Fake(FOUND, replace(FOUND, moments="fp32")))

    recorded = read_record(run.paths.rank(0), RankRecord)
    assert recorded == replace(run.record, precisions=replace(FOUND, moments="fp32"))


def test_a_rank_that_lacks_moments_after_its_first_step_takes_no_other(run):
    engine = Fake(FOUND, FOUND)

    with pytest.raises(WrongPrecision, match="no moments"):
        train(run, engine)

    assert len(engine.frozen) == 1


def test_what_a_cell_has_not_is_not_recorded():
    one = cell(zero_stage=0, **BF16)
    found = Precisions("bf16", "fp32", "bf16", "bf16", "fp32", "fp32")

    assert checked(one, found, stepped=True) == Precisions(
        weights="bf16", gradients="fp32", master_weights="fp32", moments="fp32"
    )


@pytest.mark.parametrize(
    ("degrees", "options", "expected"),
    [
        (
            Degrees(dp=2),
            {"zero_stage": 3, **BF16},
            ("bf16", "fp32", "fp32", "bf16", "fp32", "fp32"),
        ),
        (Degrees(dp=2), {"zero_stage": 0}, ("fp32", "fp32", "fp32", None, "fp32", "fp32")),
        (Degrees(tp=2), BF16, ("bf16", "fp32", None, None, "fp32", "fp32")),
        (Degrees(dp=2), {"workload": "inference", **BF16}, ("bf16", *[None] * 5)),
    ],
)
def test_a_cell_says_which_precisions_it_has(degrees, options, expected):
    one = cell(degrees=degrees, **options)

    assert precisions_of(one.training, one.degrees) == Precisions(*expected)
