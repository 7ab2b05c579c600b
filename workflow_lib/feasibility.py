"""Says whether a cell can run and what it would cost, or why it cannot, with the arithmetic."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from workflow_lib import formulas, memory, pipelines
from workflow_lib.config import Platform
from workflow_lib.records.cell import Cell
from workflow_lib.records.training import NATIVE
from workflow_lib.trainers import capabilities
from workflow_lib.words import counted

#: the share of the memory's bandwidth that decoding is assumed to reach
EXPECTED_BANDWIDTH_SHARE = 0.5
#: seconds that a host needs to launch a layer's kernels for a token without CUDA graphs, and those
#: of a layer that is divided: 0.35 to 0.65 ms, and 0.9 to 1.2 ms, as evidence-decode-graphs and
#: evidence-decode-graphs-x2 show
LAUNCH_S, LAUNCH_DIVIDED_S = 0.5e-3, 1.0e-3
#: Steps took up to 6.7 times (6 % MFU; published, experts in fp8) what ``expected_mfu`` says.
ASSUMED_AT_MOST = 7.0
#: The module of this package whose ``step_time`` projects a cell's step. It is imported by its
#: name, because the core depends on none that fits or needs numpy.
PROJECTION = "projection.planned"
#: the kinds of intervals of projected times, and for which layouts each is; of those that fit, the
#: first is taken
INTERVAL_KINDS: Mapping[str, str] = {
    "untuned-stack-pipeline": "a layout with a pipeline that nobody tuned, its stack not fitted",
    "untuned-stack": "a layout without a pipeline that nobody tuned, its stack not fitted",
    "untuned-pipeline": "a layout with a pipeline that nobody tuned, its stack fitted",
    "untuned": "a layout without a pipeline that nobody tuned, its stack fitted",
    "stack": "a tuned layout of a stack that was not fitted on this GPU in this precision",
    "site": "a tuned layout at a site, or of a source, that was not fitted",
    "release": "a tuned layout in a release that was not fitted",
    "layout": "a tuned layout whose layers were not fitted",
    "depth": "fitted layers, in a model of another depth",
    "series": "a fitted layout on another number of GPUs",
    "own": "a layout of this workflow within one node",
}
#: start-up, from the job's first line to the first step: imports, communicators, building the model
STARTUP_S = 120.0
#: the shortest time limit of a job, if the partition allows it: start-up, and Slurm's warning up to
#: two minutes before the limit, hardly depend on the cell
LEAST_TIME_LIMIT_MIN = 15
#: alternating sampling rates are compared within a round, so a spread needs at least two rounds
LEAST_ROUNDS = 2


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step. The ends of the interval are null if nothing is known of how far off the
    estimate is."""

    s: float
    low_s: float | None
    high_s: float | None
    #: "projected", or what was assumed
    source: str
    #: for which layouts the interval is; null unless projected
    kind: str | None = None

    @property
    def most_s(self) -> float:
        """What a time limit has to allow for."""
        return self.s * ASSUMED_AT_MOST if self.high_s is None else self.high_s


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of a cell. Times are null if the GPU's peak is not known and there is no
    projection."""

    #: null where another trainer trains
    memory: memory.MemoryEstimate | None
    #: share of a step in which pipeline ranks wait for each other; null without a pipeline
    bubble_share: float | None
    step_time: StepTime | None
    run_time_s: float | None
    #: what the job asks for: at most the partition's limit
    time_limit_min: int
    #: what the likely duration needs; may be more than the partition's limit
    needed_min: int | None

    @property
    def step_time_s(self) -> float | None:
        """Of one optimiser step, or of generating one global batch."""
        return None if self.step_time is None else self.step_time.s

    def gpu_hours(self, cell: Cell, repeats: int, profiled_steps: int = 0) -> float | None:
        """GPU-hours of all repeats of the cell and of its profiled run, which has no idle baseline
        and no cool-down; None if not known."""
        if self.run_time_s is None or self.step_time_s is None:
            return None
        run_time_s = repeats * self.run_time_s
        if profiled_steps:
            steps = cell.training.warmup_steps + profiled_steps
            run_time_s += STARTUP_S + steps * self.step_time_s
        return run_time_s * cell.degrees.world_size / 3600


def undivided(degrees: Mapping[str, int], gpus: int) -> str | None:
    """Why the product of the given degrees does not divide the GPUs, so that no whole number is
    left for the degree "rest"; None if it does."""
    given = {name: degree for name, degree in degrees.items() if degree > 1}
    product = math.prod(given.values())
    if gpus % product == 0:
        return None
    names = " × ".join(given)
    if len(given) == 1:
        return f"{names} {product} does not divide {counted(gpus, 'GPU')}"
    factors = " × ".join(map(str, given.values()))
    return f"{names} = {factors} = {product} does not divide {counted(gpus, 'GPU')}"


def infeasibility(cell: Cell, platform: Platform, gpus: int) -> str | None:
    """Why the cell cannot run on ``gpus`` GPUs of the platform; None if it can. Memory and time are
    checked by does_not_fit."""
    return next(_obstacles(cell, platform, gpus), None)


def _obstacles(cell: Cell, platform: Platform, gpus: int) -> Iterator[str]:
    model, degrees, training = cell.model, cell.degrees, cell.training
    tp, dp = degrees.tp, degrees.dp
    if degrees.world_size != gpus:
        yield f"{degrees.product}, but there {'is' if gpus == 1 else 'are'} {counted(gpus, 'GPU')}"
    available = platform.nodes * platform.gpus_per_node
    if gpus > available:
        yield (
            f"{counted(gpus, 'GPU')}, but {cell.hardware.platform} has "
            f"{counted(platform.nodes, 'node')} × "
            f"{platform.gpus_per_node} = {available}"
        )
    if gpus % cell.nodes:
        yield f"{gpus} GPUs do not spread evenly over {cell.nodes} nodes"
    if tp > platform.gpus_per_node:
        yield f"tp {tp} reaches beyond a node of {counted(platform.gpus_per_node, 'GPU')}"
    elif cell.ranks_per_node % tp:
        used = counted(cell.ranks_per_node, "GPU")
        yield f"tp {tp} does not divide the {used} used on each node"
    order = degrees.gpu_order
    if order and sorted(order) != list(range(cell.ranks_per_node)):
        yield (
            f"gpu_order {list(order)} must name each of the "
            f"{counted(cell.ranks_per_node, 'GPU')} used on a node once, from 0"
        )
    if degrees.gpu_uuids and len(degrees.gpu_uuids) != degrees.world_size:
        yield (
            f"gpu_uuids names {counted(len(degrees.gpu_uuids), 'GPU')}, expected the "
            f"{degrees.world_size} that the cell uses"
        )
    per_pass = dp * training.micro_batch_size
    if training.global_batch_size % per_pass:
        yield (
            f"global batch {training.global_batch_size} is not a multiple of dp × micro-batch = "
            f"{dp} × {training.micro_batch_size} = {per_pass}"
        )
    yield from _obstacles_of_limits(cell, platform)
    # Layers, heads, experts, ZeRO and overlap: combinations that the backend cannot run.
    if training.trainer == NATIVE and (refusal := capabilities.refusal(degrees, training, model)):
        yield refusal
    hardware = cell.hardware
    if training.precision == "fp8" and hardware.gpu and hardware.peak_fp8_flops_per_s is None:
        yield (
            f"fp8: {hardware.gpu} has no units for it, or none that are known; use precision: "
            "bf16, or give platform "
            f"{hardware.platform} its peak_fp8_tflops"
        )


def _obstacles_of_limits(cell: Cell, platform: Platform) -> Iterator[str]:
    """Why the job could not set its limits on GPUs, as far as that is known before it runs. The
    driver may still refuse them."""
    name, training = cell.hardware.platform, cell.training
    for key, limits in (
        ("power_limits_w", training.power_limits_w),
        ("clock_limits_mhz", training.clock_limits_mhz),
    ):
        if not limits:
            continue
        if len(limits) != cell.ranks_per_node:
            yield (
                f"{key} {list(limits)} must have a number for each of the {cell.ranks_per_node} "
                "GPUs used on a node, or be one number for all"
            )
        if platform.gpu_settings != "allowed":
            yield (
                f"{key}: jobs on {name} may not change settings of GPUs; ask its admin, then write "
                f"gpu_settings: allowed into config/platforms/{name}.yaml, or leave {key} out"
            )
        if platform.telemetry != "nvidia":
            yield (
                f"{key}: limits are set on NVIDIA GPUs alone, and the telemetry of {name} is "
                f"{platform.telemetry}; use a platform with telemetry: nvidia, or leave {key} out"
            )
        if platform.container is not None:
            yield (
                f"{key}: the driver takes limits only from processes with CAP_SYS_ADMIN on the "
                "node, which those in a container lack; use a platform without container, or "
                f"leave {key} out"
            )


def estimate(cell: Cell, platform: Platform) -> Estimate:
    """Estimate memory, time and time limit of a cell for which infeasibility() returned None.

    Raises RecordError if the data of projections cannot be read.
    """
    time = step_time(cell, platform)
    run_time_s = needed_min = None
    limit_min = platform.time_limit_max_min
    if time is not None:
        run_time_s = _run_time_s(cell, time.s)
        needed_min = _asked_min(run_time_s, platform)
        limit_min = min(_asked_min(_run_time_s(cell, time.most_s), platform), limit_min)
    return Estimate(
        memory=memory.estimate(cell.model, cell.degrees, cell.training)
        if cell.training.trainer == NATIVE
        else None,
        bubble_share=None if cell.degrees.pp == 1 else _bubble(cell) / (1 + _bubble(cell)),
        step_time=time,
        run_time_s=run_time_s,
        time_limit_min=limit_min,
        needed_min=needed_min,
    )


def _run_time_s(cell: Cell, step_time_s: float) -> float:
    """Seconds of a job whose steps take so long."""
    steps = cell.training.warmup_steps + cell.training.measured_steps
    waits_s = cell.telemetry.cool_down_limit_s + cell.telemetry.idle_baseline_s
    return STARTUP_S + waits_s + steps * step_time_s


def _asked_min(run_time_s: float, platform: Platform) -> int:
    """The time limit of a job that takes so long, in whole minutes."""
    least_min = min(LEAST_TIME_LIMIT_MIN, platform.time_limit_max_min)
    return max(math.ceil(platform.time_limit_margin * run_time_s / 60), least_min)


@functools.cache
def _projection() -> Callable[[Cell], StepTime | None]:
    return cast(
        "Callable[[Cell], StepTime | None]",
        importlib.import_module(f"workflow_lib.{PROJECTION}").step_time,
    )


def step_time(cell: Cell, platform: Platform) -> StepTime | None:
    """Of one optimiser step, or of generating one global batch: projected from measured runs where
    there is a projection; else at assumed rates; None if the GPU's peak is not known either.

    Raises RecordError if the data of projections cannot be read.
    """
    projected = _projection()(cell) if cell.training.trainer == NATIVE else None
    if projected is not None:
        return projected
    seconds = _assumed_s(cell, platform)
    if seconds is None:
        return None
    source = f"assumed {100 * platform.expected_mfu:.3g} % MFU"
    if cell.training.workload == "inference":
        source += f", {EXPECTED_BANDWIDTH_SHARE:.0%} of the bandwidth".replace("%", " %")
        if not cell.training.cuda_graphs:
            source += f", at least {1e3 * _launch_s(cell):g} ms a layer to launch"
    return StepTime(seconds, None, None, source)


def _assumed_s(cell: Cell, platform: Platform) -> float | None:
    """Seconds of a step at ``expected_mfu``; None if the GPU's peak is not known."""
    peak = cell.hardware.peak_flops_per_s(cell.training.precision)
    if peak is None:
        return None
    rate = cell.degrees.world_size * peak * platform.expected_mfu
    if cell.training.workload == "inference":
        return _generation_time_s(cell, platform, rate)
    forward = formulas.flops_per_token(cell.model).causal / 3
    flops = formulas.flops_per_token(cell.model, cell.training).causal
    if cell.training.recomputation == "full":
        # Selective recomputation repeats no product, so no FLOP that is counted here.
        flops += forward
    tokens = cell.training.global_batch_size * cell.model.sequence_length
    return flops * tokens / rate * (1 + _bubble(cell))


