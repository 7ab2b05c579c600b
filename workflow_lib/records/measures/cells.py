"""Values of a cell that do not come from its measured runs: of its profiled run, and the plan's
estimates.
"""

from __future__ import annotations

from collections.abc import Mapping

from workflow_lib.records.measures.measure import GIGABYTES, PERCENT_OF_TIME, Measure

#: columns of CELLS from the traces of a cell's profiled run: means over its ranks
PROFILED: Mapping[str, Measure] = {
    each.name: each
    for each in (
        Measure(
            "exposed_communication_share",
            "",
            "profiled run: share of the trace's span with communication and no computation",
            "Exposed communication",
            PERCENT_OF_TIME,
        ),
        Measure(
            "overlapped_communication_share",
            "",
            "profiled run: share of the time of communication in which computation ran, too",
            "Overlapped communication",
            ("% of communication", 100.0),
        ),
        Measure(
            "communication_kernel_share",
            "",
            "profiled run: share of the kernels' time in kernels of communication: their durations "
            "over those of all kernels, copies and sets left out. Kernels that run at the same "
            "time each count, and so does what a kernel waits for other ranks",
            "Kernel time communicating",
            ("% of kernel time", 100.0),
        ),
        Measure(
            "unknown_kernel_share",
            "",
            "profiled run: share of the kernels' time in kernels whose class is not known",
            "Kernel time of unknown class",
            ("% of kernel time", 100.0),
        ),
        Measure(
            "bubble_share",
            "",
            "profiled run: share of the trace's span that is within steps, with nothing running or "
            "pipeline exchange alone",
            "Pipeline bubble",
            PERCENT_OF_TIME,
        ),
        Measure(
            "idle_share",
            "",
            "profiled run: share of the trace's span with nothing running",
            "Nothing running",
            PERCENT_OF_TIME,
        ),
    )
}

#: the plan's estimates of a cell's cost
ESTIMATES: Mapping[str, Measure] = {
    each.name: each
    for each in (
        Measure(
            "memory_allocated_per_gpu_bytes",
            "B",
            "estimated peak that torch will allocate; memory_peak_bytes is what it did",
            "Memory allocated, fullest GPU",
            GIGABYTES,
        ),
        Measure(
            "memory_per_gpu_bytes",
            "B",
            "estimated peak that the fullest rank needs; a cell is refused if it exceeds the GPU's "
            "memory by more than 5 %",
            "Memory needed, fullest GPU",
            GIGABYTES,
        ),
        Measure(
            "memory_used_per_gpu_bytes",
            "B",
            "estimated peak that the driver will count, blocks that torch's allocator keeps for "
            "later included, ± 5 %; at most the GPU's memory. memory_estimate_error compares it "
            "with runs",
            "Memory used, fullest GPU",
            GIGABYTES,
        ),
        Measure(
            "planned_bubble_share",
            "",
            "share of a step in which a pipeline rank waits for others according to the schedule, "
            "if all passes take equally long; null without a pipeline",
            "Pipeline bubble, planned",
            PERCENT_OF_TIME,
        ),
        Measure("step_time_s", "s", "estimated as step_time_source says", "Step time"),
        Measure(
            "gpu_hours",
            "h",
            "estimated, over all repeats and the profiled run",
            "All repeats",
            ("GPU-hours", 1.0),
        ),
        Measure(
            "time_limit_min",
            "min",
            "the time limit of one run's job",
            "Time limit of a run",
            type=int,
        ),
    )
}
