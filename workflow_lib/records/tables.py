"""Every column of every table: its name, type, unit and meaning.

``docs/reference/columns.md`` is made from this.
"""

from __future__ import annotations

from typing import Any

from workflow_lib.records.cell import Cell
from workflow_lib.records.columns import Column, columns

_IDENTITY = (
    ("cell", str, "", "the cell's id: its directory under results/cells"),
    ("platform", str, "", "name of config/platforms/<platform>.yaml"),
    ("model", str, "", "name of config/models/<model>.yaml"),
    ("parallelism", str, "", "short name of the layout"),
    ("options", str, "", "short name of the training options"),
    ("tp", int, "", "tensor-parallel degree"),
    ("pp", int, "", "pipeline-parallel degree"),
    ("dp", int, "", "data-parallel degree"),
    ("ep", int, "", "expert-parallel degree"),
    ("zero_stage", int, "", "ZeRO stage"),
    ("micro_batch_size", int, "", "sequences that a replica processes at once"),
    ("global_batch_size", int, "", "sequences per optimiser step"),
    ("sequence_length", int, "", "tokens per sequence"),
    ("precision", str, "", "bf16 or fp32"),
    ("recomputation", str, "", "none, selective or full"),
    ("overlap", bool, "", "communication overlapped with compute"),
    ("backend", str, "", "what trained: deepspeed or torch"),
    ("workload", str, "", "pretrain, lora or inference"),
    ("virtual_stages", int, "", "chunks of the model on each pipeline rank"),
    ("sequence_parallel", bool, "", "sequence cut between the tensor-parallel parts"),
    ("compile", bool, "", "layers compiled by torch.compile"),
    ("routing", str, "", "dropless or balanced; null in a dense model"),
    ("nodes", int, "", "nodes"),
    ("gpus", int, "", "GPUs (ranks)"),
)

#: what tells one cell from another, in every table
IDENTITY = columns(*_IDENTITY)


def identity(cell: Cell) -> dict[str, Any]:
    """The IDENTITY columns of a cell."""
    degrees, training = cell.degrees, cell.training
    return {
        "cell": cell.id,
        "platform": cell.hardware.platform,
        "model": cell.model.name,
        "parallelism": degrees.name,
        "options": training.name,
        "tp": degrees.tp,
        "pp": degrees.pp,
        "dp": degrees.dp,
        "ep": degrees.ep,
        "zero_stage": training.zero_stage,
        "micro_batch_size": training.micro_batch_size,
        "global_batch_size": training.global_batch_size,
        "sequence_length": cell.model.sequence_length,
        "precision": training.precision,
        "recomputation": training.recomputation,
        "overlap": training.overlap,
        "backend": training.backend,
        "workload": training.workload,
        "virtual_stages": degrees.virtual_stages,
        "sequence_parallel": training.sequence_parallel,
        "compile": training.compile,
        "routing": training.routing,
        "nodes": cell.nodes,
        "gpus": degrees.world_size,
    }


#: plan.parquet: one row a cell that the sweep asks for, infeasible ones included
PLAN = columns(
    *_IDENTITY,
    ("sweeps", str, "", "every sweep that asks for the cell, separated by commas"),
    ("repeats", int, "", "measured runs of the cell"),
    ("profiled_steps", int, "", "steps that one more run is profiled for; 0 without such a run"),
    ("memory_per_gpu_bytes", float, "B", "estimated peak of the fullest rank"),
    ("step_time_s", float, "s", "estimated, at the platform's expected MFU"),
    ("gpu_hours", float, "h", "estimated, over all repeats and the profiled run"),
    ("time_limit_min", int, "min", "asked of the scheduler, for one run"),
    ("feasible", bool, "", "whether the cell can run"),
    ("reason", str, "", "why not, with the arithmetic"),
)

