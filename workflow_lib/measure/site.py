"""``triptych site begin|end DIR``: measures every job with GPUs, as Slurm's Prolog and Epilog.

Both run as root on each node of a job. begin leaves a sampler behind, in DIR/<job>; end stops it,
and the node that is last sums up. They always exit with 0, because Slurm drains a node whose Prolog
fails. PrologFlags=Alloc has them run on all nodes when a job begins.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workflow_lib.measure import conclude, sampling, summary
from workflow_lib.records.paths import RunPaths, node_name
from workflow_lib.records.whole_files import write_json
from workflow_lib.telemetry.devices import nvml

#: how long an epilog waits for its sampler, and how often it looks
_END_S, _LOOK_S = 10.0, 0.05


def command_line(prog: str) -> argparse.ArgumentParser:
    """The options of the command, which is called ``prog``."""
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("begin", "end"), help="in Prolog, and in Epilog")
    parser.add_argument("directory", type=Path, metavar="DIR", help="that all nodes see")
    conclude.add_sampling(parser, rate_hz=1.0)
    parser.add_argument(
        "--order",
        choices=("bus", "files"),
        help="how gres.conf counts GPUs, asked for where PCI bus and device files differ",
    )
    parser.add_argument(
        "--comment",
        action="store_true",
        help="at the end, write the summary as the job's AdminComment, which sacct shows",
    )
    return parser


def main(arguments: Sequence[str] | None = None, prog: str = "triptych site") -> int:
    """Begin or end measuring this node's part of a job; returns 0."""
    options = command_line(prog).parse_args(arguments)
    job_id, gpus = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_JOB_GPUS")
    if not job_id or not gpus:
        return 0
    try:
        if options.what == "begin":
            begin(options, job_id, gpus)
        else:
            end(options, job_id)
    except Exception as error:  # whatever fails here, the job runs and the node stays up
        conclude.say(f"job {job_id} on {node_name()}: {type(error).__name__}: {error}")
    return 0


def begin(options: argparse.Namespace, job_id: str, gpus: str) -> None:
    """Leave a sampler behind. Raises OSError."""
    # Slurm's numbers are not always those of CUDA.
    environment = {**os.environ, "TRIPTYCH_JOB_ID": job_id}
    if not options.simulate and any(Path("/dev").glob("nvidia[0-9]*")):
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(nvml.slurm_gpus(gpus, options.order))
    if not options.directory.is_dir():
        # Where a shared file system is not mounted, the node's own would fill.
        raise FileNotFoundError(f"{options.directory} is no directory: make it, or mount it")
    paths = _open_run(options.directory, job_id)
    for path in (paths.steps, paths.telemetry, paths.logs):
        path.mkdir(parents=True, exist_ok=True)
    if not paths.measured.exists():
        known = summary.nothing_told("job", job_id=job_id, warmup_steps=0)
        write_json(paths.measured, summary.unfinished({**known, "started_unix_s": time.time()}))
    words = [*sampling.own_words(), "sample", "--alone", f"--rate={options.rate:g}"]
    words += [f"--simulate={options.simulate}", str(paths.directory)]
    with (paths.logs / f"sampler-{node_name()}.log").open("ab") as log:
        subprocess.run(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=False,
            # Slurm kills what is left of its prolog's session.
            start_new_session=True,
        )


def end(options: argparse.Namespace, job_id: str) -> None:
    """Stop this node's sampler; sum up if no other node has one. Raises OSError and ValueError."""
    paths = _open_run(options.directory, job_id)
    node = node_name()
    _stop_sampler(paths, node)
    nodes = paths.sampled_nodes()
    if not nodes or not all(paths.telemetry_end(sampled).exists() for sampled in nodes):
        return
    code, _, number = os.environ.get("SLURM_JOB_EXIT_CODE2", "").partition(":")
    start, last = summary.covered_unix_s(paths)
    known = summary.nothing_told("job", job_id=job_id, warmup_steps=0)
    known.update(started_unix_s=start, ended_unix_s=last)
    if code:
        known.update(exit_code=int(code), signal=int(number) or None)
    wanted = int(os.environ.get("SLURM_JOB_NUM_NODES") or 0)
    unseen = f"{wanted - len(nodes)} of {wanted} nodes were not sampled"
    problems = [unseen] if wanted > len(nodes) else []
    for sampled in nodes:
        if not summary.read_json(paths.telemetry_start(sampled))["gpus"]:
            problems.append(f"no GPU was seen on {sampled}: its driver is not there, or hidden")
    for problem in problems:
        conclude.say(f"job {job_id} on {node}: {problem}")
    text = paths.logs / "summary.txt"
    with text.open("w", encoding="utf-8") as stream, contextlib.redirect_stderr(stream):
        conclude.conclude(paths, known, None, problems)
    if options.comment:
        record = summary.read_json(paths.measured)
        # scontrol changes no job that has ended, which one with an epilog has.
        words = ["sacctmgr", "--immediate", "modify", "job", "where", f"jobid={job_id}", "set"]
        words.append(f"AdminComment={comment_of(record)}")
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"sacctmgr: {(done.stderr or done.stdout).strip()}")


def comment_of(record: Mapping[str, Any]) -> str:
    """A line for sacct. sacctmgr makes its letters small, so units are spelt in names."""
    known = {} if record["invalid"] else record["values"]
    values = {
        "energy_j": known.get("energy_j"),
        "power_w": known.get("power_mean_w"),
        "gpus": len(record["gpus"]),
        "nodes": len(record["nodes"]),
    }
    words = [f"{name}={value:.6g}" for name, value in values.items() if value is not None]
    words.append("not valid" if record["invalid"] else "valid")
    words += ["simulated"] if record["simulated"] else []
    return f"triptych: {' '.join(words)}"


def _open_run(directory: Path, job_id: str) -> RunPaths:
    """The directory of a job that has not ended: of one that was requeued, the next one."""
    number = 1
    while True:
        name = job_id if number == 1 else f"{job_id}-{number}"
        paths = RunPaths(directory.absolute() / name)
        if not paths.measured.exists():
            return paths
        if summary.read_json(paths.measured)["ended_unix_s"] is None:
            return paths
        number += 1


def _stop_sampler(paths: RunPaths, node: str) -> None:
    """Ask the sampler of this node to end, and wait until it has."""
    try:
        pid = int(paths.telemetry_lock(node).read_text(encoding="ascii").split()[1])
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, IndexError, ValueError):  # none began, or it has ended
        return
    # The number may be that of another process by now.
    if str(paths.directory).encode() not in words:
        return
    os.kill(pid, signal.SIGTERM)
    until_s = time.monotonic() + _END_S
    while not paths.telemetry_end(node).exists() and time.monotonic() < until_s:
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    sys.exit(main())
