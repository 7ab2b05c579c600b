"""The kinds of faults, and what each may end in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

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

_EITHER_KILLED = _RANK_KILLED | {"telemetry_invalid": rf"(telemetry|sampl).*({_KILLED})"}

#: one fault a run
_FAULTS = (
    Kind("rank_killed", "run", faults.rank_killed, _RANK_KILLED),
    Kind("all_ranks_killed", "run", faults.all_ranks_killed, _RANK_KILLED),
    Kind(
        "sampler_killed",
        "run",
        faults.sampler_killed,
        {"telemetry_invalid": rf"(telemetry|sampl).*({_KILLED})"},
        trainings=2,
    ),
    Kind("script_killed", "run", faults.script_killed, {"error": rf"script.*({_KILLED})"}),
    Kind("launcher_killed", "run", faults.launcher_killed, {"error": _KILLED}),
    Kind(
        "step_managers_killed",
        "run",
        faults.step_managers_killed,
        {"error": _KILLED, "node_failure": "", "completed": ""},
        jobs=3,
    ),
    Kind(
        "host_out_of_memory",
        "run",
        faults.host_out_of_memory,
        {"out_of_memory": r"rank \d.*memory"},
        real=False,
    ),
    Kind(
        "full_file_system",
        "run",
        faults.full_file_system,
        {"error": "no space", "telemetry_invalid": "no space", "none": "no space"},
        trainings=2,
    ),
    Kind("torn_line", "run", faults.torn_line, _RANK_KILLED),
    Kind("torn_telemetry", "run", faults.torn_telemetry, _COMPLETED),
    Kind("scancel", "run", faults.scancel, {"cancelled": "cancel"}),
    Kind("time_limit", "run", faults.time_limit, {"timeout": "time limit"}),
    Kind("requeue", "run", faults.requeue, _COMPLETED, keeps_attempt=True),
    Kind("script_replaced", "run", faults.script_replaced, {"completed": "edited"}),
    Kind("waiting_process_killed", "run", faults.waiting_process_killed, _COMPLETED),
    Kind("submitter_killed", "run", faults.submitter_killed, _COMPLETED),
    Kind("two_invocations", "run", faults.two_invocations, _COMPLETED),
    Kind("stale_lock", "run", faults.stale_lock, _COMPLETED),
    Kind("slurmd_killed", "node", cluster_faults.slurmd_killed, _COMPLETED),
    Kind(
        "node_set_down",
        "node",
        cluster_faults.node_set_down,
        _COMPLETED,
        jobs=3,
        keeps_attempt=True,
    ),
    Kind(
        "gpu_lost",
        "node",
        cluster_faults.gpu_lost,
        _COMPLETED | {"node_failure": "GPU 0 of .*lost"},
        jobs=3,
        real=False,
    ),
    Kind("node_lost", "node", cluster_faults.node_lost, _COMPLETED, jobs=3, keeps_attempt=True),
    # A job that slurmctld launched twice is held, given up and submitted again.
    Kind("slurmctld_killed", "cluster", cluster_faults.slurmctld_killed, _COMPLETED, jobs=3),
    Kind("slurmdbd_killed", "cluster", cluster_faults.slurmdbd_killed, _COMPLETED),
    Kind(
        "slurmctld_and_slurmdbd_killed",
        "cluster",
        cluster_faults.slurmctld_and_slurmdbd_killed,
        _COMPLETED,
        jobs=3,
    ),
    Kind("snakemake_killed", "workflow", workflow_faults.snakemake_killed, _COMPLETED),
    Kind("session_killed", "workflow", workflow_faults.session_killed, _COMPLETED),
    Kind("hangup", "workflow", workflow_faults.hangup, _COMPLETED),
    Kind("two_snakemakes", "workflow", workflow_faults.two_snakemakes, _COMPLETED),
    Kind(
        "interrupt",
        "workflow",
        workflow_faults.interrupt,
        {"cancelled": "cancel"},
    ),
    Kind("suspended", "run", pairs.suspended, {"telemetry_invalid": "suspended for"}, trainings=2),
    Kind("hidden_from_another_user", "run", site_faults.hidden_from_another_user, _COMPLETED),
    Kind("told_to_end", "run", site_faults.told_to_end, _COMPLETED),
    Kind("terminated", "workflow", workflow_faults.terminated, _COMPLETED),
    Kind("submissions_limited", "run", site_faults.submissions_limited, _COMPLETED),
    Kind(
        "clock_skew",
        "run",
        site_faults.clock_skew,
        {"telemetry_invalid": r"ended step \d+ .* before rank"},
        trainings=2,
        real=False,
    ),
    Kind(
        "telemetry_deleted",
        "run",
        site_faults.telemetry_deleted,
        {"telemetry_invalid": "telemetry"},
        trainings=2,
    ),
    Kind(
        "end_record_damaged",
        "run",
        site_faults.end_record_damaged,
        {"error": r"ended\.json"},
        jobs=2,
        trainings=2,
    ),
    Kind(
        "job_record_damaged",
        "run",
        site_faults.job_record_damaged,
        _COMPLETED,
    ),
    Kind("results_moved", "run", site_faults.results_moved, {"none": "moved or copied"}),
    Kind("results_copied", "run", site_faults.results_copied, {"none": "moved or copied"}),
    Kind(
        "preempted_and_requeued",
        "node",
        cluster_faults.preempted_and_requeued,
        _COMPLETED,
        keeps_attempt=True,
    ),
    Kind(
        "preempted_and_cancelled",
        "node",
        cluster_faults.preempted_and_cancelled,
        {"preempted": "preempted"},
        jobs=3,
        keeps_attempt=True,
    ),
    Kind("no_shared_memory", "cluster", cluster_faults.no_shared_memory, _COMPLETED),
    Kind("arrays_forbidden", "workflow", workflow_faults.arrays_forbidden, _COMPLETED),
    Kind("reduce_killed", "workflow", analysis_faults.reduce_killed, _COMPLETED),
    Kind("collect_killed", "workflow", analysis_faults.collect_killed, _COMPLETED),
    Kind("summary_damaged", "workflow", analysis_faults.summary_damaged, _COMPLETED),
    Kind("summary_deleted", "workflow", analysis_faults.summary_deleted, _COMPLETED),
    Kind("outcome_damaged", "workflow", analysis_faults.outcome_damaged, _COMPLETED),
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
    Kind("rank+sampler_killed", "run", pairs.rank_and_sampler_killed, _EITHER_KILLED, trainings=2),
    Kind(
        "waiting_process+rank_killed",
        "run",
        pairs.waiting_process_and_rank_killed,
        _RANK_KILLED,
        jobs=2,
    ),
    Kind(
        "waiting_process+script_killed",
        "run",
        pairs.waiting_process_and_script_killed,
        {"error": rf"script.*({_KILLED})"},
        jobs=2,
    ),
    Kind(
        "requeue+rank_killed",
        "run",
        pairs.requeued_and_rank_killed,
        _RANK_KILLED,
        keeps_attempt=True,
    ),
    Kind(
        "suspended+rank_killed",
        "run",
        pairs.suspended_and_rank_killed,
        {"error": rf"rank \d.*({_KILLED}).*suspended for"},
    ),
    Kind(
        "submitter_killed+scancel",
        "run",
        pairs.submitter_killed_and_scancel,
        {"cancelled": "cancel"},
    ),
    Kind("two_invocations+rank_killed", "run", pairs.two_invocations_and_rank_killed, _RANK_KILLED),
    Kind(
        "stale_lock+sampler_killed",
        "run",
        pairs.stale_lock_and_sampler_killed,
        {"telemetry_invalid": rf"(telemetry|sampl).*({_KILLED})"},
        trainings=2,
    ),
    Kind(
        "slurmctld+ranks_killed",
        "cluster",
        pairs.slurmctld_and_ranks_killed,
        _RANK_KILLED | _COMPLETED,
        jobs=3,
    ),
    Kind(
        "snakemake+rank_killed",
        "workflow",
        pairs.snakemake_and_rank_killed,
        _RANK_KILLED | _COMPLETED,
        jobs=2,
    ),
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
    return {kind.name: kind for kind in (*_FAULTS, *alone, *_PAIRS, *mixed)}


KINDS = _all()