#: what reduce computes of one run, or null with a reason in missing_reasons
MEASURES = columns(
    (
        "measured_steps",
        int,
        "",
        "steps that measures are over: from the steady state's onset on, warm-up excluded",
    ),
    ("measured_duration_s", float, "s", "from the first measured step's start to the last's end"),
    ("step_time_s", float, "s", "median over measured steps of the slowest rank's step"),
    ("step_time_iqr_s", float, "s", "interquartile range of the same"),
    (
        "tokens_per_s",
        float,
        "1/s",
        "tokens trained on in the measured steps over measured_duration_s",
    ),
    ("tokens_per_s_per_gpu", float, "1/s", "the same for one GPU"),
    ("model_tflops_per_s_per_gpu", float, "TFLOP/s", "model FLOPs, counted as in mfu_causal"),
    ("mfu_6n", float, "", "model FLOPs utilisation, 6·N·tokens"),
    ("mfu_causal", float, "", "without the input embedding, causal attention counted once"),
    ("mfu_full_attention", float, "", "without the input embedding, attention as if not causal"),
    ("power_mean_w", float, "W", "all GPUs together: energy over duration"),
    ("power_per_gpu_mean_w", float, "W", "the same for one GPU"),
    ("power_peak_w", float, "W", "highest sample of any one package: a lower bound of the peak"),
    ("idle_power_w", float, "W", "all GPUs together, in the idle baseline before training"),
    (
        "energy_j",
        float,
        "J",
        "all GPUs over the measured steps, trapezoid of power, the driver's own samples first",
    ),
    (
        "energy_counter_j",
        float,
        "J",
        "the same from the driver's energy counters, completed at the edges by the trapezoid",
    ),
    (
        "energy_difference",
        float,
        "",
        "counters over trapezoids, less 1, both between two readings of each counter: the first "
        "and last in the measured steps, or those about them",
    ),
    (
        "energy_systematic_share",
        float,
        "",
        "systematic error of the sensors that every energy and power here may have, as a share",
    ),
    ("cpu_energy_j", float, "J", "CPU packages of all nodes over the measured steps (RAPL)"),
    ("node_energy_j", float, "J", "all nodes as a whole over the measured steps, where they tell"),
    ("tokens_per_j", float, "1/J", "tokens trained on in the measured steps over energy_j"),
    ("energy_delay_product_js", float, "J·s", "energy of a step times the median step time"),
    ("samples_per_s_per_mj", float, "1/(s·MJ)", "the study's efficiency: counts time twice"),
    ("temperature_mean_c", float, "°C", "mean over GPUs and time"),
    ("temperature_peak_c", float, "°C", "highest reading of any GPU"),
    ("temperature_spread_c", float, "°C", "hottest less coolest GPU (means) of the worst node"),
    ("sm_clock_mean_mhz", float, "MHz", "mean over GPUs and time"),
    ("throttle_power_share", float, "", "share of time at the software power cap"),
    (
        "throttle_thermal_share",
        float,
        "",
        "share of time in thermal slowdown, software or hardware",
    ),
    ("throttle_brake_share", float, "", "share of time in power-brake slowdown"),
    ("steady", bool, "", "whether step time, power and temperature became steady together"),
    (
        "steady_from_step",
        int,
        "",
        "first step of the steady state; measures begin there, but not in the warm-up",
    ),
    ("step_time_drift", float, "", "change of the step time over the measured steps, as a share"),
    ("power_drift", float, "", "change of power over the measured steps, as a share"),
    ("temperature_drift_c", float, "°C", "change of the mean core temperature over them"),
    ("cool_down_s", float, "s", "waited for cool GPUs before the idle baseline"),
    ("sampler_cpu_share", float, "", "CPU time of the busiest node's sampler, share of one core"),
    ("memory_peak_bytes", float, "B", "of the fullest rank; host memory on a CPU"),
    ("loss_first", float, "nat", "loss of the first step"),
    ("loss_last", float, "nat", "loss of the last step"),
    # Inference alone. A step's prefill reads all prompts and chooses the first tokens; its decoding
    # generates the others, all sequences of a replica at once.
    ("prefill_time_s", float, "s", "median over measured steps: first start to last prefill's end"),
    ("decode_time_s", float, "s", "median over measured steps: last prefill's end to last end"),
    ("prefill_tokens_per_s_per_gpu", float, "1/s", "prompt tokens of a step over prefill_time_s"),
    (
        "decode_tokens_per_s_per_gpu",
        float,
        "1/s",
        "tokens of a step but each sequence's first, over decode_time_s",
    ),
    (
        "time_to_first_token_s",
        float,
        "s",
        "prefill_time_s: the whole batch waits until all its prompts are read",
    ),
    (
        "time_per_output_token_s",
        float,
        "s",
        "decode_time_s over a sequence's tokens but the first",
    ),
    ("prefill_energy_j", float, "J", "all GPUs, all measured steps' prefills; null under 5 s each"),
    ("decode_energy_j", float, "J", "all GPUs, all measured steps' decoding; null under 5 s each"),
    (
        "decode_tokens_per_j",
        float,
        "1/J",
        "tokens of the measured steps but each sequence's first, over decode_energy_j",
    ),
)

