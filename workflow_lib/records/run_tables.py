"""Every column of the tables of steps, of GPUs over time, and of a profiled run's traces.

``docs/reference/columns.md`` is made from this module.
"""

from __future__ import annotations

from workflow_lib.records.columns import LATER, columns

_RUN = (
    ("cell", str, "", "the cell's id"),
    ("run", int, "", "which repeat, from 1"),
)
_PROFILED = (
    ("cell", str, "", "the cell's id"),
    ("run", int, "", "0, the profiled run"),
    ("rank", int, "", "the rank that the trace is of"),
)
_REASONS = (
    ("missing_reasons", str, "", "JSON: column → why it is null"),
    ("missing_codes", str, "", "JSON: column → the code of that reason", LATER),
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
    *_REASONS,
)

#: series.parquet: GPUs over time in a cell's first completed run, one row a GPU and interval
SERIES = columns(
    *_RUN,
    ("node", str, "", "the node's name"),
    ("gpu", int, "", "index of the GPU in its node: its slot"),
    ("airflow", str, "", "front, rear or unknown"),
    (
        "elapsed_s",
        float,
        "s",
        "the interval's middle, since the first measured step's start; negative in the warm-up",
    ),
    (
        "interval_s",
        float,
        "s",
        f"its length: the time of all steps, warm-up included, over {SERIES_POINTS}, but at least "
        "two sample periods",
    ),
    (
        "power_w",
        float,
        "W",
        "mean of the readings in the interval, rounded to 0.1 W; null without a reading, as are "
        "the columns that follow",
    ),
    ("temperature_c", float, "°C", "mean of the core's temperature, rounded to 0.1 °C"),
    ("sm_clock_mhz", float, "MHz", "mean, rounded to 1 MHz"),
    ("power_capped_share", float, "", "share of readings at the power cap, rounded to 0.001"),
    ("thermally_slowed_share", float, "", "share in thermal slowdown, software or hardware"),
    ("power_braked_share", float, "", "share in power-brake slowdown"),
)

#: kernels.parquet: one row a profiled run, rank, kernel class, process group and fabric
KERNELS = columns(
    *_PROFILED,
    (
        "class",
        str,
        "",
        "gemm, attention, normalisation_elementwise, optimiser, other_computation; unknown "
        "(neither the kernel's name nor the operator that launched it tells); memory (copies and "
        "sets); all_reduce, all_gather, reduce_scatter, all_to_all, send_receive, broadcast, "
        "other_communication",
    ),
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
    *_REASONS,
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
    (
        "bubble_s",
        float,
        "s",
        "time within the pipeline's steps with nothing running, or pipeline exchange alone",
    ),
    ("waiting_s", float, "s", "in matched collectives, before the last rank arrived"),
    ("transfer_s", float, "s", "in matched collectives, after that"),
    ("late_collectives", int, "", "matched collectives at which this rank arrived last"),
    ("late_s", float, "s", "in these, total time that it arrived after the last rank but one"),
    ("matched_collectives", int, "", "collectives that were found on all of their ranks"),
    ("trace_bytes", int, "B", "of the trace's JSON text, as far as it was read"),
    ("notes", str, "", "JSON: what was wrong with the trace"),
    *_REASONS,
)
