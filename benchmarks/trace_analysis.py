"""Trace analysis against HolisticTraceAnalysis, on the same traces in the same run.

    python benchmarks/trace_analysis.py TRACES [--peer PYTHON] [--large MEGABYTES]

TRACES is a directory of Kineto traces: those that the peer's own tests use are in ``tests/data`` of
https://github.com/facebookresearch/HolisticTraceAnalysis. PYTHON is the interpreter of an
environment with the peer, made by

    python -m venv peer && peer/bin/pip install HolisticTraceAnalysis==0.5.0 pandas==3.1.1

First the temporal breakdown and the overlap of communication are compared, in percent of what the
peer gives. Where they are more than 0.1 percentage points apart, the peer is run again without what
explains it: rounding times to whole microseconds, counting waits of the CPU for the GPU
(``cuda_sync``), leaving out the last step only from where the GPU begins it (which
``gpu_user_annotation`` says) and not from where the host does, and lastly the rest of what is
neither kernel, copy nor set as kernels. Then comes
the largest trace, repeated with later times and other identifiers up to MEGABYTES of JSON text.

Each measurement is a process of its own on one core. Speed is megabytes of JSON text by seconds of
CPU time from the opened file to the finished tables, without imports; memory is the whole process's
at its peak. Exits 1 where a difference stays, speed is less than 15 times the peer's, or memory
above 512 MB for a gigabyte.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

BAR_POINTS, BAR_RATIO, BAR_MEMORY_BYTES = 0.1, 15.0, 512e6
FIGURES = ("idle", "computation", "other", "overlap")
ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}


def peak_memory_bytes() -> int:
    """Of this process alone: what ``getrusage`` says counts the process that it was forked from."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


def run_ours(path: Path) -> None:
    """Percentages over what the peer keeps: launches before the last step, if there are several."""
    import polars as pl

    from workflow_lib.analysis.traces.analysis import analyse
    from workflow_lib.analysis.traces.breakdown import rank_times
    from workflow_lib.analysis.traces.names import OTHER_COMPUTATION, UNKNOWN
    from workflow_lib.analysis.traces.reading import read_trace

    started_s = time.process_time()
    analyse({0: path})
    cpu_s = time.process_time() - started_s
    print(json.dumps({"cpu_s": cpu_s, "memory_bytes": peak_memory_bytes()}))
    trace = read_trace(path)
    kernels = trace.kernels
    if trace.steps.height > 1:
        kernels = kernels.filter(pl.col("launched_ns") < trace.steps["start_ns"].max())
    # To the peer every kernel is computation that is not NCCL's.
    known = pl.col("class").replace(UNKNOWN, OTHER_COMPUTATION)
    times = rank_times(kernels.with_columns(known.alias("class")))
    span_s, idle_s, computation_s = (times[f"{n}_s"] for n in ("span", "idle", "computation"))
    if span_s is None or idle_s is None or computation_s is None:
        return
    communication_s, overlapped_s = times["communication_s"], times["overlapped_communication_s"]
    figures = {
        "idle": 100 * idle_s / span_s,
        "computation": 100 * computation_s / span_s,
        "other": 100 * (span_s - idle_s - computation_s) / span_s,
        "overlap": 100 * (overlapped_s or 0) / communication_s if communication_s else None,
    }
    print(json.dumps(figures))


PEER = """
import json, logging, re, sys, time
from hta.trace_analysis import TraceAnalysis
logging.disable(logging.CRITICAL)
started = time.process_time()
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
times = analysis.get_temporal_breakdown(visualize=False).iloc[0]
try:
    overlap = float(analysis.get_comm_comp_overlap(visualize=False).iloc[0, 1])
except (ValueError, KeyError):
    overlap = None  # it has no answer without communication
cpu_s = time.process_time() - started
peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())
cost = {"cpu_s": cpu_s, "memory_bytes": int(peak[1]) * 1024}
print(json.dumps(cost))
span = float(times["kernel_time(us)"])
print(json.dumps({
    "idle": 100 * float(times["idle_time(us)"]) / span,
    "computation": 100 * float(times["compute_time(us)"]) / span,
    "other": 100 * float(times["non_compute_time(us)"]) / span,
    "overlap": None if overlap is None or overlap != overlap else overlap,
}))
"""


def measured(command: list[str], **variables: str) -> dict[str, Any] | None:
    """What a process printed, or None where it failed."""
    fixed = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1", **variables}
    core = min(os.sched_getaffinity(0))
    done = subprocess.run(
        ["taskset", "--cpu-list", str(core), *command],
        env=os.environ | fixed,
        capture_output=True,
        text=True,
        check=False,
    )
    found: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        found |= json.loads(line) if line.startswith("{") else {}
    return found if done.returncode == 0 and "cpu_s" in found else None


def text_of(path: Path) -> bytes:
    """A trace's JSON text."""
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def without(path: Path, categories: set[str] | None, directory: Path) -> Path:
    """A copy without events of some categories, or without all on streams but kernels."""
    trace = json.loads(text_of(path))

    def stays(event: dict[str, Any]) -> bool:
        if categories is not None:
            return event.get("cat") not in categories
        return event.get("cat") in ON_GPU or "stream" not in event.get("args", {})

    trace["traceEvents"] = [event for event in trace["traceEvents"] if stays(event)]
    copy = directory / f"without-{path.name.removesuffix('.gz')}"
    copy.write_text(json.dumps(trace))
    return copy


def apart(ours: dict[str, Any], peers: dict[str, Any]) -> float:
    """The largest difference of a figure that both have, in percentage points."""
    both = [name for name in FIGURES if None not in (ours.get(name), peers.get(name))]
    return max((abs(ours[name] - peers[name]) for name in both), default=0.0)


