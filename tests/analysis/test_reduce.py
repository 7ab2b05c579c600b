"""A run's directory reduced: every figure against its value by hand, every null with its code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workflow_lib.analysis.reduce import reduced_run
from workflow_lib.analysis.run_row import BESIDE_MEASURES
from workflow_lib.records.cell import Cell
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.measures import MEASURES, inapplicable
from workflow_lib.records.outcomes import Outcome
from workflow_lib.records.reading import RecordError
from workflow_lib.records.tables import GPUS, RUNS, UNUSED_GPUS

from .synthetic_run import (
    LACKING,
    Edit,
    Run,
    assert_holds,
    assert_null,
    cell,
    codes,
    edit_csv,
    keeping,
    setting,
    summary,
)

OF_INFERENCE = inapplicable("pretrain")


def reduce(run: Run, tmp_path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, str]]:
    """Write and reduce a run; returns its row, its GPUs' rows, and the codes of the row's nulls,
    but for those of measures that training does not have."""
    reduced = run.reduced(tmp_path)
    row, null = reduced["run"], codes(reduced["run"])
    if run.outcome is Outcome.COMPLETED:
        assert {null.pop(name) for name in OF_INFERENCE} == {"workload_generates_nothing"}
    return row, reduced["gpus"], null


def test_a_completed_run_has_every_figure(tmp_path):
    row, gpus, null = reduce(Run(), tmp_path)
    # The window is 20 s (START + 20 to 40). 2 steps of 4 sequences of 16 tokens: 128 tokens, 6.4/s.
    # Parameters: embeddings 2 × 40; a layer has attention 4·4² = 64, feed-forward 3·4·8 = 96 and
    # norms 8, in all 168; the final norm 4. N = 80 + 336 + 4 = 420; without the input embedding
    # 380. Attention over the whole matrix: 12·2·4·16 = 1536 FLOPs a token.
    expected = {
        "cell": "made-up/tiny/tp1-pp1-dp2_mb1-gb4-bf16-zero1_01234567",
        "platform": "made-up",
        "model": "tiny",
        "parallelism": "tp1-pp1-dp2",
        "options": "mb1-gb4-bf16-zero1",
        "dp": 2,
        "gpus": 2,
        "run": 1,
        "gpu_name": "NVIDIA H200",
        "simulated": False,
        "outcome": "completed",
        "measured_steps": 2,
        "counted_steps": 2,
        "measured_duration_s": 20.0,
        # 1000 W of two sensors, of which the truth may be (1000 − 25)/1.1 W.
        "energy_systematic_share": 1000 / (975 / 1.1) - 1,
        # Both steps last 10 s from the first start to the slower rank's end.
        "step_time_s": 10.0,
        "step_time_iqr_s": 0.0,
        "tokens_per_s": 6.4,
        "tokens_per_s_per_gpu": 3.2,
        "model_tflops_per_s_per_gpu": 3.2 * (6 * 380 + 768) / 1e12,
        "mfu_6n": 3.2 * 6 * 420 / 1000,
        "mfu_causal": 3.2 * (6 * 380 + 768) / 1000,
        "mfu_causal_bf16_peak": 3.2 * (6 * 380 + 768) / 1000,
        "mfu_full_attention": 3.2 * (6 * 380 + 1536) / 1000,
        "mfu_6n_attention": 3.2 * (6 * 420 + 1536) / 1000,
        "power_mean_w": 1000.0,
        "power_per_gpu_mean_w": 500.0,
        "power_peak_w": 600.0,
        "idle_power_w": 210.0,
        "energy_j": 20_000.0,
        "energy_integral_j": 20_000.0,
        "energy_difference": 0.0,
        "energy_error_share": 0.0,
        "energy_per_token_j": 20_000 / 128,
        "energy_per_step_j": 10_000.0,
        "power_instant_peak_w": 750.0,
        "node_power_mean_w": 2000.0,
        # One reading of 2 °C and 600 rpm more, amid a second on either side: 2 °C·s over 20 s.
        "inlet_temperature_mean_c": 20.1,
        "inlet_temperature_peak_c": 22.0,
        "cpu_temperature_peak_c": 65.0,
        "fan_speed_mean_rpm": 6030.0,
        "fan_speed_peak_rpm": 6600.0,
        "edge_temperature_peak_c": 46.0,
        "memory_temperature_peak_c": 72.0,
        "thermal_margin_c": 28.0,
        "gpu_fan_speed_peak_share": 0.55,
        "memory_clock_mean_mhz": 2600.0,
        "gpu_utilisation_share": 0.8,
        "cpu_utilisation_share": 0.25,
        "gpu_memory_used_peak_bytes": 2001.0,
        "host_memory_used_peak_bytes": 5100.0,
        "other_jobs_peak": 2.0,
        # Of both GPUs, in two steps.
        "gpu_link_received_bytes": 120_000.0,
        "gpu_link_sent_bytes": 80_000.0,
        "network_received_bytes": 2000.0,
        "network_sent_bytes": 1000.0,
        "infiniband_received_bytes": 20_000.0,
        "infiniband_sent_bytes": 20_000.0,
        # One of each GPU, after 30 s.
        "ecc_corrected_errors": 2,
        "ecc_uncorrected_errors": 0,
        "xid_events": 0,
        # 150 W and 2 kW for 20 s.
        "cpu_energy_j": 3000.0,
        "node_energy_j": 40_000.0,
        # 5 ms a second, without what starting took.
        "sampler_cpu_share": 0.005,
        "tokens_per_j": 128 / 20_000,
        "model_flops_per_j": 128 * (6 * 380 + 768) / 20_000,
        # 10 kJ a step, 10 s.
        "energy_delay_product_js": 100_000.0,
        # 8 sequences in 20 s; 0.01 MJ a step.
        "samples_per_s_per_mj": 40.0,
        # GPU 0: 50 °C, and 55 for one sample amid 0.5 s on either side: 2.5 °C·s over 20 s.
        "temperature_mean_c": 55.125,
        "temperature_peak_c": 65.0,
        "temperature_spread_c": 10.0,
        "sm_clock_mean_mhz": 1500.0,
        # Counters are read at the window's ends, 20 s apart, and advance by 0.1 s.
        "throttle_share_error": 0.005,
        "power_limit_w": 700.0,
        "power_of_limit_share": 500 / 700,
        "capped_clock_share": 0.75,
        "throttle_power_share": 1.0,  # by the bits, beside heat
        "throttle_thermal_share": 0.15,
        "throttle_brake_share": 0.0,
        "memory_peak_bytes": 1100.0,
        # 4 blocks of each rank were given back before the measured steps.
        "allocator_retries": 0,
        "allocator_frees": 0,
        "memory_pressure": False,
        "allocator": "native",
        "memory_reserved_peak_bytes": 1600.0,
        # The plan expects 3 GiB for the runtime alone, which is more than the GPU's 1 GB.
        "memory_used_peak_bytes": 5e8,
        "memory_estimate_error": 1.0,
        "loss_first": 3.0,
        "loss_last": 1.0,
    }
    assert null == LACKING
    assert list(row) == [column.name for column in RUNS]
    for name, value in expected.items():
        assert row[name] == (pytest.approx(value) if isinstance(value, float) else value), name
    assert_null(row, "steady", "too_few_blocks", "2", "10")
    assert set(MEASURES) - OF_INFERENCE - LACKING.keys() <= expected.keys()
    assert [gpu["airflow"] for gpu in gpus] == ["front", "rear"]
    *_, gpu = gpus
    assert json.loads(gpu.pop("missing_reasons")).keys() == codes(gpu).keys()
    alike = (
        *("cell", "run", "simulated", "energy_difference", "energy_error_share"),
        *("temperature_peak_c", "memory_temperature_peak_c", "edge_temperature_peak_c"),
        *("thermal_margin_c", "gpu_fan_speed_peak_share", "gpu_memory_used_peak_bytes"),
        *("gpu_utilisation_share", "memory_clock_mean_mhz", "sm_clock_mean_mhz"),
        *("power_instant_peak_w", "power_peak_w", "power_limit_w", "capped_clock_share"),
        *("throttle_power_share", "throttle_thermal_share", "throttle_brake_share"),
        *("throttle_share_error", "allocator_retries", "allocator_frees"),
        *("ecc_uncorrected_errors", "xid_events"),
    )
    assert gpu == {
        **{name: pytest.approx(expected[name]) for name in alike},
        "node": "node1",
        "gpu": 1,
        "gpu_uuid": "GPU-node1-1",
        "airflow": "rear",
        "samples": 41,
        "longest_gap_s": 0.5,
        "power_mean_w": 600.0,
        "energy_j": 12_000.0,
        "power_source": "readings",
        "power_window_s": 1.0,
        "power_seen_share": None,
        "energy_source": "counter",
        "power_refused": 0,
        "energy_integral_j": pytest.approx(12_000.0),
        "temperature_mean_c": pytest.approx(60.125),
        "power_of_limit_share": pytest.approx(600 / 700),
        "at_power_limit_share": None,
        "at_power_limit_burst_s": None,
        "throttle_source": "counters",
        # The bit of the power cap is set throughout.
        "throttle_power_sampled_share": 1.0,
        "throttle_thermal_sampled_share": 0.0,
        "throttle_brake_sampled_share": 0.0,
        "gpu_link_received_bytes": pytest.approx(60_000),
        "gpu_link_sent_bytes": pytest.approx(40_000),
        "ecc_corrected_errors": 1,
        "missing_codes": gpu["missing_codes"],
    }
    assert codes(gpu) == {
        "at_power_limit_burst_s": "readings_too_long_for_bursts",
        "at_power_limit_share": "readings_too_long_for_bursts",
        "power_seen_share": "gpu_model_unknown",
    }
    assert gpu.keys() | {"missing_reasons"} == {column.name for column in GPUS}


COUNTER_FIGURES = ("energy_difference", "energy_error_share")
POWER_FIGURES = (
    *("energy_j", "energy_per_token_j", "energy_per_step_j", "energy_integral_j"),
    *("power_mean_w", "power_per_gpu_mean_w", "power_peak_w", "power_of_limit_share"),
    *("tokens_per_j", "model_flops_per_j", "energy_delay_product_js", "samples_per_s_per_mj"),
    *(*COUNTER_FIGURES, "energy_systematic_share"),
)


def without(*columns: str) -> Edit:
    return setting(**dict.fromkeys(columns))


@pytest.mark.parametrize(
    ("run", "columns", "code", "values", "energy_j"),
    [
        (Run(edit=without("energy_j"), missing={"energy_j": "not here"}),
         COUNTER_FIGURES, "not_read", ("node1 GPU 0", "not here"), 20_000.0),
        (Run(edit=setting(lambda at_s, gpu: at_s > 30, energy_j=0)),
         COUNTER_FIGURES, "counter_fell", ("node1 GPU 0", "energy_j"), 20_000.0),
        (Run(cell=cell(degrees=Degrees()), gpus_per_node=1, step_tokens=64),
         ("temperature_spread_c",), "one_gpu_a_node", (), 8000.0),
        (Run(cell=cell(idle_baseline_s=0.0)),
         ("idle_power_w",), "no_idle_baseline", ("idle_baseline_s is 0",), 20_000.0),
        (Run(edit=keeping(lambda at_s, gpu: at_s >= -0.5)),
         ("idle_power_w",), "idle_too_short", ("node1", "0.5 s", "1 s"), 20_000.0),
    ],
)  # fmt: skip
def test_what_is_not_known_is_null_alone(tmp_path, run, columns, code, values, energy_j):
    row, gpus, null = reduce(run, tmp_path)
    assert null == LACKING | dict.fromkeys(columns, code)
    for name in columns:
        assert_null(row, name, code, *values)
    assert (row["energy_j"], gpus[0]["energy_j"]) == (energy_j, 8000.0)


def test_one_gpu_without_power_makes_the_total_null_not_smaller(tmp_path):
    run = Run(edit=setting(lambda at_s, gpu: gpu == 1, power_w=None))
    row, gpus, null = reduce(run, tmp_path)
    drifts = dict.fromkeys(("steady", "power_drift", "power_drift_margin"), "not_read_in_steps")
    assert null == LACKING | drifts | dict.fromkeys((*POWER_FIGURES, "idle_power_w"), "never_read")
    assert_null(row, "energy_j", "never_read", "node1 GPU 1", "power_w")
    assert gpus[0]["energy_j"] == 8000.0


@pytest.mark.parametrize(
    ("run", "column", "code", "values", "figures"),
    [
        (Run(edit=without("throttle_power_cap_s", "event_reasons"),
             missing={"event_reasons": "no such call"}),
         "throttle_brake_share", "not_read", ("node1 GPU 0", "no such call"),
         {"throttle_source": None}),
        (Run(edit=keeping(lambda at_s, gpu: gpu == 0)),
         "energy_j", "no_sample_of_gpu", ("node1 GPU 1",), {"samples": 0}),
        # Samples do not cover the window.
        (Run(edit=keeping(lambda at_s, gpu: at_s < 39)), "energy_j", "edge_not_read",
         ("node1 GPU 0", "power_w", "1.5 s"), {"temperature_mean_c": None}),
        (Run(edit=keeping(lambda at_s, gpu: at_s > 21)), "energy_j", "edge_not_read",
         ("node1 GPU 0", "power_w", "1.5 s"), {"temperature_mean_c": None}),
        (Run(edit=keeping(lambda at_s, gpu: not 25 < at_s < 35)), "energy_j", "reading_gap",
         ("node1 GPU 0", "power_w", "10 s", "5 s"), {"temperature_mean_c": None}),
    ],
)  # fmt: skip
def test_what_was_not_read_is_null_beside_the_speed(tmp_path, run, column, code, values, figures):
    row, gpus, _ = reduce(run, tmp_path)
    assert_null(row, column, code, *values)
    for name, value in figures.items():
        assert (gpus[1][name], row.get(name, value)) == (value, value)
    assert row["tokens_per_s"] == pytest.approx(6.4)


MODEL_A100, H100_PCIE = "NVIDIA A100 80GB PCIe", "NVIDIA H100 PCIe"


@pytest.mark.parametrize(
    ("run", "row", "gpus"),
    [
        # Without one counter of throttling the event bits count.
        (Run(edit=without("throttle_sw_thermal_s")),
         {"throttle_power_share": 1.0, "throttle_thermal_share": 0.0},
         {0: {"throttle_source": "events"}}),
        # A counter that is not read at the edges is interpolated there.
        (Run(edit=setting(lambda at_s, gpu: at_s % 3 != 1, energy_j=None)), {"energy_j": 20_000.0},
         {0: {"energy_source": "counter"}, 1: {"energy_source": "counter"}}),
        # A package of two counts once.
        (Run(cell=cell(gpus_per_package=2)),
         {"energy_j": 8000.0, "power_per_gpu_mean_w": 200.0, "idle_power_w": 100.0,
          "temperature_mean_c": 55.125},
         {1: {"energy_j": None, "energy_source": None}}),
        # Rank 0 says that it has GPU 0, and the sampler that this UUID is its GPU 1.
        (Run(cell=cell(degrees=Degrees()), step_tokens=64, rank_uuids={0: "GPU-node1-1"}),
         {"energy_j": 12_000.0}, {0: {"gpu": 1}}),
        # What comes between the idle baseline and training is not of it.
        (Run(cell=cell(idle_baseline_s=4.0), edit=setting(lambda at_s, gpu: at_s >= -5,
                                                          power_w=300)),
         {"idle_power_w": 210.0}, {}),
        # What a sensor sees is that published of its model.
        (Run(cell=cell(gpu="A100 PCIe"), device_name=MODEL_A100, gpu_name=MODEL_A100), {},
         {0: {"power_window_s": 0.025, "power_seen_share": 0.25}}),
        # Where any GPU will do its peak is that of its model: 756 TFLOP/s, where SXM has 989.4.
        (Run(cell=cell(gpu=None, peak_bf16_flops_per_s=None), device_name=H100_PCIE),
         {"mfu_6n": 3.2 * 6 * 420 / 756e12}, {}),
        # FP8 has its own peak, beside that of bf16.
        (Run(cell=cell(precision="fp8", backend="torch", peak_fp8_flops_per_s=2000.0)),
         {"mfu_causal": 3.2 * (6 * 380 + 768) / 2000,
          "mfu_causal_bf16_peak": 3.2 * (6 * 380 + 768) / 1000}, {}),
    ],
)  # fmt: skip
def test_a_run_that_differs_has_its_figures_by_hand(tmp_path, run, row, gpus):
    found, found_gpus, _ = reduce(run, tmp_path)
    assert {name: found[name] for name in row} == pytest.approx(row)
    for gpu, figures in gpus.items():
        assert {name: found_gpus[gpu][name] for name in figures} == figures


@pytest.mark.parametrize(
    ("run", "null", "column", "code"),
    [
        (Run(identified=False), (0, 1), "gpu_uuid", "driver_does_not_tell"),
        (Run(cell=cell(gpus_per_package=2)), (1,), "power_mean_w", "shares_package_sensor"),
    ],
)
def test_a_gpus_null_has_its_code(tmp_path, run, null, column, code):
    _, gpus, _ = reduce(run, tmp_path)
    for gpu in null:
        assert_null(gpus[gpu], column, code)


def test_a_node_without_telemetry_makes_its_gpus_and_the_totals_null(tmp_path):
    paths = Run().write(tmp_path / "run1")
    paths.gpu_samples("node1").unlink()
    reduced = summary(paths)
    for name in ("energy_j", "idle_power_w"):
        assert_null(reduced["run"], name, "file_missing")
    assert reduced["gpus"][0].keys() == {column.name for column in GPUS}


def test_spread_is_of_the_worst_node(tmp_path):
    run = Run(cell=cell(degrees=Degrees(dp=4), nodes=2), nodes=("a", "b"), step_tokens=16)
    paths = run.write(tmp_path / "run1")
    run.edit = lambda fields: {**fields, "temperature_c": 50 + 3 * fields["gpu"]}
    run.write_telemetry(paths, "b")
    reduced = summary(paths)
    places = [(gpu["node"], gpu["gpu"]) for gpu in reduced["gpus"]]
    assert places == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    # 10 °C on node a, 3 °C on node b.
    assert reduced["run"]["temperature_spread_c"] == pytest.approx(10)
    assert reduced["run"]["energy_j"] == 40_000.0


#: what training on a CPU beside simulated GPUs lacks as well
NOT_ON_A_CPU = {
    "energy_systematic_share": "simulated_sensor_error",
    "throttle_share_error": "simulated_counters",
    **dict.fromkeys(
        ("allocator", "allocator_retries", "allocator_frees", "memory_pressure"),
        "cpu_has_no_gpu_allocator",
    ),
    **dict.fromkeys(
        ("memory_reserved_peak_bytes", "memory_used_peak_bytes", "memory_estimate_error"),
        "cpu_memory_not_counted",
    ),
}
MFU = {"mfu_6n", "mfu_causal", "mfu_full_attention", "mfu_6n_attention"}
BF16_MFU = "mfu_causal_bf16_peak"
FP32, FP8 = {"precision": "fp32"}, {"precision": "fp8", "backend": "torch"}


@pytest.mark.parametrize(
    ("run", "code", "values"),
    [
        *((Run(cell=cell(gpu=None, **training), device_name="NVIDIA L40S"), "peak_unknown",
           ("made-up", training["precision"], "'NVIDIA L40S'")) for training in (FP32, FP8)),
        *((Run(device_name=name), "other_gpu_than_platform",
           ("'H200'", f"'{name}'", f"gpu: {instead}"))
          for name, instead in (("NVIDIA GH200 480GB", "GH200"), ("NVIDIA H200 NVL", "H200 NVL"),
                                ("NVIDIA H100 80GB HBM3", "H100"))),
        (Run(on_cpu=True, device_name="cpu", simulated=True), "cpu_peak_unknown", ("cpu",)),
    ],
)  # fmt: skip
def test_an_unknown_peak_gives_no_mfu(tmp_path, run, code, values):
    row, _, null = reduce(run, tmp_path)
    # The bf16 peak is another, which that platform gives.
    mfu = MFU if run.cell.training.precision != "bf16" else MFU | {BF16_MFU}
    assert null == LACKING | (NOT_ON_A_CPU if run.on_cpu else {}) | dict.fromkeys(mfu, code)
    for name in mfu:
        assert_null(row, name, code, *values)
    if BF16_MFU not in mfu:
        assert row[BF16_MFU] == pytest.approx(3.2 * (6 * 380 + 768) / 1000)
    assert (row["simulated"], row["memory_peak_bytes"]) == (run.simulated, 1100.0)


MIXTRAL = replace(cell().model, family="mixtral", experts=4, experts_per_token=2)


def routed(routing: str) -> Cell:
    return cell(model=MIXTRAL, routing=routing)


def test_what_experts_drop_is_in_no_useful_measure(tmp_path):
    # In each of the measured steps rank 0 drops 10 of 128 choices, and rank 1 drops 54.
    run = Run(cell=routed("balanced"), choices={0: (128, 10), 1: (128, 54)})
    row, _, _ = reduce(run, tmp_path / "balanced")
    whole, _, _ = reduce(Run(cell=routed("dropless")), tmp_path / "dropless")
    assert row["dropped_choices_share"] == 0.25
    assert whole["dropped_choices_share"] == 0.0
    # Two layers, of 2 experts of 3·4·8 parameters for a token, less a quarter: 96 parameters.
    assert whole["mfu_6n"] - row["mfu_6n"] == pytest.approx(3.2 * 6 * 96 / 1000)
    less = 128 * 6 * 96 / 20_000
    assert whole["model_flops_per_j"] - row["model_flops_per_j"] == pytest.approx(less)
    # Tokens that were trained on are all there.
    assert row["tokens_per_s"] == whole["tokens_per_s"]
    assert row["tokens_per_j"] == whole["tokens_per_j"]


def test_gpus_that_no_rank_used_are_listed_with_their_idle_power(tmp_path):
    # Four GPUs, of which ranks have the second and the fourth: 600 and 1000 W. The others draw 400
    # and 800 W of somebody else's.
    run = Run(gpus_per_node=4, rank_uuids={0: "GPU-node1-1", 1: "GPU-node1-3"})
    run = replace(run, power_limits_w={2: 500.0})
    reduced = run.reduced(tmp_path)
    assert [gpu["gpu"] for gpu in reduced["gpus"]] == [1, 3]
    assert reduced["run"]["energy_j"] == pytest.approx(20 * 1600)
    assert reduced["run"]["power_limit_w"] == 700.0
    unused = reduced["unused_gpus"]
    assert [gpu["gpu_uuid"] for gpu in unused] == ["GPU-node1-0", "GPU-node1-2"]
    assert [gpu["power_mean_w"] for gpu in unused] == pytest.approx([400.0, 800.0])
    assert [gpu["power_limit_w"] for gpu in unused] == [700.0, 500.0]
    assert unused[0] == {
        "cell": run.cell.id,
        "run": 1,
        "node": "node1",
        "gpu": 0,
        "watched": True,
        "gpu_name": "NVIDIA H200",
        "gpu_uuid": "GPU-node1-0",
        "simulated": False,
        "power_mean_w": pytest.approx(400.0),
        "power_limit_w": 700.0,
        "gpu_utilisation_share": pytest.approx(0.8),
        "gpu_memory_used_peak_bytes": 2000.0,
        "missing_reasons": "{}",
        "missing_codes": "{}",
    }
    assert list(unused[0]) == [column.name for column in UNUSED_GPUS]


def test_gpus_that_the_job_does_not_have_are_listed_with_one_reading(tmp_path):
    other = {"index": 5, "name": "NVIDIA H200", "uuid": "GPU-x", "power_limit_w": 700.0}
    lists = ({**other, "power_w": 68.5}, {**other, "index": 6, "power_w": None})
    known, unknown = Run(other_gpus=lists).reduced(tmp_path)["unused_gpus"]
    assert (known["gpu"], known["watched"], known["power_mean_w"]) == (5, False, 68.5)
    assert unknown["gpu"] == 6
    assert_null(unknown, "power_mean_w", "driver_does_not_tell")
    assert_null(unknown, "gpu_utilisation_share", "not_of_the_job")


@pytest.mark.parametrize(
    ("rank", "fields", "measure", "code", "values"),
    [
        # The rank that recorded none may be the fullest.
        (1, {"memory_peak_bytes": ""}, "memory_peak_bytes", "rank_recorded_none", ("rank 1",)),
        (1, {"memory_reserved_bytes": ""},
         "memory_reserved_peak_bytes", "rank_recorded_none", ("rank 1",)),
        (1, {"memory_used_bytes": ""}, "memory_used_peak_bytes", "rank_recorded_none", ("rank 1",)),
        # The driver counts 0.5 GB at most, after torch's allocator has returned some of 0.7 GB,
        # which is a lower bound and does not judge the plan.
        (0, {"memory_reserved_bytes": 7 * 10**8},
         "memory_estimate_error", "memory_lower_bound", ()),
        # Rank 0 has losses of 3, 2 and 1. Replicas that went apart train two models.
        (1, {"loss": 1.5}, "loss_first", "losses_differ", ("step 0", "1.5", "3")),
        (1, {"loss": 1.5}, "loss_last", "losses_differ", ("step 2", "1", "1.5")),
    ],
)  # fmt: skip
def test_what_ranks_recorded_is_of_all_or_null(tmp_path, rank, fields, measure, code, values):
    paths = Run().write(tmp_path / "run1")
    edit_csv(paths.rank_steps(rank), lambda row: fields)
    reduced = reduced_run(paths, 1)
    row = reduced.summary["run"]
    assert_null(row, measure, code, *values)
    if code == "memory_lower_bound":
        assert row["memory_used_peak_bytes"] == 7e8
    if measure == "loss_last":
        assert_null(reduced.steps.row(-1, named=True), "loss", code, "1", "1.5")


def test_where_nobody_counted_what_was_dropped_there_is_no_mfu(tmp_path):
    row, _, _ = reduce(Run(cell=routed("balanced")), tmp_path)
    assert_null(row, "dropped_choices_share", "drops_not_recorded")
    for name in ("mfu_6n", "model_flops_per_j"):
        assert_null(row, name, "flops_unknown")
    assert row["tokens_per_j"] is not None


def test_a_rank_on_a_gpu_that_the_sampler_never_saw_is_an_error(tmp_path):
    run = Run(rank_uuids={0: "GPU-node1-0", 1: "GPU-elsewhere"})
    with pytest.raises(RecordError, match=r"rank1.*GPU-elsewhere"):
        run.reduced(tmp_path)


@pytest.mark.parametrize(
    ("run", "sensor"),
    [
        (Run(), "1 s"),
        (Run(simulated=True), "simulated"),
        # An A100's peak must not be compared with an H200's, whose readings are means of 1 s.
        (Run(gpu_name="NVIDIA A100-SXM4-80GB", device_name="NVIDIA A100-SXM4-80GB"), "0.025 s"),
        (Run(gpu_name="NVIDIA L40S", device_name="NVIDIA L40S"), "NVIDIA L40S"),
    ],
)
def test_a_peak_of_power_says_what_it_is_of(tmp_path, run, sensor):
    row, _, _ = reduce(run, tmp_path)
    assert_holds(row["power_peak_sensor"], sensor)


@pytest.mark.parametrize(
    "outcome", [o for o in Outcome if o not in (Outcome.COMPLETED, Outcome.TELEMETRY_INVALID)]
)
def test_a_run_that_did_not_complete_keeps_its_identity(tmp_path, outcome):
    row, gpus, null = reduce(Run(outcome=outcome), tmp_path)
    assert (row["model"], row["outcome"], row["run"]) == ("tiny", outcome.value, 1)
    assert row["cause"] == f"the run was {outcome}"
    assert gpus == []
    assert null == dict.fromkeys((*MEASURES, *BESIDE_MEASURES), "not_completed")
    assert_null(row, "energy_j", "not_completed", outcome.value)


def test_a_run_whose_telemetry_is_invalid_keeps_what_its_steps_tell(tmp_path):
    row, gpus, null = reduce(Run(outcome=Outcome.TELEMETRY_INVALID), tmp_path)
    assert row["tokens_per_s"] == pytest.approx(6.4)
    assert row["mfu_6n"] == pytest.approx(3.2 * 6 * 420 / 1000)
    assert row["step_time_drift"] is None
    assert (row["loss_last"], row["memory_peak_bytes"]) == (1.0, 1100.0)
    for name in (*POWER_FIGURES, "temperature_mean_c", "throttle_power_share", "cpu_energy_j"):
        assert null[name] == "telemetry_invalid"
    # It repeats the outcome's cause.
    assert_null(row, "energy_j", "telemetry_invalid", row["cause"])
    assert gpus == []


def test_invalid_telemetry_without_readable_steps_leaves_no_figure(tmp_path):
    paths = Run(outcome=Outcome.TELEMETRY_INVALID).write(tmp_path / "run1")
    paths.rank_steps(1).unlink()
    paths.telemetry_start("node1").write_text("{", encoding="utf-8")
    row = summary(paths)["run"]
    assert_null(row, "step_time_s", "steps_unreadable", "rank1.csv")
    assert_null(row, "simulated", "record_damaged", "JSON")


def test_reducing_twice_gives_the_same_bytes(tmp_path):
    paths = Run().write(tmp_path / "run1")
    first = summary(paths), paths.summary.read_bytes()
    assert (summary(paths), paths.summary.read_bytes()) == first
