"""What one process that waits for a run costs: its resident memory, and how long it takes to start.

A workflow keeps one such process for each run in flight, on a login node that others use too. This
one waits for a local job that never ends, and is ended here once it has looked around for a while.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from workflow_lib import records
from workflow_lib.records import JobRecord, RunPaths

#: what a waiting process may hold, in MB of 10⁶ bytes
LIMIT_MB = 40.0
#: long enough for the process to import, to ask the scheduler and to look at the run repeatedly
WATCHED_S = 6.0
_JOB = "while :; do sleep 1; done\n"


def memory_mb(process: int) -> dict[str, float]:
    """Resident memory of a process: now (VmRSS) and at its highest (VmHWM), in MB."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM")}


def import_time_s(statement: str) -> float:
    """The shortest of five times that a new interpreter takes for ``statement``."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], cwd=ROOT, check=True)
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> int:
    """Returns 1 where a waiting process holds more than LIMIT_MB."""
    with tempfile.TemporaryDirectory() as directory:
        paths = RunPaths(Path(directory))
        paths.script.write_text(_JOB, encoding="utf-8")
        with subprocess.Popen(["bash", str(paths.script)]) as job:
            records.write_json(
                paths.job,
                JobRecord("local", str(job.pid), submitted_unix_s=time.time(), submitted_by="this"),
            )
            command = [sys.executable, "-m", "workflow_lib.launch", "run", directory]
            with subprocess.Popen(
                [*command, "--scheduler", "local"], cwd=ROOT, stderr=subprocess.DEVNULL
            ) as waiting:
                time.sleep(WATCHED_S)
                alive = waiting.poll() is None
                memory = memory_mb(waiting.pid) if alive else {}
                waiting.terminate()
            job.terminate()
    if not alive:
        print("the waiting process ended by itself", file=sys.stderr)
        return 1
    bare_s = import_time_s("pass")
    loaded_s = import_time_s("from workflow_lib.launch import submit")
    print(
        f"waiting process: {memory['VmRSS']:.1f} MB resident, {memory['VmHWM']:.1f} MB at most "
        f"(limit {LIMIT_MB:.0f} MB); imports take {loaded_s - bare_s:.2f} s on top of an "
        f"interpreter's {bare_s:.2f} s"
    )
    return int(memory["VmHWM"] > LIMIT_MB)


if __name__ == "__main__":
    sys.exit(main())
