"""What is told of a cell besides its runs: its profiled run, and what the plan expects."""

from __future__ import annotations

from collections.abc import Mapping

from workflow_lib.records.measures.measure import GIGABYTES, PERCENT_OF_TIME, Measure

#: what the traces of a cell's profiled run tell, means over its ranks: columns of CELLS
PROFILED: Mapping[str, Measure] = {
    each.name: each
    for each in (
        Measure(
            "exposed_communication_share",
            "",
            "profiled run: time of communication without computation, of the trace's span",
            "Exposed communication",
            PERCENT_OF_TIME,
        ),
        Measure(
            "overlapped_communication_share",
            "",
            "profiled run: what of the communication ran beside computation",
            "Overlapped communication",
            ("% of communication", 100.0),
        ),
        Measure(
            "bubble_share",
            "",
            "profiled run: time within steps with nothing running, or pipeline exchange alone",
            "Pipeline bubble",
            PERCENT_OF_TIME,
        ),
        Measure(
            "idle_share",
            "",
            "profiled run: time with nothing running, of the trace's span",
            "Nothing running",
            PERCENT_OF_TIME,
        ),
    )
}

#: what the plan says of a cell that it would cost
ESTIMATES: Mapping[str, Measure] = {
    each.name: each
    for each in (
        Measure(
            "memory_per_gpu_bytes",
            "B",
            "estimated peak that the fullest rank needs; a cell is refused by it",
            "Memory needed, fullest GPU",
            GIGABYTES,
        ),
        Measure(
            "memory_used_per_gpu_bytes",
            "B",
            "estimated peak of what the driver will count, with what torch's allocator keeps for "
            "later; at most what the GPU has. memory_estimate_error compares it with runs",
            "Memory used, fullest GPU",
            GIGABYTES,
        ),
        Measure(
            "planned_bubble_share",
            "",
            "share of a step in which a pipeline's rank waits for the others, by the schedule, if "
            "all passes take equally long; null without a pipeline",
            "Pipeline bubble, planned",
            PERCENT_OF_TIME,
        ),
        Measure("step_time_s", "s", "estimated, at the platform's expected MFU", "Step time"),
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
            "asked of the scheduler, for one run",
            "Time limit of a run",
            type=int,
        ),
    )
}
