"""What this workflow costs a cluster and its login node, beside Snakemake's executor plugin.

On the throwaway Slurm (``make slurm-cluster`` first), one client after the other:

``flight``      Slurm commands a minute, memory and CPU time with 1, 50 and 400 runs in flight.
                Their jobs wait in a partition that is down, so that a small machine can hold 400:
                submitted and not ended, they are in flight, and both clients ask about all of them.
``dead_jobs``   from the end of a job that was killed without an end record, or that failed, until
                Snakemake says so. Jobs of both clients idle on emulated nodes.
``allocation``  GPU-seconds of an allocation outside of training and baseline, for a run of one GPU.
``wasted``      GPU-seconds from a fault after which a run cannot become a result any more, to the
                end of its allocation.

The plugin checks as it does by default: 40 s after its start, then every 20, 30, … up to 180 s; and
40 s after it saw a job end. Slurm's own times are whole seconds.
"""

from __future__ import annotations

import argparse
import signal
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.measuring.parts import Log, run_parts
from research.measuring.slurm_bench import CLIENTS, Bench
from research.measuring.slurm_parts import allocation, dead_jobs, flight
from research.measuring.wasted import wasted

PARTS = {"flight": flight, "dead_jobs": dead_jobs, "allocation": allocation, "wasted": wasted}


def main() -> int:
    """Print the tables. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--runs", nargs="+", type=int, default=[1, 50, 400], help="in flight")
    parser.add_argument("--window-s", type=float, default=120.0, help="in which is counted")
    parser.add_argument("--deaths", type=int, default=10, help="jobs of each kind that are ended")
    parser.add_argument("--apart-s", type=float, default=8.0, help="between them, on average")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each client for allocation")
    parser.add_argument("--faults", type=int, default=3, help="runs with each kind of fault")
    parser.add_argument(
        "--output", type=Path, help="append every figure to this file; tables show all it holds"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    log = Log(arguments.output)
    bench = Bench(arguments, log)
    if not bench.cluster.is_up():
        print("slurm_clients: needs a running Slurm; `make slurm-cluster` starts one (skipped)")
        return 0
    parts = {name: partial(part, bench) for name, part in PARTS.items()}
    return run_parts(parts, arguments.parts, log)


if __name__ == "__main__":
    sys.exit(main())