def _bubble(cell: Cell) -> float:
    """The pipeline's idle time over its busy time; see :func:`workflow_lib.pipelines.bubble`."""
    return pipelines.bubble(cell.degrees, cell.training.micro_batches(cell.degrees.dp))


def _generation_time_s(cell: Cell, platform: Platform, rate: float) -> float | None:
    """Seconds of generating one global batch: prompts at ``rate`` FLOP/s, then one pass a token.
    Each pass reads a stage's weights and the keys and values so far (arXiv 2211.05102, section 2),
    or waits for the host to launch its kernels.
    None if the memory's bandwidth is not known."""
    bandwidth = platform.memory_bandwidth_gb_per_s
    if bandwidth is None:
        return None
    model, degrees, training = cell.model, cell.degrees, cell.training
    generated = training.generated_tokens
    prompt = model.sequence_length - generated
    flops = formulas.prefill_flops(model, prompt).causal * training.global_batch_size
    stage_bytes = memory.decode_bytes(model, degrees, training, prompt + generated / 2)
    seconds = stage_bytes / (bandwidth * 1e9 * EXPECTED_BANDWIDTH_SHARE)
    if not training.cuda_graphs:
        seconds = max(seconds, math.ceil(model.layers / degrees.pp) * _launch_s(cell))
    # A micro-batch's next token needs its last one. So a token of all micro-batches takes as many
    # passes of a stage as there are micro-batches, or stages if these are more.
    passes = (generated - 1) * max(training.micro_batches(degrees.dp), degrees.pp)
    return flops / rate * (1 + _bubble(cell)) + passes * seconds


