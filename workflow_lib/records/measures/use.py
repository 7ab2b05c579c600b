"""Memory, utilisation, traffic and errors."""

from __future__ import annotations

from workflow_lib.records.measures.measure import (
    GIGABYTES,
    PERCENT,
    PERCENT_OF_TIME,
    Measure,
    Reading,
    more,
)

MEASURES: tuple[Measure, ...] = (
    Measure(
        "memory_peak_bytes",
        "B",
        "peak that torch allocated, on the fullest rank; host memory on a CPU",
        "Peak memory, allocated",
        GIGABYTES,
        # With simulated readings training runs on a CPU, so this is the host's memory.
        sensor="memory",
        places=("cells",),
        contrast=more("needs {} more memory"),
    ),
    Measure(
        "memory_reserved_peak_bytes",
        "B",
        "peak that torch's allocator held, allocated memory and blocks that it keeps for later; on "
        "the fullest rank",
        "Peak memory, reserved",
        GIGABYTES,
        sensor="memory",
    ),
    Measure(
        "memory_used_peak_bytes",
        "B",
        "in use as the driver counts it when torch's allocator holds most, CUDA context, libraries "
        "and communicators included; on the fullest rank's GPU. If memory_estimate_error says so, "
        "only a lower bound: what the allocator held",
        "Peak memory, used",
        GIGABYTES,
        sensor="memory",
        places=("cells",),
    ),
    Measure(
        "memory_estimate_error",
        "",
        "memory that the plan expects the driver to count, over memory_used_peak_bytes, minus 1",
        "Memory, expected vs. used",
        PERCENT,
        sensor="memory",
        places=("watched",),
    ),
    Measure(
        "allocator_retries",
        "",
        "how often torch's allocators found no memory, gave blocks back and tried again in the "
        "measured steps, over all ranks: memory was short, which makes steps slower",
        "Allocations tried again",
        type=int,
        sensor="memory",
        places=("watched",),
    ),
    Measure(
        "allocator_frees",
        "",
        "how many blocks they gave back to the driver in these steps",
        "Blocks given back",
        type=int,
        sensor="memory",
        places=("watched",),
    ),
    Measure(
        "gpu_memory_used_peak_bytes",
        "B",
        "device memory in use as the driver counts it, highest of the sampler's readings; of a "
        "run, of any GPU",
        "Peak memory, by the sampler",
        GIGABYTES,
        sensor="memory",
        reading=Reading("counters", "memory_used_bytes", "peak"),
        over="max",
    ),
    Measure(
        "host_memory_used_peak_bytes",
        "B",
        "a node's host memory in use, highest reading; of a run, of any node",
        "Peak memory of a host",
        GIGABYTES,
        sensor="host",
        reading=Reading("host", "memory_used_bytes", "peak"),
        over="max",
    ),
    Measure(
        "gpu_utilisation_share",
        "",
        "share of time with a kernel running, as the driver says; of a run, mean over its GPUs",
        "GPU utilisation",
        PERCENT_OF_TIME,
        sensor="other",
        reading=Reading("gpu", "utilisation_percent", "mean", 0.01),
        over="mean",
    ),
    Measure(
        "cpu_utilisation_share",
        "",
        "busy share of all CPUs; of a run, mean over its nodes",
        "CPU utilisation",
        PERCENT_OF_TIME,
        sensor="host",
        reading=Reading("host", "cpu_utilisation_percent", "mean", 0.01),
        over="mean",
    ),
    Measure(
        "other_jobs_peak",
        "",
        "most other Slurm jobs on a node at once; of a run, on any node",
        "Other jobs on a node",
        sensor="host",
        reading=Reading("host", "other_jobs", "peak"),
        over="max",
        places=("watched",),
    ),
    *(
        Measure(
            f"gpu_link_{direction}_bytes",
            "B",
            "over all NVLink links in the counted steps: what one step adds to the GPU's counters, "
            "measured over whole steps, times their number; of a run, of all GPUs",
            f"NVLink, {direction}",
            GIGABYTES,
            sensor="other",
            level="gpu",
            over="sum",
        )
        for direction in ("received", "sent")
    ),
    *(
        Measure(
            f"{link}_{direction}_bytes",
            "B",
            f"over all {ports} of a node in the measured steps; of a run, of all nodes",
            f"{heading}, {direction}",
            GIGABYTES,
            sensor="host",
            reading=Reading("host", f"{link}_{direction}_bytes", "increase"),
            over="sum",
        )
        for link, heading, ports in (
            ("network", "Ethernet", "Ethernet interfaces but loopback"),
            ("infiniband", "InfiniBand", "InfiniBand ports"),
        )
        for direction in ("received", "sent")
    ),
    Measure(
        "ecc_corrected_errors",
        "",
        "memory errors that were corrected, between the readings about the measured steps; of a "
        "run, of all GPUs",
        "Memory errors corrected",
        type=int,
        sensor="other",
        over="sum",
        level="gpu",
    ),
    Measure(
        "ecc_uncorrected_errors",
        "",
        "memory errors that could not be corrected, between the same readings",
        "Memory errors not corrected",
        type=int,
        sensor="other",
        over="sum",
        level="gpu",
    ),
    Measure(
        "xid_events",
        "",
        "Xid events of the driver during the run; of a run, of all GPUs",
        "Xid events",
        type=int,
        sensor="other",
        over="sum",
        level="gpu",
    ),
)
