# Threads of Snakemake wait for runs, hundreds at once, and Ctrl-C and SIGTERM reach them.
import _thread
import signal
import sys
import threading
import time

from snakemake.logging import logger
from snakemake.resources import Resource

from workflow_lib.launch import interruption, open_files, snapshot
from workflow_lib.launch.rendering import render_run
from workflow_lib.launch.run_to_end import run_logged
from workflow_lib.records.paths import RunPaths

open_files.raise_limit()
if workflow.is_main_process:
    # Now, as the code that this process goes on with.
    snapshot.taken()


def bound_runs_in_flight():
    """No more runs at once than open files allow; says so before anything starts."""
    most = open_files.most_runs()
    # Within a job of Slurm's, which analyses, Snakemake has the resource without a value.
    resource = workflow.global_resources.get("runs_in_flight")
    told = None if resource is None else resource.value
    asked = sys.maxsize if told is None else told
    if most < 1:
        raise WorkflowError(
            f"waiting for one run takes {open_files.FOR_THE_REST + open_files.FOR_A_RUN} open "
            f"files, and the system allows {open_files.highest_limit()}: raise `ulimit -H -n`, or ask your "
            "admin"
        )
    if asked <= most:
        return
    workflow.register_resource("runs_in_flight", Resource("runs_in_flight", most))
    if told is not None:
        logger.warning(
            f"at most {most} runs are in flight at once, not {asked}: each takes "
            f"{open_files.FOR_A_RUN} open files, and the system allows "
            f"{open_files.highest_limit()}. For more, raise `ulimit -H -n`, or ask your admin."
        )


bound_runs_in_flight()


def wait_for(directory, scheduler, log, wildcards):
    """See a run to its end, in the thread of rule run; one that is no result fails the rule."""

    def render_anew():
        """After the results were moved or copied, or the code was changed."""
        planned, run = CELLS[wildcards.cell], int(wildcards.run)
        render_run(STUDY, planned, run, Path(RESULTS), Path(ROOT))

    if workflow.subprocess_exec:
        raise WorkflowError(
            "this would take a Snakemake for each run that is waited for: add "
            "--force-use-threads, or use a profile of profiles/"
        )
    if problem := run_logged(Path(directory), scheduler, Path(log), render_anew):
        raise WorkflowError(problem)


#: the runs whose threads came, as (cell, run)
CAME = set()
#: no run waits longer than this for earlier ones: a job that comes late is worth more than none
LONGEST_WAIT_FOR_EARLIER_S = 120.0


def await_earlier(wildcards):
    """Wait until every earlier run of this invocation has come here, or will not come soon.

    Snakemake renders scripts side by side and starts a run as soon as its own is there. Without
    this the first job in Slurm's queue would be the one whose script happened to be first.
    """
    run = (wildcards.cell, int(wildcards.run))
    CAME.add(run)
    if run not in ORDER:
        return
    earlier = [
        job
        for job in list(workflow.dag.needrun_jobs())
        if job.rule.name == "run" and place_of(job.wildcards) < ORDER[run].place
    ]
    until = time.monotonic() + LONGEST_WAIT_FOR_EARLIER_S
    while any(map(comes_soon, earlier)) and time.monotonic() < until:
        if interruption.is_asked():
            return
        time.sleep(0.1)


def place_of(wildcards):
    """A run's place in the order of submission; after all others if it has none."""
    place = ORDER.get((wildcards.cell, int(wildcards.run)))
    return len(ORDER) + 1 if place is None else place.place


def comes_soon(job):
    """Whether only its script, which is being rendered, or Snakemake's next look keeps a run from
    its start. Tokens take long, and runs in flight take hours: neither is soon.
    """
    failed, ready = workflow.scheduler.failed, workflow.dag.ready_jobs
    if (job.wildcards.cell, int(job.wildcards.run)) in CAME or job in failed:
        return False
    unfinished = [
        need
        for need in workflow.dag.job_dependencies(job)
        if not workflow.dag.noneedrun_finished(need)
    ]
    if unfinished:
        return all(
            need.rule.name == "render" and need not in failed and need not in ready
            for need in unfinished
        )
    room = workflow.scheduler.resources
    return all(room.get(what, 1) > 0 for what in ("runs_in_flight", "_cores"))


def note_place(wildcards):
    """Write the run's place in the order of submission beside it."""
    run = (wildcards.cell, int(wildcards.run))
    if run in ORDER and not is_only_read(wildcards):
        order.write(RunPaths(results.run_directory(Path(RESULTS), *run)), ORDER[run])


def interrupt(number, frame):
    """Have the jobs cancelled of all runs that are waited for, and end Snakemake.

    Only the first one interrupts Snakemake, which then waits for those runs and would break if it
    were interrupted in that. The second one ends their wait for their jobs.
    """
    is_first = not interruption.is_asked()
    interruption.note_sigint()
    if is_first:
        raise KeyboardInterrupt


def note_sigterm_too():
    """Have SIGTERM end what waits to be submitted, beside what Snakemake does about it."""
    usual = signal.getsignal(signal.SIGTERM)

    def end(number, frame):
        interruption.note_sigterm()
        # Not here: Snakemake's handler takes a lock, which this thread may hold.
        _thread.start_new_thread(usual, (number, frame))

    if callable(usual):
        signal.signal(signal.SIGTERM, end)


# Not where whoever started Snakemake has it ignore Ctrl-C, as a shell does for `snakemake &`.
if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, interrupt)


# Only now has Snakemake set its own handler of SIGTERM.
onstart:
    note_sigterm_too()
