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
from workflow_lib.analysis.known import Known, Values, Why, known, missing_of
from workflow_lib.analysis.steps import Steps, corrected, loss_of_ranks
from workflow_lib.formulas import flops_per_token
from workflow_lib.records.cell import Cell
from workflow_lib.records.cell_axes import identity
from workflow_lib.records.contract import NOT_TOLD, RankRecord
from workflow_lib.records.files import read_if_there
from workflow_lib.records.measures import MEASURES, inapplicable
from workflow_lib.records.nodes import LinkCount, NodeClock
from workflow_lib.records.outcomes import OutcomeRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reasons import Reason
from workflow_lib.records.tables import RUNS
from workflow_lib.records.training import NATIVE, Precision

#: column → field of LinkReading
COLUMNS = {"gpu_link_received_bytes": "received_bytes", "gpu_link_sent_bytes": "sent_bytes"}

#: far below the 0.25 s that a rank rests before it reads, and above the error of corrected times
_ROUNDING_S = 0.02
_NOT_COUNTED = Reason("of_earlier_version", lack="its ranks did not count whole steps")


def link_values(
    paths: RunPaths, ranks: Mapping[tuple[str, int], int], steps: Steps
) -> dict[tuple[str, int], Values]:
    """Bytes of each GPU, by node and number, over the ``steps`` that count.

    ``ranks`` maps each GPU, by node and number, to the rank that used it. Raises RecordError if a
    count is damaged.
    """
    counted_steps = steps.measured["step"].n_unique()
    by_gpu: dict[tuple[str, int], Values] = {}
    for (node, gpu), rank in ranks.items():
        count = read_if_there(paths.link_count(rank), LinkCount)
        own = steps.rows.filter(pl.col("rank") == rank)
        reason = _why_not(count, own, steps.clocks.get(node))
        if count is None and steps.ranks[rank].parameters is None:
            reason = Reason("not_told")
        by_gpu[node, gpu] = {
            column: _bytes(count, field, counted_steps) if count and not reason else (None, reason)
            for column, field in COLUMNS.items()
        }
    return by_gpu


def _why_not(count: LinkCount | None, rows: pl.DataFrame, clock: NodeClock | None) -> Why:
    """Why a rank's count is not that of the whole steps of ``rows``, its own; "" if it is."""
    if count is None:
        return _NOT_COUNTED
    if count.before is None or count.after is None or not count.steps:
        if count.reason:
            return Reason("links_not_counted", why=count.reason)
        return Reason("no_whole_step_counted")
    counted = rows.filter(pl.col("step") >= count.first_step)
    if len(counted) != count.steps:
        return Reason(
            "link_steps_differ", counted=count.steps, first=count.first_step, recorded=len(counted)
        )
    before, after = (corrected(end.unix_time_s, clock) for end in (count.before, count.after))
    earlier = rows.filter(pl.col("step") < count.first_step)["ended_unix_s"]
    late_s = [*(earlier - before), *(before - counted["started_unix_s"])]
    if max(*late_s, *(counted["ended_unix_s"] - after)) > _ROUNDING_S:
        return Reason("links_read_within_steps")
    return ""


def _bytes(count: LinkCount, field: str, counted_steps: int) -> Known:
    rose = getattr(count.after, field) - getattr(count.before, field)
    if rose < 0:
        return None, Reason("link_counters_fell")
    return rose / count.steps * counted_steps, ""


#: measures of a run and columns of a GPU, which are columns of STEPS
COUNTS = ("allocator_retries", "allocator_frees")
_CPU = Reason("cpu_has_no_gpu_allocator")
_EARLIER = Reason("of_earlier_version", lack="its ranks did not record their allocator")


def allocator_values(steps: Steps) -> Values:
    """The measures of a run: sums over ranks, whether there was pressure, and the settings."""
    counts = [counts_of_rank(steps, rank) for rank in steps.ranks]
    known_values: Values = {name: _sum([count[name] for count in counts]) for name in COUNTS}
    values = [known_values[name][0] for name in COUNTS]
    pressure = None if None in values else False
    if any(value is not None and value > 0 for count in counts for value, _ in count.values()):
        pressure = True
    why: Why = next((known_values[name][1] for name in COUNTS if known_values[name][0] is None), "")
    known_values["memory_pressure"] = known(pressure, why)
    allocators = {rank.allocator for rank in steps.ranks}
    absent: Why = next((_why_absent(rank) for rank in steps.ranks if rank.allocator is None), "")
    settings = None if None in allocators else "; ".join(sorted(map(str, allocators)))
    known_values["allocator"] = known(settings, absent)
    return known_values


