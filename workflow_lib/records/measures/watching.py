"""How a run was sampled, and whether it was steady."""

from __future__ import annotations

from workflow_lib.records.measures.measure import MILLISECONDS, PERCENT, TRAINING, Measure

MEASURES: tuple[Measure, ...] = (
    Measure(
        "steady",
        "",
        "whether step time, power and temperature surely changed by less than matters over the "
        "measured steps; false if one surely changed by more, null if noise does not tell",
        "Steady",
        type=bool,
    ),
    Measure(
        "step_time_drift",
        "",
        "change of step time over the measured steps by a straight line, as a share",
        "Drift of step time",
        PERCENT,
        places=("watched",),
    ),
    Measure(
        "step_time_drift_margin",
        "",
        "how far the true drift of the step time may lie from that on either side, at 99.5 %",
        "Margin of the drift of step time",
        PERCENT,
        places=("watched",),
    ),
    Measure(
        "power_drift",
        "",
        "change of power in the same way, as a share",
        "Drift of power",
        PERCENT,
        sensor="power",
        places=("watched",),
    ),
    Measure(
        "power_drift_margin",
        "",
        "how far the true drift of power may lie from that on either side, at 99.5 %",
        "Margin of the drift of power",
        PERCENT,
        sensor="power",
        places=("watched",),
    ),
    Measure(
        "temperature_drift_c",
        "°C",
        "change of the mean core temperature in the same way",
        "Drift of temperature",
        sensor="temperature",
        places=("watched",),
    ),
    Measure(
        "temperature_drift_margin_c",
        "°C",
        "how far the true drift of temperature may lie from that on either side, at 99.5 %",
        "Margin of the drift of temperature",
        sensor="temperature",
        places=("watched",),
    ),
    Measure(
        "cool_down_s",
        "s",
        "time that the job waited for cool GPUs before the idle baseline",
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
        "largest difference of a node's clock from the first node's; times are corrected by it",
        "Skew between clocks",
        MILLISECONDS,
        places=("watched",),
    ),
    Measure(
        "clock_error_s",
        "s",
        "largest error that a node's corrected times may still have against the first node's",
        "Error of corrected clocks",
        MILLISECONDS,
        places=("watched",),
    ),
    Measure("loss_first", "nat", "loss of the first step", "First loss", workloads=TRAINING),
    Measure("loss_last", "nat", "loss of the last step", "Last loss", workloads=TRAINING),
)
