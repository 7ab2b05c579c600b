"""Zeus's power monitor for all GPUs, as its documentation starts it, until standard input ends.

    python3 benchmarks/measuring/zeus_monitor.py RATE_HZ

It prints ``ready`` once it polls, and at the end how many samples it kept of each power domain and
GPU. It is a program of its own because Zeus's polling processes import the main program again.
"""

from __future__ import annotations

import json
import sys


def main() -> int:
    """Monitor until standard input ends; returns the exit code."""
    from zeus.monitor import PowerMonitor

    monitor = PowerMonitor(update_period=1 / float(sys.argv[1]))
    print("ready", flush=True)
    sys.stdin.read()
    timelines = monitor.get_all_power_timelines()
    monitor.stop()
    print(
        json.dumps(
            {
                domain: {gpu: len(samples) for gpu, samples in of_gpus.items()}
                for domain, of_gpus in timelines.items()
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
