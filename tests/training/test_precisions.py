"""A rank that holds or exchanges anything in a precision that is not the cell's does not train."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch

from tests.training.cells import LLAMA, cell
from tests.training.mistakes import MISTAKES
from tests.training.ranks import launch
from workflow_lib.records import (
    Degrees,
    Precisions,
    RankRecord,
    RunPaths,
    precisions_of,
    read_record,
    write_json,
)
from workflow_lib.trainers.native.data import SyntheticTokens
from workflow_lib.trainers.native.device import Device
from workflow_lib.trainers.native.loop import Run, train
from workflow_lib.trainers.native.mesh import single_process
from workflow_lib.trainers.native.precisions import WrongPrecision, checked

BF16 = {"precision": "bf16"}
#: mistake, backend, options, and what is said of it
CASES = {
    "deepspeed zero3": (
        *("weights", "deepspeed", {"zero_stage": 3}),
        "weights in bf16 instead of fp32, gathering in bf16 instead of fp32",
    ),
    "deepspeed zero1": ("reduction", "deepspeed", BF16, "reduction in bf16 instead of fp32"),
    "deepspeed zero2": (
        *("reduction", "deepspeed", {"zero_stage": 2, **BF16}),
        "reduction in bf16 instead of fp32",
    ),
    "deepspeed zero3 bf16": (
        *("reduction", "deepspeed", {"zero_stage": 3, **BF16}),
        "reduction in bf16 instead of fp32",
    ),
    "deepspeed sums": (
        *("sums", "deepspeed", {"zero_stage": 2, **BF16}),
        "gradients in bf16 instead of fp32",
    ),
    "torch fp32": (
        *("computing in fp32", "torch", BF16),
        "weights in fp32 instead of bf16, gathering in fp32 instead of bf16",
    ),
    "torch reduction": (
        *("all in bf16", "torch", BF16),
        "gradients in bf16 and fp32 instead of fp32, reduction in bf16 instead of fp32",
    ),
}
LATE = {
    "deepspeed moments": ("moments", "deepspeed", {}, "moments in bf16 instead of fp32"),
    "torch moments": ("moments", "torch", {}, "moments in bf16 instead of fp32"),
}


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each rank of each cell said, and whether it had stepped by then."""
    cells = {
        name: cell(
            *(LLAMA, Degrees(dp=2)), backend=backend, seed=list(MISTAKES).index(mistake), **options
        )
        for name, (mistake, backend, options, _) in (CASES | LATE).items()
    }
    results = launch("mistakes", cells, tmp_path_factory.mktemp("mistakes"))
    assert isinstance(results, dict), results
    return results


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES | LATE)
def test_every_rank_names_what_it_has_and_what_it_should_have(name, said):
    _, backend, _, expected = (CASES | LATE)[name]
    for words, stepped in said[name]:
        assert words.startswith(f"{backend} with ZeRO-")
        assert words.endswith(f" has {expected}")
        # All but moments, which AdamW makes in its first step, is looked at before.
        assert stepped == (name in LATE)


class Fake:
    """An engine that has what it is given, before its first step and after it."""

    def __init__(self, *found: Precisions) -> None:
        self.found, self.steps = found, 0

    def modules(self) -> tuple[torch.nn.Module, ...]:
        return ()

    def precisions(self) -> Precisions:
        return self.found[min(self.steps, 1)]

    def train_step(self, batches) -> float:
        self.steps += 1
        return 1.0


@pytest.fixture
def run(tmp_path):
    """One rank's run of a cell with one replica."""
    record = RankRecord(0, "here", None, "CPU", 0, 0, 0, 0, 1, pid=1, started_unix_s=0.0)
    device = Device(torch.device("cpu"), "CPU", None, "gloo")
    source = SyntheticTokens(LLAMA.vocabulary_size)
    mesh = single_process(device.torch)
    paths = RunPaths(tmp_path)
    return Run(cell(), mesh, device, source, paths, record, lambda phase: None)


FOUND = Precisions("fp32", "fp32", None, None, "fp32", None)


def test_a_rank_with_a_wrong_precision_takes_no_step(run):
    engine = Fake(replace(FOUND, weights="bf16"))

    with pytest.raises(WrongPrecision):
        train(run, engine)

    assert engine.steps == 0
    assert not run.paths.rank_steps(0).exists()


def test_a_rank_records_its_precisions_when_all_are_known(run):
    train(run, Fake(FOUND, replace(FOUND, moments="fp32")))

    recorded = read_record(run.paths.rank(0), RankRecord)
    assert recorded == replace(run.record, precisions=replace(FOUND, moments="fp32"))


def test_a_rank_that_lacks_moments_after_its_first_step_takes_no_other(run):
    engine = Fake(FOUND, FOUND)

    with pytest.raises(WrongPrecision, match="no moments instead"):
        train(run, engine)

    assert engine.steps == 1


def test_a_record_of_an_earlier_version_says_nothing_of_precisions(run):
    path = run.paths.rank(0)
    plain = {key: value for key, value in asdict(run.record).items() if key != "precisions"}
    write_json(path, plain)

    assert read_record(path, RankRecord).precisions is None


def test_what_is_expected_and_what_was_found_are_both_named():
    one = cell(degrees=Degrees(dp=2), zero_stage=3, backend="deepspeed")
    found = Precisions("bf16", "fp32", "fp32", "bf16", "fp32", None)

    with pytest.raises(WrongPrecision, match=r"^deepspeed with ZeRO-3") as caught:
        checked(one, found, stepped=False)
    assert str(caught.value).count("instead of fp32") == 2
    for part in ("weights in bf16", "gathering in bf16"):
        assert part in str(caught.value)


def test_what_is_still_missing_after_a_step_is_an_error():
    one = cell(degrees=Degrees(dp=2))
    found = Precisions("fp32", "fp32", "fp32", "fp32", "fp32", None)

    assert checked(one, found, stepped=False) == found
    with pytest.raises(WrongPrecision, match=r"no moments instead of fp32$"):
        checked(one, found, stepped=True)


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
