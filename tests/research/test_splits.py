"""Which rows are fitted and which are predicted."""

from __future__ import annotations

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


def test_strong_scaling_fits_the_two_smallest_sizes_of_a_series(tmp_path):
    runs = runs_of(tmp_path, *({"gpus": gpus} for gpus in (512, 64, 256, 128)))
    (fold,) = SPLITS["strong"].folds(runs)
    assert [run.gpus for run in fold.fitted] == [64, 128]
    assert [run.gpus for run in fold.predicted] == [256, 512]


def test_weak_scaling_predicts_large_rows_with_as_many_micro_batches(tmp_path):
    runs = runs_of(
        tmp_path,
        {**NVIDIA, "gpus": 512, "global_batch": 1024},
        {**NVIDIA, "gpus": 1024, "global_batch": 2048},
        {**NVIDIA, "gpus": 1024, "global_batch": 1024},
    )
    (fold,) = SPLITS["weak"].folds(runs)
    assert [(run.gpus, run.global_batch) for run in fold.predicted] == [(1024, 2048)]


def test_a_model_that_is_left_out_leaves_its_twins_out_too(tmp_path):
    runs = runs_of(
        tmp_path,
        {**NVIDIA, "model": "Llama 3.1 405B"},
        {**NVIDIA, "model": "Llama 3.1 405B", "notes": "NeMo/Megatron; layers=42"},
        {**NVIDIA, "model": "GPT-3 175B"},
    )
    folds = {fold.name: fold for fold in SPLITS["model"].folds(runs)}
    assert [run.model for run in folds["Llama 3.1 405B"].fitted] == ["GPT-3 175B"]
    assert len(folds["Llama 3.1 405B"].predicted) == 2


def test_whole_models_are_predicted_from_their_twins(tmp_path):
    runs = runs_of(
        tmp_path,
        {**NVIDIA, "model": "Llama 3.1 405B"},
        {**NVIDIA, "model": "Llama 3.1 405B", "notes": "NeMo/Megatron; layers=42"},
    )
    (fold,) = SPLITS["twin"].folds(runs)
    assert [run.is_twin for run in fold.fitted] == [True]
    assert [run.is_twin for run in fold.predicted] == [False]


def test_a_rule_is_a_pattern_or_a_list(tmp_path):
    runs = runs_of(tmp_path, {"dtype": "BF16"}, {"dtype": "FP8"})
    of = Split("x", "", "model", {"where": {"precision": ["FP8"], "source": "^MLPerf"}})
    assert [run.precision for run in of.chosen(runs)] == ["FP8"]


def test_a_measured_time_does_not_decide_what_is_fitted(tmp_path):
    """Two runs of the largest size differ in their notes; their times must not matter."""
    rows = [
        {"gpus": 64, "notes": "a; b"},
        {"gpus": 128, "notes": "a; b"},
        {"gpus": 256, "notes": "a; b"},
        {"gpus": 256, "notes": "a; c"},
        {"gpus": 512, "notes": "a; c"},
    ]

    def folds(time):
        runs = runs_of(tmp_path, *rows[:3], {**rows[3], "step_time_s": time}, rows[4])
        return [
            [[run.line for run in side] for side in (fold.fitted, fold.predicted)]
            for fold in SPLITS["strong"].folds(runs)
        ]

    assert folds(10.0) == folds(12.0) == [[[2, 3, 5, 6], [4]]]


def test_runs_of_a_size_that_is_fitted_are_not_predicted(tmp_path):
    runs = runs_of(
        tmp_path,
        *({"gpus": gpus} for gpus in (64, 128, 256)),
        {"gpus": 64, "step_time_s": 10.1},
        {"gpus": 128, "step_time_s": 10.1},
    )
    (fold,) = SPLITS["strong"].folds(runs)
    assert sorted(run.line for run in fold.fitted) == [2, 3, 5, 6]
    assert [run.line for run in fold.predicted] == [4]
