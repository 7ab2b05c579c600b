"""``triptych attach JOBID``: measure a job of Slurm that runs already, until it ends.

Type it where you submit jobs. Each of the job's nodes gets a sampler, in a step beside the job's
own. Nothing of the job is changed. Ctrl-C ends the measurement, not the job.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from workflow_lib.audit import DamagedError
from workflow_lib.measure import conclude, sampling, summary
from workflow_lib.measure.allocation import Allocation
from workflow_lib.measure.log_steps import LogSteps, PatternError
from workflow_lib.records.whole_files import write_json

_LOOK_EVERY_S = 0.2


class AttachError(Exception):
    """The job cannot be measured. The message says why."""


class Job(NamedTuple):
    """What scontrol says of a job."""

    state: str
    nodes: int
    #: where its output goes, as its batch script was submitted
    output: Path | None
    #: of its batch script, and the signal that ended it; None while it runs
    exit_code: int | None
    signal: int | None


def find_job(job_id: str) -> Job:
    """A job by its number. Raises AttachError."""
    words = ["scontrol", "show", "job", job_id]
    try:
        shown = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise AttachError(f"scontrol cannot be started: {error.strerror}") from None
    if shown.returncode:
        why = (shown.stderr or shown.stdout).strip().splitlines()[-1:]
        raise AttachError(f"job {job_id}: {''.join(why)}")
    return parse_job(shown.stdout)


def parse_job(text: str) -> Job:
    """The answer of ``scontrol show job``. Raises AttachError for several jobs, as of an array."""
    if len(re.findall(r"^JobId=", text, re.MULTILINE)) != 1:
        raise AttachError("this is an array; name one of its jobs, as in 1234_5")
    fields = dict(re.findall(r"(?:^|\s)(JobState|NumNodes|ExitCode)=(\S+)", text))
    output = re.search(r"^\s*StdOut=(.+)$", text, re.MULTILINE)
    ended = fields["JobState"] not in ("RUNNING", "PENDING", "SUSPENDED")
    code, _, signal = fields["ExitCode"].partition(":")
    return Job(
        state=fields["JobState"],
        nodes=int(fields["NumNodes"].partition("-")[0]),
        output=Path(output[1]) if output else None,
        exit_code=int(code) if ended else None,
        signal=(int(signal) or None) if ended else None,
    )


def command_line(prog: str) -> argparse.ArgumentParser:
    """The options of the command, which is called ``prog``."""
    parser = argparse.ArgumentParser(prog=prog, description=(__doc__ or "").split("\n")[0])
    parser.add_argument("job", metavar="JOBID", help="a job that runs")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="the run's directory (default: triptych-JOBID)"
    )
    conclude.add_steps(parser)
    parser.add_argument("--log", type=Path, metavar="FILE", help="with steps, if not the job's own")
    conclude.add_pattern(parser)
    conclude.add_records(parser)
    conclude.add_sampling(parser)
    return parser


def main(arguments: Sequence[str] | None = None, prog: str = "triptych attach") -> int:
    """Measure a job that runs; returns the exit code."""
    parser = command_line(prog)
    options = parser.parse_args(arguments)
    try:
        return attach(options)
    except (AttachError, PatternError) as error:
        parser.error(f"nothing is measured: {error}")
    except (DamagedError, ValueError) as error:
        parser.error(f"what was measured cannot be summed up: {error}")
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}; nothing is measured")


def attach(options: argparse.Namespace) -> int:
    """Measure a job to its end; returns the exit code. Raises AttachError, PatternError and
    OSError."""
    job = find_job(options.job)
    if job.state != "RUNNING":
        raise AttachError(f"job {options.job} is {job.state.lower()}; only one that runs can be")
    paths = sampling.new_directory(options.output or Path(f"triptych-{options.job}"))
    log = None if options.records else options.log or job.output
    follower = log and LogSteps(log, paths.steps, options.pattern, options.warmup_steps)
    allocation = Allocation(options.job, job.nodes, is_elsewhere=True)
    samplers = sampling.Samplers(paths.directory, allocation, options.rate, options.simulate)
    samplers.wait_until_ready()
    if samplers.problem:
        samplers.stop()
        raise AttachError(samplers.problem)
    known = summary.nothing_told(
        "attach",
        job_id=options.job,
        started_unix_s=time.time(),
        warmup_steps=options.warmup_steps,
        tokens_per_step=options.tokens_per_step,
    )
    write_json(paths.measured, summary.unfinished(known))
    if follower:
        follower.start()
    conclude.say(f"job {options.job} is measured until it ends; Ctrl-C ends this, not the job")
    with suppress(KeyboardInterrupt):
        while not samplers.ended:
            time.sleep(_LOOK_EVERY_S)
    known["ended_unix_s"] = time.time()
    if follower:
        follower.stop()
    job_ended = samplers.ended
    samplers.stop()
    # Slurm ends the samplers with the job, so that they have ended is no fault of theirs.
    problems: list[str] = [] if job_ended else [samplers.problem]
    if job_ended:
        known["ended_unix_s"] = summary.covered_unix_s(paths)[1]
        with suppress(AttachError):
            job = find_job(options.job)
        known.update(exit_code=job.exit_code, signal=job.signal)
    problems.append(follower.problem if follower else "")
    return int(not conclude.conclude(paths, known, options.records, filter(None, problems)))


if __name__ == "__main__":
    sys.exit(main())
