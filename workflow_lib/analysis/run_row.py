"""A run's row of RUNS, and the measures that need only its steps: time, rate, memory, links, loss.

Ranks record their allocator's counts at the end of each step. A rank reads its GPU's link counters
between steps (trainers/native/links.py), so their growth is that of whole steps, and the steps that
count get a share of it in proportion to their number; the sampler reads anywhere within a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from workflow_lib import gpu_models, memory
from workflow_lib.analysis import metrics
from workflow_lib.analysis.known import Known, Values, known, reasons_text
from workflow_lib.analysis.steps import Steps, corrected, loss_of_ranks
from workflow_lib.formulas import flops_per_token
from workflow_lib.records import (
    MEASURES,
    NOT_TOLD,
    RUNS,
    Cell,
    LinkCount,
    NodeClock,
    OutcomeRecord,
    Precision,
    RankRecord,
    RunPaths,
    identity,
    inapplicable,
    read_if_there,
)

#: column → field of LinkReading
COLUMNS = {"gpu_link_received_bytes": "received_bytes", "gpu_link_sent_bytes": "sent_bytes"}

#: far below the 0.25 s that a rank rests before it reads, and above the error of corrected times
_ROUNDING_S = 0.02
_NOT_COUNTED = "an earlier version made the run, and its ranks did not count whole steps"


def link_values(
    paths: RunPaths, ranks: Mapping[tuple[str, int], int], steps: Steps
) -> dict[tuple[str, int], Values]:
    """Bytes of each GPU, by node and number, over the ``steps`` that count.

    ``ranks`` maps each GPU, by node and number, to the rank that used it. Raises RecordError if a
    count is damaged.
    """
    counted_steps = steps.measured["step"].n_unique()
    found: dict[tuple[str, int], Values] = {}
    for (node, gpu), rank in ranks.items():
        count = read_if_there(paths.link_count(rank), LinkCount)
        own = steps.rows.filter(pl.col("rank") == rank)
        reason = _why_not(count, own, steps.clocks.get(node))
        if count is None and steps.ranks[rank].parameters is None:
            reason = NOT_TOLD
        found[node, gpu] = {
            column: _bytes(count, each, counted_steps) if count and not reason else (None, reason)
            for column, each in COLUMNS.items()
        }
    return found


def _why_not(count: LinkCount | None, rows: pl.DataFrame, clock: NodeClock | None) -> str:
    """Why a rank's count is not that of the whole steps of ``rows``, its own; "" if it is."""
    if count is None:
        return _NOT_COUNTED
    if count.before is None or count.after is None or not count.steps:
        return count.reason or "no whole step was counted"
    counted = rows.filter(pl.col("step") >= count.first_step)
    if len(counted) != count.steps:
        return (
            f"the rank counted {count.steps} steps from step {count.first_step} on, and recorded "
            f"{len(counted)}"
        )
    before, after = (corrected(each.unix_time_s, clock) for each in (count.before, count.after))
    earlier = rows.filter(pl.col("step") < count.first_step)["ended_unix_s"]
    late_s = [*(earlier - before), *(before - counted["started_unix_s"])]
    if max(*late_s, *(counted["ended_unix_s"] - after)) > _ROUNDING_S:
        return "the link counters were read within steps, not between them"
    return ""


def _bytes(count: LinkCount, field: str, counted_steps: int) -> Known:
    rose = getattr(count.after, field) - getattr(count.before, field)
    if rose < 0:
        return None, "the link counters ran backwards: the GPU was reset, or they restarted"
    return rose / count.steps * counted_steps, ""


#: measures of a run and columns of a GPU, which are columns of STEPS
COUNTS = ("allocator_retries", "allocator_frees")
_CPU = "trained on a CPU, whose memory torch's allocator of GPU memory does not hold"
_EARLIER = "an earlier version made the run, and its ranks did not record their allocator"


def allocator_values(steps: Steps) -> Values:
    """The measures of a run: sums over ranks, whether there was pressure, and the settings."""
    counts = [counts_of_rank(steps, rank) for rank in steps.ranks]
    found: Values = {name: _sum([count[name] for count in counts]) for name in COUNTS}
    values = [found[name][0] for name in COUNTS]
    pressure = None if None in values else False
    if any(value is not None and value > 0 for count in counts for value, _ in count.values()):
        pressure = True
    why = next((found[name][1] for name in COUNTS if found[name][0] is None), "")
    found["memory_pressure"] = known(pressure, why)
    told = {rank.allocator for rank in steps.ranks}
    absent = next((_why_absent(rank) for rank in steps.ranks if rank.allocator is None), "")
    found["allocator"] = known(None if None in told else "; ".join(sorted(map(str, told))), absent)
    return found


