"""The kinds of faults, and what each may end in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from tests.chaos import cluster_faults, faults, workflow_faults
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

KINDS = {
    kind.name: kind
    for kind in (
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
    )
}
