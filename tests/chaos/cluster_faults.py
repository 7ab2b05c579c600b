"""Faults of nodes, and of the daemons of the whole cluster."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable

from tests.chaos import processes
from tests.chaos.victim import ASK_EVERY_S, PATIENCE_S, Victim

_REQUEUE_PAUSE_S = 8.0
_PREEMPTING = threading.Lock()


# ---------------------------------------------------------------------- nodes


def _node_of_training(victim: Victim) -> str:
    """Start it and wait until it trains; returns one of its nodes, for a fault now."""
    victim.start()
    victim.train()
    node = victim.random.choice(victim.nodes())
    victim.note(node)
    return node


def slurmd_killed(victim: Victim) -> None:
    """The job goes on without it, and may end meanwhile."""
    node = _node_of_training(victim)
    victim.site.cluster.kill(node)
    victim.release()
    time.sleep(victim.random.uniform(0.5, 6))
    victim.site.cluster.revive(node)


def node_set_down(victim: Victim) -> None:
    node = _node_of_training(victim)
    _set_node(victim, node, "State=DOWN", "Reason=chaos")
    victim.release()
    victim.afterwards.append(lambda: _resume(victim, node))
    if victim.site.platform == "mi250":  # the only node of its partition
        time.sleep(3)
        _resume(victim, node)
    _hurry_if_requeued(victim)


def node_lost(victim: Victim) -> None:
    """All that runs on a node ends at once, its daemon too: its power is gone."""
    node = _node_of_training(victim)
    for each in processes.on_node(node, victim.site.cluster.directory):
        each.kill()
    victim.release()

    def noticed() -> bool:
        return victim.site.cluster.node_states().get(node, "").startswith("down")

    victim.until(noticed, f"Slurm's word that {node} is down", 120, ASK_EVERY_S)
    victim.site.cluster.revive(node)
    _hurry_if_requeued(victim)


def gpu_lost(victim: Victim) -> None:
    """The driver has lost a GPU of a node. Where there is another node, the run ends well there."""
    node = f"{victim.site.platform}-1"
    victim.note(node)
    victim.release()
    victim.start(CHAOS_LOST_GPU=node)


def preempted_and_requeued(victim: Victim) -> None:
    """A job of a QoS that may preempt wants the node; Slurm starts the run again."""
    _preempted(victim, "requeue")


def preempted_and_cancelled(victim: Victim) -> None:
    """The same where Slurm ends what it preempts."""
    _preempted(victim, "cancel")


def _preempted(victim: Victim, mode: str) -> None:
    run = victim.site.cluster.run
    node = _node_of_training(victim)
    # All victims of a cluster have one QoS, and with it one mode.
    with _PREEMPTING:
        for request in (
            ["add", "qos", "urgent"],
            ["modify", "qos", "urgent", "set", "Preempt=normal"],
            ["modify", "qos", "normal", "set", f"PreemptMode={mode}"],
            ["modify", "user", "root", "set", "QOS=normal,urgent"],
        ):
            # What is so already is refused as "nothing modified".
            run("sacctmgr", "--immediate", *request, check=False)
        urgent = ("--qos=urgent", f"--partition={victim.site.platform}", f"--nodelist={node}")
        job = run(
            *("sbatch", "--parsable", "--exclusive", "--account=research", "--output=/dev/null"),
            *(*urgent, "--wrap=sleep 3"),
        ).stdout.partition(";")[0]
        query = ("squeue", "--noheader", f"--jobs={job.strip()}", "--format=%T")
        victim.until(
            lambda: run(*query, check=False).stdout.strip() != "PENDING",
            "the urgent job's start",
            120,
            ASK_EVERY_S,
        )
    victim.release()
    _hurry_if_requeued(victim)


def _hurry_if_requeued(victim: Victim) -> None:
    """Where Slurm itself starts the job again, do not wait two minutes for it.

    But a while: the node may still be told to end what ran there, and takes that for the new start.
    """
    time.sleep(_REQUEUE_PAUSE_S)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if victim.paths.outcome.exists() or victim.waiting[-1].poll() is not None:
            return
        job = victim.job()
        command = ("scontrol", "update", f"JobId={job}", "StartTime=now")
        victim.site.cluster.run(*command, check=False)
        time.sleep(1)


def _resume(victim: Victim, node: str) -> None:
    if victim.site.cluster.node_states().get(node, "").startswith(("down", "drain")):
        _set_node(victim, node, "State=RESUME")


def _set_node(victim: Victim, node: str, *settings: str) -> None:
    victim.site.cluster.run("scontrol", "update", f"NodeName={node}", *settings)


# ---------------------------------------------------------------------- the whole cluster


def no_shared_memory(victims: list[Victim]) -> None:
    """/dev/shm takes nothing, on any node."""
    mount = ["mount", "-t", "tmpfs", "-o", "ro,size=4k", "none", "/dev/shm"]
    subprocess.run(mount, check=True)

    def repair() -> None:
        subprocess.run(["umount", "/dev/shm"], check=True)

    victims[0].afterwards.append(repair)
    for victim in victims:
        victim.start()
    for victim in victims:
        victim.train()
        victim.note()


def slurmctld_killed(victims: list[Victim]) -> None:
    daemons_killed(victims, ("slurmctld",))


def slurmdbd_killed(victims: list[Victim]) -> None:
    daemons_killed(victims, ("slurmdbd",))


def slurmctld_and_slurmdbd_killed(victims: list[Victim]) -> None:
    daemons_killed(victims, ("slurmctld", "slurmdbd"))


def daemons_killed(
    victims: list[Victim],
    names: tuple[str, ...],
    meanwhile: Callable[[list[Victim]], None] = lambda trained: None,
) -> None:
    """Some runs train, some are yet to be submitted; all end while the daemons are gone or not.

    ``meanwhile`` happens to those that train, while the daemons are gone.
    """
    cluster = victims[0].site.cluster
    first, rest = victims[::2], victims[1::2]
    for victim in first:
        victim.start()
    for victim in first:
        victim.train()
    # What slurmctld was told in its last seconds it forgets with a crash, and gives the same number
    # to another job: that is Slurm's to mend.
    submitted_unix_s = time.time()
    saved = cluster.directory / "state" / "job_state"
    first[0].until(lambda: saved.stat().st_mtime > submitted_unix_s - 3, "slurmctld's state", 30)
    for victim in victims:
        victim.note()
    for name in names:
        cluster.kill(name)
    meanwhile(first)
    for victim in rest:
        victim.start()
    time.sleep(1)
    for victim in victims:
        victim.release()
    time.sleep(victims[0].random.uniform(1, 8))
    for name in reversed(names):  # the database first
        cluster.revive(name)
    _look_after_nodes(victims)


def _look_after_nodes(victims: list[Victim]) -> None:
    """Do as an admin would, and say so. A slurmctld that died while it launched a job launches it
    again; the node calls that a duplicate and is drained, and the job is held.

    Nodes are resumed at once. Jobs are let go when nobody waits any more: by then each run has its
    result, and what starts all the same must leave that alone.
    """
    cluster = victims[0].site.cluster
    deadline = time.monotonic() + PATIENCE_S / 2
    while time.monotonic() < deadline and any(
        process.poll() is None for each in victims for process in each.waiting
    ):
        for node, state in cluster.node_states().items():
            if state.startswith("drain"):
                _set_node(victims[0], node, "State=RESUME")
                victims[0].details.append(f"{node} was drained, and resumed")
        time.sleep(2)
    held = cluster.run("squeue", "--noheader", "--format=%i %r", check=False).stdout.splitlines()
    for job, _, reason in (line.partition(" ") for line in held):
        if reason.startswith("launch failed"):
            cluster.run("scontrol", "release", job, check=False)
            # What was requeued may start only two minutes later.
            cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now", check=False)
            victims[0].until(
                lambda job=job: not cluster.run("squeue", "-h", "-j", job, check=False).stdout,
                f"the end of job {job}",
                60,
            )
            victims[0].details.append(f"job {job} was held, and let go")
