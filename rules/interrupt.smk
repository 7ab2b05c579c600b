# Ctrl-C, for the processes that wait for runs.
import os
import signal
import threading
from contextlib import suppress

from workflow_lib.launch import processes


def pass_interrupt_on(number, frame):
    """Let whoever waits for a run know of Ctrl-C, so that its job is cancelled.

    From a terminal it reaches them as well, and counts once. But `kill -INT` reaches Snakemake
    alone, which would then wait for every run that is under way until that ends by itself.
    """
    for process in processes.descendants(os.getpid()):
        if "workflow_lib.launch" in processes.arguments(process):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGINT)
    raise KeyboardInterrupt


# Not where whoever started Snakemake has it ignore Ctrl-C, as a shell does for `snakemake &`.
if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, pass_interrupt_on)
