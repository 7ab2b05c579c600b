"""Traces as Kineto writes them, made up; times in µs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workflow_lib.analysis.traces.analysis import TraceAnalysis, analyse

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, FillFunctor<float>>"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECEIVE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def kernel(name: str, start: float, end: float, cat: str = "kernel", **args: Any) -> dict[str, Any]:
    """A kernel of the name from ``start`` to ``end``."""
    event = {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7}
    return {**event, "ts": start, "dur": end - start, "args": {"stream": 7, **args}}


def collective(
    start: float,
    end: float,
    ranks: Sequence[int],
    *,
    kind: str = "allreduce",
    name: str = ALL_REDUCE,
    elements: tuple[int, int] = (1_000_000, 1_000_000),
    **args: Any,
) -> dict[str, Any]:
    """A collective's kernel, with what torch says of it."""
    said = {
        "Collective name": kind,
        "In msg nelems": elements[0],
        "Out msg nelems": elements[1],
        "Group size": len(ranks),
        "dtype": "BFloat16",
        "Process Group Name": "1",
        "Process Group Ranks": str(list(ranks)),
    }
    return kernel(name, start, end, **said, **args)


def step(number: int, start: float, end: float) -> dict[str, Any]:
    """The profiler's mark of a step on the host."""
    return kernel(f"ProfilerStep#{number}", start, end, cat="user_annotation")


def launch(at: float, correlation: int) -> dict[str, Any]:
    """A launch on the host, 1 µs long."""
    return kernel("cudaLaunchKernel", at, at + 1, cat="cuda_runtime", correlation=correlation)


def text(events: Sequence[Mapping[str, Any]], **header: Any) -> str:
    """The file's text, with the header before the events and ``traceName`` after them."""
    lines = ",\n".join("  " + json.dumps(event, indent=2) for event in events)
    before = json.dumps({"schemaVersion": 1, **header})[:-1]
    return f'{before},\n  "traceEvents": [\n{lines}\n  ], "traceName": "x" }}\n'


def write(path: Path, events: Sequence[Mapping[str, Any]], **header: Any) -> Path:
    """Write a trace, gzipped where the path says so."""
    data = text(events, **header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def analysed(tmp_path: Path, *ranks: Sequence[Mapping[str, Any]], **options: Any) -> TraceAnalysis:
    """Analyse one trace a rank."""
    paths = {r: write(tmp_path / f"{r}.json", events) for r, events in enumerate(ranks)}
    return analyse(paths, **options)
