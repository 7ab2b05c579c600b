"""The measures of an inference run, against their values by hand."""

import pytest

from workflow_lib.records.reading import RecordError

from .synthetic_run import LACKING, Run, assert_null, cell, codes, setting

#: 4 sequences of 10 + 6 tokens a step, on 2 GPUs
OF_INFERENCE = {"zero_stage": 0, "workload": "inference"}
INFERENCE = cell(generated_tokens=6, **OF_INFERENCE)


def test_prefill_and_decode_are_measured_apart(tmp_path):
    # Power is a straight line in time: 100 W at the start and 10 W/s more.
    rising = setting(power_w=lambda at_s: 100 + 10 * at_s, energy_j=None)
    row = Run(cell=INFERENCE, prefill_s=5.0, edit=rising).reduced(tmp_path)["run"]

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
    assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_what_only_training_has_is_null_and_an_unused_gpu_counts_for_no_phase(tmp_path):
    row = Run(cell=INFERENCE, prefill_s=5.0, gpus_per_node=4).reduced(tmp_path)["run"]

    assert codes(row) == LACKING | dict.fromkeys(
        (
            *("tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_j", "loss_first", "loss_last"),
            *("energy_per_token_j", "model_flops_per_j", "mfu_6n_attention"),
            *("model_tflops_per_s_per_gpu", "mfu_6n", "mfu_causal", "mfu_full_attention"),
            "mfu_causal_bf16_peak",
        ),
        "not_of_inference",
    )
    assert row["prefill_energy_j"] == pytest.approx(10 * (400 + 600))


ONE_TOKEN = cell(generated_tokens=1, **OF_INFERENCE)
DECODE = ("decode_energy_j", "decode_tokens_per_j", "decode_energy_per_token_j")


@pytest.mark.parametrize(
    ("run", "columns", "code", "values", "known"),
    [
        # Power cannot tell such a phase from the next.
        (Run(cell=INFERENCE, prefill_s=4.0), ("prefill_energy_j",), "phase_too_short",
         ("prefill", "4 s"), {"prefill_time_s": 4.0, "decode_energy_j": 12 * 1000.0}),
        (Run(cell=ONE_TOKEN, prefill_s=5.0), ("decode_tokens_per_j",), "one_token_a_sequence",
         (), {"prefill_tokens_per_s_per_gpu": 4 * 15 / 5 / 2}),
        (Run(cell=INFERENCE, prefill_s=5.0,
             edit=setting(lambda at_s, gpu: gpu == 1, power_w=None)), ("prefill_energy_j", *DECODE),
         "never_read", ("node1 GPU 1", "power_w"), {"decode_time_s": 5.0}),
    ],
)  # fmt: skip
def test_a_phase_without_a_figure_says_why(tmp_path, run, columns, code, values, known):
    row = run.reduced(tmp_path)["run"]
    for name in columns:
        assert_null(row, name, code, *values)
    assert {name: row[name] for name in known} == pytest.approx(known)


@pytest.mark.parametrize(
    ("prefill_s", "told"), [(11.0, r"\bstep 1\b"), (None, "prefill_ended_unix_s")]
)
def test_a_prefill_that_ends_after_its_step_or_at_no_time_is_refused(tmp_path, prefill_s, told):
    with pytest.raises(RecordError, match=told):
        Run(cell=INFERENCE, prefill_s=prefill_s).reduced(tmp_path)


def test_adapters_are_measured_by_their_own_flops(tmp_path):
    row = Run(cell=cell(workload="lora", lora_rank=2)).reduced(tmp_path)["run"]

    # 3.2 tokens/s a GPU; frozen: 4·420. An adapter of rank 2 beside 4 → 12, 4 → 4, 4 → 16 and
    # 8 → 4 in each of two layers: 2·2·(16 + 8 + 20 + 12) = 224 parameters that train.
    assert row["mfu_6n"] == pytest.approx(3.2 * (4 * 420 + 6 * 224) / 1000)
    assert_null(row, "decode_time_s", "workload_generates_nothing", "lora")