_OF_TRAINING = frozenset(
    (
        *("tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_j", "model_tflops_per_s_per_gpu"),
        *("mfu_6n", "mfu_causal", "mfu_full_attention", "loss_first", "loss_last"),
    )
)
_OF_INFERENCE = frozenset(
    (
        *("prefill_time_s", "prefill_tokens_per_s_per_gpu", "time_to_first_token_s"),
        *("decode_time_s", "decode_tokens_per_s_per_gpu", "time_per_output_token_s"),
        *("prefill_energy_j", "decode_energy_j", "decode_tokens_per_j"),
    )
)


def inapplicable(workload: str) -> frozenset[str]:
    """The MEASURES that mean nothing for a workload, and are null in all of its runs."""
    return _OF_TRAINING if workload == "inference" else _OF_INFERENCE


#: runs.parquet: one row a run of every feasible cell, whatever became of it
RUNS = (
    *columns(
        *_IDENTITY,
        ("run", int, "", "which repeat, from 1"),
        ("gpu_name", str, "", "as the driver calls it"),
        ("simulated", bool, "", "whether GPU readings were simulated"),
        ("outcome", str, "", "how the run ended; not_run where it has not"),
        ("cause", str, "", "one sentence on the outcome"),
        ("missing_reasons", str, "", "JSON: column → why it is null"),
    ),
    *MEASURES,
)

#: gpus.parquet: one row a GPU and run, over the measured steps
GPUS = columns(
    ("cell", str, "", "the cell's id"),
    ("run", int, "", "which repeat, from 1"),
    ("node", str, "", "the node's name"),
    ("gpu", int, "", "index of the GPU in its node"),
    ("gpu_uuid", str, "", "which GPU that was, as its driver identifies it"),
    ("airflow", str, "", "front, rear or unknown"),
    ("simulated", bool, "", "whether its readings were simulated"),
    ("samples", int, "", "samples within the measured steps"),
    ("longest_gap_s", float, "s", "longest time between two of them"),
    ("power_mean_w", float, "W", "energy_j over duration"),
    ("power_peak_w", float, "W", "highest sample"),
    ("power_source", str, "", "what power and energy are of: driver (its own samples) or readings"),
    ("energy_j", float, "J", "trapezoid of power"),
    ("energy_counter_j", float, "J", "from the driver's counter"),
    ("energy_difference", float, "", "as in runs"),
    ("temperature_mean_c", float, "°C", "time-weighted mean"),
    ("temperature_peak_c", float, "°C", "highest reading"),
    ("memory_temperature_peak_c", float, "°C", "highest reading"),
    ("thermal_margin_c", float, "°C", "smallest distance to the temperature of slowdown"),
    ("sm_clock_mean_mhz", float, "MHz", "time-weighted mean"),
    ("throttle_power_share", float, "", "share of time at the software power cap"),
    ("throttle_thermal_share", float, "", "share of time in thermal slowdown"),
    ("throttle_brake_share", float, "", "share of time in power-brake slowdown"),
    ("throttle_power_sampled_share", float, "", "the same from event bits as sampled"),
    ("throttle_thermal_sampled_share", float, "", "the same from event bits as sampled"),
    ("throttle_brake_sampled_share", float, "", "the same from event bits as sampled"),
    (
        "throttle_source",
        str,
        "",
        "counters (exact, between the first and the last reading in the measured steps, where "
        "these span 30 % of them) or events (as sampled); null where neither is",
    ),
    (
        "gpu_link_received_bytes",
        float,
        "B",
        "over all NVLink or xGMI links, at the rate between the first and the last reading in the "
        "measured steps, as all traffic here",
    ),
    ("gpu_link_sent_bytes", float, "B", "over all NVLink or xGMI links"),
    ("pcie_received_bytes", float, "B", "over PCIe; a lower bound"),
    ("pcie_sent_bytes", float, "B", "over PCIe; a lower bound"),
    (
        "ecc_corrected_errors",
        int,
        "",
        "memory errors that were corrected, between the readings about the measured steps",
    ),
    ("ecc_uncorrected_errors", int, "", "those that were not, between the same"),
    ("xid_events", int, "", "Xid events of the driver during the run"),
    ("missing_reasons", str, "", "JSON: column → why it is null"),
)