def explained(path: Path, ours: dict[str, Any], peer: str) -> Iterator[tuple[str, float]]:
    """What is left of a difference once the peer does without what we leave out."""
    exact = {"HTA_DISABLE_NS_ROUNDING": "1"}
    waits, annotations = {"cuda_sync"}, {"cuda_sync", "gpu_user_annotation"}
    with tempfile.TemporaryDirectory() as name:
        for what, copied in (
            ("without rounding to µs", lambda: path),
            ("… and without cuda_sync", lambda: without(path, waits, Path(name))),
            ("… and without gpu_user_annotation", lambda: without(path, annotations, Path(name))),
            ("… and without other events on streams", lambda: without(path, None, Path(name))),
        ):
            peers = measured([peer, "-c", PEER, str(copied())], **exact)
            if peers is not None:
                yield what, apart(ours, peers)


def large(path: Path, size_bytes: int, directory: Path) -> tuple[Path, int]:
    """A trace repeated up to a size, each time later and with identifiers of its own."""
    text = text_of(path)
    begin = re.search(rb'"traceEvents"\s*:\s*\[', text)
    assert begin, f"{path}: no events"
    end = text.rindex(b"}", 0, text.rindex(b"]")) + 1
    events = text[begin.end() : end]
    times = [float(t) for t in re.findall(rb'"ts": (\d+)', events)]
    length = int(max(times) - min(t for t in times if t)) + 1_000_000
    pattern = re.compile(rb'("(?:ts|correlation|External id|id)": |ProfilerStep#)(\d+)')
    target = directory / "large.json.gz"
    written = 0
    with gzip.open(target, "wb", compresslevel=6) as stream:
        written += stream.write(text[: begin.end()])
        for copy in range(max(1, -(-size_bytes // len(events)))):
            shift = {b'"ts": ': copy * length, b"ProfilerStep#": copy * 1000}

            def later(
                match: re.Match[bytes], shift: dict[bytes, int] = shift, k: int = copy
            ) -> bytes:
                return match[1] + b"%d" % (int(match[2]) + shift.get(match[1], k * 10_000_000))

            written += stream.write((b"," if copy else b"") + pattern.sub(later, events))
        written += stream.write(text[end:])
    return target, written


def compare(paths: list[Path], peer: str) -> tuple[bool, Path]:
    """Print both sides of every trace; return whether all agree, and the largest trace."""
    print(f"{'trace':44} {'':5}" + "".join(f"{name:>13}" for name in FIGURES) + "   MB/s    MB")
    agree, sizes = True, {}
    for path in paths:
        if b'"mtia_' in text_of(path):
            print(f"{path.name[:44]:44} not compared: of an accelerator other than a GPU (MTIA)")
            continue
        ours = measured([sys.executable, __file__, "--ours", str(path)])
        peers = measured([peer, "-c", PEER, str(path)])
        if ours is None or "idle" not in ours or peers is None:
            who = "we fail" if ours is None else "the peer fails" if peers is None else "no kernels"
            print(f"{path.name[:44]:44} not compared: {who}")
            continue
        sizes[path] = len(text_of(path))
        for who, found in (("ours", ours), ("peer", peers)):
            figures = "".join(
                f"{found[n]:12.3f}%" if found.get(n) is not None else f"{'–':>13}" for n in FIGURES
            )
            speed, memory = sizes[path] / 1e6 / found["cpu_s"], found["memory_bytes"] / 1e6
            name = path.name[:44] if who == "ours" else ""
            print(f"{name:44} {who:5}{figures}{speed:7.1f}{memory:6.0f}")
        difference = apart(ours, peers)
        if difference > BAR_POINTS:
            print(f"{'':50}{difference:.3f} points apart")
            for what, difference in explained(path, ours, peer):
                print(f"{'':50}{difference:.3f} {what}")
                if difference <= BAR_POINTS:
                    break
        agree &= difference <= BAR_POINTS
    return agree, max(sizes, key=lambda path: sizes[path])


def main() -> None:
    """Compare all traces, then measure a large one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("traces", type=Path, nargs="?")
    parser.add_argument("--peer", default=sys.executable, help="a Python that has the peer")
    parser.add_argument("--large", type=int, default=1000, help="MB of JSON text; 0 leaves it out")
    parser.add_argument("--ours", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.ours:
        return run_ours(chosen.ours)
    if chosen.traces is None:
        print("no directory of traces was given: see the head of this file")
        return None
    good, largest = compare(sorted(chosen.traces.glob("*.json*")), chosen.peer)
    if chosen.large:
        with tempfile.TemporaryDirectory() as name:
            path, size = large(largest, chosen.large * 1_000_000, Path(name))
            ours = measured([sys.executable, __file__, "--ours", str(path)])
            peers = measured([chosen.peer, "-c", PEER, str(path)])
            assert ours, "the large trace could not be read"
            print(f"\n{size / 1e6:.0f} MB of JSON text from {largest.name}:")
            for who, found in (("ours", ours), ("peer", peers)):
                if found:
                    speed, memory = size / 1e6 / found["cpu_s"], found["memory_bytes"] / 1e6
                    print(f"  {who}: {speed:.1f} MB/s a core, {memory:.0f} MB at the peak")
            ratio = peers["cpu_s"] / ours["cpu_s"] if peers else float("nan")
            print(f"  {ratio:.1f} times the peer's speed (goal {BAR_RATIO:.0f})")
            good &= ratio >= BAR_RATIO and ours["memory_bytes"] <= BAR_MEMORY_BYTES * size / 1e9
    return sys.exit(not good)


if __name__ == "__main__":
    main()
