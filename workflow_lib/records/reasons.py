"""Why a value is null: codes, each with its sentence.

A table's ``missing_codes`` has the code of each null column, and ``missing_reasons`` its sentence.
Codes are stable; sentences may change. ``docs/reference/reasons.md`` lists both.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from typing import Any

# fmt: off
#: code → its sentence, with the names of its values
SENTENCES: Mapping[str, str] = {
    "allocator_counts_fell": "rank {rank}: the counts of torch's allocator ran backwards",
    "allocator_does_not_count": "torch's allocator does not count them ({allocator})",
    "as_the_verdict": "{why}",
    "bandwidth_unknown": "the bandwidth is not known",
    "clock_not_compared": "{node}: {why}",
    "collectives_unmatched": "some of these collectives were not found on all of their ranks",
    "compared_rate": "the other rates are compared with this one",
    "counter_fell": "the counter {counter} ran backwards",
    "counter_not_around": "{counter} was not read both before and after the measured steps",
    "counter_not_asked": "the energy counter is not asked for",
    "counter_off_edges":
        "the readings of energy_j nearest to the edges of the measured steps are {off_s:.3g} s off "
        "them in all, more than {largest_completed_share:.0%} of their time",
    "counter_steps_unknown": "the steps of this driver's counters are not known",
    "counter_stood_still": "the counter or power stood still, which cannot be compared",
    "counter_times_uncertain":
        "two readings of energy_j, {apart_s:.3g} s apart, have times that may be off by "
        "{times_off_s:.3g} s, more than {largest_time_error:.1%} of that",
    "counter_too_fast": "the counter energy_j advanced faster than the GPU can draw",
    "cpu_has_no_gpu_allocator":
        "trained on a CPU, whose memory torch's allocator of GPU memory does not hold",
    "cpu_memory_not_counted": "trained on a CPU, whose memory no driver counts",
    "cpu_peak_unknown": "trained on a CPU ({devices}), whose peak is not known",
    "date_effect_unknown": "the effect of a date or a node is unknown, and {why}",
    "drift_within_noise":
        "noise does not tell whether {measures} drifted; more measured steps would",
    "driver_does_not_tell": "the driver does not report {what}",
    "drops_not_recorded": "a rank did not record what its routers dropped",
    "edge_not_read": "the {end} {column} was read {off_s:.3g} s {edge}",
    "events_without_bound": "event bits as sampled have no bound on their error",
    "file_missing": "{file} is missing",
    "flops_unknown": "how much of the model was computed is not known: {unknown}",
    "gpu_memory_not_recorded": "no rank recorded it",
    "gpu_model_unknown": "not known for {name}",
    "group_not_named": "the trace does not name the process group",
    "group_ranks_unknown": "the ranks of the process group, or those of a node, are not known",
    "idle_not_watched": "telemetry of node {node} ended before training began",
    "idle_too_short":
        "node {node} was watched for {watched_s:.3g} s before training began, less than the "
        "{shortest_idle_s:g} s that power is averaged over",
    "layout_unknown": "the layout is not known",
    "limit_changed": "the limit was changed during the run, from {limit:g} W to {last:g} W",
    "limit_raised_later":
        "mean power was {mean_w:.3g} W, so the limit of {limit_w:g} W, read before training, was "
        "raised later",
    "link_counters_fell": "the link counters ran backwards: the GPU was reset, or they restarted",
    "link_peak_unknown": "the peak of the link is not known",
    "link_steps_differ":
        "the rank counted {counted} steps from step {first} on, and recorded {recorded}",
    "links_not_counted": "{why}",
    "links_read_within_steps": "the link counters were read within steps, not between them",
    "look_of_unknown_length":
        "a sample of the driver is a short look of the sensor, of unknown length",
    "loss_not_recorded": "no rank recorded the loss",
    "losses_differ": "ranks recorded different losses of one batch: {lowest:g} to {highest:g}",
    "mean_is_zero": "the mean of {quantity} is 0, so that no change is a share of it",
    "memory_lower_bound": "memory_used_peak_bytes is only a lower bound in this run",
    "memory_not_recorded": "no rank recorded its memory",
    "message_sizes_unknown": "the trace does not say the size of every message",
    "never_at_limit": "power never came within 5 % of the limit",
    "never_power_capped": "the power cap never lowered the clock",
    "never_read": "no sample has a {column}",
    "no_choice": "no router chose an expert",
    "no_collective_matched": "no collective was found on all of its ranks",
    "no_cool_down": "the cell has no cool-down",
    "no_energy_counter": "no energy counter tells how far the energy of a run is off",
    "no_gpu_name": "no sampler recorded the name of a GPU",
    "no_idle_baseline": "the cell asks for no idle baseline (idle_baseline_s is 0)",
    "no_inlet_sensor": "the node has no sensor of its inlet's air",
    "no_kernels": "the trace holds no kernels",
    "no_node_telemetry": "no node has telemetry",
    "no_package_sensor": "no GPU that a rank used reports its package's power",
    "no_pipeline": "the layout has no pipeline",
    "no_power_source": "no GPU has a source of power",
    "no_reading_inside": "no reading lies within the measured steps",
    "no_reason": "no reason was recorded",
    "no_router": "a dense model has no router",
    "no_run_planned": "the plan asks for no run",
    "no_sample_of_gpu": "telemetry of node {node} has no sample of GPU {gpu}",
    "no_sampler": "no sampler started",
    "no_step_in_block":
        "no measured step lies wholly within a block of {rate_hz:g} Hz: use more measured_steps "
        "or, where a step takes longer than a block, a longer block_s",
    "no_tick_due": "at {rate_hz:g} Hz no tick was due",
    "no_two_dates": "there are no two dates on which both sides ran",
    "no_unsampled_step":
        "no measured step lies wholly within a block without sampling to compare with",
    "no_warmup": "without a warm-up, counts of before the measured steps are not known",
    "no_whole_step_counted": "no whole step was counted",
    "not_completed": "the run ended as {outcome}",
    "not_computed": "not computed",
    "not_ended": "no job of it has ended",
    "not_of_energy": "the measure is not of energy, or has no interval",
    "not_of_inference": "inference reports prefill and decode apart, and has no loss",
    "not_of_power": "the measure does not use a power sensor",
    "not_of_the_job": "the GPU does not belong to the job",
    "not_positive": "{measure} is {value}, so nothing can be divided by it",
    "not_read": "{why}",
    "not_read_in_step": "{node} GPU {gpu}: readings of {quantity} do not cover the whole step",
    "not_read_in_steps": "{node}: {quantity} was not read throughout all steps",
    "not_read_throughout": "{column} was not read throughout the measured steps",
    "not_reduced": "the run completed but has not been reduced: there is no summary of it",
    "not_submitted_here":
        "the run was not submitted by the workflow, or by an earlier version of it",
    "not_told": "not told by the trainer",
    "not_told_apart": "{why}",
    "of_earlier_version": "an earlier version made the run, and {lack}",
    "one_clock": "one node has one clock",
    "one_gpu_a_node": "no node has two GPUs to compare",
    "one_token_a_sequence": "each sequence generates one token, which its prefill chooses",
    "other_gpu_than_platform":
        "platform {platform} gives the peak of {gpu!r}, but trained on another GPU: {why}",
    "package_sensor_unused":
        "{node} GPU {gpu}: its package's power is reported by GPU {sensor}, unused here",
    "peak_unknown":
        "platform {platform} gives no {precision} peak, and that of {devices} is not known",
    "phase_too_short":
        "a step's {phase} takes {duration_s:.3g} s; boards average power over about a second, so "
        "that phases under {shortest_phase_s:g} s cannot be told apart: use more sequences or "
        "longer ones",
    "pipeline_clock_unaligned": "the clock of rank {other} of its pipeline could not be aligned",
    "pipeline_rank_untraced": "rank {rank} of its pipeline has no trace",
    "pipeline_steps_differ": "the ranks of its pipeline were not traced in the same steps",
    "power_error_unknown": "{why}",
    "power_not_at_counter": "power was not read at the counter's readings",
    "rank_memory_not_recorded": "a rank did not record its memory",
    "rank_recorded_none": "rank {rank} recorded none",
    "ranks_lack_step": "{present} of {ranks} recorded the step",
    "rates_alternate": "the sampler's rate alternated",
    "reading_gap":
        "{column} was not read for {gap_s:.3g} s, more than the {bridged_s:.3g} s that are "
        "interpolated",
    "readings_too_long_for_bursts": "power readings are means over too long to show bursts",
    "record_damaged": "{why}",
    "shares_package_sensor":
        "GPU {gpu} shares the power sensor of its package ({gpus_per_package} GPUs) with GPU "
        "{sensor}, which reports for all of it",
    "simulated_counters": "simulated counters do not advance in steps",
    "simulated_sensor": "simulated power has no sensor",
    "simulated_sensor_error": "simulated readings have no sensor error",
    "start_not_recorded": "the job left no record of its start",
    "steps_unreadable": "{otherwise}; and the steps cannot be read: {why}",
    "telemetry_invalid": "telemetry is invalid: {cause}",
    "too_few_blocks":
        "the measured steps make {blocks} of a second or more; {fewest_values} are needed to tell "
        "a drift from noise",
    "too_few_pairs": "an interval needs {fewest_pairs} pairs, but this rate has {have}",
    "too_few_runs": "a side has fewer than {fewest} runs",
    "took_no_time": "it took no time",
    "trace_of_several_gpus": "the trace holds several GPUs",
    "traces_incomplete": "{left}, so the run has no shares of time",
    "traces_not_analysed": "the run completed but its traces have not been analysed",
    "unclassified": "{why}",
    "within_offsets": "the power is no more than what the sensors' offsets may be",
    "workload_generates_nothing": "workload {workload} generates nothing",
    "zero_or_null": "{of} is 0 or null",
}
# fmt: on


def values_of(code: str) -> frozenset[str]:
    """The names of the values that a code's sentence has. Raises KeyError for an unknown code."""
    return frozenset(name for _, name, _, _ in string.Formatter().parse(SENTENCES[code]) if name)


