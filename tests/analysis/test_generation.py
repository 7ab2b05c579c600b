"""The measures of an inference run, against their values by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workflow_lib.analysis.reduce import reduce_run
from workflow_lib.records import RecordError
from workflow_lib.records.cell_axes import IDENTITY

from .synthetic_run import LACKING, START, Run, cell

#: 4 sequences of 10 + 6 tokens a step, on 2 GPUs
#: columns that say which cell it is: a null there is a value
NAMES = {column.name for column in IDENTITY}
INFERENCE = cell(
    training=replace(cell().training, zero_stage=0, workload="inference", generated_tokens=6)
)


def rising(fields: dict[str, Any]) -> dict[str, Any]:
    """Power that is a straight line in time: 100 W at the start and 10 W/s more; no counter."""
    return {**fields, "power_w": 100 + 10 * (fields["unix_time_s"] - START), "energy_j": None}


def reduced(run: Run, tmp_path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    paths = run.write(tmp_path / "run1")
    reduce_run(paths.directory)
    row = json.loads(paths.summary.read_text(encoding="utf-8"))["run"]
    reasons = json.loads(row["missing_reasons"])
    lacking = {name for name, value in row.items() if value is None and name not in NAMES}
    assert lacking == set(reasons)
    return row, reasons


def test_prefill_and_decode_are_measured_apart(tmp_path):
    row, _ = reduced(Run(cell=INFERENCE, prefill_s=5.0, edit=rising), tmp_path)

    # Steps last from 20 to 30 and 30 to 40 s; the slower rank ends its prefills at 25 and 35.
    expected = {
        "prefill_time_s": 5.0,
        "decode_time_s": 5.0,
        "time_to_first_token_s": 5.0,
        "prefill_tokens_per_s_per_gpu": 4 * 10 / 5 / 2,
        # The prefill has chosen the first of six tokens.
        "decode_tokens_per_s_per_gpu": 4 * 5 / 5 / 2,
        "time_per_output_token_s": 5 / 5,
        # Two GPUs; 325 W at 22.5 s and 425 W at 32.5 s are the prefills' means.
        "prefill_energy_j": 2 * (5 * 325 + 5 * 425),
        "decode_energy_j": 2 * (5 * 375 + 5 * 475),
        "decode_tokens_per_j": 2 * 4 * 5 / (2 * (5 * 375 + 5 * 475)),
        "decode_energy_per_token_j": 2 * (5 * 375 + 5 * 475) / (2 * 4 * 5),
        "step_time_s": 10.0,
        "energy_j": 2 * 20 * 400,
        "samples_per_s_per_mj": 8 / 20 / (2 * 10 * 400 / 1e6),
    }
    for name, value in expected.items():
        assert row[name] == pytest.approx(value), name


def test_a_phase_that_power_cannot_tell_from_the_next_has_no_energy(tmp_path):
    row, reasons = reduced(Run(cell=INFERENCE, prefill_s=4.0), tmp_path)

    assert row["prefill_time_s"] == pytest.approx(4.0)
    assert row["prefill_energy_j"] is None
    assert (
        "prefill takes 4 s; boards average power over about a second" in reasons["prefill_energy_j"]
    )
    assert row["decode_energy_j"] is not None


def test_what_only_training_has_is_null_with_the_reason(tmp_path):
    _, reasons = reduced(Run(cell=INFERENCE, prefill_s=5.0), tmp_path)

    assert reasons == LACKING | dict.fromkeys(
        (
            *("tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_j", "loss_first", "loss_last"),
            *("energy_per_token_j", "model_flops_per_j", "mfu_6n_attention"),
            *("model_tflops_per_s_per_gpu", "mfu_6n", "mfu_causal", "mfu_full_attention"),
            "mfu_causal_bf16_peak",
        ),
        "inference reports prefill and decode apart, and has no loss",
    )


def test_a_single_token_leaves_nothing_to_decode(tmp_path):
    one = replace(INFERENCE, training=replace(INFERENCE.training, generated_tokens=1))
    row, reasons = reduced(Run(cell=one, prefill_s=5.0), tmp_path)

    assert row["prefill_tokens_per_s_per_gpu"] == pytest.approx(4 * 15 / 5 / 2)
    assert "one token, which its prefill chooses" in reasons["decode_tokens_per_j"]


def test_a_gpu_without_power_leaves_no_phase_an_energy(tmp_path):
    def of_one(fields: dict[str, Any]) -> dict[str, Any]:
        return {**fields, "power_w": None} if fields["gpu"] == 1 else fields

    row, reasons = reduced(Run(cell=INFERENCE, prefill_s=5.0, edit=of_one), tmp_path)

    for name in (
        *("prefill_energy_j", "decode_energy_j"),
        *("decode_tokens_per_j", "decode_energy_per_token_j"),
    ):
        assert reasons[name] == "node1 GPU 1: no sample has a power_w"
    assert row["decode_time_s"] == 5.0


def test_an_unused_gpu_of_the_node_counts_for_no_phase(tmp_path):
    run = Run(cell=INFERENCE, prefill_s=5.0, gpus_per_node=4)
    row, _ = reduced(run, tmp_path)

    assert row["prefill_energy_j"] == pytest.approx(10 * (400 + 600))


def test_a_prefill_that_ends_after_its_step_is_refused(tmp_path):
    with pytest.raises(RecordError, match=r"step 1 began at .*, its prefill ended at"):
        reduced(Run(cell=INFERENCE, prefill_s=11.0), tmp_path)


def test_an_inference_run_without_the_times_of_its_prefills_is_refused(tmp_path):
    with pytest.raises(RecordError, match="the row has no prefill_ended_unix_s"):
        reduced(Run(cell=INFERENCE), tmp_path)


def test_adapters_are_measured_by_their_own_flops(tmp_path):
    lora = cell(training=replace(cell().training, workload="lora", lora_rank=2))
    row, reasons = reduced(Run(cell=lora), tmp_path)

    # 3.2 tokens/s a GPU; frozen: 4·420. An adapter of rank 2 beside 4 → 12, 4 → 4, 4 → 16 and
    # 8 → 4 in each of two layers: 2·2·(16 + 8 + 20 + 12) = 224 parameters that train.
    assert row["mfu_6n"] == pytest.approx(3.2 * (4 * 420 + 6 * 224) / 1000)
    assert reasons["decode_time_s"] == "workload lora generates nothing"
