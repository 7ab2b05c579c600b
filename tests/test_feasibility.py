"""What a step is expected to take, by hand."""

import re
from dataclasses import replace

import pytest

from tests import shipped
from tests.made_cells import HARDWARE, TRAINING, made_cell
from workflow_lib import feasibility, formulas
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.model import Model

MODEL = Model("llama3-8b", "llama", 32, 4096, 14336, 32, 8, 8192, 128256)
PLAIN = replace(TRAINING, global_batch_size=16, warmup_steps=2, measured_steps=8)
H200 = replace(HARDWARE, gpu="H200", peak_bf16_flops_per_s=1e15)
INFERENCE = {"workload": "inference", "generated_tokens": 192, "zero_stage": 0, "backend": "torch"}
#: FLOP/s that are expected of a GPU
RATE = 1e15 * 0.4


@pytest.fixture(scope="module")
def platform():
    return shipped.study().platforms["h200"]


def a_cell(degrees=None, model=MODEL, **changes):
    training = replace(PLAIN, **changes)
    return made_cell(model=model, degrees=degrees or Degrees(), training=training, hardware=H200)


def step_time_s(platform, degrees=None, model=MODEL, **changes):
    return feasibility.estimate(a_cell(degrees, model, **changes), platform).step_time_s


def test_chunks_divide_the_bubble(platform):
    alone = step_time_s(platform)
    # Four ranks and 16 micro-batches: 3/16 of the time on top, or half of that.
    assert step_time_s(platform, Degrees(pp=4)) == pytest.approx(alone / 4 * (1 + 3 / 16))
    interleaved = Degrees(pp=4, virtual_stages=2)
    assert step_time_s(platform, interleaved) == pytest.approx(alone / 4 * (1 + 3 / 32))


def test_full_recomputation_repeats_the_forward_pass_and_selective_no_product(platform):
    plain = step_time_s(platform)
    assert step_time_s(platform, recomputation="full") == pytest.approx(plain * 4 / 3)
    assert step_time_s(platform, recomputation="selective") == plain


def test_adapters_save_the_weights_gradients_and_no_forward_pass(platform):
    lora = {"workload": "lora", "lora_rank": 16}
    forward = formulas.flops_per_token(MODEL).causal / 3
    repeated = step_time_s(platform, recomputation="full", **lora) - step_time_s(platform, **lora)
    assert repeated == pytest.approx(forward * 16 * 8192 / RATE)
    assert 2 / 3 < step_time_s(platform, **lora) / step_time_s(platform) < 0.75


def test_generating_reads_the_weights_and_the_cache_for_every_token(platform):
    prefill = formulas.prefill_flops(MODEL, 8000).causal * 16 / (2 * RATE)
    # On each of two tensor-parallel ranks half of the matrices, and for 8000 and, in the mean, 96
    # tokens the keys and values of 4 heads of 128 in 32 layers; 2 B each; 16 times 191 passes.
    weights = (8_030_261_248 - 4096) / 2 + 4096
    cache = 2 * 32 * 4 * 128 * 8096
    decode = 16 * 191 * 2 * (weights + cache) / (4800e9 * 0.5)
    graphs = INFERENCE | {"cuda_graphs": True}
    assert step_time_s(platform, Degrees(tp=2), **graphs) == pytest.approx(prefill + decode)


def test_without_graphs_a_token_waits_for_its_launches(platform):
    # 16 times 191 passes of 32 layers, half of them on each of two stages.
    for degrees, layer_s in ((Degrees(), 0.5e-3), (Degrees(tp=2), 1e-3)):
        rate = RATE * degrees.world_size
        prefill = formulas.prefill_flops(MODEL, 8000).causal * 16 / rate
        seconds = prefill + 16 * 191 * 32 * layer_s
        assert step_time_s(platform, degrees, **INFERENCE) == pytest.approx(seconds)


def test_a_batch_that_fills_the_stages_hides_their_number(platform):
    def decode(pp, sequences):
        degrees = Degrees(pp=pp)
        whole = step_time_s(platform, degrees, global_batch_size=sequences, **INFERENCE)
        flops = formulas.prefill_flops(MODEL, 8000).causal * sequences
        return whole - flops / (pp * RATE) * (1 + (pp - 1) / sequences)

    # One sequence passes through stages of half the size one after the other; two at once.
    assert decode(2, 2) == pytest.approx(decode(2, 1))
    assert decode(2, 4) == pytest.approx(2 * decode(2, 2))


def test_few_tokens_read_few_experts(platform):
    model = Model("mixtral-8x7b", "mixtral", 32, 4096, 14336, 32, 8, 4096, 32000, 1, 8, 2)

    def decode(micro_batch_size):
        graphs = INFERENCE | {"cuda_graphs": True, "micro_batch_size": micro_batch_size}
        whole = step_time_s(platform, model=model, **graphs)
        return whole - formulas.prefill_flops(model, 3904).causal * 16 / RATE

    # Of 16 sequences, one at a time chooses 2 of 8 experts; all 16 choose 1 − 0.75¹⁶ of them.
    one, all_at_once = decode(1) / 16, decode(16)
    experts = 32 * 8 * 3 * 4096 * 14336
    cache = 2 * 32 * 1024 * (3904 + 96)
    seconds = 191 * 2 / (4800e9 * 0.5)
    expected = seconds * (experts * (1 - 0.75**16 - 0.25) + 15 * cache)
    assert all_at_once - one == pytest.approx(expected)


