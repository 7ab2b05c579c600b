"""Every table of a sweep: its columns, with their types, units and meanings.

``docs/reference/columns.md`` is made from this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workflow_lib.records.cell_axes import IDENTITY
from workflow_lib.records.columns import LATER, Column, columns
from workflow_lib.records.measures import ESTIMATES, MEASURES, PROFILED, at_level

# fmt: off
_RUN = (
    ("cell", str, "", "the cell's id"),
    ("run", int, "", "which repeat, from 1"),
)
_PROFILED = (
    ("cell", str, "", "the cell's id"),
    ("run", int, "", "0, the profiled run"),
    ("rank", int, "", "the rank that the trace is of"),
)
_REASON = (
    ("missing_reasons", str, "", "JSON: column → why it is null"),
    ("missing_codes", str, "", "JSON: column → the code of that reason", LATER),
)
_REASONS = columns(*_REASON)


def _predicted(name: str, what: str) -> tuple[tuple[str, type, str, str], ...]:
    return (
        (f"predicted_{name}", float, "", f"share of {what} that it should gain"),
        (f"predicted_{name}_low", float, "", "lower end of the 90 % interval of that"),
        (f"predicted_{name}_high", float, "", "upper end"),
    )


#: plan.parquet: one row a cell that the sweep asks for, infeasible ones included
PLAN = (
    *IDENTITY,
    *columns(
        ("sweeps", str, "", "every sweep that asks for the cell, separated by commas"),
        ("repeats", int, "", "measured runs of the cell"),
        ("profiled_steps", int, "", "steps of the profiled run; 0 if the plan has none"),
    ),
    *(estimate.column for estimate in ESTIMATES.values()),
    *columns(
        ("fits", str, "",
            "whether memory is enough: yes, perhaps (such a cell runs, and may end as "
            "out_of_memory) or no; null if the GPU's memory is not known"),
        ("step_time_source", str, "",
            "projected: from measured runs, by docs/explanation/projection.md; otherwise what was "
            "assumed. null without an estimate"),
        *(
            (f"step_time_{end}_s", float, "s",
                f"{word} end of the 90 % interval of step_time_s; null unless projected")
            for end, word in (("low", "lower"), ("high", "upper"))
        ),
        ("step_time_kind", str, "",
            "for which layouts that interval is, by docs/explanation/projection.md"),
        ("feasible", bool, "", "whether the cell can run"),
        ("reason", str, "", "why not, with the arithmetic"),
        ("predicted_against", str, "", "the cell that it was predicted to gain against"),
        *_predicted("time_gain", "the step's time"),
        *_predicted("energy_gain", "the GPUs' energy a token"),
    ),
)

#: runs.parquet: one row a run of every feasible cell, whatever its outcome
RUNS = (
    *IDENTITY,
    *columns(
        ("run", int, "", "which repeat, from 1"),
        ("gpu_name", str, "", "as the driver calls it"),
        ("sensors", str, "", "the source of readings: nvidia, amd or simulated"),
        ("simulated", bool, "", "whether GPU readings were simulated"),
        ("power_peak_sensor", str, "",
            "the sensor of power_peak_w, and the time over which each of its values is a mean; "
            "peaks of different sensors are not compared"),
        ("allocator", str, "",
            "torch's allocator of GPU memory with its settings, native if none is set; if ranks "
            "differ, all of them"),
        ("memory_pressure", bool, "",
            "whether a rank's allocator tried again, or gave blocks back to the driver, in the "
            "measured steps"),
        ("order_seed", int, "", "seed of the random order of submission"),
        ("order_block", int, "", "the block of that order: one run of each cell"),
        ("order_place", int, "", "the run's place in it, from 1, over all sweeps of the platform"),
        ("started_unix_s", float, "s", "when the run's job began, by its first node's clock"),
        ("outcome", str, "", "how the run ended; not_run if it has not"),
        ("cause", str, "", "one sentence on the outcome"),
    ),
    *_REASONS,
    *(measure.column for measure in MEASURES.values()),
)

#: gpus.parquet: one row a GPU and run, over the measured steps
GPUS = (
    *columns(
        *_RUN,
        ("node", str, "", "the node's name"),
        ("gpu", int, "", "index of the GPU in its node"),
        ("gpu_uuid", str, "", "the GPU's UUID, from its driver"),
        ("airflow", str, "", "front, rear or unknown"),
        ("simulated", bool, "", "whether its readings were simulated"),
        ("samples", int, "", "samples within the measured steps"),
        ("longest_gap_s", float, "s", "longest time between two of them"),
        ("power_source", str, "",
            "source of power over time: driver (its own samples) or readings"),
        ("energy_source", str, "",
            "source of energy_j: counter (the driver's energy counter, spread over time as power "
            "is) or integral (of power alone)"),
        ("power_refused", int, "",
            "readings and samples of power in the whole run that were left out, because the GPU "
            "cannot draw so much"),
        ("power_window_s", float, "s",
            "the time over which one value of power_source is a mean; null if unknown"),
        ("power_seen_share", float, "",
            "share of the time that its sensor sees; null if nothing was published for the model"),
        ("throttle_source", str, "",
            "source of throttle shares, the same for all GPUs of a run: counters (between the "
            "first and the last reading in the measured steps, if these span 30 % of them) or "
            "events (event bits as sampled); null without either"),
        ("allocator_retries", int, "", "as in runs.parquet, of its rank"),
        ("allocator_frees", int, "", "likewise"),
        ("throttle_power_sampled_share", float, "", "at the power cap, from sampled event bits"),
        ("throttle_thermal_sampled_share", float, "", "in thermal slowdown, from the same"),
        ("throttle_brake_sampled_share", float, "", "in power-brake slowdown, from the same"),
    ),
    *(measure.column for measure in at_level("gpu")),
    *_REASONS,
)

#: unused_gpus.parquet: one row a GPU of a node that no rank of a run used
UNUSED_GPUS = columns(
    *_RUN,
    ("node", str, "", "the node's name"),
    ("gpu", int, "",
        "its index among the job's GPUs; the driver's index if the job does not have it"),
    ("watched", bool, "", "whether the job has it, so that it was read throughout"),
    ("gpu_name", str, "", "as the driver calls it"),
    ("gpu_uuid", str, "", "the GPU's UUID, from its driver"),
    ("simulated", bool, "", "whether its readings were simulated"),
    ("power_mean_w", float, "W",
        "idle power: its mean over the measured steps; if it was not watched, one reading before "
        "training"),
    ("power_limit_w", float, "W", "enforced power limit when sampling began"),
    ("gpu_utilisation_share", float, "", "share of time with a kernel of another job running"),
    ("gpu_memory_used_peak_bytes", float, "B", "device memory in use, highest reading"),
    *_REASON,
)

#: nodes.parquet: one row a node and run, over the measured steps
NODES = (
    *columns(*_RUN, ("node", str, "", "the node's name")),
    *(measure.column for measure in at_level("node")),
    *_REASONS,
)

#: overhead.parquet: how much each sampling rate slowed training, one row a rate and run. It is only
#: written for a sweep with cells whose rates alternate
OVERHEAD = columns(
    *_RUN,
    ("simulated", bool, "", "whether GPU readings were simulated"),
    ("sample_rate_hz", float, "Hz", "rate of GPU samples; 0 if nothing was read"),
    ("blocks", int, "", "blocks of this rate that hold whole steps"),
    ("steps", int, "", "whole measured steps within them"),
    ("step_time_s", float, "s", "median over these steps"),
    ("slowdown", float, "",
        "median step time of a block over that of the nearest block at rate 0, minus 1; mean over "
        "pairs"),
    ("slowdown_low", float, "",
        "lower end of its 95 % interval (Student's t over pairs, widened where they share a "
        "block)"),
    ("slowdown_high", float, "", "upper end of the same"),
    ("pairs", int, "", "blocks that were compared with one at rate 0"),
    ("sampler_cpu_share", float, "", "CPU time of the busiest node's sampler, share of one core"),
    ("sampler_memory_bytes", float, "B", "the largest sampler's resident memory"),
    ("achieved_rate_hz", float, "Hz", "ticks sampled over time"),
    ("late_share", float, "", "ticks over half a period late or missed, of all that were due"),
    *_REASON,
)

#: cells.parquet: one row a cell of the plan, infeasible ones included
CELLS = (
    *IDENTITY,
    *columns(
        ("gpu_name", str, "", "as the driver calls it, in the completed runs"),
        ("simulated", bool, "", "whether GPU readings of any run were simulated"),
        ("power_peak_sensor", str, "",
            "as in runs.parquet; if completed runs differ, all of them, and power_peak_w is null"),
        ("allocator", str, "",
            "as in runs.parquet; if completed runs differ, all of them; null if those of one are "
            "not known"),
        ("memory_pressure", bool, "",
            "whether a completed run was, as in runs.parquet; null if that is not known"),
        ("repeats", int, "", "runs that the plan asks for"),
        ("completed", int, "", "runs that completed"),
        ("interval", str, "",
            "kind of the intervals …_low to …_high: range (lowest and highest of fewer than five "
            "completed runs) or order_statistics (an interval of the median); null without runs"),
        ("interval_coverage", float, "",
            "for order_statistics: how probably the interval holds the median; 0.9375 with five "
            "runs, at least 0.95 with more"),
        ("outcome", str, "", "completed if any run did, else how most of its runs ended"),
        ("outcomes", str, "", 'every outcome and its count, as in "completed 2, timeout 1"'),
        ("cause", str, "", "one sentence on the outcome; if infeasible, why"),
        ("profiled_outcome", str, "",
            "how the profiled run ended; not_run if it has not, null if the plan has none"),
        ("profiled_cause", str, "", "one sentence on that, and on the analysis of its traces"),
    ),
    *(measure.column for measure in PROFILED.values()),
    *(
        Column(
            measure.name + suffix,
            float,
            measure.unit,
            f"{what} over completed runs: {measure.description}",
        )
        for measure in MEASURES.values()
        for suffix, what in (
            ("", "median"),
            ("_low", "lower end of the interval"),
            ("_high", "upper end of the interval"),
        )
    ),
)

#: the most rows that SERIES has for a GPU
SERIES_POINTS = 150

#: steps.parquet: one row a run and step, of every run whose steps can be read
STEP_TIMES = columns(
    *_RUN,
    ("step", int, "", "from 0, warm-up included"),
    ("phase", str, "", "warmup or measured"),
    ("counted", bool, "", "whether the run's measures include it: whether it is measured"),
    ("elapsed_s", float, "s", "its start, since the first measured step's start"),
    ("step_time_s", float, "s", "from the first rank's start to the last rank's end"),
    ("slowest_rank", int, "", "the rank whose own step was the longest"),
    ("rank_spread_s", float, "s", "longest minus shortest step of a rank, by ranks' own clocks"),
    ("tokens", int, "", "over all replicas"),
    ("loss", float, "nat", "mean cross-entropy over the global batch"),
    ("memory_peak_bytes", float, "B", "of the fullest rank, so far; host memory on a CPU"),
    ("energy_j", float, "J", "all GPUs together, trapezoid of power from its start to its end"),
    ("power_mean_w", float, "W", "all GPUs together: energy_j over step_time_s"),
    ("temperature_mean_c", float, "°C", "mean over GPUs and the step"),
    ("hottest_c", float, "°C", "mean over the step of the GPU whose mean is the highest"),
    ("hottest_node", str, "", "that GPU's node"),
    ("hottest_gpu", int, "", "that GPU's index in its node"),
    ("sm_clock_mean_mhz", float, "MHz", "mean over GPUs and the step"),
    *_REASON,
)

#: series.parquet: GPUs over time in a cell's first completed run, one row a GPU and interval
SERIES = columns(
    *_RUN,
    ("node", str, "", "the node's name"),
    ("gpu", int, "", "index of the GPU in its node: its slot"),
    ("airflow", str, "", "front, rear or unknown"),
    ("elapsed_s", float, "s",
        "the interval's middle, since the first measured step's start; negative in the warm-up"),
    ("interval_s", float, "s",
        f"its length: the time of all steps, warm-up included, over {SERIES_POINTS}, but at least "
        "two sample periods"),
    ("power_w", float, "W",
        "mean of the readings in the interval, rounded to 0.1 W; null without a reading, as are "
        "the columns that follow"),
    ("temperature_c", float, "°C", "mean of the core's temperature, rounded to 0.1 °C"),
    ("sm_clock_mhz", float, "MHz", "mean, rounded to 1 MHz"),
    ("power_capped_share", float, "", "share of readings at the power cap, rounded to 0.001"),
    ("thermally_slowed_share", float, "", "share in thermal slowdown, software or hardware"),
    ("power_braked_share", float, "", "share in power-brake slowdown"),
)

#: kernels.parquet: one row a profiled run, rank, kernel class, process group and fabric
KERNELS = columns(
    *_PROFILED,
    ("class", str, "",
        "gemm, attention, normalisation_elementwise, optimiser, other_computation; unknown "
        "(neither the kernel's name nor the operator that launched it tells); memory (copies and "
        "sets); all_reduce, all_gather, reduce_scatter, all_to_all, send_receive, broadcast, "
        "other_communication"),
    ("group", str, "", "of communication: TP, CP, DP, PP, EP, or several of them, as in TP+PP"),
    ("fabric", str, "", "of communication: intra_node; inter_node if ranks are on several nodes"),
    ("kernels", int, "", "number of kernels that ran; on a CPU, of operators"),
    ("kernel_s", float, "s", "sum of their durations"),
    ("covered_s", float, "s", "time with at least one of them running"),
    ("share_of_span", float, "", "covered_s over the trace's span"),
    ("exposed_s", float, "s", "of communication: the part of covered_s without computation"),
    ("overlapped_s", float, "s", "of communication: the part of covered_s with computation"),
    ("waiting_s", float, "s", "part of kernel_s before the last rank of the group arrived"),
    ("transfer_s", float, "s", "part of kernel_s after that"),
    ("message_bytes", int, "B", "sum of the sizes, each as nccl-tests counts it"),
    ("bus_bytes", float, "B", "sum of the sizes times nccl-tests' factor of the collective"),
    ("bus_bandwidth_bytes_per_s", float, "B/s", "bus_bytes over kernel_s: waiting included"),
    ("transfer_bandwidth_bytes_per_s", float, "B/s", "bus_bytes over transfer_s"),
    ("link_share", float, "", "transfer_bandwidth_bytes_per_s over the link's one-way peak"),
    *_REASON,
)

#: traces.parquet: one row a profiled run and rank
TRACES = columns(
    *_PROFILED,
    ("steps", int, "", "steps that the profiler marked"),
    ("on_gpu", bool, "", "whether the trace holds kernels; else a CPU's operators stand for them"),
    ("gpus", int, "", "GPUs that the trace holds; times are sums over these. 0 on a CPU"),
    ("span_s", float, "s", "from the first start to the last end of any kernel, copy or set"),
    ("computation_s", float, "s", "time with a computation kernel running"),
    ("unknown_s", float, "s", "time with a kernel of unknown class running"),
    ("memory_s", float, "s", "time with a copy or set running"),
    ("communication_s", float, "s", "time with a communication kernel running"),
    ("exposed_communication_s", float, "s", "part of communication_s without computation"),
    ("overlapped_communication_s", float, "s", "part of communication_s with computation"),
    ("overlap_share", float, "", "overlapped_communication_s over communication_s"),
    ("idle_s", float, "s", "part of span_s with nothing running"),
    ("idle_share", float, "", "idle_s over span_s"),
    ("bubble_s", float, "s",
        "time within the pipeline's steps with nothing running, or pipeline exchange alone"),
    ("waiting_s", float, "s", "in matched collectives, before the last rank arrived"),
    ("transfer_s", float, "s", "in matched collectives, after that"),
    ("late_collectives", int, "", "matched collectives at which this rank arrived last"),
    ("late_s", float, "s", "in these, total time that it arrived after the last rank but one"),
    ("matched_collectives", int, "", "collectives that were found on all of their ranks"),
    ("trace_bytes", int, "B", "of the trace's JSON text, as far as it was read"),
    ("notes", str, "", "JSON: what was wrong with the trace"),
    *_REASON,
)


@dataclass(frozen=True)
class Table:
    """A table of a sweep."""

    columns: tuple[Column, ...]
    #: a sentence that says what a row stands for
    rows: str


#: every table that collecting a sweep's runs writes, by the stem of its file
TABLES: Mapping[str, Table] = {
    "runs": Table(RUNS, "One row a run of every feasible cell."),
    "cells": Table(CELLS, "One row a cell of the plan."),
    "gpus": Table(GPUS, "One row a GPU and run, over the measured steps."),
    "unused_gpus": Table(
        UNUSED_GPUS,
        "One row a GPU of a run's nodes that no rank used. It is in no total but those of whole "
        "nodes.",
    ),
    "nodes": Table(NODES, "One row a node and run, over the measured steps."),
    "overhead": Table(
        OVERHEAD, "One row a sampling rate and run, of the runs in which rates alternate."
    ),
    "steps": Table(
        STEP_TIMES,
        "One row a run and step, of the runs that completed, or whose telemetry alone is invalid. "
        "Beside each run, too.",
    ),
    "series": Table(
        SERIES,
        "One row a GPU and interval, over the steps of a cell's first completed run. Beside each "
        "run, too.",
    ),
    "kernels": Table(
        KERNELS,
        "One row a rank, kernel class, process group and fabric of a profiled run; in the run's "
        "`traces/`, too.",
    ),
    "traces": Table(TRACES, "One row a rank of a profiled run; in the run's `traces/`, too."),
}
