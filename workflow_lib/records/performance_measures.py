"""Measures of speed, memory, traffic and sampling, and the values of a cell.

A table: name, heading and description, then what differs from the kind of measure.
"""

from __future__ import annotations

from workflow_lib.records.measure import (
    INFERENCE,
    MILLISECONDS,
    RATE,
    TRAINING,
    Contrast,
    Measure,
    Reading,
    count,
    faster,
    memory,
    more,
    rate,
    seconds,
    share,
    share_of_time,
    temperature,
)

# fmt: off
#: step times, rates and model FLOPs utilisation: from the clocks of ranks
TIMES: tuple[Measure, ...] = (
    count("counted_steps", "Steps counted",
        "steps that the measures cover: all measured steps, without the warm-up"),
    seconds("measured_duration_s", "Time counted",
        "from the first measured step's start to the last's end"),
    rate("tokens_per_s", "Throughput",
        "tokens trained on in the measured steps over measured_duration_s, whether or not experts "
        "dropped them", people=RATE, question="Fastest", workloads=TRAINING, places=("cells",),
        contrast=faster("is")),
    rate("tokens_per_s_per_gpu", "Throughput per GPU", "the same for one GPU",
        workloads=TRAINING, places=("cells", "panels"), panel="Throughput\n(tokens/s/GPU)",
        contrast=faster("is, per GPU,")),
    # Only inference. A step's prefill reads all prompts and chooses the first tokens. Its decoding
    # generates the other tokens, for all sequences of a replica at once.
    rate("prefill_tokens_per_s_per_gpu", "Prefill per GPU",
        "prompt tokens of a step over prefill_time_s",
        question="Fastest prefill", workloads=INFERENCE, places=("cells", "panels"),
        panel="Prefill\n(tokens/s/GPU)", contrast=faster("prefills, per GPU,")),
    rate("decode_tokens_per_s_per_gpu", "Decoding per GPU",
        "tokens of a step but each sequence's first, over decode_time_s",
        question="Fastest decoding", workloads=INFERENCE, places=("cells", "panels"),
        panel="Decoding\n(tokens/s/GPU)", contrast=faster("decodes, per GPU,")),
    seconds("time_to_first_token_s", "First token",
        "prefill_time_s: the whole batch waits until all its prompts are read",
        workloads=INFERENCE, places=("cells",)),
    seconds("time_per_output_token_s", "Output token",
        "decode_time_s over a sequence's tokens but the first",
        people=("ms", 1e3), workloads=INFERENCE, places=("cells",)),
    seconds("step_time_s", "Step time",
        "median over measured steps: first rank's start to last rank's end", places=("cells",),
        contrast=Contrast("takes {} longer for a step", "takes {} less time for a step")),
    seconds("step_time_iqr_s", "Spread of step time", "interquartile range of the same"),
    seconds("prefill_time_s", "Prefill of a step",
        "median over measured steps: first start to last prefill's end", workloads=INFERENCE),
    seconds("decode_time_s", "Decoding of a step",
        "median over measured steps: last prefill's end to last end", workloads=INFERENCE),
    Measure("model_tflops_per_s_per_gpu", "Model FLOPs per GPU",
        "model FLOPs, counted as in mfu_causal; as in all MFU, without what experts dropped",
        unit="TFLOP/s", workloads=TRAINING),
    Measure("dropped_choices_share", "Dropped by experts",
        "share of the routers' choices of an expert for a token that the expert dropped",
        people=("% of choices", 100.0), places=("cells",)),
    share("mfu_6n", "MFU, 6N",
        "model FLOPs utilisation, 6·N·tokens; like the others, of the dense peak in the cell's "
        "precision", workloads=TRAINING, places=("cells",)),
    share("mfu_causal", "MFU, causal", "without the input embedding, causal attention counted once",
        workloads=TRAINING, places=("cells",),
        contrast=Contrast("has {} more MFU", "has {} less MFU")),
    share("mfu_causal_bf16_peak", "MFU, causal, of the bf16 peak",
        "as mfu_causal, but of the dense bf16 peak, whatever the cell's precision",
        workloads=TRAINING, places=("cells",)),
    share("mfu_full_attention", "MFU, full attention",
        "without the input embedding, attention as if not causal",
        workloads=TRAINING, places=("cells",)),
    share("mfu_6n_attention", "MFU, 6N + attention",
        "6·N·tokens, embeddings included, and attention as if not causal",
        workloads=TRAINING, places=("cells",)),
)

