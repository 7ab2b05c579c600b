"""How long ``snakemake --dry-run`` takes over every H200 and H100 sweep of the study.

Three repeats of each cell. The claim: at most 20 s. Beside it, for scale, ``snakemake --version``.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
SNAKEMAKE = [sys.executable, "-m", "snakemake"]
TARGETS = [
    f"results-that-do-not-exist/sweeps/{sweep}-{platform}/report.html"
    for platform in ("h200", "h100")
    for sweep in ("parallelism", "optimisation", "microbatch")
]


def timed(*arguments: str) -> tuple[float, str]:
    """Seconds that a command takes, and what it printed."""
    started = time.monotonic()
    done = subprocess.run(
        [*SNAKEMAKE, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return time.monotonic() - started, done.stdout + done.stderr


def main() -> None:
    """Print the median of three."""
    start_up_s = sorted(timed("--version")[0] for _ in range(3))[1]
    arguments = ["--profile", "profiles/slurm_h200", "--dry-run", *TARGETS]
    arguments += ["--config", "results_directory=results-that-do-not-exist"]
    runs = sorted(timed(*arguments) for _ in range(3))
    seconds, output = runs[1]
    jobs = re.search(r"^total\s+(\d+)", output, flags=re.MULTILINE)
    trained = re.search(r"^run\s+(\d+)", output, flags=re.MULTILINE)
    assert jobs
    assert trained
    print(f"snakemake --version                        {start_up_s:6.2f} s")
    print(f"dry run of {trained[1]} runs in {jobs[1]} jobs        {seconds:6.2f} s (claim: 20 s)")


if __name__ == "__main__":
    main()