def _launch_s(cell: Cell) -> float:
    return LAUNCH_S if cell.degrees.tp == 1 else LAUNCH_DIVIDED_S


def does_not_fit(cell: Cell, platform: Platform, cost: Estimate) -> str | None:
    """Why the cell needs more memory or a longer job than the platform has, or why its measured
    steps are too short to compare sampling rates; None if it fits."""
    capacity = cell.hardware.gpu_memory_bytes
    if capacity is not None and cost.memory and cost.memory.fits(capacity) == "no":
        return (
            f"needs about {cost.memory.total / 1e9:.0f} GB on a GPU of {capacity / 1e9:.0f} GB: "
            f"{cost.memory.arithmetic()}"
        )
    return _too_long(cell, platform, cost) or _too_short(cell, cost)


def _too_long(cell: Cell, platform: Platform, cost: Estimate) -> str | None:
    """Why the partition does not allow the cell's likely duration with its margin; None if it does.
    Without an estimate, a job's time limit is the partition's."""
    if cost.needed_min is None or cost.needed_min <= platform.time_limit_max_min:
        return None
    telemetry = cell.telemetry
    waits_s = telemetry.cool_down_limit_s + telemetry.idle_baseline_s
    steps = cell.training.warmup_steps + cell.training.measured_steps
    margin = platform.time_limit_margin
    shorter = "fewer measured_steps"
    if telemetry.cool_down_limit_s:
        shorter += ", a smaller limit_s of its cool_down"
    return (
        f"asks for {cost.needed_min} min, but the partition's time_limit_max_min is "
        f"{platform.time_limit_max_min}: {margin:g} times {STARTUP_S:g} s to start, {waits_s:g} s "
        f"of waits and {steps} steps of {cost.step_time_s:.3g} s; use {shorter}, or a "
        f"smaller time_limit_margin of platform {cell.hardware.platform}"
    )


def _too_short(cell: Cell, cost: Estimate) -> str | None:
    """Why the measured steps hold too few blocks of each sampling rate; None if they do not, or if
    rates do not alternate."""
    telemetry, steps = cell.telemetry, cell.training.measured_steps
    if not telemetry.interleaved_rates_hz or cost.step_time_s is None:
        return None
    rates = len(telemetry.interleaved_rates_hz)
    needed_s = LEAST_ROUNDS * rates * telemetry.block_s
    window_s = steps * cost.step_time_s
    if window_s >= needed_s:
        return None
    return (
        f"its {steps} measured steps take about {window_s:.0f} s, but {LEAST_ROUNDS} rounds of "
        f"{rates} sampling rates with {telemetry.block_s:g} s each take {needed_s:g} s; use more "
        "measured_steps"
    )
