"""The faults: one function a kind, which starts the run it is given and puts the fault into it."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path

from tests.chaos import processes
from tests.chaos.victim import ASK_EVERY_S, Victim

_MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")
_HOST_MEMORY_LEFT_BYTES = 48_000_000
_SMALL_FILE_SYSTEM = "size=3m"
#: Slurm runs this as a child of each process that is about to become a rank or a sampler
_INTO_MEMORY_GROUP = """#!/bin/sh
[ "$SLURM_STEP_ID" = 0 ] || echo "$PPID" >"$CHAOS_MEMORY_GROUP/cgroup.procs"
"""


# ---------------------------------------------------------------------- what a job consists of


def rank_killed(victim: Victim) -> None:
    victim.start()
    ranks = processes.ranks(victim.train())
    rank = victim.random.randrange(len(ranks))
    victim.note(f"rank {rank} of {len(ranks)}")
    ranks[rank].kill()


def all_ranks_killed(victim: Victim) -> None:
    ranks = processes.ranks(victim.under_way())
    for rank in ranks:
        rank.kill()


def sampler_killed(victim: Victim) -> None:
    samplers = processes.samplers(victim.under_way())
    victim.random.choice(samplers).kill()


def script_killed(victim: Victim) -> None:
    job = victim.under_way()
    processes.script(job).kill()


def launcher_killed(victim: Victim) -> None:
    job = victim.under_way()
    processes.launcher(job).kill()


def step_managers_killed(victim: Victim) -> None:
    """All of slurmstepd, and with it what it manages: where there are control groups, these go."""
    victim.start()
    job = victim.train()
    managers = processes.managers(victim.job())
    victim.note(f"{len(managers)} managers of {len(job)} processes")
    for each in (*managers, *job):
        each.kill()


def host_out_of_memory(victim: Victim) -> None:
    """The kernel ends a rank, because the control group that ranks were started in is full."""
    group = _MEMORY_GROUPS / f"triptych-chaos-{victim.name}"
    group.mkdir()
    own = victim.site.directory / "bin" / victim.name
    own.mkdir()
    prolog = own / "into-memory-group"
    srun = own / "srun"
    prolog.write_text(_INTO_MEMORY_GROUP)
    option = shlex.quote(f"--task-prolog={prolog}")
    srun.write_text(f'#!/bin/sh\nexec {shutil.which("srun")} {option} "$@"\n')
    for each in (prolog, srun):
        each.chmod(0o755)
    path = f"{own}{os.pathsep}{victim.site.environment['PATH']}"
    victim.start(PATH=path, CHAOS_MEMORY_GROUP=str(group))
    victim.train()
    used = int((group / "memory.usage_in_bytes").read_text())
    (group / "memory.limit_in_bytes").write_text(str(used + _HOST_MEMORY_LEFT_BYTES))
    victim.note(f"at {used} bytes")
    (victim.paths.directory / ".devour").touch()
    victim.until(lambda: "oom_kill 1" in _kills(group), "the kernel's end of a rank", 60)

    def repair() -> None:
        (victim.paths.directory / ".devour").unlink()
        victim.until(lambda: not (group / "cgroup.procs").read_text(), "the end of its group", 30)
        group.rmdir()

    victim.afterwards.append(repair)


def _kills(group: Path) -> str:
    return (group / "memory.oom_control").read_text()


def full_file_system(victim: Victim) -> None:
    """The run's directory lies on a file system that fills up while it trains."""
    directory = victim.paths.directory
    kept = victim.site.directory / f"kept-{victim.name}"
    shutil.copytree(directory, kept)
    mount = ["mount", "-t", "tmpfs", "-o", _SMALL_FILE_SYSTEM, "none", str(directory)]
    subprocess.run(mount, check=True)
    shutil.copytree(kept, directory, dirs_exist_ok=True)
    victim.under_way()
    ballast = directory / ".ballast"
    descriptor = os.open(ballast, os.O_WRONLY | os.O_CREAT)
    for size in (65536, 1):
        try:
            while os.write(descriptor, b"\0" * size):
                pass
        except OSError as error:
            victim.details.append(error.strerror or "")
    os.close(descriptor)
    victim.afterwards.append(ballast.unlink)


def torn_line(victim: Victim) -> None:
    """A crash that loses the end of the last line of what was being written."""
    job = victim.under_way()
    for rank in processes.ranks(job):
        rank.kill()
    with victim.paths.rank_steps(0).open("ab") as stream:
        stream.write(b"3,measured,17000000")