#: memory, utilisation, traffic and errors
USE: tuple[Measure, ...] = (
    # With simulated readings training runs on a CPU, so memory_peak_bytes is the host's memory.
    memory("memory_peak_bytes", "Peak memory, allocated",
        "peak that torch allocated, on the fullest rank; host memory on a CPU",
        places=("cells",), contrast=more("needs {} more memory")),
    memory("memory_reserved_peak_bytes", "Peak memory, reserved",
        "peak that torch's allocator held, allocated memory and blocks that it keeps for later; "
        "on the fullest rank"),
    memory("memory_used_peak_bytes", "Peak memory, used",
        "in use as the driver counts it when torch's allocator holds most, CUDA context, "
        "libraries and communicators included; on the fullest rank's GPU. If "
        "memory_estimate_error says so, only a lower bound: what the allocator held",
        places=("cells",)),
    share("memory_estimate_error", "Memory, expected vs. used",
        "memory that the plan expects the driver to count, over memory_used_peak_bytes, minus 1",
        sensor="memory", places=("watched",)),
    count("allocator_retries", "Allocations tried again",
        "how often torch's allocators found no memory, gave blocks back and tried again in the "
        "measured steps, over all ranks: memory was short, which makes steps slower",
        sensor="memory", places=("watched",)),
    count("allocator_frees", "Blocks given back",
        "how many blocks they gave back to the driver in these steps",
        sensor="memory", places=("watched",)),
    memory("gpu_memory_used_peak_bytes", "Peak memory, by the sampler",
        "device memory in use as the driver counts it, highest of the sampler's readings; of a "
        "run, of any GPU", reading=Reading("counters", "memory_used_bytes", "peak"), over="max"),
    memory("host_memory_used_peak_bytes", "Peak memory of a host",
        "a node's host memory in use, highest reading; of a run, of any node",
        sensor="host", reading=Reading("host", "memory_used_bytes", "peak"), over="max"),
    share_of_time("gpu_utilisation_share", "GPU utilisation",
        "share of time with a kernel running, as the driver says; of a run, mean over its GPUs",
        sensor="other", reading=Reading("gpu", "utilisation_percent", "mean", 0.01), over="mean"),
    share_of_time("cpu_utilisation_share", "CPU utilisation",
        "busy share of all CPUs; of a run, mean over its nodes",
        sensor="host", reading=Reading("host", "cpu_utilisation_percent", "mean", 0.01),
        over="mean"),
    Measure("other_jobs_peak", "Other jobs on a node",
        "most other Slurm jobs on a node at once; of a run, on any node",
        sensor="host", reading=Reading("host", "other_jobs", "peak"), over="max",
        places=("watched",)),
    *(memory(f"gpu_link_{direction}_bytes", f"NVLink, {direction}",
        "over all NVLink links in the counted steps: what one step adds to the GPU's counters, "
        "measured over whole steps, times their number; of a run, of all GPUs",
        sensor="other", level="gpu", over="sum") for direction in ("received", "sent")),
    *(memory(f"{link}_{direction}_bytes", f"{heading}, {direction}",
        f"over all {ports} of a node in the measured steps; of a run, of all nodes",
        sensor="host", reading=Reading("host", f"{link}_{direction}_bytes", "increase"), over="sum")
      for link, heading, ports in (
          ("network", "Ethernet", "Ethernet interfaces but loopback"),
          ("infiniband", "InfiniBand", "InfiniBand ports"))
      for direction in ("received", "sent")),
    count("ecc_corrected_errors", "Memory errors corrected",
        "memory errors that were corrected, between the readings about the measured steps; of a "
        "run, of all GPUs", sensor="other", level="gpu", over="sum"),
    count("ecc_uncorrected_errors", "Memory errors not corrected",
        "memory errors that could not be corrected, between the same readings",
        sensor="other", level="gpu", over="sum"),
    count("xid_events", "Xid events",
        "Xid events of the driver during the run; of a run, of all GPUs",
        sensor="other", level="gpu", over="sum"),
)

