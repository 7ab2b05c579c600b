"""Starts a local job under submitit's controller: ``python -m … <folder> <command> <minutes>``.

This is a process of its own, the leader of a new session. So closing a terminal does not end the
job, and a process that waits for the job need not import submitit. Prints the controller's process
id.
"""

from __future__ import annotations

import os
import sys

import submitit


def main() -> None:
    """Start the job, detached from the standard streams of the caller."""
    folder, command, minutes = sys.argv[1:]
    answer = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    executor = submitit.LocalExecutor(folder=folder)
    executor.update_parameters(timeout_min=int(minutes), stderr_to_stdout=True)
    os.write(answer, str(executor._submit_command(command).job_id).encode())


if __name__ == "__main__":
    main()
