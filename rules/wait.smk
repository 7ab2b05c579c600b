# Threads of Snakemake wait for runs, hundreds at once, and Ctrl-C reaches them.
import signal
import sys
import threading

from snakemake.logging import logger
from snakemake.resources import Resource

from workflow_lib.launch import interruption, open_files
from workflow_lib.launch.owner.rule_run import run_logged

open_files.raise_limit()


def bound_runs_in_flight():
    """No more runs at once than open files allow; says so before anything starts."""
    most = open_files.most_runs()
    told = workflow.global_resources.get("runs_in_flight")
    asked = sys.maxsize if told is None else told.value
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


def wait_for(directory, scheduler, log):
    """See a run to its end, in the thread of rule run; one that is no result fails the rule."""
    if workflow.subprocess_exec:
        raise WorkflowError(
            "this would take a Snakemake for each run that is waited for: add "
            "--force-use-threads, or use a profile of profiles/"
        )
    if problem := run_logged(Path(directory), scheduler, Path(log)):
        raise WorkflowError(problem)


def interrupt(number, frame):
    """Have the jobs cancelled of all runs that are waited for, and end Snakemake."""
    interruption.note_sigint()
    raise KeyboardInterrupt


# Not where whoever started Snakemake has it ignore Ctrl-C, as a shell does for `snakemake &`.
if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, interrupt)
