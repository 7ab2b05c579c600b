"""What configuration files of a source say besides its tables."""

import math

import pytest

from research.projection.layouts import assumed_chunks, published_layout
from research.projection.predicting import unknown_row
from research.projection.splits import Split
from tests.research.published_rows import runs_of

DGXC = {"source": "NVIDIA dgxc-benchmarking v24.11.1", "notes": "NeMo/Megatron"}
LLAMA = {**DGXC, "model": "Llama 3.1 405B", "gpus": 128, "tp": 8, "cp": 2, "virtual_pp": 7}


def layout_of(run):
    return published_layout(run, assumed_chunks([run]))


def test_a_model_has_the_vocabulary_and_heads_that_ran(tmp_path):
    ran, other = runs_of(tmp_path, LLAMA, {**LLAMA, "notes": "MaxText/JAX"})
    assert (ran.shape.vocabulary, ran.shape.kv_heads) == (51200, 16)
    assert (other.shape.vocabulary, other.shape.kv_heads) == (128256, 8)
    assert ran.shape.name == other.shape.name


def test_a_configuration_counts_for_more_than_a_tables_title_and_fills_in_what_is_not_stated(
    tmp_path,
):
    later = {**DGXC, "source": "NVIDIA dgxc-benchmarking v25.02.02"}
    assert [run.virtual_stages for run in runs_of(tmp_path, DGXC, later)] == [12, 6]
    large = {**DGXC, "model": "Nemotron4 340B"}
    runs = runs_of(tmp_path, large, {**large, "recompute": "full"}, {**DGXC, "source": "other"})
    assert [run.recomputation for run in runs] == ["selective", "full", ""]


def test_releases_are_containers(tmp_path):
    runs = runs_of(tmp_path, DGXC, LLAMA)
    releases = {unknown_row(run, layout_of(run)).groups["release"][0] for run in runs}
    assert releases == {"24.05", "24.09"}


def test_gradients_are_exchanged_in_two_bytes(tmp_path):
    layouts = map(layout_of, runs_of(tmp_path, DGXC, {}))
    assert [layout.gradient_bytes for layout in layouts] == [2, 4]


def test_a_model_is_left_out_with_each_of_its_vocabularies(tmp_path):
    runs = runs_of(
        tmp_path, LLAMA, {**LLAMA, "micro_batch": 2}, {**LLAMA, "notes": "MaxText/JAX"}, DGXC
    )
    rules = {"least_layouts": 2, "where": {}}
    (fold,) = Split("layout", "layout", "layout", rules).folds(runs)
    assert [run.model for run in fold.fitted] == ["GPT-3 175B"]


def test_adapters_are_not_described(tmp_path):
    (run,) = runs_of(tmp_path, {"model": "Llama 2 70B LoRA"})
    assert "adapters" in layout_of(run)


def test_a_time_of_a_whole_run_has_its_evaluations(tmp_path):
    whole, step = runs_of(tmp_path, {"notes": "whole run, evaluation included"}, {})
    # 11 590 004 tokens forward for 50 331 648 forward and (twice) backward.
    assert math.isclose(layout_of(whole).evaluation, 0.0768, rel_tol=1e-3)
    assert layout_of(step).evaluation == 0


@pytest.mark.parametrize(("pp", "layers", "same"), [(4, 56, True), (4, 28, False)])
def test_a_twin_has_the_same_ranks_as_its_model(tmp_path, pp, layers, same):
    whole = {**LLAMA, "gpus": 144, "pp": 9, "global_batch": 9}
    twin = {**whole, "gpus": 64, "pp": pp, "notes": f"NeMo/Megatron; layers={layers}"}
    rows = [unknown_row(run, layout_of(run)) for run in runs_of(tmp_path, whole, twin)]
    assert (rows[0].groups["stage"] == rows[1].groups["stage"]) == same
