"""Every column of the tables of steps and of GPUs over time.

``docs/reference/columns.md`` is made from this module.
"""

from __future__ import annotations

from workflow_lib.records.columns import columns

#: the most rows that SERIES has for a GPU
SERIES_POINTS = 150

#: steps.parquet: one row a run and step, of every run whose steps can be read
STEP_TIMES = columns(
    ("cell", str, "", "the cell's id"),
    ("run", int, "", "which repeat, from 1"),
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
    ("missing_reasons", str, "", "JSON: column → why it is null"),
)

#: series.parquet: GPUs over time in a cell's first completed run, one row a GPU and interval
SERIES = columns(
    ("cell", str, "", "the cell's id"),
    ("run", int, "", "which repeat, from 1"),
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