class Reason(str):
    """A sentence that says why a value is null, with its code and values."""

    code: str
    values: Mapping[str, Any]

    def __new__(cls, code: str, /, **values: Any) -> Reason:
        """Raises KeyError for a code that is not in SENTENCES, and TypeError for other values than
        its sentence has."""
        if values.keys() != values_of(code):
            raise TypeError(f"{code} has the values {sorted(values_of(code))}")
        return cls._made(SENTENCES[code].format(**values), code, values)

    @classmethod
    def _made(cls, sentence: str, code: str, values: Mapping[str, Any]) -> Reason:
        reason = super().__new__(cls, sentence)
        reason.code, reason.values = code, values
        return reason

    def of(self, whose: str) -> Reason:
        """The same reason of something that is named before it."""
        return self._made(f"{whose}: {self}", self.code, self.values)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._made, (str(self), self.code, dict(self.values))

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> dict[str, Reason]:
        """Why columns of a row are null, by their names. Rows of earlier versions have no codes."""
        codes = json.loads(row.get("missing_codes") or "{}")
        return {
            column: cls._made(sentence, codes.get(column, "unclassified"), {})
            for column, sentence in json.loads(row["missing_reasons"] or "{}").items()
        }

    @classmethod
    def of_column(cls, row: Mapping[str, Any], column: str) -> Reason:
        """Why a column of a row is null."""
        return cls.of_row(row).get(column) or cls("no_reason")


def missing(reasons: Mapping[str, Reason]) -> dict[str, str]:
    """The columns ``missing_reasons`` and ``missing_codes``: JSON objects by the names of
    columns."""
    codes = {name: why.code for name, why in reasons.items()}
    return {
        "missing_reasons": json.dumps(reasons, sort_keys=True, ensure_ascii=False),
        "missing_codes": json.dumps(codes, sort_keys=True),
    }
