"""Two faults in one run, at the same time or one after the other."""

from __future__ import annotations

import time

from tests.chaos import faults, processes, workflow_faults
from tests.chaos.cluster_faults import daemons_killed
from tests.chaos.victim import ASK_EVERY_S, Victim


def rank_and_sampler_killed(victim: Victim) -> None:
    job = victim.under_way()
    both = [victim.random.choice(processes.ranks(job)), processes.samplers(job)[0]]
    victim.random.shuffle(both)
    for each in both:
        each.kill()


def waiting_process_and_rank_killed(victim: Victim) -> None:
    """The job fails while nobody waits for it."""
    ranks = processes.ranks(victim.under_way())
    victim.leave_alone()
    victim.random.choice(ranks).kill()
    victim.until(victim.paths.ended.exists, "the job's end record")
    victim.start()


def waiting_process_and_script_killed(victim: Victim) -> None:
    """The job ends without an end record while nobody waits for it."""
    job = victim.under_way()
    victim.leave_alone()
    processes.script(job).kill()
    victim.until(victim.is_over, "the job's end", every_s=ASK_EVERY_S)
    victim.start()


def requeue_and_rank_killed(victim: Victim) -> None:
    """The second start of a job fails."""
    victim.under_way()
    victim.site.cluster.run("scontrol", "requeue", victim.job())
    faults.hurry(victim)
    victim.until(victim.paths.attempts.exists, "the first start's attempt")
    ranks = processes.ranks(victim.train())
    victim.random.choice(ranks).kill()


def suspended_and_rank_killed(victim: Victim) -> None:
    suspended(victim)
    victim.until(victim.paths.suspended.exists, "the record of the suspension", 60)
    victim.random.choice(processes.ranks(victim.processes())).kill()


def suspended(victim: Victim) -> None:
    """For longer than the job takes between two looks at itself."""
    victim.under_way()
    job = victim.job()
    victim.site.cluster.run("scontrol", "suspend", job)
    time.sleep(victim.random.uniform(7, 12))
    victim.site.cluster.run("scontrol", "resume", job)


def submitter_killed_and_scancel(victim: Victim) -> None:
    faults.submitter_killed(victim)
    victim.train()
    victim.site.cluster.run("scancel", victim.job())


def two_invocations_and_rank_killed(victim: Victim) -> None:
    faults.two_invocations(victim)
    ranks = processes.ranks(victim.train())
    victim.note()
    victim.random.choice(ranks).kill()


def stale_lock_and_sampler_killed(victim: Victim) -> None:
    faults.stale_lock(victim)
    samplers = processes.samplers(victim.train())
    victim.note()
    victim.random.choice(samplers).kill()


def slurmctld_and_ranks_killed(victims: list[Victim]) -> None:
    """Ranks die while nobody schedules."""

    def meanwhile(trained: list[Victim]) -> None:
        for victim in trained:
            victim.random.choice(processes.ranks(victim.processes())).kill()

    daemons_killed(victims, ("slurmctld",), meanwhile)


def snakemake_and_rank_killed(victims: list[Victim]) -> None:
    """A rank dies while no Snakemake runs."""

    def meanwhile() -> None:
        victim = victims[0].random.choice(victims)
        victim.random.choice(processes.ranks(victim.processes())).kill()
        victim.until(victim.paths.ended.exists, "the job's end record")

    workflow_faults.snakemake_killed(victims, meanwhile)