def counts_of_rank(steps: Steps, rank: RankRecord) -> Values:
    """How much a rank's counts rose in the steps that count."""
    rows = steps.rows.filter(pl.col("rank") == rank.rank).sort("step")
    before = rows.filter(pl.col("step") < steps.first).tail(1)
    after = rows.tail(1)
    return {name: _rise(rank, before[name].to_list(), after[name].item()) for name in COUNTS}


def _why_absent(rank: RankRecord) -> str:
    if not rank.on_gpu:
        return _CPU
    return NOT_TOLD if rank.parameters is None else _EARLIER


def _rise(rank: RankRecord, before: list[int | None], after: int | None) -> Known:
    if rank.allocator is None or not rank.on_gpu:
        return None, _why_absent(rank)
    if after is None:
        return None, f"torch's allocator does not count them ({rank.allocator})"
    if not before:
        return None, "without a warm-up, counts of before the measured steps are not known"
    if before[0] is None or before[0] > after:
        return None, f"rank {rank.rank}: the counts of torch's allocator ran backwards"
    return after - before[0], ""


def _sum(counts: list[Known]) -> Known:
    """The sum over ranks; null if one of them has none."""
    for value, reason in counts:
        if value is None:
            return None, reason
    return sum(value for value, _ in counts), ""


#: columns of RUNS that a run's reduction finds beside its measures
BESIDE_MEASURES = ("power_peak_sensor", "allocator", "memory_pressure")
#: measure → the count of :class:`~workflow_lib.formulas.Flops` that it takes
_CONVENTIONS = {
    "mfu_6n": "six_n",
    "mfu_causal": "causal",
    "mfu_full_attention": "full_attention",
    "mfu_6n_attention": "six_n_attention",
}


def run_row(
    cell: Cell, run: int, ended: OutcomeRecord, values: Values, otherwise: str
) -> dict[str, Any]:
    """A row of RUNS; ``otherwise`` is why a measure that is not among ``values`` is null.

    A measure that does not apply to the cell's workload is null, whatever ``values`` holds.
    """
    workload = cell.training.workload
    whole = dict.fromkeys((*MEASURES, *BESIDE_MEASURES), (None, otherwise)) | values
    if values.keys() & MEASURES.keys():
        meaningless = (
            "inference reports prefill and decode apart, and has no loss"
            if workload == "inference"
            else f"workload {workload} generates nothing"
        )
        whole |= dict.fromkeys(inapplicable(workload), (None, meaningless))
    row = {
        **identity(cell),
        "run": run,
        "outcome": ended.outcome.value,
        "cause": ended.cause,
        "missing_reasons": reasons_text(whole),
        **{name: value for name, (value, _) in whole.items()},
    }
    return {column.name: row[column.name] for column in RUNS}


def step_values(cell: Cell, steps: Steps) -> Values:
    """The measures of time, rate, model FLOPs, memory and loss."""
    times = metrics.step_times(steps.measured)
    rate = steps.tokens / steps.window.duration_s / cell.degrees.world_size
    found: Values = {
        "counted_steps": known(len(times)),
        "measured_duration_s": known(steps.window.duration_s),
        "step_time_s": known(metrics.median(times)),
        "step_time_iqr_s": known(metrics.interquartile_range(times)),
        "tokens_per_s": known(rate * cell.degrees.world_size),
        "tokens_per_s_per_gpu": known(rate),
        "memory_peak_bytes": _of_fullest(steps, "memory_peak_bytes", "no rank recorded its memory"),
        **_memory_of_gpus(cell, steps),
        **allocator_values(steps),
    }
    losses = steps.rows.drop_nulls("loss").sort("step", "rank")
    ends = steps.rows.select(first=pl.col("step").min(), last=pl.col("step").max()).row(0)
    for name, step in zip(("loss_first", "loss_last"), ends, strict=True):
        of_step = losses.filter(pl.col("step") == step)["loss"]
        loss, why = loss_of_ranks(of_step.first(), of_step.min(), of_step.max())  # type: ignore[arg-type]
        found[name] = known(loss, f"step {step}: {why}")
    found["dropped_choices_share"] = dropped = dropped_choices_share(cell, steps)
    return found | _model_flops(cell, steps, rate, dropped)