#: overhead.parquet: what each sampling rate cost training, one row a run whose rates took turns and
#: rate; only where a sweep has such cells
OVERHEAD = columns(
    ("cell", str, "", "the cell's id"),
    ("run", int, "", "which repeat, from 1"),
    ("simulated", bool, "", "whether GPU readings were simulated"),
    ("sample_rate_hz", float, "Hz", "rate of GPU samples; 0 where nothing was read"),
    ("blocks", int, "", "turns of this rate that hold whole steps"),
    ("steps", int, "", "whole measured steps within them"),
    ("step_time_s", float, "s", "median over these steps"),
    (
        "slowdown",
        float,
        "",
        "median step time of a turn over that of the nearest turn at rate 0, less 1: mean over "
        "pairs",
    ),
    ("slowdown_low", float, "", "lower end of its 95 % interval (Student's t over pairs)"),
    ("slowdown_high", float, "", "upper end of the same"),
    ("pairs", int, "", "turns that were compared with one at rate 0"),
    ("sampler_cpu_share", float, "", "CPU time of the busiest node's sampler, share of one core"),
    ("sampler_memory_bytes", float, "B", "the largest sampler's resident memory"),
    ("achieved_rate_hz", float, "Hz", "ticks sampled over time"),
    ("late_share", float, "", "ticks over half a period late or missed, of all that were due"),
    ("missing_reasons", str, "", "JSON: column → why it is null"),
)

#: cells.parquet: one row a cell of the plan, infeasible ones included
CELLS = (
    *columns(
        *_IDENTITY,
        ("gpu_name", str, "", "as the driver calls it, in the completed runs"),
        ("simulated", bool, "", "whether GPU readings of any run were simulated"),
        ("repeats", int, "", "runs that the plan asks for"),
        ("completed", int, "", "runs that completed"),
        (
            "interval",
            str,
            "",
            "what …_low and …_high are: range (the lowest and highest, of fewer than five "
            "completed runs) or order_statistics (an interval of the median); null without any",
        ),
        (
            "interval_coverage",
            float,
            "",
            "of order_statistics: how probably the interval holds the median; 0.9375 with five "
            "runs, at least 0.95 with more",
        ),
        ("outcome", str, "", "completed where any run did, else how most of its runs ended"),
        ("outcomes", str, "", 'every outcome and its count, as in "completed 2, timeout 1"'),
        ("cause", str, "", "one sentence on the outcome; why not, where infeasible"),
        (
            "profiled_outcome",
            str,
            "",
            "how the profiled run ended; not_run where it has not, null where the plan has none",
        ),
        ("profiled_cause", str, "", "one sentence on that; whether its traces were analysed"),
    ),
    *(
        Column(name + suffix, float, unit, f"{what} over completed runs: {description}")
        for name, unit, description in ((m.name, m.unit, m.description) for m in MEASURES)
        for suffix, what in (
            ("", "median"),
            ("_low", "lower end of the interval"),
            ("_high", "upper end of the interval"),
        )
    ),
)
