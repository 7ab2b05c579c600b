"""Which rows are fitted and which are predicted."""

import pytest

from research.projection.reading import read_published
from research.projection.splits import FILE, FITTED_KINDS, Split, read_splits
from tests.research.published_rows import runs_of

SPLITS = {split.name: split for split in read_splits()[0]}
NVIDIA = {"source": "NVIDIA dgxc-benchmarking v1", "notes": "NeMo/Megatron"}


@pytest.fixture(scope="module")
def published():
    return read_published(FILE.parent / "published_runs.csv")[0]


@pytest.mark.parametrize("name", [n for n, s in SPLITS.items() if s.kind in FITTED_KINDS])
def test_no_row_is_fitted_in_the_fold_that_predicts_it(name, published):
    folds = SPLITS[name].folds(published)
    assert folds
    for fold in folds:
        fitted = {run.line for run in fold.fitted}
        assert fitted
        assert not fitted & {run.line for run in fold.predicted}


LLAMA = {**NVIDIA, "model": "Llama 3.1 405B"}
TWIN = {**LLAMA, "notes": "NeMo/Megatron; layers=42"}
SERIES = [{"gpus": gpus} for gpus in (64, 128, 256)]
AGAIN = [{"gpus": gpus, "step_time_s": 10.1} for gpus in (64, 128)]
WEAK = [
    {**NVIDIA, "gpus": gpus, "global_batch": batch}
    for gpus, batch in ((512, 1024), (1024, 2048), (1024, 1024))
]


@pytest.mark.parametrize(
    ("split", "rows", "folds"),
    [
        # Strong scaling fits the two smallest sizes of a series, and all runs of those.
        ("strong", [{"gpus": gpus} for gpus in (512, 64, 256, 128)], [({3, 5}, {2, 4})]),
        ("strong", [*SERIES, *AGAIN], [({2, 3, 5, 6}, {4})]),
        # Weak scaling predicts large rows with as many micro-batches.
        ("weak", WEAK, [({2}, {3})]),
        # A model that is left out leaves its twins out too.
        ("model", [LLAMA, TWIN, {**NVIDIA, "model": "GPT-3 175B"}], [({2, 3}, {4}), ({4}, {2, 3})]),
        # Whole models are predicted from their twins.
        ("twin", [LLAMA, TWIN], [({3}, {2})]),
    ],
)
def test_a_split_fits_and_predicts_these_lines(tmp_path, split, rows, folds):
    found = SPLITS[split].folds(runs_of(tmp_path, *rows))
    sides = [(fold.fitted, fold.predicted) for fold in found]
    assert [tuple({run.line for run in side} for side in both) for both in sides] == folds


def test_a_rule_is_a_pattern_or_a_list(tmp_path):
    runs = runs_of(tmp_path, {"dtype": "BF16"}, {"dtype": "FP8"})
    of = Split("x", "", "model", {"where": {"precision": ["FP8"], "source": "^MLPerf"}})
    assert [run.precision for run in of.chosen(runs)] == ["FP8"]


def test_a_measured_time_does_not_decide_what_is_fitted(tmp_path):
    """Two runs of the largest size differ in their notes; their times must not matter."""
    sizes = (64, "b"), (128, "b"), (256, "b"), (256, "c"), (512, "c")
    rows = [{"gpus": gpus, "notes": f"a; {notes}"} for gpus, notes in sizes]

    def folds(time):
        rows[3]["step_time_s"] = time
        runs = runs_of(tmp_path, *rows)
        return [
            [[run.line for run in side] for side in (fold.fitted, fold.predicted)]
            for fold in SPLITS["strong"].folds(runs)
        ]

    assert folds(10.0) == folds(12.0) == [[[2, 3, 5, 6], [4]]]