def torn_telemetry(victim: Victim) -> None:
    """The same of the samples of a run that went well."""
    victim.under_way()

    def tear() -> None:
        for path in victim.paths.telemetry.glob("*.csv"):
            text = path.read_bytes()
            path.write_bytes(text[: len(text) - max(2, len(text.splitlines()[-1]) // 2)])

    victim.measured.clear()
    victim.afterwards.append(tear)


# ---------------------------------------------------------------------- what people do to a job


def scancel(victim: Victim) -> None:
    if victim.random.random() < 0.4:
        victim.start(CHAOS_HOLD_IN_QUEUE="1")
        job = victim.job()
        victim.note("in the queue")
    else:
        victim.start()
        victim.train()
        job = victim.job()
        victim.note("in training")
    victim.site.cluster.run("scancel", job)


def time_limit(victim: Victim) -> None:
    """Its limit is brought near: Slurm looks at limits every half minute."""
    victim.start()
    victim.train()
    # Real training may end by itself within 40 s.
    ahead_s = 2 if victim.site.real else victim.random.choice((2, 40))
    victim.note(f"{ahead_s} s ahead")
    victim.site.cluster.run(
        "scontrol", "update", f"JobId={victim.job()}", f"EndTime=now+{ahead_s}seconds"
    )
    victim.until(
        lambda: victim.state() not in ("RUNNING",), "the end at the time limit", 120, ASK_EVERY_S
    )


def requeue(victim: Victim) -> None:
    victim.under_way()
    victim.site.cluster.run("scontrol", "requeue", victim.job())
    victim.release()
    hurry(victim)


def hurry(victim: Victim) -> None:
    """Slurm starts what was requeued two minutes later; not so here."""
    job = victim.job()

    def started() -> bool:
        victim.site.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now", check=False)
        return victim.state() not in ("PENDING", "COMPLETING", "REQUEUED", "NODE_FAIL")

    victim.until(started, "the second start", 120, ASK_EVERY_S)


def script_replaced(victim: Victim) -> None:
    victim.under_way()
    replaced = victim.paths.script.with_name(".job.sh.new")
    replaced.write_text(victim.paths.script.read_text() + "\necho another script\n")
    replaced.replace(victim.paths.script)


# ---------------------------------------------------------------------- who waits for the job


def waiting_process_killed(victim: Victim) -> None:
    queued = victim.random.random() < 0.4
    process = victim.start(**({"CHAOS_HOLD_IN_QUEUE": "1"} if queued else {}))
    job = victim.job()
    if not queued:
        victim.train()
    victim.note("in the queue" if queued else "in training")
    process.kill()
    process.wait()
    if queued:
        victim.site.cluster.run("scontrol", "release", job)
    if victim.random.random() < 0.5:
        # The job may end while nobody waits.
        victim.release()
        victim.until(victim.paths.ended.exists, "the job's end record")
        victim.details.append("ended alone")
    victim.start()


def submitter_killed(victim: Victim) -> None:
    """Whoever called sbatch is gone before it can write down the job's number."""
    process = victim.start(CHAOS_KILL_SUBMITTER="1")
    victim.until(victim.site.submissions.exists, "the submission")
    # What waits for several runs was killed in its stead, and another does its work.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
    victim.note()
    if victim.random.random() < 0.5:
        time.sleep(victim.random.uniform(0, 3))
    victim.start()


def two_invocations(victim: Victim) -> None:
    victim.start()
    time.sleep(victim.random.choice((0, 0, 0.3, 2)))
    victim.note()
    victim.start()


def stale_lock(victim: Victim) -> None:
    """What a machine that crashed left: locks that nobody holds, files half written."""
    victim.paths.lock.write_text("process 4000000\n")
    victim.paths.telemetry.mkdir()
    for node in ("h200-1", "h200-2", "h100-1", "h100-2", "mi250-1"):
        victim.paths.telemetry_lock(node).write_text("process 4000000\n")
    for name in ("job.json", "outcome.json", "ended.json"):
        (victim.paths.directory / f".{name}.4000000.tmp").write_text('{"job_')
    victim.note()
    victim.start()


def remove_mounts(directory: Path) -> None:
    """Unmount what faults have mounted below, and remove all of it."""
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in (each.replace("\\040", " ") for each in mounted):
        if Path(point).is_relative_to(directory):
            subprocess.run(["umount", point], check=True)
    shutil.rmtree(directory)
