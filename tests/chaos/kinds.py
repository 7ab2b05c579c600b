"""The kinds of faults, and what each may end in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from tests.chaos import (
    analysis_faults,
    cluster_faults,
    conditions,
    faults,
    pairs,
    site_faults,
    workflow_faults,
)
from tests.chaos.victim import Verdict, Victim

#: what a fault takes for itself: a run, a node, the cluster, or a Snakemake and its runs
Scope = Literal["run", "node", "cluster", "workflow"]
#: nothing was lost to the fault
_COMPLETED = {"completed": ""}


@dataclass(frozen=True)
class Kind:
    """One kind of fault."""

    name: str
    scope: Scope
    inject: Callable[[Victim], None] | Callable[[list[Victim]], None]
    #: outcome → words (a pattern) that the cause must have; "none": the process that waited gave up
    #: with a message
    endings: Mapping[str, str]
    #: jobs that may have been submitted for a run by its first verdict
    jobs: int = 1
    #: times that a run may train to its end, the rerun included
    trainings: int = 1
    #: whether it works with real training, which cannot be told to wait or to take memory
    real: bool = True
    #: whether an earlier attempt must have been kept by the first verdict
    keeps_attempt: bool = False

    def explains(self, verdict: Verdict) -> bool:
        """Whether an outcome names the fault."""
        words = self.endings.get(verdict.outcome or "none")
        return words is not None and re.search(words, verdict.cause, re.IGNORECASE) is not None


_KILLED = r"SIGKILL|signal 9"
_RANK_KILLED = {"error": rf"rank \d.*({_KILLED})"}
_SCRIPT_KILLED = {"error": rf"script.*({_KILLED})"}
_SAMPLER_KILLED = {"telemetry_invalid": rf"(telemetry|sampl).*({_KILLED})"}
_EITHER_KILLED = _RANK_KILLED | _SAMPLER_KILLED
_NO_SPACE = dict.fromkeys(("error", "telemetry_invalid", "none"), "no space")
_STEPS_KILLED = {"error": _KILLED, "node_failure": "", "completed": ""}
_GPU_LOST = {"completed": "", "node_failure": "GPU 0 of .*lost"}
_CANCELLED = {"cancelled": "cancel"}
_MOVED = {"none": "moved or copied"}


def _of_run(
    inject: Callable[..., None], endings: Mapping[str, str] = _COMPLETED, **options: Any
) -> Kind:
    """The kind of a fault that takes a run for itself; its name is that of the function."""
    return Kind(inject.__name__, "run", inject, endings, **options)


def _of(
    scope: Scope,
    inject: Callable[..., None],
    endings: Mapping[str, str] = _COMPLETED,
    **options: Any,
) -> Kind:
    """The same of a fault that takes more."""
    return replace(_of_run(inject, endings, **options), scope=scope)


#: one fault a run
_FAULTS = (
    _of_run(faults.rank_killed, _RANK_KILLED),
    _of_run(faults.all_ranks_killed, _RANK_KILLED),
    _of_run(faults.sampler_killed, _SAMPLER_KILLED, trainings=2),
    _of_run(faults.script_killed, _SCRIPT_KILLED),
    _of_run(faults.launcher_killed, {"error": _KILLED}),
    _of_run(faults.step_managers_killed, _STEPS_KILLED, jobs=3),
    _of_run(faults.host_out_of_memory, {"out_of_memory": r"rank \d.*memory"}, real=False),
    _of_run(faults.full_file_system, _NO_SPACE, trainings=2),
    _of_run(faults.torn_line, _RANK_KILLED),
    _of_run(faults.torn_telemetry),
    _of_run(faults.scancel, _CANCELLED),
    _of_run(faults.time_limit, {"timeout": "time limit"}),
    _of_run(faults.requeue, keeps_attempt=True),
    _of_run(faults.script_replaced, {"completed": "edited"}),
    _of_run(faults.waiting_process_killed),
    _of_run(faults.submitter_killed),
    _of_run(faults.two_invocations),
    _of_run(faults.stale_lock),
    _of("node", cluster_faults.slurmd_killed),
    _of("node", cluster_faults.node_set_down, jobs=3, keeps_attempt=True),
    _of("node", cluster_faults.gpu_lost, _GPU_LOST, jobs=3, real=False),
    _of("node", cluster_faults.node_lost, jobs=3, keeps_attempt=True),
    # A job that slurmctld launched twice is held, given up and submitted again.
    _of("cluster", cluster_faults.slurmctld_killed, jobs=3),
    _of("cluster", cluster_faults.slurmdbd_killed),
    _of("cluster", cluster_faults.slurmctld_and_slurmdbd_killed, jobs=3),
    _of("workflow", workflow_faults.snakemake_killed),
    _of("workflow", workflow_faults.session_killed),
    _of("workflow", workflow_faults.hangup),
    _of("workflow", workflow_faults.two_snakemakes),
    _of("workflow", workflow_faults.interrupt, _CANCELLED),
    _of_run(pairs.suspended, {"telemetry_invalid": "suspended for"}, trainings=2),
    _of_run(site_faults.hidden_from_another_user),
    _of_run(site_faults.told_to_end),
    _of("workflow", workflow_faults.terminated),
    _of_run(site_faults.submissions_limited),
    _of_run(
        site_faults.clock_skew,
        {"telemetry_invalid": r"ended step \d+ .* before rank"},
        trainings=2,
        real=False,
    ),
    _of_run(site_faults.telemetry_deleted, {"telemetry_invalid": "telemetry"}, trainings=2),
    _of_run(site_faults.end_record_damaged, {"error": r"ended\.json"}, jobs=2, trainings=2),
    _of_run(site_faults.job_record_damaged),
    _of_run(site_faults.results_moved, _MOVED),
    _of_run(site_faults.results_copied, _MOVED),
    _of("node", cluster_faults.preempted_and_requeued, keeps_attempt=True),
    _of(
        "node",
        cluster_faults.preempted_and_cancelled,
        {"preempted": "preempted"},
        jobs=3,
        keeps_attempt=True,
    ),
    _of("cluster", cluster_faults.no_shared_memory),
    _of("workflow", workflow_faults.arrays_forbidden),
    _of("workflow", analysis_faults.reduce_killed),
    _of("workflow", analysis_faults.collect_killed),
    _of("workflow", analysis_faults.summary_damaged),
    _of("workflow", analysis_faults.summary_deleted),
    _of("workflow", analysis_faults.outcome_damaged),
)
#: what a run goes through without a fault
_CONDITIONS = {
    each.__name__: each
    for each in (
        conditions.wrappers_print,
        conditions.wrappers_slow,
        conditions.wrappers_fail_before,
        conditions.wrappers_fail_after,
        conditions.wrappers_speak_otherwise,
        conditions.controller_garbles,
        conditions.user_defaults,
        conditions.accounting_gone,
        conditions.umask_027,
        conditions.full_tmpdir,
        conditions.read_only_home,
    )
}
#: two faults a run
_PAIRS = (
    _of_run(pairs.rank_and_sampler_killed, _EITHER_KILLED, trainings=2),
    _of_run(pairs.waiting_process_and_rank_killed, _RANK_KILLED, jobs=2),
    _of_run(pairs.waiting_process_and_script_killed, _SCRIPT_KILLED, jobs=2),
    _of_run(pairs.requeue_and_rank_killed, _RANK_KILLED, keeps_attempt=True),
    _of_run(pairs.suspended_and_rank_killed, {"error": rf"rank \d.*({_KILLED}).*suspended for"}),
    _of_run(pairs.submitter_killed_and_scancel, _CANCELLED),
    _of_run(pairs.two_invocations_and_rank_killed, _RANK_KILLED),
    _of_run(pairs.stale_lock_and_sampler_killed, _SAMPLER_KILLED, trainings=2),
    _of("cluster", pairs.slurmctld_and_ranks_killed, _RANK_KILLED | _COMPLETED, jobs=3),
    _of("workflow", pairs.snakemake_and_rank_killed, _RANK_KILLED | _COMPLETED, jobs=2),
)
#: a fault in a run that goes through a condition as well
_MIXED = (
    ("wrappers_print", "rank_killed"),
    ("wrappers_print", "waiting_process_killed"),
    ("wrappers_slow", "scancel"),
    ("wrappers_slow", "sampler_killed"),
    ("wrappers_fail_before", "time_limit"),
    ("wrappers_fail_before", "requeue"),
    ("wrappers_fail_after", "script_killed"),
    ("wrappers_fail_after", "waiting_process_killed"),
    ("wrappers_speak_otherwise", "launcher_killed"),
    ("controller_garbles", "waiting_process_killed"),
    ("controller_garbles", "requeue"),
    ("user_defaults", "submitter_killed"),
    ("user_defaults", "scancel"),
    ("accounting_gone", "all_ranks_killed"),
    ("accounting_gone", "requeue"),
    ("umask_027", "scancel"),
    ("umask_027", "two_invocations"),
    ("full_tmpdir", "rank_killed"),
    ("full_tmpdir", "torn_line"),
    ("read_only_home", "sampler_killed"),
)


def _all() -> dict[str, Kind]:
    found = {kind.name: kind for kind in _FAULTS}
    mixed = [
        replace(
            found[fault],
            name=f"{name}+{fault}",
            inject=conditions.together(_CONDITIONS[name], found[fault].inject),
        )
        for name, fault in _MIXED
    ]
    alone = [
        Kind(name, "run", conditions.alone(condition), _COMPLETED)
        for name, condition in _CONDITIONS.items()
    ]
    paired = [replace(kind, name=kind.name.replace("_and_", "+")) for kind in _PAIRS]
    return {kind.name: kind for kind in (*_FAULTS, *alone, *paired, *mixed)}


KINDS = _all()
