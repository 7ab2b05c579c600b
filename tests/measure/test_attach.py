"""What scontrol says of a job, as its versions print it."""

from pathlib import Path

import pytest

from workflow_lib.measure.attach import AttachError, Job, parse_job

#: of Slurm 22.05, shortened
RUNNING = """JobId=42 JobName=train me
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   NodeList=h200-[1-2]
   NumNodes=2 NumCPUs=4 NumTasks=4 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   StdErr=/home/me/my jobs/42.out
   StdOut=/home/me/my jobs/42.out
"""


def test_a_job_that_runs():
    job = parse_job(RUNNING)
    assert job == Job("RUNNING", 2, Path("/home/me/my jobs/42.out"), None, None)


def test_a_job_that_was_killed_and_had_no_file():
    ended = RUNNING.replace("RUNNING", "CANCELLED").replace("ExitCode=0:0", "ExitCode=0:15")
    ended = "\n".join(line for line in ended.splitlines() if "StdOut" not in line)
    assert parse_job(ended) == Job("CANCELLED", 2, None, 0, 15)


def test_a_pending_job_has_a_range_of_nodes_and_no_end():
    pending = RUNNING.replace("RUNNING", "PENDING").replace("NumNodes=2", "NumNodes=2-4")
    assert parse_job(pending)[:2] == ("PENDING", 2)


def test_an_array_is_refused():
    with pytest.raises(AttachError):
        parse_job(RUNNING + "\n" + RUNNING.replace("JobId=42", "JobId=43"))