def counts_of_rank(steps: Steps, rank: RankRecord) -> Values:
    """How much a rank's counts rose in the steps that count."""
    rows = steps.rows.filter(pl.col("rank") == rank.rank).sort("step")
    before = rows.filter(pl.col("step") < steps.first).tail(1)
    after = rows.tail(1)
    return {name: _rise(rank, before[name].to_list(), after[name].item()) for name in COUNTS}


def _why_absent(rank: RankRecord) -> Reason:
    if not rank.on_gpu:
        return _CPU
    return Reason("not_told") if rank.parameters is None else _EARLIER


def _rise(rank: RankRecord, before: list[int | None], after: int | None) -> Known:
    if rank.allocator is None or not rank.on_gpu:
        return None, _why_absent(rank)
    if after is None:
        return None, Reason("allocator_does_not_count", allocator=rank.allocator)
    if not before:
        return None, Reason("no_warmup")
    if before[0] is None or before[0] > after:
        return None, Reason("allocator_counts_fell", rank=rank.rank)
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
    cell: Cell, run: int, ended: OutcomeRecord, values: Values, otherwise: Reason
) -> dict[str, Any]:
    """A row of RUNS; ``otherwise`` is why a measure that is not among ``values`` is null.

    A measure that does not apply to the cell's workload is null, whatever ``values`` holds.
    """
    workload = cell.training.workload
    whole = dict.fromkeys((*MEASURES, *BESIDE_MEASURES), (None, otherwise)) | values
    if values.keys() & MEASURES.keys():
        meaningless = (
            Reason("not_of_inference")
            if workload == "inference"
            else Reason("workload_generates_nothing", workload=workload)
        )
        whole |= dict.fromkeys(inapplicable(workload), (None, meaningless))
    row = {
        **identity(cell),
        "run": run,
        "outcome": ended.outcome.value,
        "cause": ended.cause,
        **missing_of(whole),
        **{name: value for name, (value, _) in whole.items()},
    }
    return {column.name: row[column.name] for column in RUNS}


def step_values(cell: Cell, steps: Steps) -> Values:
    """The measures of time, rate, model FLOPs, memory and loss."""
    times = metrics.step_times(steps.measured)
    rate = steps.tokens / steps.window.duration_s / cell.degrees.world_size
    values: Values = {
        "counted_steps": known(len(times)),
        "measured_duration_s": known(steps.window.duration_s),
        "step_time_s": known(metrics.median(times)),
        "step_time_iqr_s": known(metrics.interquartile_range(times)),
        "tokens_per_s": known(rate * cell.degrees.world_size),
        "tokens_per_s_per_gpu": known(rate),
        "memory_peak_bytes": _of_fullest(steps, "memory_peak_bytes", Reason("memory_not_recorded")),
        **_memory_of_gpus(cell, steps),
        **allocator_values(steps),
    }
    losses = steps.rows.drop_nulls("loss").sort("step", "rank")
    ends = steps.rows.select(first=pl.col("step").min(), last=pl.col("step").max()).row(0)
    for name, step in zip(("loss_first", "loss_last"), ends, strict=True):
        of_step = losses.filter(pl.col("step") == step)["loss"]
        loss, why = loss_of_ranks(of_step.first(), of_step.min(), of_step.max())  # type: ignore[arg-type]
        values[name] = known(loss, why and why.of(f"step {step}"))
    values["dropped_choices_share"] = dropped = dropped_choices_share(cell, steps)
    return values | _model_flops(cell, steps, rate, dropped)


def _memory_of_gpus(cell: Cell, steps: Steps) -> Values:
    """Peak memory as torch's allocator held it and as the driver counted it, and the relative error
    of the plan's estimate."""
    unknown = Reason("gpu_memory_not_recorded")
    if any(not rank.on_gpu for rank in steps.ranks):
        unknown = Reason("cpu_memory_not_counted")
    reserved, used = (
        _of_fullest(steps, name, unknown) for name in ("memory_reserved_bytes", "memory_used_bytes")
    )
    not_judged = used[1] or Reason("not_positive", measure="memory_used_peak_bytes", value=used[0])
    if used[0] is not None and reserved[0] is not None and used[0] < reserved[0]:
        # In earlier versions ranks asked the driver at the end of a step, after the allocator had
        # given back some of what the driver had counted.
        used, not_judged = reserved, Reason("memory_lower_bound")
        error = None
    elif not used[0] or cell.training.trainer != NATIVE:
        error = None
    else:
        expected = memory.estimate(cell.model, cell.degrees, cell.training)
        expected_bytes = expected.used(cell.hardware.gpu_memory_bytes)
        error = expected_bytes / used[0] - 1
    return {
        "memory_reserved_peak_bytes": reserved,
        "memory_used_peak_bytes": used,
        "memory_estimate_error": known(error, not_judged),
    }