#: how a run was sampled, and whether it was steady
SAMPLING: tuple[Measure, ...] = (
    Measure("steady", "Steady",
        "whether step time, power and temperature surely changed by less than matters over the "
        "measured steps; false if one surely changed by more, null if noise does not tell",
        type=bool),
    share("step_time_drift", "Drift of step time",
        "change of step time over the measured steps by a straight line, as a share",
        places=("watched",)),
    share("step_time_drift_margin", "Margin of the drift of step time",
        "how far the true drift of the step time may lie from that on either side, at 99.5 %",
        places=("watched",)),
    share("power_drift", "Drift of power", "change of power in the same way, as a share",
        sensor="power", places=("watched",)),
    share("power_drift_margin", "Margin of the drift of power",
        "how far the true drift of power may lie from that on either side, at 99.5 %",
        sensor="power", places=("watched",)),
    temperature("temperature_drift_c", "Drift of temperature",
        "change of the mean core temperature in the same way", from_zero=True, places=("watched",)),
    temperature("temperature_drift_margin_c", "Margin of the drift of temperature",
        "how far the true drift of temperature may lie from that on either side, at 99.5 %",
        from_zero=True, places=("watched",)),
    seconds("cool_down_s", "Waited for cool GPUs",
        "time that the job waited for cool GPUs before the idle baseline", places=("watched",)),
    Measure("sampler_cpu_share", "Sampler's CPU time",
        "CPU time of a node's sampler in the measured steps, share of one core; of a run, of the "
        "busiest", people=("% of a core", 100.0), level="node", over="max", places=("watched",)),
    seconds("clock_skew_s", "Skew between clocks",
        "largest difference of a node's clock from the first node's; times are corrected by it",
        people=MILLISECONDS, places=("watched",)),
    seconds("clock_error_s", "Error of corrected clocks",
        "largest error that a node's corrected times may still have against the first node's",
        people=MILLISECONDS, places=("watched",)),
    Measure("loss_first", "First loss", "loss of the first step", unit="nat", workloads=TRAINING),
    Measure("loss_last", "Last loss", "loss of the last step", unit="nat", workloads=TRAINING),
)

#: columns of CELLS from the traces of a cell's profiled run: means over its ranks
PROFILED: tuple[Measure, ...] = (
    share_of_time("exposed_communication_share", "Exposed communication",
        "profiled run: share of the trace's span with communication and no computation"),
    Measure("overlapped_communication_share", "Overlapped communication",
        "profiled run: share of the time of communication in which computation ran, too",
        people=("% of communication", 100.0)),
    Measure("communication_kernel_share", "Kernel time communicating",
        "profiled run: share of the kernels' time in kernels of communication: their durations "
        "over those of all kernels, copies and sets left out. Kernels that run at the same time "
        "each count, and so does what a kernel waits for other ranks",
        people=("% of kernel time", 100.0)),
    Measure("unknown_kernel_share", "Kernel time of unknown class",
        "profiled run: share of the kernels' time in kernels whose class is not known",
        people=("% of kernel time", 100.0)),
    share_of_time("bubble_share", "Pipeline bubble",
        "profiled run: share of the trace's span that is within steps, with nothing running or "
        "pipeline exchange alone"),
    share_of_time("idle_share", "Nothing running",
        "profiled run: share of the trace's span with nothing running"),
)

#: the plan's estimates of a cell's cost
ESTIMATES: tuple[Measure, ...] = (
    memory("memory_allocated_per_gpu_bytes", "Memory allocated, fullest GPU",
        "estimated peak that torch will allocate; memory_peak_bytes is what it did", sensor=""),
    memory("memory_per_gpu_bytes", "Memory needed, fullest GPU",
        "estimated peak that the fullest rank needs; a cell is refused if it exceeds the GPU's "
        "memory by more than 5 %", sensor=""),
    memory("memory_used_per_gpu_bytes", "Memory used, fullest GPU",
        "estimated peak that the driver will count, blocks that torch's allocator keeps for later "
        "included, ± 5 %; at most the GPU's memory. memory_estimate_error compares it with runs",
        sensor=""),
    share_of_time("planned_bubble_share", "Pipeline bubble, planned",
        "share of a step in which a pipeline rank waits for others according to the schedule, if "
        "all passes take equally long; null without a pipeline"),
    seconds("step_time_s", "Step time", "estimated as step_time_source says"),
    Measure("gpu_hours", "All repeats", "estimated, over all repeats and the profiled run",
        unit="h", people=("GPU-hours", 1.0)),
    count("time_limit_min", "Time limit of a run", "the time limit of one run's job", unit="min"),
)
