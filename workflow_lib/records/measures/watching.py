"""How a run was watched, and whether it was steady."""

from __future__ import annotations

from workflow_lib.records.measures.measure import MILLISECONDS, PERCENT, TRAINING, Measure

MEASURES: tuple[Measure, ...] = (
    Measure(
        "steady",
        "",
        "whether step time, power and temperature became steady together",
        "Steady",
        type=bool,
    ),
    Measure(
        "steady_from_step",
        "",
        "first step of the steady state; measures begin there, but not in the warm-up",
        "Steady from step",
        type=int,
    ),
    Measure(
        "step_time_drift",
        "",
        "change of the step time over the measured steps, as a share",
        "Drift of step time",
        PERCENT,
        places=("watched",),
    ),
    Measure(
        "power_drift",
        "",
        "change of power over the measured steps, as a share",
        "Drift of power",
        PERCENT,
        sensor="power",
        places=("watched",),
    ),
    Measure(
        "temperature_drift_c",
        "°C",
        "change of the mean core temperature over them",
        "Drift of temperature",
        sensor="temperature",
        places=("watched",),
    ),
    Measure(
        "cool_down_s",
        "s",
        "waited for cool GPUs before the idle baseline",
        "Waited for cool GPUs",
        places=("watched",),
    ),
    Measure(
        "sampler_cpu_share",
        "",
        "CPU time of a node's sampler in the measured steps, share of one core; of a run, of the "
        "busiest",
        "Sampler's CPU time",
        ("% of a core", 100.0),
        over="max",
        places=("watched",),
        level="node",
    ),
    Measure(
        "clock_skew_s",
        "s",
        "furthest that a node's clock was off the first node's; times are corrected by it",
        "Skew between clocks",
        MILLISECONDS,
        places=("watched",),
    ),
    Measure(
        "clock_error_s",
        "s",
        "by how much a node's corrected times may still be off the first node's, at most",
        "Error of corrected clocks",
        MILLISECONDS,
        places=("watched",),
    ),
    Measure("loss_first", "nat", "loss of the first step", "First loss", workloads=TRAINING),
    Measure("loss_last", "nat", "loss of the last step", "Last loss", workloads=TRAINING),
)
