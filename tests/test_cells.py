"""Sweeps expand to the study's cells, and what cannot run says why, with the arithmetic."""

import dataclasses
import re

import pytest

from workflow_lib import cells
from workflow_lib.records import Degrees
from workflow_lib.study import load_study


@pytest.fixture(scope="module")
def sweeps():
    from tests.conftest import ROOT

    return cells.expand_study(load_study(ROOT / "config"))


def layouts(sweep, model):
    return {
        (planned.cell.degrees.name, planned.cell.training.zero_stage)
        for planned in sweep.cells
        if planned.cell.model.name == model
    }


def test_the_h200_cells_are_the_studys(sweeps):
    sweep = sweeps["parallelism-h200"]
    assert layouts(sweep, "gpt3-175b") == {
        ("tp1-pp32-dp1", 1),
        ("tp2-pp16-dp1", 1),
        ("tp4-pp8-dp1", 1),
        ("tp8-pp4-dp1", 1),
        ("tp8-pp1-dp4", 3),
    }
    assert layouts(sweep, "llama3-70b") == {
        ("tp1-pp16-dp2", 1),
        ("tp2-pp8-dp2", 1),
        ("tp4-pp4-dp2", 1),
        ("tp8-pp2-dp2", 1),
        ("tp8-pp1-dp4", 3),
    }
    assert layouts(sweep, "mixtral-8x7b") == {("tp1-pp1-dp32-ep8", 1), ("tp2-pp1-dp16-ep4", 1)}
    assert layouts(sweep, "mixtral-8x22b") == {
        ("tp1-pp4-dp8-ep8", 1),
        ("tp2-pp2-dp8-ep8", 1),
        ("tp4-pp1-dp8-ep8", 1),
    }


def test_the_h100_cells_are_the_studys_and_one_that_cannot_be(sweeps):
    sweep = sweeps["parallelism-h100"]
    assert layouts(sweep, "gpt3-175b") == {
        ("tp1-pp64-dp1", 1),  # not in the study: 96 layers do not divide into 64 stages
        ("tp2-pp32-dp1", 1),
        ("tp4-pp16-dp1", 1),
        ("tp8-pp8-dp1", 1),
        ("tp8-pp1-dp8", 3),
    }
    assert layouts(sweep, "mixtral-8x7b") == {
        ("tp1-pp2-dp32-ep8", 1),
        ("tp4-pp1-dp16-ep4", 1),
        ("tp2-pp2-dp16-ep4", 1),
        ("tp1-pp4-dp16-ep4", 1),
    }
    assert layouts(sweep, "mixtral-8x22b") == {
        ("tp8-pp1-dp8-ep8", 1),
        ("tp4-pp2-dp8-ep8", 1),
        ("tp2-pp4-dp8-ep8", 1),
        ("tp1-pp8-dp8-ep8", 1),
    }


def test_every_cell_fills_its_platform(sweeps):
    for name, gpus in (
        ("parallelism-h200", 32),
        ("parallelism-h100", 64),
        ("mi250-counterpart", 32),
    ):
        assert {planned.cell.degrees.world_size for planned in sweeps[name].cells} == {gpus}


def test_the_optimisation_sweep_crosses_recomputation_and_overlap(sweeps):
    options = {
        (planned.cell.training.recomputation, planned.cell.training.overlap)
        for planned in sweeps["optimisation-h200"].cells
    }
    assert options == {("none", False), ("none", True), ("full", False), ("full", True)}


def test_a_cell_that_two_sweeps_ask_for_appears_once(sweeps):
    chosen = [sweeps[f"{name}-h200"] for name in ("parallelism", "optimisation", "microbatch")]
    merged = cells.merge(chosen)
    everywhere = [names for _, names in merged.values() if len(names) == 3]
    assert len(everywhere) == len(sweeps["parallelism-h200"].cells)
    assert len(merged) < sum(len(sweep.cells) for sweep in chosen)


def test_no_two_cells_share_a_directory(sweeps):
    every = [planned.cell for sweep in sweeps.values() for planned in sweep.cells]
    by_id = {}
    for cell in every:
        assert by_id.setdefault(cell.id, cell) == cell


@pytest.fixture
def reason_of(study_directory):
    """The reason that a sweep of one block has for its first cell."""

    def reason(block: str, extra: str = "") -> str | None:
        text = (study_directory / "sweeps" / "parallelism.yaml").read_text(encoding="utf-8")
        head = text.partition("matrix:")[0]
        (study_directory / "sweeps" / "one.yaml").write_text(
            f"{head}{extra}matrix:\n  - {{{block}}}\n", encoding="utf-8"
        )
        sweep = cells.expand_study(load_study(study_directory))["one-h200"]
        return sweep.cells[0].reason

    return reason


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (
            "models: llama3-8b, tp: 2, pp: 4, dp: 3",
            "tp × pp × dp = 2 × 4 × 3 = 24, but there are 32 GPUs",
        ),
        ("models: llama3-8b, gpus: 64, dp: rest", "64 GPUs, but h200 has 4 nodes × 8 = 32"),
        ("models: gpt3-175b, tp: 32, dp: rest", "tp 32 reaches beyond a node of 8 GPUs"),
        (
            "models: mixtral-8x7b, pp: 32, ep: 3, dp: 1",
            "EP 3: mixtral-8x7b has 8 experts; use an EP that divides them",
        ),
        (
            "models: llama3-70b, pp: 32, dp: 1",
            "PP 32: llama3-70b has 80 layers, and 80 / 32 = 2.5; use a PP that divides them",
        ),
        ("models: llama3-8b, ep: 2, dp: rest", "EP 2: llama3-8b has no experts"),
        (
            "models: mixtral-8x7b, ep: 8, tp: 8, dp: rest",
            "EP 8 with DP 4: experts are spread over replicas; EP must divide DP",
        ),
        (
            "models: llama3-8b, dp: rest, global_batch_size: 100",
            "global batch 100 is no multiple of dp × micro-batch = 32 × 1 = 32",
        ),
        (
            "models: llama3-8b, gpus: 4, dp: 1, tp: 4, zero_stage: 0, micro_batch_size: 64, "
            "recomputation: none",
            "GB on a GPU of 141 GB: weights",
        ),
    ],
)
def test_what_cannot_run_says_why_with_the_arithmetic(reason_of, block, expected):
    assert expected in (reason_of(block) or "")