def test_a_job_asks_for_the_longest_that_assumed_steps_may_take_times_the_margin(platform):
    cell = a_cell(measured_steps=100)
    # Start-up, the idle baseline, two warm-up and 100 measured steps, in whole minutes. A step took
    # up to 6.7 times what was assumed.
    seconds = 120 + 30 + 102 * 7 * step_time_s(platform)
    for margin in (1.0, 2.0, 3.5):
        wider = platform.model_copy(update={"time_limit_margin": margin})
        asked = feasibility.estimate(cell, wider).time_limit_min
        assert asked - 1 < margin * seconds / 60 <= asked
    assert platform.time_limit_margin == 2.0


@pytest.fixture
def projected(monkeypatch):
    """Steps of 10 s, between 8 and 20 s, whatever the cell."""
    time = feasibility.StepTime(10.0, 8.0, 20.0, "projected", "own")
    monkeypatch.setattr(feasibility, "_projection", lambda: lambda cell: time)


def test_a_projected_step_is_the_estimate_and_its_upper_end_the_time_limit(platform, projected):
    cost = feasibility.estimate(a_cell(measured_steps=58), platform)
    assert cost.step_time == feasibility.StepTime(10.0, 8.0, 20.0, "projected", "own")
    # Start-up, the idle baseline and 60 steps: 750 s likely, 1,350 s at most. Twice that:
    assert (cost.run_time_s, cost.needed_min, cost.time_limit_min) == (750.0, 25, 45)


def test_a_cell_is_refused_for_its_likely_duration_alone(platform, projected):
    cell = a_cell(measured_steps=58)
    for most_min, limit_min, fits in ((44, 44, True), (25, 25, True), (24, 24, False)):
        brief = platform.model_copy(update={"time_limit_max_min": most_min})
        cost = feasibility.estimate(cell, brief)
        assert cost.time_limit_min == limit_min
        refused = feasibility.does_not_fit(cell, brief, cost)
        assert (refused is None) == fits
    assert "asks for 25 min" in refused


def test_what_is_assumed_is_said(platform):
    def source(**changes):
        return feasibility.estimate(a_cell(**changes), platform).step_time.source

    assert source() == "assumed 40 % MFU"
    assert re.findall(r"\d+ %", source(**INFERENCE)) == ["40 %", "50 %"]
    unknown = replace(a_cell(), hardware=replace(H200, peak_bf16_flops_per_s=None))
    assert feasibility.estimate(unknown, platform).step_time is None


def test_a_short_run_asks_for_a_quarter_of_an_hour_or_what_the_partition_takes(platform):
    cell = a_cell(global_batch_size=1, measured_steps=1)
    assert feasibility.estimate(cell, platform).time_limit_min == 15
    brief = platform.model_copy(update={"time_limit_max_min": 10})
    cost = feasibility.estimate(cell, brief)
    assert cost.time_limit_min == 10
    assert feasibility.does_not_fit(cell, brief, cost) is None


def test_a_run_of_unknown_duration_asks_for_all_that_the_partition_takes(platform):
    unknown = replace(H200, peak_bf16_flops_per_s=None)
    cell = replace(a_cell(), hardware=unknown)
    cost = feasibility.estimate(cell, platform)
    assert (cost.run_time_s, cost.time_limit_min) == (None, platform.time_limit_max_min)
    assert feasibility.does_not_fit(cell, platform, cost) is None


def test_an_unknown_bandwidth_gives_no_estimate(platform):
    unknown = platform.model_copy(update={"memory_bandwidth_gb_per_s": None})
    assert step_time_s(unknown, **INFERENCE) is None
    assert step_time_s(unknown) is not None


@pytest.mark.parametrize(
    ("gpu", "peak", "refused"),
    [
        ("H200", 1979e12, False),
        ("A100 SXM", None, True),
        ("MI250", None, True),
        (None, None, False),
    ],
)
def test_fp8_runs_where_a_gpu_has_units_for_it_or_any_will_do(platform, gpu, peak, refused):
    hardware = replace(H200, gpu=gpu, peak_fp8_flops_per_s=peak)
    cell = replace(a_cell(Degrees(dp=8), precision="fp8", backend="torch"), hardware=hardware)

    reason = feasibility.infeasibility(cell, platform, 8)

    assert (reason is not None) == refused
    if refused:
        assert reason.startswith(f"fp8: {gpu} has no units")


def test_a_step_in_fp8_is_estimated_at_its_own_peak(platform):
    hardware = replace(H200, peak_fp8_flops_per_s=2 * H200.peak_bf16_flops_per_s)
    cell = replace(a_cell(precision="fp8", backend="torch"), hardware=hardware)

    assert feasibility.estimate(cell, platform).step_time_s == pytest.approx(
        step_time_s(platform) / 2
    )