def _of_fullest(steps: Steps, name: str, unknown: Reason) -> Known:
    """The highest value of a column of STEPS over all ranks. It is null if a rank has none, because
    that rank may be the fullest; ``unknown`` is why no rank has one."""
    peaks = steps.rows.group_by("rank").agg(pl.col(name).cast(pl.Float64).max()).sort("rank")
    lacking = peaks.filter(pl.col(name).is_null())["rank"].to_list()
    if lacking:
        return None, unknown if len(lacking) == peaks.height else Reason(
            "rank_recorded_none", rank=lacking[0]
        )
    return peaks[name].max(), ""


def dropped_choices_share(cell: Cell, steps: Steps) -> Known:
    """The share of the routers' choices that was dropped, over all ranks and the steps that count;
    0 if the routing drops none."""
    routing = cell.training.routing
    if routing != "balanced":
        return (None, Reason("no_router")) if routing is None else (0.0, "")
    counts = steps.measured.select("expert_choices", "dropped_choices")
    if any(counts.null_count().row(0)):
        return None, Reason("drops_not_recorded")
    made, dropped = counts.sum().row(0)
    return known(dropped / made if made else None, Reason("no_choice"))


def _model_flops(cell: Cell, steps: Steps, tokens_per_s_per_gpu: float, dropped: Known) -> Values:
    """The rate of model FLOPs and the MFUs, without products that were dropped."""
    share, unknown = dropped
    if share is None and cell.training.routing is not None:
        reason = Reason("flops_unknown", unknown=unknown)
        return dict.fromkeys(
            ("model_tflops_per_s_per_gpu", *_CONVENTIONS, "mfu_causal_bf16_peak"), (None, reason)
        )
    counts = flops_per_token(cell.model, cell.training, share or 0.0)
    peak = _peak(cell, steps, cell.training.precision)
    values: Values = {
        "model_tflops_per_s_per_gpu": known(tokens_per_s_per_gpu * counts.causal / 1e12)
    }
    for name, convention in _CONVENTIONS.items():
        values[name] = _utilisation(tokens_per_s_per_gpu, getattr(counts, convention), peak)
    bf16_peak = _peak(cell, steps, "bf16")
    values["mfu_causal_bf16_peak"] = _utilisation(tokens_per_s_per_gpu, counts.causal, bf16_peak)
    return values


def _utilisation(tokens_per_s_per_gpu: float, flops_per_token: float, peak: Known) -> Known:
    flops_per_s, reason = peak
    if flops_per_s is None:
        return None, reason
    # As arXiv 2204.02311, section 4.1, defines it; recomputation does not count.
    return tokens_per_s_per_gpu * flops_per_token / flops_per_s, ""


def _peak(cell: Cell, steps: Steps, precision: Precision) -> Known:
    """The peak in a precision of the GPU that trained, in FLOP/s, or why it is not known."""
    hardware = cell.hardware
    devices = sorted({rank.device_name for rank in steps.ranks if rank.device_name})
    if any(not rank.on_gpu for rank in steps.ranks):
        return None, Reason("cpu_peak_unknown", devices=", ".join(devices) or NOT_TOLD)
    for device in devices:
        if why := gpu_models.mismatch(hardware.gpu, device):
            return None, (
                Reason(
                    "other_gpu_than_platform", platform=hardware.platform, gpu=hardware.gpu, why=why
                )
            )
    peak = hardware.peak_flops_per_s(precision)
    if peak is None and len(devices) == 1:
        peak = gpu_models.peak_flops_per_s(gpu_models.of_device(devices[0]), precision)
    return known(
        peak,
        Reason(
            "peak_unknown",
            platform=hardware.platform,
            precision=precision,
            devices=" and ".join(map(repr, devices)) or "its GPUs",
        ),
    )