def test_heads_must_divide_over_tensor_parallel_ranks(reason_of, edit):
    edit("models/gpt3-tiny.yaml", "attention_heads: 4", "attention_heads: 2")
    edit("models/gpt3-tiny.yaml", "kv_heads: 4", "kv_heads: 2")
    assert "TP 4: gpt3-tiny has 2 key and value heads, which 4 does not divide" in (
        reason_of("models: gpt3-tiny, tp: 4, dp: rest, precision: fp32") or ""
    )


def test_a_run_longer_than_the_partition_takes_is_refused(reason_of, edit):
    edit("platforms/h200.yaml", "time_limit_max_min: 1440", "time_limit_max_min: 20")
    assert "but the partition's time_limit_max_min is 20" in (
        reason_of("models: gpt3-175b, tp: 8, pp: 4, dp: 1") or ""
    )


def test_an_exclusion_leaves_out_exactly_what_it_names(reason_of, study_directory):
    reason_of("models: gpt3-175b, dp: 1, tp: [1, 2, 4, 8], pp: rest", "exclude: [{tp: [1, 2]}]\n")
    sweep = cells.expand_study(load_study(study_directory))["one-h200"]
    assert [planned.cell.degrees.tp for planned in sweep.cells] == [4, 8]


def ids(directory):
    study = load_study(directory)
    return {
        planned.cell.id for sweep in cells.expand_study(study).values() for planned in sweep.cells
    }


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("platforms/h200.yaml", "account: null", "account: research"),
        ("platforms/h200.yaml", "time_limit_max_min: 1440", "time_limit_max_min: 2880"),
        ("platforms/h200.yaml", "power_limit_w: 700", "power_limit_w: 650"),
        ("platforms/h200.yaml", "peak_bf16_tflops: 989.4", "peak_bf16_tflops: 989.5"),
        ("platforms/h200.yaml", "airflow: [unknown", "airflow: [front"),
        ("models/gpt3-175b.yaml", "description: GPT-3 175B", "description: GPT-3, 175B"),
        ("sweeps/parallelism.yaml", "repeats: 3", "repeats: 5"),
    ],
)
def test_what_does_not_change_a_cells_training_keeps_its_directory(
    study_directory, edit, name, old, new
):
    before = ids(study_directory)
    edit(name, old, new)
    assert ids(study_directory) == before


def test_editing_one_model_moves_exactly_its_cells(study_directory, edit):
    before = ids(study_directory)
    edit("models/mixtral-8x7b.yaml", "sequence_length: 4096", "sequence_length: 2048")
    after = ids(study_directory)
    assert before - after == {each for each in before if "/mixtral-8x7b/" in each}
    assert {each.rpartition("_")[0] for each in before} == {
        each.rpartition("_")[0] for each in after
    }


def test_editing_the_environment_of_a_platform_moves_its_cells(study_directory, edit):
    before = ids(study_directory)
    edit("platforms/h200.yaml", "NCCL_DEBUG: WARN", "NCCL_ALGO: Ring")
    assert {each.split("/")[0] for each in before - ids(study_directory)} == {"h200"}


def test_the_step_time_is_that_of_the_flops_at_the_expected_mfu(sweeps):
    planned = next(
        each
        for each in sweeps["parallelism-h200"].cells
        if each.cell.degrees == Degrees(tp=8, pp=4, dp=1)
    )
    # 6·(174.6 B less 0.025 B positions) + 6·96·12288·2048 FLOPs a token, 128·2048 tokens,
    # a third more for recomputation, 3/128 more for the bubble, over 32 × 989.4e12 × 0.4.
    multiplied = 174604259328 - 2048 * 12288
    flops = (6 * multiplied + 6 * 96 * 12288 * 2048) * 128 * 2048 * 4 / 3
    expected = flops * (1 + 3 / 128) / (32 * 989.4e12 * 0.4)
    assert planned.estimate is not None
    assert planned.estimate.step_time_s == pytest.approx(expected, rel=1e-9)


def test_unknown_peaks_give_no_estimate(sweeps):
    for planned in sweeps["demo"].cells:
        if planned.estimate is not None:
            assert planned.estimate.step_time_s is None
            assert planned.estimate.gpu_hours(planned.cell, 3) is None


def test_names_say_what_the_options_are(sweeps):
    cell = sweeps["optimisation-h200"].cells[0].cell
    training = dataclasses.replace(cell.training, overlap=True, recomputation="full", zero_stage=3)
    assert training.name == "mb1-gb128-bf16-zero3-recompute-overlap"
    assert Degrees(tp=2, pp=3, dp=8, ep=4).name == "tp2-pp3-dp8-ep4"
    assert re.fullmatch(r"h200/gpt3-175b/tp1-pp32-dp1_mb1-gb128-bf16-zero1_[0-9a-f]{8}", cell.id)