def _memory_of_gpus(cell: Cell, steps: Steps) -> Values:
    """Peak memory as torch's allocator held it and as the driver counted it, and the relative error
    of the plan's estimate."""
    unknown = "no rank recorded it"
    if any(not rank.on_gpu for rank in steps.ranks):
        unknown = "trained on a CPU, whose memory no driver counts"
    reserved, used = (
        _of_fullest(steps, name, unknown) for name in ("memory_reserved_bytes", "memory_used_bytes")
    )
    not_judged = used[1] or "the driver counted none"
    if used[0] is not None and reserved[0] is not None and used[0] < reserved[0]:
        # In earlier versions ranks asked the driver at the end of a step, after the allocator had
        # given back some of what the driver had counted.
        used, not_judged = reserved, "memory_used_peak_bytes is only a lower bound in this run"
        error = None
    else:
        expected = memory.estimate(cell.model, cell.degrees, cell.training)
        expected_bytes = expected.used(cell.hardware.gpu_memory_bytes)
        error = expected_bytes / used[0] - 1 if used[0] else None
    return {
        "memory_reserved_peak_bytes": reserved,
        "memory_used_peak_bytes": used,
        "memory_estimate_error": known(error, not_judged),
    }


def _of_fullest(steps: Steps, name: str, unknown: str) -> Known:
    """The highest value of a column of STEPS over all ranks. It is null if a rank has none, because
    that rank may be the fullest; ``unknown`` is why no rank has one."""
    peaks = steps.rows.group_by("rank").agg(pl.col(name).cast(pl.Float64).max()).sort("rank")
    lacking = peaks.filter(pl.col(name).is_null())["rank"].to_list()
    if lacking:
        return None, unknown if len(lacking) == peaks.height else f"rank {lacking[0]} recorded none"
    return peaks[name].max(), ""


def dropped_choices_share(cell: Cell, steps: Steps) -> Known:
    """The share of the routers' choices that was dropped, over all ranks and the steps that count;
    0 if the routing drops none."""
    routing = cell.training.routing
    if routing != "balanced":
        return (None, "a dense model has no router") if routing is None else (0.0, "")
    counts = steps.measured.select("expert_choices", "dropped_choices")
    if any(counts.null_count().row(0)):
        return None, "a rank did not record what its routers dropped"
    made, dropped = counts.sum().row(0)
    return known(dropped / made if made else None, "no router chose an expert")


def _model_flops(cell: Cell, steps: Steps, tokens_per_s_per_gpu: float, dropped: Known) -> Values:
    """The rate of model FLOPs and the MFUs, without products that were dropped."""
    share, unknown = dropped
    if share is None and cell.training.routing is not None:
        reason = f"how much of the model was computed is not known: {unknown}"
        return dict.fromkeys(
            ("model_tflops_per_s_per_gpu", *_CONVENTIONS, "mfu_causal_bf16_peak"), (None, reason)
        )
    counts = flops_per_token(cell.model, cell.training, share or 0.0)
    peak = _peak(cell, steps, cell.training.precision)
    found: Values = {
        "model_tflops_per_s_per_gpu": known(tokens_per_s_per_gpu * counts.causal / 1e12)
    }
    for name, convention in _CONVENTIONS.items():
        found[name] = _utilisation(tokens_per_s_per_gpu, getattr(counts, convention), peak)
    bf16_peak = _peak(cell, steps, "bf16")
    found["mfu_causal_bf16_peak"] = _utilisation(tokens_per_s_per_gpu, counts.causal, bf16_peak)
    return found


def _utilisation(tokens_per_s_per_gpu: float, flops_per_token: float, peak: Known) -> Known:
    flops_per_s, reason = peak
    if flops_per_s is None:
        return None, reason
    return metrics.model_flops_utilisation(tokens_per_s_per_gpu, flops_per_token, flops_per_s), ""


def _peak(cell: Cell, steps: Steps, precision: Precision) -> Known:
    """The peak in a precision of the GPU that trained, in FLOP/s, or why it is not known."""
    hardware = cell.hardware
    devices = sorted({rank.device_name for rank in steps.ranks if rank.device_name})
    if any(not rank.on_gpu for rank in steps.ranks):
        return None, f"trained on a CPU ({', '.join(devices) or NOT_TOLD}), whose peak is not known"
    for device in devices:
        if why := gpu_models.mismatch(hardware.gpu, device):
            return None, (
                f"platform {hardware.platform} gives the peak of {hardware.gpu!r}, but trained on "
                f"another GPU: {why}"
            )
    peak = hardware.peak_flops_per_s(precision)
    if peak is None and len(devices) == 1:
        peak = gpu_models.peak_flops_per_s(gpu_models.of_device(devices[0]), precision)
    return known(
        peak,
        f"platform {hardware.platform} gives no {precision} peak, and that of "
        f"{' and '.join(map(repr, devices)) or 'its GPUs'} is not known",
    )
